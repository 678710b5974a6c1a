"""Which gated pod goes to which domain. Pure: counts, ranks and room in, ungatings out.

Live ungated pods hold room in the domain that their nodeSelector names, also while they
terminate (CH-31, SLC-17). A domain never gets more pods than its count, a PodSet never more than
it was granted: an ungated pod that sits in none of the domains still counts against the PodSet.
One such pod does not: its deletion is overdue, so its node is as good as dead, and its domain was
given up.
How long a deletion has lasted is for the caller to say, who has seen it begin.
Without this exception nobody would take the place of a pod whose node cannot say that it ended.

Pods of elastic jobs wait behind two gates at most. One decision takes off both; a pod that lost one
of them already is chosen first. That more of them wait than were granted is nothing to report:
they wait for slices. Without topology there is a single domain, of no levels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rackgate.api import names
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_ungater.machine.ranks import RankFault, RankSource, read_ranks
from rackgate_ungater.machine.rows import ELASTIC, TOPOLOGY, PodRow, PodUid

_UNRANKED = 1 << 40  # sorts after every index


@dataclass(frozen=True, slots=True)
class Grant:
    """What one PodSet may ungate.

    Attributes:
        podset: name.
        count: pods granted; the assignment may cover fewer (a slice size that does not divide).
        assignment: domains in rank order, with their counts.
        ranks: where pods carry their rank; None fills greedily.
        unhealthy: hosts that await replacement: no pod is sent there (U3).
        gates: which gates hold its pods, as bits; all are taken off together.
        unread: what could not be taken into the grant, in words; empty when all was.
        done: pods that are done, and whose quota is given back: as many fewer may live.
    """

    podset: str
    count: int
    assignment: TopologyAssignment
    ranks: RankSource | None = None
    unhealthy: tuple[str, ...] = ()
    gates: int = TOPOLOGY
    unread: str = ""
    done: int = 0
    _positions: dict[Domain, int] = field(init=False, repr=False, compare=False)
    _ends: list[int] = field(init=False, repr=False, compare=False)
    _lowest: dict[str, list[int]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        domains = self.assignment.domains
        object.__setattr__(self, "_positions", {d: i for i, (d, _) in enumerate(domains)})
        object.__setattr__(self, "_ends", list(accumulate(count for _, count in domains)))

    @property
    def cap(self) -> int:
        """Most pods that may be ungated and live at once."""
        granted = min(self.count, self._ends[-1] if self._ends else 0)
        return max(0, granted - self.done)

    @property
    def elastic(self) -> bool:
        """Whether the PodSet may be resized while it runs."""
        return bool(self.gates & ELASTIC)

    def closed(self) -> Iterator[int]:
        """Places of the hosts that await replacement; a rack may be named like a host (C14)."""
        if self.unhealthy and self.assignment.levels[-1:] == (names.HOSTNAME_LABEL,):
            for place, (domain, _) in enumerate(self.assignment.domains):
                if domain[-1] in self.unhealthy:
                    yield place

    def position(self, domain: Domain) -> int | None:
        """Place of a domain in the assignment, None when it is not part of it."""
        return self._positions.get(domain)

    def places_in(self, value: str) -> Sequence[int]:
        """Places of the domains whose lowest level has that value, in list order."""
        if not self._lowest:
            for place, (domain, _) in enumerate(self.assignment.domains):
                self._lowest.setdefault(domain[-1], []).append(place)
        return self._lowest.get(value, ())

    def position_of(self, pod: PodRow) -> int | None:
        """Place of the domain that an ungated pod sits in, judged by its nodeSelector."""
        selector = pod.selector
        return self._positions.get(tuple([selector.get(k, "") for k in self.assignment.levels]))

    def position_of_rank(self, rank: int) -> int | None:
        """Place of the domain whose interval of cumulated counts holds `rank`."""
        place = bisect_right(self._ends, rank)
        return place if place < len(self._ends) else None


@dataclass(frozen=True, slots=True)
class Ungate:
    """Take our gates off one pod and send it to one domain, in one write.

    Attributes:
        pod: as it was when the decision was made: the write is bound to its UID and version.
        levels: node label keys; none where only the number was granted.
        domain: one value per level.
        gates: those to take off, as bits.
    """

    pod: PodRow
    levels: tuple[str, ...]
    domain: Domain
    gates: int = TOPOLOGY


@dataclass(frozen=True, slots=True)
class Report:
    """Something a user should hear about, once per change.

    Attributes:
        reason: Event reason, CamelCase.
        podset: whose pods.
        message: stable text.
        pod: the pod it is about; None speaks of the Workload.
    """

    reason: str
    podset: str
    message: str
    pod: PodRow | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do for one PodSet now.

    Attributes:
        ungates: never more than there is room for.
        waiting: gated pods that stay gated.
        reports: why some of them stay.
    """

    ungates: tuple[Ungate, ...] = ()
    waiting: int = 0
    reports: tuple[Report, ...] = ()


