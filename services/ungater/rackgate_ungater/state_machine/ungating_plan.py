"""Which gated pods of a PodSet are ungated, and into which domains. Pure.

Inputs: what was admitted for the PodSet (`podset_admission`), its pods, and open earlier writes.
For an elastic PodSet, the counts of admitted slices are added until the slice is merged: then the
count of the parent includes it.

`plan_ungating` has three phases:

1. Each live ungated pod counts in the domain that its nodeSelector names, also while it
   terminates (CH-31, SLC-17). A pod outside all domains counts only toward the PodSet. If its
   deletion is overdue as well, its node failed and its domain was replaced: then it does not
   count, so that its replacement can start. The caller knows how long a deletion has lasted.
2. A pod whose earlier write may still arrive (`pinned`) gets the domain of that write, or none.
3. The others get the domain of their rank (`ranks.py`), or, without usable ranks, the first free
   domain in the order of the assignment; pods with a nodeSelector of their own come first.

Invariants: a domain never gets more pods than its count, a PodSet never more than its admitted
count. Equal input gives equal plans. Time is O(p log p + d) for p pods and d domains.

Pods of elastic jobs and of gangs have several gates, and one write removes all. In elastic jobs a
pod that already lost one of them comes first. Elastic jobs may have more gated pods than were
admitted: these are released when slices are admitted. Without topology there is a single domain
without levels. Whether a gang may start at all is decided later, about all PodSets (`gangs.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from rackgate.api import names
from rackgate.api.names import slice_ordinal
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_ungater.state_machine.gated_objects import (
    ADMISSION,
    ELASTIC,
    GANG,
    TOPOLOGY,
    GatedPod,
    GatedPodSet,
    GatedWorkload,
    PodUid,
)
from rackgate_ungater.state_machine.ranks import RankFault, RankSource, rank_source, read_ranks

_UNRANKED = 1 << 40  # sorts after every index


@dataclass(frozen=True, slots=True)
class PodSetAdmission:
    """Limits for ungating pods of one PodSet.

    Attributes:
        podset: name.
        count: admitted pods; the assignment may cover fewer (if the slice size does not divide it).
        assignment: domains in rank order, with their counts.
        ranks: where pods have their rank; None for greedy filling.
        unhealthy: hosts to be replaced: no pod is sent there (U3).
        gates: gates of its pods without that of gangs, as bits; all are removed together.
        read_error: why a slice could not be included; empty if all were.
        reclaimable: admitted pods that have succeeded since; they reduce the limit.
    """

    podset: str
    count: int
    assignment: TopologyAssignment
    ranks: RankSource | None = None
    unhealthy: tuple[str, ...] = ()
    gates: int = TOPOLOGY
    read_error: str = ""
    reclaimable: int = 0
    _index_by_domain: dict[Domain, int] = field(init=False, repr=False, compare=False)
    _cumulative_counts: list[int] = field(init=False, repr=False, compare=False)
    _indices_by_leaf_value: dict[str, list[int]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        domains = self.assignment.domains
        object.__setattr__(self, "_index_by_domain", {d: i for i, (d, _) in enumerate(domains)})
        object.__setattr__(
            self, "_cumulative_counts", list(accumulate(count for _, count in domains))
        )

    @property
    def max_ungated(self) -> int:
        """Maximum number of live ungated pods."""
        admitted = min(self.count, self._cumulative_counts[-1] if self._cumulative_counts else 0)
        return max(0, admitted - self.reclaimable)

    @property
    def holding(self) -> int:
        """Gates of which each one keeps a pod gated, as bits."""
        return self.gates | GANG

    @property
    def elastic(self) -> bool:
        """Whether the PodSet may be resized while it runs."""
        return bool(self.gates & ELASTIC)

    def domain_index(self, domain: Domain) -> int | None:
        """Index of a domain in the assignment, None if it is not in it."""
        return self._index_by_domain.get(domain)

    def domain_indices_with(self, value: str) -> Sequence[int]:
        """Indexes of the domains whose lowest level has that value, in list order."""
        if not self._indices_by_leaf_value:
            for domain_index, (domain, _) in enumerate(self.assignment.domains):
                self._indices_by_leaf_value.setdefault(domain[-1], []).append(domain_index)
        return self._indices_by_leaf_value.get(value, ())

    def domain_index_of_pod(self, pod: GatedPod) -> int | None:
        """Index of the domain that the nodeSelector of an ungated pod names."""
        selector = pod.selector
        return self._index_by_domain.get(
            tuple([selector.get(k, "") for k in self.assignment.levels])
        )

    def domain_index_of_rank(self, rank: int) -> int | None:
        """Index of the domain whose interval of cumulative counts contains `rank`."""
        domain_index = bisect_right(self._cumulative_counts, rank)
        return domain_index if domain_index < len(self._cumulative_counts) else None


class Ungate(msgspec.Struct, frozen=True, gc=False):
    """Remove our gates from one pod and send it to one domain, in one write.

    Attributes:
        pod: as it was when the decision was made: the write is bound to its UID and version.
        levels: node label keys; none if only the number was admitted.
        domain: one value per level.
        gates: to remove, as bits.
        run: of a pod of a gang: the run that it is released under.
    """

    pod: GatedPod
    levels: tuple[str, ...]
    domain: Domain
    gates: int = TOPOLOGY
    run: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """An Event for users, recorded once per change.

    Attributes:
        reason: Event reason, CamelCase.
        podset: whose pods.
        message: stable text.
        pod: the subject; None for the Workload.
    """

    reason: str
    podset: str
    message: str
    pod: GatedPod | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one PodSet now.

    Attributes:
        ungates: never more than there is free capacity for.
        reports: why some gated pods stay gated.
    """

    ungates: tuple[Ungate, ...] = ()
    reports: tuple[Report, ...] = ()


