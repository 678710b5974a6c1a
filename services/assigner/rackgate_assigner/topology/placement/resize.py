"""Growing and shrinking a PodSet around its previous assignment (conformance text, section 12)."""

from __future__ import annotations

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.topology.model import NoFit, PodSetRequest
from rackgate_assigner.topology.placement.find import (
    PlacementSearch,
    merge_pods_by_leaf,
    to_assignment,
)
from rackgate_assigner.topology.tree import TopologyTree


def resize_group(
    search: PlacementSearch, workers: PodSetRequest, leader: PodSetRequest | None
) -> dict[str, TopologyAssignment] | NoFit | None:
    """Keep what is placed; place only pods that are more than before.

    Args:
        search: kept and new pods are assumed in it.
        workers: with a previous assignment.
        leader: one pod that goes with them, or None.

    Returns:
        Assignments, a refusal (of the workers alone), or None when there is no previous
        assignment that still exists: then the unit is placed afresh.
    """
    tree = search.tree
    before = _pods_by_leaf(tree, workers.previous)
    if before is None or workers.previous is None:
        return None
    leader_assignment = leader.previous if leader is not None else None
    leader_before: dict[int, int] | None = {}
    if leader_assignment is not None:
        leader_before = _pods_by_leaf(tree, leader_assignment)
        if leader_before is None:
            return None
    kept = _truncate_assignment(workers.previous, workers.count)
    search.assume(_pods_by_leaf(tree, kept) or {}, workers)
    if leader is not None and leader_before:
        search.assume(leader_before, leader)
    additional_pods = workers.count - kept.count
    new_leader = leader if leader_assignment is None else None
    result = {workers.name: kept}
    if leader is not None and leader_assignment is not None:
        result[leader.name] = leader_assignment
    if additional_pods == 0 and new_leader is None:
        return result
    leaf_assignment = search.find_topology_assignment(workers, additional_pods, new_leader)
    if isinstance(leaf_assignment, str):
        return NoFit(workers.name, leaf_assignment, (workers.name,))
    search.assume(leaf_assignment.workers, workers)
    if leaf_assignment.workers:
        result[workers.name] = to_assignment(
            tree, merge_pods_by_leaf(before, leaf_assignment.workers)
        )
    if new_leader is not None:
        search.assume(leaf_assignment.leader, new_leader)
        result[new_leader.name] = to_assignment(tree, leaf_assignment.leader)
    return result


def _pods_by_leaf(
    tree: TopologyTree, assignment: TopologyAssignment | None
) -> dict[int, int] | None:
    """Pods per leaf, or None when a domain is no leaf any more or nothing was assigned."""
    if assignment is None:
        return None
    pods: dict[int, int] = {}
    for values, count in assignment.domains:
        leaf = tree.leaf_of_values(values)
        if leaf is None:
            return None
        pods[leaf] = pods.get(leaf, 0) + count
    return pods


def _truncate_assignment(assignment: TopologyAssignment, count: int) -> TopologyAssignment:
    """The domains from the front until `count` pods are reached."""
    if assignment.count <= count:
        return assignment
    domains: list[tuple[Domain, int]] = []
    for values, pods in assignment.domains:
        if count <= 0:
            break
        domains.append((values, min(pods, count)))
        count -= pods
    return TopologyAssignment(assignment.levels, tuple(domains))