class _Room:
    """Free places while a plan is made."""

    def __init__(
        self, grant: Grant, ungated: Iterable[PodRow], overdue: Collection[PodUid]
    ) -> None:
        self.grant = grant
        self.free = [count for _, count in grant.assignment.domains]
        self.left = grant.cap
        for pod in ungated:
            place = grant.position_of(pod)
            if place is not None:
                self.free[place] -= 1
            elif pod.uid in overdue:
                continue
            self.left -= 1
        for place in grant.closed():
            self.free[place] = 0
        self.taken: list[Ungate] = []

    def take(self, pod: PodRow, place: int) -> bool:
        """Give the pod a place there, if one is free."""
        if self.left <= 0 or self.free[place] <= 0:
            return False
        self.left -= 1
        self.free[place] -= 1
        assignment = self.grant.assignment
        domain = assignment.domains[place][0]
        self.taken.append(Ungate(pod, assignment.levels, domain, self.grant.gates))
        return True


def plan_ungating(
    grant: Grant,
    pods: Iterable[PodRow],
    *,
    pinned: Mapping[PodUid, Domain] | None = None,
    barred: Collection[PodUid] = (),
    overdue: Collection[PodUid] = (),
) -> Plan:
    """Choose the gated pods to release, and their domains.

    Args:
        grant: counts per domain.
        pods: every pod of the PodSet; ended ones are ignored.
        pinned: pods whose earlier write may still arrive: they get the same domain or nothing.
        barred: pods whose write was refused and must not be tried now.
        overdue: pods whose deletion should be over by now, and whose node does not say so.

    Returns:
        At most `count` minus live ungated pods per domain, and `grant.cap` minus all live
        ungated pods in total. Equal input gives equal plans, whatever the order of `pods`.
    """
    live = [pod for pod in pods if not pod.terminal]
    gates = grant.gates
    room = _Room(grant, (pod for pod in live if not pod.gates & gates), overdue)
    staying = sorted((pod for pod in live if not pod.terminating), key=lambda pod: pod.name)
    gated = [pod for pod in staying if pod.gates & gates]
    if not gated:
        return Plan()
    reports = _unread(grant)
    for pod in gated:
        place = grant.position(pinned[pod.uid]) if pinned and pod.uid in pinned else None
        if place is not None:
            room.take(pod, place)
    free = [p for p in gated if p.uid not in barred and not (pinned and p.uid in pinned)]
    ranks = _usable_ranks(grant, staying)
    if isinstance(ranks, RankFault) and not grant.elastic:
        reports.append(_ranks_ignored(grant, ranks))
    if ranks is None or isinstance(ranks, RankFault):
        misfits = _fill_greedily(room, free)
    else:
        misfits = _fill_by_rank(room, free, ranks)
    reports += _conflicts(grant, misfits) + _surplus(grant, len(staying))
    return Plan(tuple(room.taken), len(gated) - len(room.taken), tuple(reports))


def _usable_ranks(grant: Grant, staying: Sequence[PodRow]) -> dict[PodUid, int] | RankFault | None:
    """Ranks of all pods, unless a live one already sits elsewhere than its rank says."""
    if grant.ranks is None:
        return None
    ranks = read_ranks(grant.ranks, staying, grant.count)
    if not isinstance(ranks, dict):
        return ranks
    for pod in staying:
        if pod.gates & grant.gates:
            continue
        place = grant.position_of_rank(ranks[pod.uid])
        if place is None or place != grant.position_of(pod):
            return RankFault(f'pod "{pod.name}" runs outside the domain of its rank')
    return ranks