class _FreeCapacity:
    """Free capacity while a plan is made."""

    def __init__(
        self,
        admission: PodSetAdmission,
        ungated: Iterable[GatedPod],
        overdue_deletions: Collection[PodUid],
    ) -> None:
        self.admission = admission
        self.free = [count for _, count in admission.assignment.domains]
        self.total_left = admission.max_ungated
        for pod in ungated:
            domain_index = admission.domain_index_of_pod(pod)
            if domain_index is not None:
                self.free[domain_index] -= 1
            elif pod.uid in overdue_deletions:
                continue
            self.total_left -= 1
        # A rack may have the name of a host (C14).
        if admission.unhealthy and admission.assignment.levels[-1:] == (names.HOSTNAME_LABEL,):
            for domain_index, (domain, _) in enumerate(admission.assignment.domains):
                if domain[-1] in admission.unhealthy:
                    self.free[domain_index] = 0
        self.ungates: list[Ungate] = []

    def assign(self, pod: GatedPod, domain_index: int) -> bool:
        """Assign the pod to the domain if it has free capacity."""
        if self.total_left <= 0 or self.free[domain_index] <= 0:
            return False
        self.total_left -= 1
        self.free[domain_index] -= 1
        assignment = self.admission.assignment
        domain = assignment.domains[domain_index][0]
        gates = self.admission.gates | (pod.gates & GANG)
        self.ungates.append(Ungate(pod, assignment.levels, domain, gates))
        return True


