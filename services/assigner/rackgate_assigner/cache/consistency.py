"""Compares the incrementally updated cache with a rebuild from the same objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.cache.pods.pod_defaults import without_pod_defaults
from rackgate_assigner.topology.model import IntVector, NodeInfo
from rackgate_assigner.topology.nodes import column_value, hostname
from rackgate_assigner.topology.tree import TopologyTree

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference between the cache and a rebuild.

    Attributes:
        what: one of a fixed set of words, such as `usage`, `paths` or `clusterQueue`.
        where: the object it belongs to: a flavor, queue, node or domain.
    """

    what: str
    where: str

    def __str__(self) -> str:
        if self.where.startswith("flavor "):
            return f"{self.where}: {self.what}"
        return f"{self.what} {self.where}"


def rebuild_into(cache: Cache, fresh: Cache) -> Cache:
    """Fill an empty cache with the objects of another, in a different order."""
    for row in cache.workloads.values():
        fresh.put_workload(without_pod_defaults(row))
    for item in cache.pod_defaults.classes.values():
        fresh.set_runtime_class(item)
    for ranges in cache.pod_defaults.ranges.values():
        for name in sorted(ranges, reverse=True):
            fresh.set_limit_range(ranges[name])
    for key, assumed in cache.assumed.items():
        held = cache.workloads[key].reserved is not None
        fresh.assume(key, assumed.value, replace_existing=held)
    for uid, root in cache.pods.owners.items():
        fresh.set_owner(uid, root)
    for uid, claim in cache.live_pods.claims.items():
        fresh.live_pods.set_owner(uid, *claim)
    for name in sorted(cache.pods.rows, reverse=True):
        fresh.put_pod(cache.pods.rows[name])
    for uid, queue in cache.live_pods.queues.items():
        fresh.set_job(uid, queue)
        if not cache.live_pods.is_managed(uid):
            fresh.drop_job(uid)
    for local_queue in cache.local_queues.values():
        fresh.put_local_queue(local_queue)
    for cluster_queue in cache.cluster_queues.values():
        fresh.put_cluster_queue(cluster_queue)
    for cohort in cache.cohorts.values():
        fresh.put_cohort(cohort)
    for name, value in cache.priorities.items():
        fresh.priorities[name] = value
    for name, controller in cache.checks.items():
        fresh.checks[name] = controller
    for name in sorted(cache.nodes):
        fresh.put_node(cache.nodes[name])
    for name, levels in cache.topologies.items():
        fresh.put_topology(name, levels)
    for flavor in cache.flavors.values():
        fresh.put_flavor(flavor)
    return fresh


def mismatches(cache: Cache) -> list[Mismatch]:
    """Differences between a cache and a rebuild from the same objects, in a fixed order.

    Takes as long as building everything from scratch.
    """
    fresh = rebuild_into(cache, Cache(cache.features, cache.excluded))
    by_flavor, fresh_by_flavor = (
        cache.flavor_topologies().by_flavor,
        fresh.flavor_topologies().by_flavor,
    )
    found = _unequal("clusterQueue", cache.totals.cluster_queues, fresh.totals.cluster_queues)
    found += _unequal("quotaTree", _usage_by_node(cache), _usage_by_node(fresh))
    found += _unequal("running", _running(cache), _running(fresh))
    found += _unequal("localQueue", cache.totals.local_queues, fresh.totals.local_queues)
    shapes = [{key: row.shape for key, row in one.workloads.items()} for one in (cache, fresh)]
    found += _unequal("requests", *shapes)
    found += _unequal("excess", cache.excess_usage.found, fresh.excess_usage.found)
    found += _unequal("node", cache.pods.charged, fresh.pods.charged)
    found += _unequal("hostUsage", cache.trees.usage.hosts, fresh.trees.usage.hosts)
    found += _unequal("domainUsage", cache.trees.usage.domains, fresh.trees.usage.domains)
    for name in sorted({*by_flavor, *fresh_by_flavor}):
        if name not in by_flavor or name not in fresh_by_flavor:
            found.append(Mismatch("tree", f"flavor {name}"))
        else:
            parts = _flavor_topology_mismatches(by_flavor[name], fresh_by_flavor[name], cache.nodes)
            found += [Mismatch(part, f"flavor {name}") for part in parts]
    return found


def _usage_by_node(cache: Cache) -> dict[str, object]:
    tree = cache.quota_usage().tree
    nodes = (*tree.queues.values(), *tree.cohorts.values())
    return {
        f"{'queue' if node.is_queue else 'cohort'} {node.name}": (
            node.subtree,
            {pair: amount for pair, amount in node.usage.items() if amount},
        )
        for node in nodes
    }


def _running(cache: Cache) -> dict[str, object]:
    return {
        row.key: (row.cluster_queue, row.usage, row.charges, row.pods, row.candidate_order)
        for row in cache.quota_usage().running
    }


def _unequal(kind: str, kept: Mapping[Key, object], fresh: Mapping[Key, object]) -> list[Mismatch]:
    names = {*kept, *fresh}
    return [
        Mismatch(kind, name if isinstance(name, str) else repr(name))
        for name in sorted(names, key=repr)
        if kept.get(name) != fresh.get(name)
    ]


def _flavor_topology_mismatches(
    flavor_topology: FlavorTopology, fresh: FlavorTopology, nodes: Mapping[str, NodeInfo]
) -> list[str]:
    if (
        flavor_topology.flavor != fresh.flavor
        or flavor_topology.capacity.tree is not flavor_topology.tree
    ):
        return ["tree"]
    return _tree_parts(flavor_topology.tree, fresh.tree, nodes) + [
        part
        for part in ("usage", "free")
        if not np.array_equal(
            getattr(flavor_topology.capacity, part), getattr(fresh.capacity, part)
        )
    ]


def _tree_parts(
    tree: TopologyTree, fresh: TopologyTree, nodes: Mapping[str, NodeInfo]
) -> list[str]:
    hosts = [host for host in map(hostname, nodes.values()) if host is not None]
    parts: dict[str, Callable[[TopologyTree], object]] = {
        "levels": lambda one: one.levels,
        "nodes": lambda one: list(one.nodes),
        "paths": lambda one: one.paths,
        "resources": lambda one: one.resources,
        "offers": lambda one: dict(one.resource_node_counts),
        "skipped": lambda one: one.skipped,
        "nodeIndex": lambda one: list(map(one.leaf_of_node, nodes)),
        "hostIndex": lambda one: list(map(one.leaf_of_host, hosts)),
    }
    arrays: dict[str, Callable[[TopologyTree], Sequence[IntVector]]] = {
        "parents": lambda one: one.parents,
        "children": lambda one: one.children,
        "leafRanges": lambda one: one.leaf_ranges,
        "nodeLeaves": lambda one: [one.node_leaves, one.node_offsets],
        "allocatable": lambda one: [one.allocatable],
    }
    found = [part for part, read in parts.items() if read(tree) != read(fresh)]
    found += [
        part
        for part, vectors in arrays.items()
        if not all(map(np.array_equal, vectors(tree), vectors(fresh)))
    ]
    return found + ([] if _columns_match_nodes(tree) else ["columns"])


def _columns_match_nodes(tree: TopologyTree) -> bool:
    """Whether every cached column agrees with its nodes."""
    return all(
        [column.values[code] for code in column.codes.tolist()]
        == [column_value(key, node) for node in tree.nodes]
        for key, column in tree.columns.items()
    )