def _fill_by_rank(
    room: _Room, gated: Sequence[PodRow], ranks: Mapping[PodUid, int]
) -> list[PodRow]:
    """Send each pod to its rank's domain or leave it; returns pods whose selector forbids it."""
    misfits = []
    queue = sorted(gated, key=lambda pod: ranks[pod.uid])
    if room.grant.elastic:
        gates = room.grant.gates
        queue.sort(key=lambda pod: pod.gates & gates == gates)
    for pod in queue:
        place = room.grant.position_of_rank(ranks[pod.uid])
        if place is None:
            continue  # beyond the assignment (KEP: slice size): this pod waits, the others go on
        if _fits(pod, room.grant, place):
            room.take(pod, place)
        else:
            misfits.append(pod)
    return misfits


def _fill_greedily(room: _Room, gated: Sequence[PodRow]) -> list[PodRow]:
    """Fill domains in list order; returns pods whose own selector fits no domain.

    Pods with a selector of their own on a level go first: only some domains are open to them.
    """
    grant = room.grant
    levels = grant.assignment.levels
    bound = [pod for pod in gated if any(level in pod.selector for level in levels)]
    if grant.elastic:
        bound.sort(key=lambda pod: pod.gates & grant.gates == grant.gates)
    misfits = []
    open_to: dict[tuple[str | None, ...], list[int]] = {}  # last first; what is full is taken out
    shut: set[tuple[str | None, ...]] = set()
    for pod in bound:
        wanted = tuple([pod.selector.get(level) for level in levels])
        if wanted not in open_to:
            places = range(len(room.free)) if wanted[-1] is None else grant.places_in(wanted[-1])
            open_to[wanted] = [place for place in reversed(places) if _fits(pod, grant, place)]
            if not open_to[wanted]:
                shut.add(wanted)
        places = open_to[wanted]
        if wanted in shut:
            misfits.append(pod)
        while room.left > 0 and places and not room.take(pod, places[-1]):
            places.pop()
    ids = {pod.uid for pod in bound}
    unbound = [pod for pod in gated if pod.uid not in ids]
    label = grant.ranks.pod_index_label if grant.ranks else ""
    if grant.elastic:
        unbound.sort(key=lambda pod: _by_replica(pod, grant.gates))
    else:
        unbound.sort(key=lambda pod: (pod.indices.get(label, _UNRANKED), pod.name, pod.uid))
    queue = iter(unbound)
    for place, free in enumerate(room.free):
        for _ in range(min(free, room.left)):
            following = next(queue, None)
            if following is None:
                return misfits
            room.take(following, place)
    return misfits


def _by_replica(pod: PodRow, gates: int) -> tuple[bool, int, int, str, str]:
    """Half released ones first, then replica by replica, where pods say which they are."""
    indices = pod.indices
    index = indices.get(names.COMPLETION_INDEX_LABEL, _UNRANKED)
    replica = indices.get(names.RAY_REPLICA_INDEX_LABEL, index)
    host = indices.get(names.RAY_HOST_INDEX_LABEL, 0)
    return pod.gates & gates == gates, replica, host, pod.name, pod.uid


def _fits(pod: PodRow, grant: Grant, place: int) -> bool:
    """Whether the pod's own nodeSelector allows that domain."""
    selector = pod.selector
    values = grant.assignment.domains[place][0]
    return all(
        selector.get(level, value) == value
        for level, value in zip(grant.assignment.levels, values, strict=True)
    )


def _unread(grant: Grant) -> list[Report]:
    if not grant.unread:
        return []
    message = f'podset "{grant.podset}" gets less than was assigned: {grant.unread}'
    return [Report("AssignmentUnreadable", grant.podset, message)]


def _ranks_ignored(grant: Grant, fault: RankFault) -> Report:
    return Report(
        "RankOrderIgnored",
        grant.podset,
        f'podset "{grant.podset}" is filled without rank order: {fault.message}',
    )


def _conflicts(grant: Grant, misfits: Sequence[PodRow]) -> list[Report]:
    if not misfits:
        return []
    pod = misfits[0]
    own = {k: v for k, v in sorted(pod.selector.items()) if k in grant.assignment.levels}
    wants = ", ".join(f'"{key}" = "{value}"' for key, value in own.items())
    return [
        Report(
            "NodeSelectorConflict",
            grant.podset,
            f'pods of podset "{grant.podset}" stay gated: their nodeSelector {wants} '
            "contradicts the assigned topology domain",
            pod,
        )
    ]


def _surplus(grant: Grant, pods: int) -> list[Report]:
    if pods <= grant.cap or grant.elastic:
        return []
    return [
        Report(
            "SurplusPods",
            grant.podset,
            f'podset "{grant.podset}" has more pods than the {grant.cap} it was granted: '
            "the surplus stays gated",
        )
    ]
