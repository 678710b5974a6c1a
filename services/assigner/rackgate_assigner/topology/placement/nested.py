"""Nested placement: PodSets that share domains, level by level.

A wrapper around the engine: each PodSet is placed by `place_group`, within a range of leaves.

1. PodSets with the same `SharedDomain` are one unit. Units are placed one after another; inside a
   unit, PodSets come in the order of their `turn`.
2. For a unit, the domains of its level are tried in best-fit order: those first in which the fewest
   pods of its largest PodSet fit. If other Workloads are to share the domain, those with the most
   room come first. Domains that are too small for certain are skipped.
3. In a domain, the parts of the unit are placed one after another, each by the same rules one level
   further in. The first domain in which all of them fit is taken.
4. A preferred level that has no such domain is followed by the coarser ones, up to the domain that
   the unit is in.

A part stays where it was put first: no other domain is tried for it because a later part does not
fit. So a unit may be rejected although it would fit in another way.
Complexity: for each domain that is tried, one placement for each PodSet up to the first that does
not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from rackgate.features import DEFAULTS, Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Toleration
from rackgate_assigner.topology.capacity import Capacity, single_pod_requests
from rackgate_assigner.topology.model import (
    BoolVector,
    IntVector,
    NoFit,
    Placement,
    PodSetRequest,
    SharedDomain,
)
from rackgate_assigner.topology.placement.place import (
    PlacementSearch,
    RequestError,
    group_podsets,
    place,
    place_group,
    read_placement_request,
)
from rackgate_assigner.topology.tree import TopologyTree

LeafRange: TypeAlias = tuple[int, int]
Assignments: TypeAlias = dict[str, TopologyAssignment]

# Level index of the whole cluster.
_NO_LEVEL: Final = -1
# With more, a Workload would hold up the scheduling cycle: 2,000 take about 0.1 s on 5,120 hosts.
PLACEMENTS_LIMIT: Final = 2_000


def place_nested(
    tree: TopologyTree,
    capacity: Capacity,
    podsets: Sequence[PodSetRequest],
    *,
    topology_name: str,
    flavor_tolerations: Sequence[Toleration] = (),
    simulate_empty: bool = False,
    features: Features = DEFAULTS,
    leaf_range: LeafRange | None = None,
) -> Placement:
    """As `place`, for PodSets that may share domains.

    A failure names the first PodSet of the outermost group that does not fit, and has all PodSets
    of that group as members: none of them is placed without the others.
    """
    if not any(podset.shared for podset in podsets):
        return place(
            tree,
            capacity,
            podsets,
            topology_name=topology_name,
            flavor_tolerations=flavor_tolerations,
            simulate_empty=simulate_empty,
            features=features,
            leaf_range=leaf_range,
        )
    search = PlacementSearch(
        tree, capacity, topology_name, flavor_tolerations, features, simulate_empty=simulate_empty
    )
    nested = _NestedSearch(search)
    assignments: Assignments = {}
    for unit in _units(podsets, 0):
        found: Assignments | _Rejection | NoFit
        if unit.shared is None:
            found = place_group(search, next(group_podsets(unit.podsets)), leaf_range)
        else:
            found = nested.place_unit(unit.podsets, leaf_range)
        if isinstance(found, NoFit):
            return Placement(assignments, found)
        if isinstance(found, _Rejection):
            names = tuple(podset.name for podset in unit.podsets)
            text = f'topology "{topology_name}": {found.text}'
            return Placement(assignments, NoFit(names[0], text, names))
        assignments.update(found)
    return Placement(assignments)


@dataclass(frozen=True, slots=True)
class _Within:
    """Where a unit must stay: leaves (None: all of them), and the level of that domain."""

    leaf_range: LeafRange | None
    level: int


@dataclass(frozen=True, slots=True)
class _Unit:
    """PodSets that share a domain, or a PodSet or leader and workers alone."""

    shared: SharedDomain | None
    podsets: list[PodSetRequest]


@dataclass(frozen=True, slots=True)
class _Rejection:
    """Why PodSets do not fit; `placed` of them did before."""

    placed: int
    text: str


def _units(podsets: Sequence[PodSetRequest], depth: int) -> Iterator[_Unit]:
    """Units at the positions of their first members; `depth` shared domains are chosen already."""
    units: dict[tuple[str, str], _Unit] = {}
    for podset in podsets:
        shared = podset.shared[depth] if len(podset.shared) > depth else None
        key = ("podset", podset.name)
        if shared is not None:
            key = ("shared", shared.group)
        elif podset.group is not None:
            key = ("group", podset.group)
        units.setdefault(key, _Unit(shared, [])).podsets.append(podset)
    yield from units.values()


def _level_problem(levels: Sequence[str], podsets: Sequence[PodSetRequest]) -> str | None:
    """Why these levels have no domains in domains, or None."""
    for podset in podsets:
        above = _NO_LEVEL
        for shared in podset.shared:
            if shared.level not in levels:
                return f"no requested topology level: {shared.level}"
            level = levels.index(shared.level)
            if level <= above:
                return (
                    f'level {shared.level} of group "{shared.group}" is not narrower than level '
                    f"{levels[above]} around it"
                )
            above = level
        asked = podset.topology
        own = None if asked is None else asked.required or asked.preferred
        if own in levels and levels.index(own) < above:
            return (
                f'level {own} of podset "{podset.name}" is coarser than level {levels[above]} '
                "around it"
            )
    return None


class _NestedSearch:
    """A search over the PodSets of one Workload.

    Attributes:
        placements: how many were made or tried; limits the time that a Workload may take.
    """

    def __init__(self, search: PlacementSearch) -> None:
        self.search, self.placements = search, 0

    def place_unit(
        self, podsets: Sequence[PodSetRequest], leaf_range: LeafRange | None
    ) -> Assignments | _Rejection:
        """Place PodSets that share their coarsest domain."""
        problem = _level_problem(self.search.tree.levels, podsets)
        if problem is not None:
            return _Rejection(0, problem)
        in_turn = sorted(podsets, key=lambda podset: podset.turn)
        return self._place_all(in_turn, 0, _Within(leaf_range, _NO_LEVEL))

    def _place_all(
        self, podsets: Sequence[PodSetRequest], depth: int, within: _Within
    ) -> Assignments | _Rejection:
        """Place PodSets in one domain; what was assumed before a rejection stays assumed."""
        assignments: Assignments = {}
        for unit in _units(podsets, depth):
            if unit.shared is None:
                found = self._place_alone(unit.podsets, within)
            else:
                found = self._place_shared(unit.podsets, unit.shared, depth, within)
            if isinstance(found, _Rejection):
                return _Rejection(len(assignments) + found.placed, found.text)
            assignments.update(found)
        return assignments

    def _place_alone(
        self, podsets: Sequence[PodSetRequest], within: _Within
    ) -> Assignments | _Rejection:
        self.placements += 1
        if self.placements > PLACEMENTS_LIMIT:
            return _Rejection(0, f"no placement was found in {PLACEMENTS_LIMIT} tries")
        found = place_group(self.search, next(group_podsets(podsets)), within.leaf_range)
        if isinstance(found, NoFit):
            return _Rejection(0, f'podset "{found.podset}": {found.message}')
        return found

    def _place_shared(
        self,
        podsets: Sequence[PodSetRequest],
        shared: SharedDomain,
        depth: int,
        within: _Within,
    ) -> Assignments | _Rejection:
        """Place PodSets in the first domain in which all of them fit."""
        tree, free = self.search.tree, self.search.free
        requested = tree.levels.index(shared.level)
        last = requested if shared.required else within.level + 1
        furthest: _Rejection | None = None
        before = len(free.assumed)
        for level in range(requested, last - 1, -1):
            domains = _domains_to_try(self.search, podsets, level, within.leaf_range)
            for domain in reversed(domains) if shared.across else domains:
                inner = _Within(_leaves_of(tree, level, domain, within.leaf_range), level)
                found = self._place_all(podsets, depth + 1, inner)
                if not isinstance(found, _Rejection):
                    return found
                del free.assumed[before:]
                if furthest is None or found.placed > furthest.placed:
                    furthest = found
                if self.placements > PLACEMENTS_LIMIT:
                    return found
        if not shared.required:
            return self._place_all(podsets, depth + 1, within)
        pods = sum(podset.count for podset in podsets)
        found = furthest or _Rejection(0, f"no domain is large enough for its {pods} pods")
        text = f'group "{shared.group}" does not fit into one domain of level {shared.level}'
        if shared.across and within.leaf_range is not None:
            text = (
                f'group "{shared.group}" does not fit into the domain of level {shared.level} in '
                f'which other gangs of Workload "{shared.across}" are'
            )
        return _Rejection(found.placed, f"{text}: {found.text}")


def _leaves_of(
    tree: TopologyTree, level: int, domain: int, leaf_range: LeafRange | None
) -> LeafRange:
    start, end = tree.leaf_ranges[level][domain : domain + 2].tolist()
    if leaf_range is None:
        return start, end
    return max(start, leaf_range[0]), min(end, leaf_range[1])


# Which domains are tried, and in which order.


def _domains_to_try(
    search: PlacementSearch,
    podsets: Sequence[PodSetRequest],
    level: int,
    leaf_range: LeafRange | None,
) -> list[int]:
    """Domains of a level that may fit all PodSets, in best-fit order; ties in path order."""
    offsets = search.tree.leaf_ranges[level]
    if len(offsets) < 2:
        return []
    first, end = 0, len(offsets) - 1
    if leaf_range is not None:
        first = int(np.searchsorted(offsets, leaf_range[0], side="right")) - 1
        end = int(np.searchsorted(offsets, leaf_range[1], side="left"))
    enough = _has_enough_in_total(search, podsets, offsets[first : end + 1])
    # Leaders go where their workers fit, by the rules of the workers.
    measured = [group.workers for group in group_podsets(podsets)]
    largest = max(podset.count for podset in measured)
    order: IntVector | None = None
    for podset, alike in _alike(measured):
        try:
            request = read_placement_request(
                search.tree.levels, podset, podset.count, search.features
            )
        except RequestError:
            continue  # it is rejected when it is placed
        counts, _ = search.count(request, podset, None, leaf_range)
        slices = counts.level(level).slices[first:end]
        if request.required and request.level > level and request.need:
            # Each of them needs a domain of its own level, several may share one.
            inner = counts.level(request.level).slices // request.need
            starts = np.searchsorted(search.tree.leaf_ranges[request.level], offsets[: end + 1])
            room = np.add.reduceat(inner[: int(starts[-1])], starts[first:-1])
            enough &= room >= alike
        enough &= slices >= request.need * alike
        if order is None and podset.count == largest:
            order = slices.copy()
    domains = enough.nonzero()[0]
    if order is not None:
        domains = domains[np.argsort(order[domains], kind="stable")]
    found: list[int] = (domains + first).tolist()
    return found


def _alike(podsets: Sequence[PodSetRequest]) -> Iterator[tuple[PodSetRequest, int]]:
    """PodSets that differ in more than their names, and how many are like each of them."""
    found: list[tuple[PodSetRequest, PodSetRequest, int]] = []
    for podset in podsets:
        shape = replace(podset, name="", group=None, shared=(), turn=0)
        for at, (same, first, number) in enumerate(found):
            if same == shape:
                found[at] = (same, first, number + 1)
                break
        else:
            found.append((shape, podset, 1))
    for _, first, number in found:
        yield first, number


def _has_enough_in_total(
    search: PlacementSearch, podsets: Sequence[PodSetRequest], offsets: IntVector
) -> BoolVector:
    """Whether the free capacity of each domain is enough for all pods together."""
    enough = np.ones(len(offsets) - 1, dtype=np.bool_)
    needed: dict[str, int] = {}
    for podset in podsets:
        for resource, amount in single_pod_requests(podset.requests).items():
            needed[resource] = needed.get(resource, 0) + amount * podset.count
    for resource, amount in needed.items():
        free = search.free.free_amounts(resource) if amount else None
        if free is not None:
            free = np.maximum(free[: int(offsets[-1])], 0)
            enough &= np.add.reduceat(free, offsets[:-1]) >= amount
        elif amount:
            enough[:] = False
    return enough