def plan_ungating(
    admission: PodSetAdmission,
    pods: Iterable[GatedPod],
    *,
    pinned: Mapping[PodUid, Domain] | None = None,
    backing_off: Collection[PodUid] = (),
    overdue_deletions: Collection[PodUid] = (),
) -> Plan:
    """Choose the gated pods to ungate, and their domains.

    Args:
        admission: counts per domain.
        pods: every pod of the PodSet; ended ones are ignored.
        pinned: pods whose earlier write may still be applied: they get the same domain or none.
        backing_off: pods whose write was rejected and is not retried yet.
        overdue_deletions: pods whose deletion should be complete but was not reported by their
            node.

    Returns:
        At most `count` minus live ungated pods per domain, and `admission.max_ungated` minus all
        live ungated pods in total. Equal input gives equal plans, whatever the order of `pods`.
    """
    live = [pod for pod in pods if not pod.terminal]
    gates = admission.holding
    capacity = _FreeCapacity(
        admission, (pod for pod in live if not pod.gates & gates), overdue_deletions
    )
    staying = sorted((pod for pod in live if not pod.terminating), key=lambda pod: pod.name)
    gated = [pod for pod in staying if pod.gates & gates]
    if not gated:
        return Plan()
    reports: list[Report] = []

    def report(reason: str, message: str, pod: GatedPod | None = None) -> None:
        reports.append(Report(reason, admission.podset, message, pod))

    podset = f'podset "{admission.podset}"'
    if admission.read_error:
        message = f"{podset} gets fewer pods than assigned: {admission.read_error}"
        report("AssignmentUnreadable", message)
    for pod in gated:
        domain_index = (
            admission.domain_index(pinned[pod.uid]) if pinned and pod.uid in pinned else None
        )
        if domain_index is not None:
            capacity.assign(pod, domain_index)
    free = [p for p in gated if p.uid not in backing_off and not (pinned and p.uid in pinned)]
    ranks = _usable_ranks(admission, staying)
    if isinstance(ranks, RankFault) and not admission.elastic and admission.assignment.levels:
        report("RankOrderIgnored", f"{podset} is assigned without rank order: {ranks.message}")
    if ranks is None or isinstance(ranks, RankFault):
        conflicting = _fill_greedily(capacity, free)
    else:
        conflicting = _fill_by_rank(capacity, free, ranks)
    if conflicting:
        own = sorted(conflicting[0].selector.items())
        levels = admission.assignment.levels
        selector_text = ", ".join(f'"{key}" = "{value}"' for key, value in own if key in levels)
        report(
            "NodeSelectorConflict",
            f"pods of {podset} stay gated: their nodeSelector {selector_text} "
            "contradicts the assigned topology domain",
            conflicting[0],
        )
    if len(staying) > admission.max_ungated and not admission.elastic:
        report(
            "SurplusPods",
            f"{podset} has more pods than the {admission.max_ungated} that were admitted: "
            "the surplus stays gated",
        )
    return Plan(tuple(capacity.ungates), tuple(reports))


def _usable_ranks(
    admission: PodSetAdmission, staying: Sequence[GatedPod]
) -> dict[PodUid, int] | RankFault | None:
    """Ranks of all pods, or a fault if a live pod runs outside the domain of its rank."""
    if admission.ranks is None:
        return None
    ranks = read_ranks(admission.ranks, staying, admission.count)
    if not isinstance(ranks, dict):
        return ranks
    for pod in staying:
        if pod.gates & admission.holding:
            continue
        domain_index = admission.domain_index_of_rank(ranks[pod.uid])
        if domain_index is None or domain_index != admission.domain_index_of_pod(pod):
            return RankFault(f'pod "{pod.name}" runs outside the domain of its rank')
    return ranks


def _fill_by_rank(
    capacity: _FreeCapacity, gated: Sequence[GatedPod], ranks: Mapping[PodUid, int]
) -> list[GatedPod]:
    """Assign each pod to the domain of its rank; returns pods whose selector forbids that."""
    conflicting = []
    queue = sorted(gated, key=lambda pod: ranks[pod.uid])
    if capacity.admission.elastic:
        gates = capacity.admission.gates
        queue.sort(key=lambda pod: pod.gates & gates == gates)
    for pod in queue:
        domain_index = capacity.admission.domain_index_of_rank(ranks[pod.uid])
        if domain_index is None:
            continue  # beyond the assignment (KEP: slice size): this pod stays gated
        if _selector_allows(pod, capacity.admission, domain_index):
            capacity.assign(pod, domain_index)
        else:
            conflicting.append(pod)
    return conflicting


