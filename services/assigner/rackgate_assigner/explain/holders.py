"""Who holds room on the leaves of a tree, and who holds quota."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import Holder
from rackgate_assigner.explain.nearest import Occupant
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.quota.quota import quantity
from rackgate_assigner.topology.capacity import leaf_of_assigned_domain
from rackgate_assigner.workload.info import Charge, PodInfo

if TYPE_CHECKING:
    from rackgate_assigner.cache.cache import Cache


def occupants(cache: Cache, flavor_topology: FlavorTopology) -> dict[int, list[Occupant]]:
    """Everything that takes room in a flavor's tree, by leaf.

    Workloads with what their assignments take; pods that no assignment covers by their own names.
    """
    found: dict[int, list[Occupant]] = {}
    for key, holding in cache.usages.items():
        for charge in holding.charges:
            if not _uses_flavor_nodes(cache, charge, flavor_topology.flavor.name):
                continue
            for values, count in charge.assignment.domains:
                leaf = leaf_of_assigned_domain(
                    flavor_topology.tree, charge.assignment.levels, values
                )
                if leaf is not None:
                    one = Occupant("Workload", key, count, charge.requests)
                    found.setdefault(leaf, []).append(one)
    for row in _pods_without_assignment(cache):
        leaf = flavor_topology.tree.leaf_of_node(row.node)
        if leaf is not None:
            found.setdefault(leaf, []).append(Occupant("Pod", row.key, 1, dict(row.requests)))
    return found


def _uses_flavor_nodes(cache: Cache, charge: Charge, flavor: str) -> bool:
    """Whether an assignment may take capacity of a flavor's tree, see `FlavorTopologies.charge`."""
    if charge.by_host or charge.flavor == flavor:
        return True
    flavor_topologies = cache.flavor_topologies()
    return (
        charge.flavor not in flavor_topologies.by_flavor
        or flavor_topologies.shared_nodes(charge.flavor, flavor) > 0
    )


def _pods_without_assignment(cache: Cache) -> Iterator[PodInfo]:
    """Bound pods that are charged to their nodes.

    The ledger counts them by node and shape. Foreign pods are all among them; which of several
    equal pods of one Workload is the surplus one is told by name.
    """
    foreign_first = sorted(cache.pods.rows.values(), key=lambda row: (row.workload != "", row.key))
    left = {node: dict(shapes) for node, shapes in cache.pods.charged.items()}
    for row in foreign_first:
        counts = left.get(row.node)
        if counts and counts.get(row.requests, 0) > 0:
            counts[row.requests] -= 1
            yield row


def quota_holders(cache: Cache, cluster_queue: str, pair: FlavorResource) -> list[Holder]:
    """Workloads of a ClusterQueue that hold a resource of a flavor, the largest first.

    Pods whose Workload is gone stand under the name of their LocalQueue.
    """
    held = {
        key: holding.quota[pair]
        for key, holding in cache.usages.items()
        if holding.cluster_queue == cluster_queue and holding.quota.get(pair)
    }
    for root, excess in cache.excess_usage.found.items():
        # Pods that live beyond what was granted, under the Workload that they belong to.
        if excess.cluster_queue == cluster_queue and (more := excess.amounts.get(pair)):
            key = cache.excess_usage.workload_of(root) or excess.local_queue
            held[key] = held.get(key, 0) + more
    resource = pair[1]
    return [
        Holder(kind="Workload", name=key, amounts={resource: quantity(resource, held[key])})
        for key in sorted(held, key=lambda key: (-held[key], key))
    ]
