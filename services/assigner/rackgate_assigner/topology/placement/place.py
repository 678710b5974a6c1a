"""Where do these pods go? The entry points of the placement engine.

The rules are those of the conformance data (`tests/conformance`), whose sections are named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rackgate.features import DEFAULTS, Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.model import NoFit, Placement, PodSetRequest, Replacement
from rackgate_assigner.topology.placement.find import LeafAssignment, PlacementSearch, to_assignment
from rackgate_assigner.topology.placement.replace import replace_podset
from rackgate_assigner.topology.placement.resize import resize_group
from rackgate_assigner.topology.tree import TopologyTree

__all__ = ["charge_assignment", "place", "replace"]


@dataclass(frozen=True, slots=True)
class PodSetGroup:
    """PodSets that are placed together: workers, and the one pod of a leader or none."""

    members: tuple[PodSetRequest, ...]
    workers: PodSetRequest
    leader: PodSetRequest | None = None


def place(
    tree: TopologyTree,
    capacity: Capacity,
    podsets: Sequence[PodSetRequest],
    *,
    topology_name: str,
    flavor_tolerations: Sequence[Toleration] = (),
    simulate_empty: bool = False,
    features: Features = DEFAULTS,
    leaf_range: tuple[int, int] | None = None,
) -> Placement:
    """Place PodSets one after another on one snapshot; earlier ones take room from later ones.

    Pure: `capacity` is only read, and the same input gives the same answer.

    Args:
        tree: domains of the flavor.
        capacity: numbers over the leaves of this very tree.
        podsets: in the Workload's order.
        topology_name: used in refusals.
        flavor_tolerations: tolerations that the flavor adds to every pod.
        simulate_empty: as if nothing were placed by TAS (pods of others still count).
        features: feature gates.
        leaf_range: leaf range that all pods must stay in, end exclusive.

    Returns:
        Assignments of all PodSets, or of those before the first one without a place and `failure`.

    Raises:
        ValueError: negative count, or `capacity` of another tree.
    """
    search = PlacementSearch(
        tree,
        capacity,
        topology_name,
        flavor_tolerations,
        features,
        simulate_empty=simulate_empty,
    )
    assignments: dict[str, TopologyAssignment] = {}
    for podset_group in _group_podsets(podsets):
        answer = _place_group(search, podset_group, leaf_range)
        if isinstance(answer, NoFit):
            return Placement(assignments, answer)
        assignments.update(answer)
    return Placement(assignments)


def replace(
    tree: TopologyTree,
    capacity: Capacity,
    podsets: Sequence[PodSetRequest],
    replacement: Replacement,
    *,
    topology_name: str,
    flavor_tolerations: Sequence[Toleration] = (),
    features: Features = DEFAULTS,
) -> Placement:
    """Replace the pods of the first unhealthy node and keep the others where they are.

    `capacity` is charged with the current assignments (the unhealthy node's pods included, as they
    are still admitted). Pure, like `place`. PodSets are walked in its order, each of them alone.
    Without unhealthy nodes everything stays.

    Returns:
        New assignments of the PodSets that had one; `failure` for the first that finds no place.

    Raises:
        ValueError: as `place`.
    """
    search = PlacementSearch(tree, capacity, topology_name, flavor_tolerations, features)
    assignments: dict[str, TopologyAssignment] = {}
    for podset in (
        member for podset_group in _group_podsets(podsets) for member in podset_group.members
    ):
        current_assignment = replacement.assignments.get(podset.name)
        if current_assignment is None:
            continue
        stays = replacement.owned_by_single_pod and features.skip_reassignment_for_pod_owned
        if stays or not replacement.unhealthy_nodes:
            assignments[podset.name] = current_assignment
            continue
        answer = replace_podset(search, podset, current_assignment, replacement.unhealthy_nodes[0])
        if isinstance(answer, str):
            return Placement(assignments, NoFit(podset.name, answer, (podset.name,)))
        assignments[podset.name] = answer
    return Placement(assignments)


def _group_podsets(podsets: Sequence[PodSetRequest]) -> Iterator[PodSetGroup]:
    """PodSets without a group alone, groups at the place of their first member (section 5)."""
    groups: dict[str, list[PodSetRequest]] = {}
    for podset in podsets:
        if podset.count < 0:
            raise ValueError(f'podset "{podset.name}": count {podset.count} is negative')
        if podset.group is not None:
            groups.setdefault(podset.group, []).append(podset)
    for podset in podsets:
        members = [podset] if podset.group is None else groups.pop(podset.group, [])
        if not members:
            continue
        if len(members) != 2:
            yield PodSetGroup(tuple(members), members[0])
            continue
        workers, leader = members
        if leader.count > workers.count:
            workers, leader = leader, workers
        yield PodSetGroup(tuple(members), workers, leader)


def _place_group(
    search: PlacementSearch, podset_group: PodSetGroup, leaf_range: tuple[int, int] | None
) -> dict[str, TopologyAssignment] | NoFit:
    names = tuple(member.name for member in podset_group.members)
    problem = _group_problem(podset_group)
    if problem is not None:
        return NoFit(names[0], problem, names)
    workers = podset_group.workers
    leader = (
        podset_group.leader
        if podset_group.leader is not None and podset_group.leader.count
        else None
    )
    if search.features.resize_in_place and workers.previous is not None:
        resized = resize_group(search, workers, leader)
        if resized is not None:
            return resized
    leaf_assignment = search.find_topology_assignment(
        workers, workers.count, leader, leaf_range=leaf_range
    )
    if isinstance(leaf_assignment, str):
        return NoFit(names[0], leaf_assignment, names)
    return _assume_assignments(search, podset_group, leaf_assignment)


def _assume_assignments(
    search: PlacementSearch, podset_group: PodSetGroup, leaf_assignment: LeafAssignment
) -> dict[str, TopologyAssignment]:
    search.assume(leaf_assignment.workers, podset_group.workers)
    assignments = {podset_group.workers.name: to_assignment(search.tree, leaf_assignment.workers)}
    if podset_group.leader is not None:
        search.assume(leaf_assignment.leader, podset_group.leader)
        assignments[podset_group.leader.name] = to_assignment(search.tree, leaf_assignment.leader)
    return assignments


def _group_problem(podset_group: PodSetGroup) -> str | None:
    """What no capacity can fix and the topology request does not show."""
    if len(podset_group.members) > 2:
        return (
            f'podset group "{podset_group.workers.group}" has {len(podset_group.members)} podsets, '
            "at most 2 (leader and workers) can be placed together"
        )
    if podset_group.leader is not None and podset_group.leader.count > 1:
        return (
            f'podset group "{podset_group.workers.group}": '
            f'the leader podset "{podset_group.leader.name}" '
            f"has count {podset_group.leader.count}, it can only be 1"
        )
    return None
