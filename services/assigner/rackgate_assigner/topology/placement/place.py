"""The placement engine, as a library: choose the domains of pods.

`place` puts the PodSets of one Workload on one snapshot, one after another; PodSets of one group
(workers and a leader) go together. For each of them, `PlacementSearch.find_topology_assignment`

1. reads the topology request against the levels of the tree (`read_placement_request`),
2. matches the nodes by taints, selector and affinity (`node_matching`),
3. counts what fits into every domain (`count`, phase 1),
4. chooses domains and assigns the pods down to the leaves (`assign`, phase 2),

and its pods are assumed: they are subtracted for the PodSets that follow. `replace.replace` does
the same for the pods of an unhealthy node. Rules that are off by default are in `experimental`.

Inputs: an immutable tree and the capacity of a snapshot, which is only read.
Invariants: the same input gives the same answer; an assignment lists leaves in path order; the
messages are Kueue's, byte for byte.
Source: conformance/tas; `FindTopologyAssignmentsForFlavor` of Kueue's tas_flavor_snapshot.go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np

from rackgate.features import DEFAULTS, Features
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import Capacity, single_pod_requests
from rackgate_assigner.topology.experimental.balanced import balance_shares
from rackgate_assigner.topology.experimental.packing import pack_shares
from rackgate_assigner.topology.experimental.refined_counts import count_refined
from rackgate_assigner.topology.model import (
    BoolVector,
    NoFit,
    Placement,
    PlacementRequest,
    PodSetRequest,
    SliceLayer,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.assign import (
    Shares,
    Shortfall,
    assign_to_leaves,
    find_fit_domains,
    not_fit_message,
)
from rackgate_assigner.topology.placement.count import (
    DomainCounts,
    FreeCapacity,
    GroupShape,
    count_domains,
    exclusion_text,
)
from rackgate_assigner.topology.placement.node_matching import match_nodes
from rackgate_assigner.topology.tree import TopologyTree

# The API has int32; larger sizes never fit either.
SIZE_LIMIT: Final = 2**31 - 1


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
    """Place PodSets one after another on one snapshot.

    Args:
        tree: domains of the flavor.
        capacity: of this very tree; only read.
        podsets: in the Workload's order.
        topology_name: for messages.
        flavor_tolerations: tolerations that the flavor adds to every pod.
        simulate_empty: as if no pods were placed by topology (other pods still count).
        features: feature gates.
        leaf_range: leaves that all pods must stay in, end exclusive.

    Returns:
        Assignments of all PodSets, or of those before the first that does not fit, and `failure`.

    Raises:
        ValueError: a negative count, or the capacity of another tree.
    """
    search = PlacementSearch(
        tree, capacity, topology_name, flavor_tolerations, features, simulate_empty=simulate_empty
    )
    assignments: dict[str, TopologyAssignment] = {}
    for group in group_podsets(podsets):
        found = place_group(search, group, leaf_range)
        if isinstance(found, NoFit):
            return Placement(assignments, found)
        assignments.update(found)
    return Placement(assignments)


@dataclass(frozen=True, slots=True)
class PodSetGroup:
    """PodSets that are placed together: workers, and at most the one pod of a leader."""

    members: tuple[PodSetRequest, ...]
    workers: PodSetRequest
    leader: PodSetRequest | None = None


def group_podsets(podsets: Sequence[PodSetRequest]) -> Iterator[PodSetGroup]:
    """Yield PodSets without a group alone, and a group at the position of its first member."""
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


def place_group(
    search: PlacementSearch, group: PodSetGroup, leaf_range: tuple[int, int] | None
) -> dict[str, TopologyAssignment] | NoFit:
    """Place the PodSets of one group within a range of leaves, and assume their pods."""
    names = tuple([member.name for member in group.members])
    workers = group.workers
    problem = ""
    if len(names) > 2:
        problem = (
            f'podset group "{workers.group}" has {len(names)} podsets, '
            "at most 2 (leader and workers) can be placed together"
        )
    elif group.leader is not None and group.leader.count > 1:
        problem = (
            f'podset group "{workers.group}": the leader podset "{group.leader.name}" '
            f"has count {group.leader.count}, it can only be 1"
        )
    if problem:
        return NoFit(names[0], problem, names)
    leader = group.leader if group.leader is not None and group.leader.count else None
    if search.features.resize_in_place and workers.previous is not None:
        resized = _resize_group(search, workers, workers.previous, leader)
        if resized is not None:
            return resized
    found = search.find_topology_assignment(workers, workers.count, leader, leaf_range=leaf_range)
    if isinstance(found, str):
        return NoFit(names[0], found, names)
    search.free.assume(found.workers, workers.requests)
    assignments = {workers.name: to_assignment(search.tree, found.workers)}
    if group.leader is not None:
        search.free.assume(found.leader, group.leader.requests)
        assignments[group.leader.name] = to_assignment(search.tree, found.leader)
    return assignments


# One search: both phases for one group.


@dataclass(frozen=True, slots=True)
class LeafAssignment:
    """Positive numbers of pods by leaf id, in path order."""

    workers: Mapping[int, int] = field(default_factory=dict)
    leader: Mapping[int, int] = field(default_factory=dict)


class PlacementSearch:
    """A walk over the PodSets of one Workload.

    Attributes:
        free: the capacity minus what was assumed for earlier PodSets.
    """

    def __init__(
        self,
        tree: TopologyTree,
        capacity: Capacity,
        topology: str,
        flavor_tolerations: Sequence[Toleration],
        features: Features,
        *,
        simulate_empty: bool = False,
    ) -> None:
        if capacity.tree is not tree:
            raise ValueError("capacity belongs to another tree")
        self.tree = tree
        self.topology = topology
        self.flavor_tolerations = tuple(flavor_tolerations)
        self.features = features
        self.free = FreeCapacity(capacity, simulate_empty=simulate_empty)

    def find_topology_assignment(
        self,
        workers: PodSetRequest,
        count: int,
        leader: PodSetRequest | None = None,
        *,
        layers: Sequence[SliceLayer] | None = None,
        leaf_range: tuple[int, int] | None = None,
    ) -> LeafAssignment | str:
        """Find domains for the pods of one group; assumes nothing.

        Args:
            workers: whose topology request, selector, affinity and tolerations count.
            count: workers to place.
            leader: one pod of this PodSet goes with them.
            layers: slice layers instead of those of the request.
            leaf_range: leaves that the pods must stay in, end exclusive.

        Returns:
            The assignment, or why there is none.
        """
        try:
            request = read_placement_request(
                self.tree.levels, workers, count, self.features, layers
            )
        except RequestError as error:
            return str(error)
        if layers is None and count % request.size:
            return (
                f'podset "{workers.name}": count {count} is not a multiple of '
                f"the slice size {request.size}"
            )
        counts, message = self.count(request, workers, leader, leaf_range)
        shares = self.assign(counts)
        if isinstance(shares, Shortfall):
            return message(self.topology, shares)
        shares.sort()
        leaders = {leaf: leaders for leaf, _, leaders in shares if leaders > 0} if leader else {}
        return LeafAssignment({leaf: pods for leaf, pods, _ in shares if pods > 0}, leaders)

    def count(
        self,
        request: PlacementRequest,
        workers: PodSetRequest,
        leader: PodSetRequest | None,
        leaf_range: tuple[int, int] | None = None,
    ) -> tuple[DomainCounts, Callable[[str, Shortfall], str]]:
        """Phase 1: what fits into every domain; and the message of a topology's shortfall."""
        features = self.features
        outside_leaf_range: BoolVector | None = None
        if leaf_range is not None:
            outside_leaf_range = np.ones(self.tree.leaf_count, dtype=np.bool_)
            outside_leaf_range[leaf_range[0] : leaf_range[1]] = False
        if (features.nodes_below_leaves and not self.tree.lowest_is_hostname) or (
            leader is not None and (features.leader_rules or features.leader_messages)
        ):
            return count_refined(
                request,
                self.free,
                workers,
                leader,
                flavor_tolerations=self.flavor_tolerations,
                outside_leaf_range=outside_leaf_range,
                features=features,
            )
        eligibility = match_nodes(
            self.tree,
            workers,
            self.flavor_tolerations,
            soft_affinity=features.node_affinity_preferred,
        )
        worker = single_pod_requests(workers.requests)
        leader_requests = single_pod_requests(leader.requests) if leader is not None else None
        shape = GroupShape(worker, leader_requests, eligibility, outside_leaf_range)
        counts = count_domains(request, self.free, shape)

        def message(topology: str, shortfall: Shortfall) -> str:
            excluded = (
                ""
                if shortfall.absent
                else exclusion_text(self.free, worker, eligibility, outside_leaf_range)
            )
            return not_fit_message(topology, counts, shortfall, excluded)

        return counts, message

    def assign(self, counts: DomainCounts) -> Shares | Shortfall:
        """Phase 2: what every leaf gets."""
        request, features = counts.request, self.features
        if features.balanced_placement and not (
            request.required or request.unconstrained or request.required_level is not None
        ):
            shares = balance_shares(counts)
            if shares is not None:
                return shares
        if (
            features.required_and_preferred
            or features.fewest_domains
            or features.best_fit_below_slices
        ):
            return pack_shares(counts, self.free, features)
        start = find_fit_domains(counts)
        return start if isinstance(start, Shortfall) else assign_to_leaves(counts, start)


