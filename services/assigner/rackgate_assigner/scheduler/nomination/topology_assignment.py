"""Domains for the PodSets of a nomination, flavor by flavor.

Source: conformance/quota, section 12.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field

from rackgate.api.names import PendingReason
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.quota.queues import ClusterQueueInfo
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    FlavorAttempt,
    NominatedPodSet,
    Nomination,
)
from rackgate_assigner.scheduler.nomination.offer import Offer
from rackgate_assigner.topology.capacity import leaf_of_assigned_domain
from rackgate_assigner.topology.model import NoFit
from rackgate_assigner.topology.placement.nested import place_nested
from rackgate_assigner.workload.admission_checks import required_checks
from rackgate_assigner.workload.decisions import TopologyNotFound
from rackgate_assigner.workload.info import Charge


@dataclass(frozen=True, slots=True)
class TopologyRequests:
    """PodSets to place, by their flavor, in name order of the flavors."""

    by_flavor: Mapping[str, Sequence[NominatedPodSet]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_flavor)

    def of_flavor_of(self, name: str) -> TopologyRequests:
        """The PodSets with the flavor of this one."""
        return TopologyRequests(
            {
                flavor: podsets
                for flavor, podsets in self.by_flavor.items()
                if any(podset.request.name == name for podset in podsets)
            }
        )

    def without(self, names: Collection[str]) -> TopologyRequests:
        """All but the PodSets with these names."""
        left = {
            flavor: [podset for podset in podsets if podset.request.name not in names]
            for flavor, podsets in self.by_flavor.items()
        }
        return TopologyRequests({flavor: podsets for flavor, podsets in left.items() if podsets})


def topology_requests(
    state: QuotaState, queue: ClusterQueueInfo, nomination: Nomination
) -> TopologyRequests | None:
    """The PodSets of a nomination that need domains now; None: one has an error now."""
    offer = Offer(queue, state.flavors)
    found: dict[str, list[NominatedPodSet]] = {}
    for podset in nomination.podsets:
        request = podset.request
        if request.count == 0 or not offer.needs_domains(request):
            continue
        flavors = sorted(
            {
                choice.flavor
                for choice in podset.flavors.values()
                if offer.has_topology(choice.flavor)
            }
        )
        if len(flavors) != 1:
            podset.error = (
                f"more than one TAS flavor assigned: {', '.join(flavors)}"
                if flavors
                else "no TAS flavor assigned"
            )
            return None
        found.setdefault(flavors[0], []).append(podset)
    if state.provisions_nodes(queue) and checks_of(queue, nomination):
        return TopologyRequests()
    return TopologyRequests({flavor: found[flavor] for flavor in sorted(found)})


def checks_of(queue: ClusterQueueInfo, nomination: Nomination) -> tuple[str, ...]:
    """The admission checks that apply to the flavors of a nomination."""
    chosen = (choice for podset in nomination.podsets for choice in podset.flavors.values())
    return required_checks(queue.checks, {choice.flavor for choice in chosen})


def assign_domains(state: QuotaState, queue: ClusterQueueInfo, nomination: Nomination) -> None:
    """Place the PodSets of a nomination whose quota fits, or find out whether they ever would.

    A failure now makes preemption necessary; one on an empty cluster means that nothing helps.
    """
    requests = topology_requests(state, queue, nomination)
    if not requests:
        return
    failure: NoFit | None = None
    if nomination.mode is FlavorAssignmentMode.FIT:
        found = find_assignments(state, requests)
        if not isinstance(found, NoFit):
            apply_assignments(nomination, found)
            return
        failure = found
        podset = _podset(nomination, found.podset)
        podset.texts.append(found.message)
        podset.set_mode(FlavorAssignmentMode.PREEMPT)
        nomination.mode_by_topology = FlavorAssignmentMode.PREEMPT
        if not _asks_empty(state, queue):
            nomination.rejected = _rejections(requests, found)
            return
    elif not (state.always_asks_empty or queue.is_strict):
        _set_preempt(requests)  # it waits for quota first
        return
    found = find_assignments(state, requests, simulate_empty=True)
    if failure is not None:
        never = isinstance(found, NoFit) and found.podset == failure.podset
        nomination.rejected = _rejections(requests, failure, fits_when_empty=not never)
        if len(queue.flavors) > 1:
            nomination.rejected += _more_rejections(state, requests, failure)
    if isinstance(found, NoFit):
        podset = _podset(nomination, found.podset)
        podset.set_mode(FlavorAssignmentMode.NO_FIT)
        nomination.mode_by_topology = FlavorAssignmentMode.NO_FIT
        for flavor, podsets in requests.by_flavor.items():
            if podset in podsets:
                reason = PendingReason.TOPOLOGY_PLACEMENT_FAILED
                podset.attempts[flavor] = FlavorAttempt(FlavorAssignmentMode.NO_FIT, reason)
        return
    _set_preempt(requests)


def _set_preempt(requests: TopologyRequests) -> None:
    for podsets in requests.by_flavor.values():
        for podset in podsets:
            podset.set_mode(FlavorAssignmentMode.PREEMPT)


def _asks_empty(state: QuotaState, queue: ClusterQueueInfo) -> bool:
    """Whether anything depends on whether pods that do not fit now would fit one day.

    The simulation costs as much as the placement itself.
    """
    alone = len(queue.flavors) == 1 and not queue.is_strict and not queue.preempts
    return state.always_asks_empty or not alone


def find_assignments(
    state: QuotaState,
    requests: TopologyRequests,
    *,
    simulate_empty: bool = False,
    leaf_range: tuple[int, int] | None = None,
) -> Mapping[str, TopologyAssignment] | NoFit:
    """Domains by PodSet, or the first PodSet that does not fit; nothing stays charged.

    Flavors may share nodes, so what one flavor takes is charged while the next is placed, on an
    empty cluster, too.

    Args:
        state: the same when the call returns.
        requests: what to place.
        simulate_empty: as if no pods placed by topology used any capacity.
        leaf_range: first and last leaf (exclusive) that limit the pods.
    """
    found: dict[str, TopologyAssignment] = {}
    earlier: list[Charge] = []
    last = len(requests.by_flavor) - 1
    with ExitStack() as undo:
        for index, (flavor, podsets) in enumerate(requests.by_flavor.items()):
            topology = state.topologies.by_flavor[flavor]
            capacity = topology.capacity
            if earlier and simulate_empty:
                capacity = state.topologies.capacity_with(topology, earlier)
            shared = None if simulate_empty else _domain_of_others(state, flavor, podsets)
            if isinstance(shared, NoFit):
                return shared
            with nullcontext() if simulate_empty else state.timing(flavor):
                placement = place_nested(
                    topology.tree,
                    capacity,
                    [podset.request for podset in podsets],
                    topology_name=topology.flavor.topology or "",
                    flavor_tolerations=topology.flavor.tolerations,
                    simulate_empty=simulate_empty,
                    features=state.features,
                    leaf_range=shared or leaf_range,
                )
            if placement.failure is not None:
                return placement.failure
            found.update(placement.assignments)
            if index < last:
                charges = [
                    Charge(flavor, podset.request.requests, found[podset.request.name])
                    for podset in podsets
                ]
                earlier += charges
                if not simulate_empty:
                    state.charge(charges, 1)
                    undo.callback(state.charge, charges, -1)
    return found


def _domain_of_others(
    state: QuotaState, flavor: str, podsets: Sequence[NominatedPodSet]
) -> tuple[int, int] | NoFit | None:
    """Leaves of the domain in which the other Workloads are that share one with these PodSets.

    None if there are none yet: the first one chooses. All of them are in one flavor.
    """
    shared = next(
        (one for podset in podsets for one in podset.request.shared[:1] if one.across), None
    )
    if shared is None:
        return None
    tree = state.topologies.by_flavor[flavor].tree
    if shared.level not in tree.levels:
        return None  # it is rejected when it is placed
    depth, elsewhere = tree.levels.index(shared.level), ""
    for workload in state.running.sharing(shared.across):
        for charge in workload.charges:
            if charge.flavor != flavor:
                elsewhere = elsewhere or charge.flavor
                continue
            for values, _ in charge.assignment.domains:
                leaf = leaf_of_assigned_domain(tree, charge.assignment.levels, values)
                if leaf is not None:
                    domain = tree.domain_of_leaf(leaf, depth)
                    start, end = tree.leaf_ranges[depth][domain : domain + 2].tolist()
                    return start, end
    if not elsewhere:
        return None
    names = tuple(podset.request.name for podset in podsets)
    text = f'other gangs of Workload "{shared.across}" are in flavor {elsewhere}'
    return NoFit(names[0], f"{text}, and all of them share one domain", names)


def _more_rejections(
    state: QuotaState, requests: TopologyRequests, failure: NoFit
) -> tuple[TopologyNotFound, ...]:
    """Rejections of other PodSets that do not fit into the same flavor either.

    They are found at once, as every further try would place all PodSets again.
    """
    found: list[TopologyNotFound] = []
    requests = requests.of_flavor_of(failure.podset)
    while True:
        names = {rejection.podset for rejection in _rejections(requests, failure)}
        requests = requests.without(names)
        next_failure = find_assignments(state, requests)
        if not isinstance(next_failure, NoFit):
            return tuple(found)
        failure = next_failure
        failed = {rejection.podset for rejection in _rejections(requests, failure)}
        others = {podset.request.name for part in requests.by_flavor.values() for podset in part}
        empty = find_assignments(state, requests.without(others - failed), simulate_empty=True)
        found += _rejections(requests, failure, fits_when_empty=not isinstance(empty, NoFit))


def _rejections(
    requests: TopologyRequests, failure: NoFit, *, fits_when_empty: bool | None = None
) -> tuple[TopologyNotFound, ...]:
    """The rejection of the PodSet that does not fit; those placed with it share it."""
    for flavor, podsets in requests.by_flavor.items():
        group = next(
            (one.request.group for one in podsets if one.request.name == failure.podset), ""
        )
        found = tuple(
            TopologyNotFound(one.request.name, flavor, failure.message, fits_when_empty)
            for one in podsets
            if one.request.name == failure.podset
            or (group and one.request.group == group)
            or one.request.name in failure.members
        )
        if found:
            return found
    return ()


def apply_assignments(
    nomination: Nomination, assignments: Mapping[str, TopologyAssignment]
) -> None:
    """Set the domains of PodSets."""
    for podset in nomination.podsets:
        podset.topology = assignments.get(podset.request.name)


def _podset(nomination: Nomination, name: str) -> NominatedPodSet:
    return next(podset for podset in nomination.podsets if podset.request.name == name)