def _fill_greedily(capacity: _FreeCapacity, gated: Sequence[GatedPod]) -> list[GatedPod]:
    """Fill domains in list order; returns pods whose own selector matches no domain.

    Pods with their own selector on a level come first, because only some domains match.
    """
    admission = capacity.admission
    levels = admission.assignment.levels
    bound = [pod for pod in gated if any(level in pod.selector for level in levels)]
    if admission.elastic:
        bound.sort(key=lambda pod: pod.gates & admission.gates == admission.gates)
    conflicting = []
    open_to: dict[tuple[str | None, ...], list[int]] = {}  # in reverse order
    shut: set[tuple[str | None, ...]] = set()
    for pod in bound:
        selector_values = tuple([pod.selector.get(level) for level in levels])
        if selector_values not in open_to:
            domain_indices = (
                range(len(capacity.free))
                if selector_values[-1] is None
                else admission.domain_indices_with(selector_values[-1])
            )
            open_to[selector_values] = [
                domain_index
                for domain_index in reversed(domain_indices)
                if _selector_allows(pod, admission, domain_index)
            ]
            if not open_to[selector_values]:
                shut.add(selector_values)
        domain_indices = open_to[selector_values]
        if selector_values in shut:
            conflicting.append(pod)
        while (
            capacity.total_left > 0
            and domain_indices
            and not capacity.assign(pod, domain_indices[-1])
        ):
            domain_indices.pop()
    ids = {pod.uid for pod in bound}
    unbound = [pod for pod in gated if pod.uid not in ids]
    label = admission.ranks.pod_index_label if admission.ranks else ""
    if admission.elastic:
        unbound.sort(key=lambda pod: _replica_order(pod, admission.gates))
    else:
        unbound.sort(key=lambda pod: (pod.indices.get(label, _UNRANKED), pod.name, pod.uid))
    queue = iter(unbound)
    for domain_index, free in enumerate(capacity.free):
        for _ in range(min(free, capacity.total_left)):
            following = next(queue, None)
            if following is None:
                return conflicting
            capacity.assign(following, domain_index)
    return conflicting


def _replica_order(pod: GatedPod, gates: int) -> tuple[bool, int, int, str, str]:
    """Pods that already lost a gate first, then by replica index if pods have one."""
    indices = pod.indices
    index = indices.get(names.COMPLETION_INDEX_LABEL, _UNRANKED)
    replica = indices.get(names.RAY_REPLICA_INDEX_LABEL, index)
    host = indices.get(names.RAY_HOST_INDEX_LABEL, 0)
    return pod.gates & gates == gates, replica, host, pod.name, pod.uid


def _selector_allows(pod: GatedPod, admission: PodSetAdmission, domain_index: int) -> bool:
    """Whether the pod's own nodeSelector allows that domain."""
    selector = pod.selector
    values = admission.assignment.domains[domain_index][0]
    return all(
        selector.get(level, value) == value
        for level, value in zip(admission.assignment.levels, values, strict=True)
    )


# Decodes and caches an assignment: name of a PodSet or UID of a slice, and the JSON.
Decode = Callable[[str, bytes], TopologyAssignment]


def podset_admission(
    workload: GatedWorkload, podset: GatedPodSet, slices: Iterable[GatedWorkload], decode: Decode
) -> PodSetAdmission | str:
    """The limits of a PodSet, or why its assignment is unreadable.

    Args:
        workload: an admitted Workload.
        podset: one of its PodSets; with an assignment, unless the Workload is elastic, the pods
            belong to gangs, or they are gated although there is nothing to place. The webhook gates
            such pods if Kueue started their job, because their template names the Workload.
        slices: admitted slices of this Workload that are not merged.
        decode: assignments from JSON.
    """
    try:
        own_assignment = (
            decode(podset.name, podset.assignment) if podset.assignment is not None else None
        )
    except (ValueError, msgspec.MsgspecError) as error:
        return str(error)
    count = podset.count
    if count is None:
        count = own_assignment.count if own_assignment is not None else 0
    if workload.elastic:
        return _elastic_podset_admission(
            workload, podset, _ElasticTotals(count, own_assignment), slices, decode
        )
    gates = TOPOLOGY | ADMISSION if workload.of_plain_pods else TOPOLOGY
    return PodSetAdmission(
        podset=podset.name,
        count=count,
        assignment=own_assignment or _without_topology(count),
        ranks=rank_source(podset, workload.podsets),
        unhealthy=workload.unhealthy,
        gates=GANG | TOPOLOGY if own_assignment is None else gates,
        reclaimable=podset.reclaimable,
    )