def to_assignment(tree: TopologyTree, pods_by_leaf: Mapping[int, int]) -> TopologyAssignment:
    """The stored form of pods by leaf: in path order, hostname alone in the host case."""
    paths = tree.paths[-1]
    path_values = slice(-1 if tree.lowest_is_hostname else 0, None)
    return TopologyAssignment(
        tree.assignment_levels,
        tuple([(paths[leaf][path_values], pods_by_leaf[leaf]) for leaf in sorted(pods_by_leaf)]),
    )


# Resize around a previous assignment (gate ElasticJobsViaWorkloadSlicesWithTAS).


def _resize_group(
    search: PlacementSearch,
    workers: PodSetRequest,
    previous: TopologyAssignment,
    leader: PodSetRequest | None,
) -> dict[str, TopologyAssignment] | NoFit | None:
    """Keep existing assignments, and place only the additional pods.

    Returns:
        Assignments, a failure (of the workers alone), or None when a previous domain is gone:
        then the group is placed as if there were no previous assignment.
    """
    tree = search.tree
    before = _pods_by_leaf(tree, previous)
    leader_previous = leader.previous if leader is not None else None
    leader_before = _pods_by_leaf(tree, leader_previous) if leader_previous is not None else {}
    if before is None or leader_before is None:
        return None
    kept = _truncate_assignment(previous, workers.count)
    search.free.assume(_pods_by_leaf(tree, kept) or {}, workers.requests)
    result = {workers.name: kept}
    if leader is not None and leader_previous is not None:
        search.free.assume(leader_before, leader.requests)
        result[leader.name] = leader_previous
        leader = None
    additional_pods = workers.count - kept.count
    if additional_pods == 0 and leader is None:
        return result
    found = search.find_topology_assignment(workers, additional_pods, leader)
    if isinstance(found, str):
        return NoFit(workers.name, found, (workers.name,))
    search.free.assume(found.workers, workers.requests)
    if found.workers:
        result[workers.name] = to_assignment(tree, Counter(before) + Counter(found.workers))
    if leader is not None:
        search.free.assume(found.leader, leader.requests)
        result[leader.name] = to_assignment(tree, found.leader)
    return result


