"""The nomination of a workload slice: the flavors of its parent, near its parent's pods.

A slice preempts nothing and passes no admission checks. Pods of its job that run beyond admission
use quota already: the slice takes that over.
Source: ADR 13; SLC-09.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from rackgate.api.names import PendingReason
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.quota.queues import NEVER, BorrowWithinCohort, ClusterQueueInfo
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.flavor_fungibility import assign_flavors
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    Nomination,
    PendingWorkload,
)
from rackgate_assigner.scheduler.nomination.topology_assignment import (
    apply_assignments,
    checks_of,
    find_assignments,
    topology_requests,
)
from rackgate_assigner.topology.model import NoFit
from rackgate_assigner.workload.decisions import Inadmissible
from rackgate_assigner.workload.info import quota_usage
from rackgate_assigner.workload_slices.admission import (
    leaf_ranges_near_parent,
    levels_differ,
    with_parent_flavors_text,
)
from rackgate_assigner.workload_slices.families import SliceFamily


def nominate_slice(
    state: QuotaState, head: PendingWorkload, queue: ClusterQueueInfo, family: SliceFamily
) -> Nomination | Inadmissible:
    """What would be admitted of a slice now, or why it does not fit.

    Args:
        state: the same when the call returns.
        head: the slice, with one PodSet.
        queue: its ClusterQueue, with only the flavors of its parent.
        family: its parent.
    """
    with _without_excess(state, head, family):
        found = _flavors(state, head, queue)
    if found.mode is FlavorAssignmentMode.FIT:
        inadmissible = _place(state, queue, family, found)
        if inadmissible is None:
            return found
    elif found.mode is FlavorAssignmentMode.NO_FIT:
        reason = found.no_fit_reason(queue) or PendingReason.NO_MATCHING_FLAVOR
        inadmissible = Inadmissible(reason, found.message)
    else:
        inadmissible = Inadmissible(PendingReason.WAITING_FOR_QUOTA, found.message)
    if family.parent is None or queue == state.queues[queue.name]:
        return inadmissible
    podsets = [podset.request.name for podset in head.podsets]
    text = with_parent_flavors_text(inadmissible.message, family.parent, podsets)
    return replace(inadmissible, message=text)


def could_ever_fit(
    state: QuotaState, head: PendingWorkload, queue: ClusterQueueInfo, family: SliceFamily
) -> bool:
    """Whether a slice would fit if only its parent used quota, and nothing used any capacity."""
    parent = family.parent.reserved if family.parent is not None else None
    held = quota_usage(parent) if parent is not None else {}
    with _without_excess(state, head, family):
        found = _flavors(state, head, queue)
    if found.mode is FlavorAssignmentMode.NO_FIT:
        return False
    node = state.tree.queues[queue.name]
    needed = {pair: amount + held.get(pair, 0) for pair, amount in found.usage.items()}
    if any(amount > node.potential(pair) for pair, amount in needed.items()):
        return False
    return _place(state, queue, family, found, simulate_empty=True) is None


def _flavors(state: QuotaState, head: PendingWorkload, queue: ClusterQueueInfo) -> Nomination:
    own = replace(
        queue,
        within_cluster_queue=NEVER,
        reclaim_within_cohort=NEVER,
        borrow_within_cohort=BorrowWithinCohort(),
    )
    return assign_flavors(state, head, [podset.request for podset in head.podsets], queue=own)


def _place(
    state: QuotaState,
    queue: ClusterQueueInfo,
    family: SliceFamily,
    nomination: Nomination,
    *,
    simulate_empty: bool = False,
) -> Inadmissible | None:
    """Set the domains of the slice; or why it has none."""
    if checks := checks_of(queue, nomination):
        text = f"workload slices cannot pass admission checks: {', '.join(checks)}"
        return Inadmissible(PendingReason.MISCONFIGURED, text)
    requests = topology_requests(state, queue, nomination)
    if requests is None:
        return Inadmissible(PendingReason.NO_MATCHING_FLAVOR, nomination.message)
    levels: dict[str, tuple[str, ...] | None] = dict.fromkeys(
        podset.request.name for podset in nomination.podsets
    )
    for flavor, podsets in requests.by_flavor.items():
        tree = state.topologies.by_flavor[flavor].tree
        levels.update((podset.request.name, tree.assignment_levels) for podset in podsets)
    chosen = {choice.flavor for podset in nomination.podsets for choice in podset.flavors.values()}
    differ = levels_differ(family, levels, ", ".join(sorted(chosen)))
    if differ is not None:
        return differ
    placed: Mapping[str, TopologyAssignment] = {}
    for flavor, (podset,) in requests.by_flavor.items():  # one, as a slice has one PodSet
        topology, request = state.topologies.by_flavor[flavor], podset.request
        ranges = leaf_ranges_near_parent(topology, request, family.near(request.name))
        text = ranges if isinstance(ranges, str) else ""
        for leaf_range in () if isinstance(ranges, str) else ranges:
            found = find_assignments(
                state, requests, simulate_empty=simulate_empty, leaf_range=leaf_range
            )
            if not isinstance(found, NoFit):
                placed = found
                break
            text = found.message
        else:
            podset.texts.append(text)
            podset.set_mode(FlavorAssignmentMode.PREEMPT)
            return Inadmissible(PendingReason.TOPOLOGY_PLACEMENT_FAILED, nomination.message)
    apply_assignments(nomination, placed)
    return None


@contextmanager
def _without_excess(
    state: QuotaState, head: PendingWorkload, family: SliceFamily
) -> Iterator[None]:
    """Without what pods of the family use beyond admission, which the slice takes over."""
    node = state.tree.queues[head.cluster_queue]
    node.remove(family.excess)
    try:
        yield
    finally:
        node.add(family.excess)