class _ElasticTotals:
    """The summed counts of a parent and its slices."""

    def __init__(self, count: int, own_assignment: TopologyAssignment | None) -> None:
        self.count = count
        # A PodSet without pods has no assignment: the first slice determines the levels.
        self.known = own_assignment is not None or count > 0
        self.levels = own_assignment.levels if own_assignment is not None else None
        self.domains = dict(own_assignment.domains) if own_assignment is not None else {}

    def add(self, count: int, slice_assignment: TopologyAssignment | None) -> bool:
        """Add the counts of a slice; False if it does not match the others."""
        levels = slice_assignment.levels if slice_assignment is not None else None
        if self.known and levels != self.levels:
            return False
        self.known, self.levels = True, levels
        self.count += count
        for domain, pods in slice_assignment.domains if slice_assignment is not None else ():
            self.domains[domain] = self.domains.get(domain, 0) + pods
        return True

    def assignment(self) -> TopologyAssignment:
        """The domains of the pods."""
        if self.levels is None:
            return _without_topology(self.count)
        return TopologyAssignment(self.levels, tuple(self.domains.items()))


def _elastic_podset_admission(
    workload: GatedWorkload,
    podset: GatedPodSet,
    totals: _ElasticTotals,
    slices: Iterable[GatedWorkload],
    decode: Decode,
) -> PodSetAdmission:
    unhealthy, read_error = set(workload.unhealthy), ""
    for slice_, slice_podset in _slice_podsets_of(slices, podset.name):
        try:
            slice_assignment = (
                decode(slice_.uid, slice_podset.assignment)
                if slice_podset.assignment is not None
                else None
            )
        except (ValueError, msgspec.MsgspecError) as error:
            read_error = f'slice "{slice_.name}": {error}'
            continue
        count = slice_podset.count
        if count is None:
            count = slice_assignment.count if slice_assignment is not None else 0
        if count <= 0:
            continue
        if totals.add(count, slice_assignment):
            unhealthy.update(slice_.unhealthy)
        else:
            read_error = f'slice "{slice_.name}" has other levels than its parent'
    return PodSetAdmission(
        podset=podset.name,
        count=totals.count,
        assignment=totals.assignment(),
        ranks=_elastic_rank_source(podset, workload) if totals.levels is not None else None,
        unhealthy=tuple(sorted(unhealthy)),
        gates=ELASTIC if totals.levels is None else TOPOLOGY | ELASTIC,
        read_error=read_error,
    )


def _slice_podsets_of(
    slices: Iterable[GatedWorkload], podset: str
) -> Iterator[tuple[GatedWorkload, GatedPodSet]]:
    """Slices in the order of merging: ranks follow the order of domains."""
    for slice_ in sorted(slices, key=lambda slice_: (slice_ordinal(slice_.name), slice_.uid)):
        for slice_podset in slice_.podsets:
            if slice_podset.name == podset:
                yield slice_, slice_podset


def _elastic_rank_source(podset: GatedPodSet, workload: GatedWorkload) -> RankSource | None:
    """Ranks are used only while counts are unchanged: subgroup sizes are not updated."""
    source = rank_source(podset, workload.podsets)
    return source if source is not None and source.sub_group_label is None else None


def _without_topology(count: int) -> TopologyAssignment:
    """A single domain without levels: only the number of pods is admitted."""
    return TopologyAssignment((), (((), count),))


def admits_at_least(
    live: Mapping[str, PodSetAdmission | str], planned: Mapping[str, PodSetAdmission | str]
) -> bool:
    """Whether `live` has at least the counts of `planned`, in every PodSet and domain.

    Args:
        live: by PodSet, as read from the server now.
        planned: by PodSet, as used by a plan.
    """
    for name, admission in planned.items():
        found = live.get(name)
        if isinstance(admission, str):
            continue  # it ungates no pods
        if not isinstance(found, PodSetAdmission) or found.gates != admission.gates:
            return False
        counts = dict(found.assignment.domains)
        if (
            found.count - found.reclaimable < admission.count - admission.reclaimable
            or found.assignment.levels != admission.assignment.levels
            or any(counts.get(domain, 0) < count for domain, count in admission.assignment.domains)
            or not set(found.unhealthy) <= set(admission.unhealthy)
        ):
            return False
    return True