def _pods_by_leaf(tree: TopologyTree, assignment: TopologyAssignment) -> dict[int, int] | None:
    """Pods by leaf; None when a domain is not a leaf any more."""
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


# Read a topology request against the levels of a tree. The order of the checks decides which
# problem is reported first (conformance/tas, section 6).


class RequestError(ValueError):
    """No capacity would be enough for this request on these levels; see the text."""


def read_placement_request(
    levels: Sequence[str],
    podset: PodSetRequest,
    count: int,
    features: Features,
    layers: Sequence[SliceLayer] | None = None,
) -> PlacementRequest:
    """Read the request for `count` pods of a PodSet.

    Args:
        levels: of the tree, coarsest first.
        podset: the workers.
        count: pods to place.
        features: feature gates.
        layers: slice layers, outermost first, instead of those of the request.

    Raises:
        RequestError: the request does not make sense on these levels.
    """
    requested = podset.topology or TopologyRequest(unconstrained=True)
    if layers is None:
        layers = requested.slices
    layers = [SliceLayer(layer.topology, min(layer.size, SIZE_LIMIT)) for layer in layers]
    size = layers[0].size if layers else 1
    if size <= 0:
        raise RequestError("slice topology requested, but slice size not provided")
    required_level = None
    required, preferred = requested.required, requested.preferred
    if features.required_and_preferred and required is not None and preferred is not None:
        for named in (required, preferred):
            if named not in levels:
                raise RequestError(f"no requested topology level: {named}")
        required_level = levels.index(required)
        if levels.index(preferred) < required_level:
            raise RequestError(
                f"preferred topology level {preferred} is above the required topology level "
                f"{required}"
            )
        requested = replace(requested, required=None)
    slices_only = bool(layers) and requested.required is None and requested.preferred is None
    unconstrained = requested.unconstrained or slices_only
    level = _requested_level(
        levels, requested, slices_only=slices_only, unconstrained=unconstrained
    )
    slice_level = _slice_level(levels, layers, level)
    return PlacementRequest(
        count=count,
        size=size,
        need=count // size,
        level=level,
        slice_level=slice_level,
        units=_inner_units(levels, layers, slice_level),
        layers=tuple(layers),
        required=requested.required is not None,
        unconstrained=unconstrained,
        least_free=unconstrained and features.profile_mixed,
        required_level=required_level,
    )


