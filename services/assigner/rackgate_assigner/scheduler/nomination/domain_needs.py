"""What the domains of a topology lack for the pods of a preemptor, and who uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rackgate_assigner.preemption.targets import DomainNeeds
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.scheduler.nomination.topology_assignment import TopologyRequests
from rackgate_assigner.topology.capacity import (
    charge_amounts,
    leaf_of_assigned_domain,
    single_pod_requests,
)
from rackgate_assigner.topology.model import TopologyRequest
from rackgate_assigner.workload.info import Charge


def domain_needs(state: QuotaState, requests: TopologyRequests) -> DomainNeeds | None:
    """The domains of the coarsest requested level; None if the pods need no common domain.

    Pods that only prefer the level may take several domains, so that none of them lacks anything
    for certain.

    Args:
        state: topologies with everything charged that is in use; the same as long as the result is
            used.
        requests: of the preemptor.
    """
    if len(requests.by_flavor) != 1:
        return None
    ((flavor, podsets),) = requests.by_flavor.items()
    topology = state.topologies.by_flavor[flavor]
    tree, capacity = topology.tree, topology.capacity
    levels = [_level_of(podset.request.topology, tree.levels) for podset in podsets]
    known = [found for found in levels if found is not None]
    if len(known) < len(levels):
        return None
    depth = min(index for index, _ in known)
    # Without a group, each PodSet may take a domain of its own: one of them bounds what is missing.
    wanted: dict[str, int] = {}
    for podset, (index, is_required) in zip(podsets, known, strict=True):
        if is_required and index == depth:
            request = podset.request
            wanted = {
                resource: amount * request.count
                for resource, amount in single_pod_requests(request.requests).items()
            }
            break
    free, _ = capacity.free_and_usage()
    sums = {
        resource: np.add.reduceat(
            np.maximum(free[capacity.rows[resource]], 0), tree.leaf_ranges[depth][:-1]
        )
        for resource in wanted
        if resource in capacity.rows
    }

    def missing(domain: int) -> Mapping[str, int]:
        return {
            resource: lacking
            for resource, total in sums.items()
            if (lacking := wanted[resource] - int(total[domain])) > 0
        }

    def used_by(charges: Iterable[Charge]) -> Mapping[int, Mapping[str, int]]:
        used: dict[int, dict[str, int]] = {}
        for charge in charges:
            assignment = charge.assignment
            for values, count in assignment.domains:
                leaf = leaf_of_assigned_domain(tree, assignment.levels, values)
                if leaf is None:
                    continue
                amounts = used.setdefault(tree.domain_of_leaf(leaf, depth), {})
                for resource, amount in charge_amounts(charge.requests, count).items():
                    amounts[resource] = amounts.get(resource, 0) + amount
        return used

    return DomainNeeds(missing, used_by)


def _level_of(request: TopologyRequest | None, levels: Sequence[str]) -> tuple[int, bool] | None:
    """The requested level by number, and whether it is required; None without one."""
    level = None if request is None else request.required or request.preferred
    if request is None or level is None or level not in levels:
        return None
    return levels.index(level), request.required is not None
