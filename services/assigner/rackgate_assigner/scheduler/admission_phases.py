"""Admission in two phases: quota is reserved, admission checks run, then pods are placed.

Without admission checks there is one phase: quota and domains come together.
Source: conformance/quota, section 12; ADR 41.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from rackgate.api.names import PendingReason
from rackgate.wire.core import Toleration
from rackgate.wire.kueue import PodSetUpdate
from rackgate_assigner.quota.queues import ClusterQueueInfo
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.nomination import (
    FlavorAssignmentMode,
    FlavorChoice,
    NominatedPodSet,
    Nomination,
)
from rackgate_assigner.scheduler.nomination.offer import Offer
from rackgate_assigner.scheduler.nomination.topology_assignment import (
    find_assignments,
    topology_requests,
)
from rackgate_assigner.topology.model import NoFit, PodSetRequest
from rackgate_assigner.workload.decisions import (
    DELAYED_PENDING,
    DELAYED_READY,
    Assignment,
    Inadmissible,
)
from rackgate_assigner.workload.info import Charge, WorkloadInfo
from rackgate_assigner.workload.object_size import too_large


def reservation(
    decided: Assignment, checks: tuple[str, ...], podsets: Iterable[PodSetRequest], offer: Offer
) -> Assignment:
    """The assignment of quota alone: PodSets get their domains after the admission checks.

    Until then their domains are free for others.

    Args:
        decided: the assignment without checks.
        checks: names of the checks that apply to it.
        podsets: requests of the Workload.
        offer: of its queue.
    """
    placed = {podset.name for podset in podsets if offer.needs_domains(podset)}
    parts = (
        replace(
            part,
            topology=None,
            delayed=DELAYED_PENDING if part.count and part.name in placed else "",
        )
        for part in decided.podsets
    )
    return replace(decided, podsets=tuple(parts), checks=checks)


def place_after_checks(
    state: QuotaState, info: WorkloadInfo, held: Assignment, queue: ClusterQueueInfo
) -> Assignment | Inadmissible:
    """The assignment of a Workload with quota, with the domains of its delayed PodSets.

    Its flavors stay. Node selectors and tolerations that its checks add to pods count.

    Args:
        state: its topologies are charged with the domains.
        info: the Workload.
        held: its assignment.
        queue: its ClusterQueue.
    """
    requests = {podset.request.name: podset.request for podset in info.podsets}
    updates = [update for check in info.checks for update in check.pod_set_updates]
    nomination = Nomination(
        [
            NominatedPodSet(
                updated_request(replace(requests[part.name], count=part.count), updates),
                {},
                {
                    resource: FlavorChoice(flavor, FlavorAssignmentMode.FIT, -1)
                    for resource, flavor in part.flavors.items()
                },
            )
            for part in held.podsets
            if part.delayed == DELAYED_PENDING and part.name in requests
        ]
    )
    placed = topology_requests(state, replace(queue, checks=()), nomination)
    if placed is None:
        return Inadmissible(PendingReason.NO_MATCHING_FLAVOR, nomination.message)
    found = find_assignments(state, placed)
    if isinstance(found, NoFit):
        return Inadmissible(PendingReason.TOPOLOGY_PLACEMENT_FAILED, found.message)
    text = too_large(found, info.size)
    if text is not None:
        return Inadmissible(PendingReason.MISCONFIGURED, text)
    for flavor, podsets in placed.by_flavor.items():
        charges = [Charge(flavor, one.request.requests, found[one.request.name]) for one in podsets]
        state.charge(charges, 1)
    parts = (
        replace(part, topology=found.get(part.name), delayed=DELAYED_READY)
        if part.delayed == DELAYED_PENDING
        else part
        for part in held.podsets
    )
    return replace(held, podsets=tuple(parts))


def updated_request(request: PodSetRequest, updates: Sequence[PodSetUpdate]) -> PodSetRequest:
    """A request with the node selectors and tolerations that admission checks add (N5)."""
    for update in updates:
        if update.name != request.name:
            continue
        added = tuple(msgspec.convert(entry, Toleration) for entry in update.tolerations)
        request = replace(
            request,
            node_selector={**request.node_selector, **update.node_selector},
            tolerations=(*request.tolerations, *added),
        )
    return request