def _requested_level(
    levels: Sequence[str], requested: TopologyRequest, *, slices_only: bool, unconstrained: bool
) -> int:
    named = requested.required if requested.required is not None else requested.preferred
    if named is None:
        if slices_only:
            return 0
        if unconstrained:
            return len(levels) - 1
        raise RequestError("topology level not specified")
    if named not in levels:
        raise RequestError(f"no requested topology level: {named}")
    return levels.index(named)


def _slice_level(levels: Sequence[str], layers: Sequence[SliceLayer], level: int) -> int:
    if not layers:
        return len(levels) - 1
    named = layers[0].topology
    if named not in levels:
        raise RequestError(f"no requested topology level for slices: {named}")
    index = levels.index(named)
    if index < level:
        raise RequestError(
            f"podset slice topology {named} is above the podset topology {levels[level]}"
        )
    return index


def _inner_units(
    levels: Sequence[str], layers: Sequence[SliceLayer], slice_level: int
) -> tuple[int, ...]:
    units = [1] * len(levels)
    above = slice_level
    for parent, layer in pairwise(layers):
        if layer.topology not in levels:
            raise RequestError(
                f"no requested topology level for additional slice layer: {layer.topology}"
            )
        index = levels.index(layer.topology)
        if index <= above:
            raise RequestError(
                f"additional slice layer topology {layer.topology} "
                f"must be at a lower level than {parent.topology}"
            )
        if layer.size <= 0 or parent.size % layer.size:
            raise RequestError(
                f"additional slice layer size {layer.size} "
                f"must evenly divide parent layer size {parent.size}"
            )
        units[above + 1 : index + 1] = [layer.size] * (index - above)
        above = index
    return tuple(units)
