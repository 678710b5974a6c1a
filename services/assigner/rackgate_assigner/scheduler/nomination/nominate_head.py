"""The nomination of one head: all of its pods, or as many as fit; with preemption and topology.

1. `_plan` chooses flavors (`flavor_fungibility`) and domains (`topology_assignment`) for given
   numbers of pods.
2. If that needs preemption, `_find_targets` searches for it, with the pods placed in each test.
3. If neither helps and PodSets accept fewer pods, `_nominate_fewer_pods` searches for the most that
   fit.
4. A nomination with targets gets the domains that it would take (`assign_room`).
5. A nomination with admission checks keeps no domains: its pods are placed after the checks.

Inputs: a state, which is the same when the call returns: nominations of one cycle do not see each
other.
Complexity: a binary search over the number of pods that are left out.
Source: conformance/quota, sections 11 and 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rackgate_assigner.preemption.preemption import find_targets
from rackgate_assigner.preemption.targets import PlacementTest, Target
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.domain_needs import domain_needs
from rackgate_assigner.scheduler.nomination.flavor_fungibility import assign_flavors, preemptor_of
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    Nomination,
    PendingPodSet,
    PendingWorkload,
)
from rackgate_assigner.scheduler.nomination.topology_assignment import (
    TopologyRequests,
    apply_assignments,
    assign_domains,
    checks_of,
    find_assignments,
    topology_requests,
)
from rackgate_assigner.topology.model import NoFit, PodSetRequest


def nominate_head(
    state: QuotaState, head: PendingWorkload, only: Nomination | None = None
) -> Nomination:
    """What would be admitted of a Workload now, and what would have to be preempted.

    Args:
        state: the same when the call returns.
        head: the Workload; its ClusterQueue exists.
        only: restrict the search to the flavors of this nomination.
    """
    found = _plan(state, head, [_all_pods(podset) for podset in head.podsets], only)
    if found.mode is FlavorAssignmentMode.PREEMPT:
        found.targets = _find_targets(state, head, found)
    if not is_good(found) and any(podset.min_count is not None for podset in head.podsets):
        found = _nominate_fewer_pods(state, head, only) or found
    if checks_of(state.queues[head.cluster_queue], found):
        apply_assignments(found, {})  # it is placed after its checks, and takes no domains before
    elif found.targets and not found.has_domains:
        assign_room(state, head, found)
    return found


def _all_pods(podset: PendingPodSet) -> PodSetRequest:
    request = podset.request
    if not podset.reclaimable:
        return request
    return replace(request, count=max(0, request.count - podset.reclaimable))


def is_good(nomination: Nomination) -> bool:
    """Whether it can be admitted, at once or after preemption."""
    if nomination.mode is FlavorAssignmentMode.PREEMPT:
        return bool(nomination.targets)
    return nomination.mode is FlavorAssignmentMode.FIT


def _plan(
    state: QuotaState,
    head: PendingWorkload,
    podsets: Sequence[PodSetRequest],
    only: Nomination | None,
) -> Nomination:
    found = assign_flavors(state, head, podsets, only)
    if found.mode is not FlavorAssignmentMode.NO_FIT and not found.uses(head.rejected):
        assign_domains(state, state.queues[head.cluster_queue], found)
    return found


def _requests(state: QuotaState, head: PendingWorkload, nomination: Nomination) -> TopologyRequests:
    found = topology_requests(state, state.queues[head.cluster_queue], nomination)
    return found or TopologyRequests()


def _find_targets(
    state: QuotaState, head: PendingWorkload, nomination: Nomination
) -> tuple[Target, ...]:
    if nomination.uses(head.rejected):
        return ()  # its domains would have to be freed, and that was tried before
    request = {pair: amount for pair, amount in nomination.usage.items() if amount}
    needed = nomination.needed
    preemptor = preemptor_of(head, state.queues[head.cluster_queue], request, needed)
    found = None
    if len(request) == 1 and needed == request.keys():
        # The search for flavors asked the same.
        found = nomination.searched.get(next(iter(request.items())))
    if found is None:
        found = find_targets(state, preemptor)
    if not found:
        nomination.short_of_quota = True  # whatever domains they would free
        return ()
    requests = _requests(state, head, nomination)
    if not requests:
        return found

    def passes() -> bool:
        return not isinstance(find_assignments(state, requests), NoFit)

    monotone = _is_monotone(requests)
    domains = domain_needs(state, requests) if state.features.smallest_disruption else None
    if monotone and domains is None and nomination.mode_by_topology is None:
        # If the pods fit without these targets, a search that also places them ends with the same
        # ones: wherever it finds enough quota, at least so much room is free. That of fair sharing
        # may start over on its way, so there the pods must fit beside all targets.
        gone = found if state.fair_sharing is None else ()
        with state.released(target.workload for target in gone):
            placed = find_assignments(state, requests)
        if not isinstance(placed, NoFit):
            if gone:
                apply_assignments(nomination, placed)
            return found
    test = PlacementTest(passes, monotone, domains)
    return find_targets(state, replace(preemptor, placement=test))


def _is_monotone(requests: TopologyRequests) -> bool:
    """Whether the pods fit wherever they fit with less free capacity.

    One PodSet fits if enough pods fit into some domains, and more capacity lowers no count. Where
    it goes depends on the capacity, and so does what is left for the PodSets after it.
    """
    return sum(len(podsets) for podsets in requests.by_flavor.values()) == 1


def _nominate_fewer_pods(
    state: QuotaState, head: PendingWorkload, only: Nomination | None
) -> Nomination | None:
    """The nomination with the most pods, assuming that fewer pods fit where more do.

    As in Kueue, counts start from all pods, reclaimable ones included: `minCount` counts them, too.
    """
    spared = [
        0 if podset.min_count is None else podset.request.count - podset.min_count
        for podset in head.podsets
    ]
    total = sum(spared)
    if total <= 0:
        return None
    low, high = 0, total + 1
    best: tuple[int, Nomination] | None = None
    while low < high:
        middle = (low + high) // 2
        podsets = [
            replace(podset.request, count=podset.request.count - more * middle // total)
            for podset, more in zip(head.podsets, spared, strict=True)
        ]
        found = _plan(state, head, podsets, only)
        if found.mode is FlavorAssignmentMode.PREEMPT:
            found.targets = _find_targets(state, head, found)
        if is_good(found):
            best, high = (middle, found), middle
        else:
            low = middle + 1
    return best[1] if best is not None and best[0] == low else None


def assign_room(state: QuotaState, head: PendingWorkload, nomination: Nomination) -> None:
    """The domains that a nomination holds until its targets are gone.

    Without targets they are those on an empty cluster, which need not be computed unless something
    depends on them.
    """
    if checks_of(state.queues[head.cluster_queue], nomination) or nomination.uses(head.rejected):
        return
    requests = _requests(state, head, nomination)
    if not requests:
        return
    with state.released(target.workload for target in nomination.targets):
        found = find_assignments(state, requests, simulate_empty=not nomination.targets)
    if not isinstance(found, NoFit):
        apply_assignments(nomination, found)
