"""Growing and shrinking a PodSet around its previous assignment (conformance text, section 12)."""

from __future__ import annotations

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.topology.model import NoFit, PodSetRequest
from rackgate_assigner.topology.placement.find import Search, merged, to_assignment
from rackgate_assigner.topology.tree import TopologyTree


def resize_unit(
    search: Search, workers: PodSetRequest, leader: PodSetRequest | None
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
    before = _leaves(tree, workers.previous)
    if before is None or workers.previous is None:
        return None
    led = leader.previous if leader is not None else None
    led_before: dict[int, int] | None = {}
    if led is not None:
        led_before = _leaves(tree, led)
        if led_before is None:
            return None
    kept = _first(workers.previous, workers.count)
    search.assume(_leaves(tree, kept) or {}, workers)
    if leader is not None and led_before:
        search.assume(led_before, leader)
    more = workers.count - kept.count
    new_leader = leader if led is None else None
    result = {workers.name: kept}
    if leader is not None and led is not None:
        result[leader.name] = led
    if more == 0 and new_leader is None:
        return result
    spot = search.find(workers, more, new_leader)
    if isinstance(spot, str):
        return NoFit(workers.name, spot, (workers.name,))
    search.assume(spot.workers, workers)
    if spot.workers:
        result[workers.name] = to_assignment(tree, merged(before, spot.workers))
    if new_leader is not None:
        search.assume(spot.leader, new_leader)
        result[new_leader.name] = to_assignment(tree, spot.leader)
    return result


def _leaves(tree: TopologyTree, assignment: TopologyAssignment | None) -> dict[int, int] | None:
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


def _first(assignment: TopologyAssignment, count: int) -> TopologyAssignment:
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
