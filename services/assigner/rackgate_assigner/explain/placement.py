"""Why PodSets find no place in a flavor: the whole view behind the fixed text of a refusal.

The verdict is `place`'s own and every number is counted by placement's functions: an explanation
cannot say something else than the refusal it explains.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from rackgate.features import DEFAULTS, Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.exclusions import excluded_tree_nodes, exclusions, nodes_outside_tree
from rackgate_assigner.explain.explanation import (
    FlavorView,
    LevelCapacity,
    PlacedDomain,
    PodSetPlacement,
    Remedy,
)
from rackgate_assigner.explain.nearest import GroupCounts, Occupant, count_group, level_capacities
from rackgate_assigner.explain.remedies import remedies
from rackgate_assigner.explain.what_if import Trial
from rackgate_assigner.scheduler.flavor_assigner import requested_levels
from rackgate_assigner.topology.model import NodeInfo, Placement, PodSetRequest
from rackgate_assigner.topology.placement.request import RequestError
from rackgate_assigner.topology.tree import TopologyTree


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """What an explanation reads in addition to the tree.

    Attributes:
        nodes: all nodes of the cluster.
        occupants: who takes room, by leaf of the tree.
        features: state of feature gates.
        top: how many domains, holders and names are listed each time.
    """

    nodes: Iterable[NodeInfo] = ()
    occupants: Mapping[int, Sequence[Occupant]] = field(default_factory=dict)
    features: Features = DEFAULTS
    top: int = 3


def explain_placement(
    flavor_topology: FlavorTopology, podsets: Sequence[PodSetRequest], context: ExplainContext
) -> FlavorView:
    """How PodSets fare in one flavor. Pure; the numbers of `flavor_topology` are only read.

    Args:
        flavor_topology: the flavor's tree and numbers.
        podsets: those of a Workload that are placed in this flavor, in its order.
        context: nodes, occupants, gates and how much to list.
    """
    trial = Trial(flavor_topology, podsets, context.features)
    placement = trial.place()
    known = _common_fields(flavor_topology, podsets, placement, context.top)
    if placement.failure is None:
        asked = "; ".join(dict.fromkeys(describe_request(podset) for podset in podsets))
        return FlavorView(**known, asked=asked, fits=True, fits_when_empty=True)
    names = placement.failure.members or (placement.failure.podset,)
    not_fitting = [podset for podset in podsets if podset.name in names]
    workers, leader = workers_and_leader(not_fitting)
    before = [
        (pods_by_leaf_of(flavor_topology.tree, placement.assignments[podset.name]), podset)
        for podset in podsets
        if podset.name in placement.assignments
    ]
    known |= {
        "refused": tuple(names),
        "leader": leader.name if leader is not None else "",
        "asked": describe_request(workers),
        "message": placement.failure.message,
        "fits_when_empty": trial.place(empty=True).failure is None,
        "wanted": workers.count,
    }
    try:
        group_counts = count_group(flavor_topology, (workers, leader), context.features, before)
    except RequestError:
        level_changes = _level_name_changes(flavor_topology.tree, workers)
        return FlavorView(
            **known, changes=level_changes, excluded=_excluded_outside(flavor_topology, context)
        )
    excluded_inside = excluded_tree_nodes(group_counts, workers)
    changes = remedies(trial, not_fitting, list(excluded_inside))
    excluded = exclusions(
        [nodes_outside_tree(flavor_topology, context.nodes), excluded_inside], context.top
    )
    return _not_fitting_view(group_counts, context, {**known, "excluded": excluded}, changes)


def _common_fields(
    flavor_topology: FlavorTopology,
    podsets: Sequence[PodSetRequest],
    placement: Placement,
    top: int,
) -> dict[str, Any]:
    """What is told of a flavor whether or not it fits."""
    return {
        "flavor": flavor_topology.flavor.name,
        "topology": flavor_topology.flavor.topology or "",
        "level_keys": flavor_topology.tree.levels,
        "nodes": len(flavor_topology.tree.nodes),
        "podsets": tuple(podset.name for podset in podsets),
        "places": tuple(
            podset_placement(name, assignment, top)
            for name, assignment in placement.assignments.items()
        ),
    }


def _not_fitting_view(
    group_counts: GroupCounts,
    context: ExplainContext,
    known: dict[str, Any],
    changes: tuple[Remedy, ...],
) -> FlavorView:
    levels = level_capacities(group_counts, context.occupants, context.top)
    request, shortfall = group_counts.request, group_counts.shortfall
    known["wanted"] = request.need
    return FlavorView(
        **known,
        fitting=shortfall.fitting if shortfall is not None else None,
        unit="pod" if request.size == 1 else "slice",
        slice_size=request.size,
        levels=levels,
        changes=(
            *_missing_capacity_changes(levels, request.count, required=request.required),
            *changes,
        ),
    )


def _excluded_outside(flavor_topology: FlavorTopology, context: ExplainContext) -> tuple[Any, ...]:
    return exclusions([nodes_outside_tree(flavor_topology, context.nodes)], context.top)


def workers_and_leader(
    members: Sequence[PodSetRequest],
) -> tuple[PodSetRequest, PodSetRequest | None]:
    """Workers and leader of PodSets that are placed together, as placement tells them apart."""
    if len(members) != 2:
        return members[0], None
    workers, leader = members
    return (leader, workers) if leader.count > workers.count else (workers, leader)


def pods_by_leaf_of(tree: TopologyTree, assignment: TopologyAssignment) -> dict[int, int]:
    """Pods by leaf of an assignment made on this very tree."""
    found = ((tree.leaf_of_values(values), count) for values, count in assignment.domains)
    return {leaf: count for leaf, count in found if leaf is not None}


def podset_placement(podset: str, assignment: TopologyAssignment, top: int) -> PodSetPlacement:
    """An assignment, cut to its first domains."""
    return PodSetPlacement(
        podset=podset,
        domains=len(assignment.domains),
        places=tuple(
            PlacedDomain(domain=values, pods=count) for values, count in assignment.domains[:top]
        ),
    )


def describe_request(podset: PodSetRequest) -> str:
    """A topology request in words."""
    asked = podset.topology
    if asked is None:
        return "unconstrained (implied by the queue)"
    request_text = "unconstrained"
    if asked.required is not None:
        request_text = f"required {asked.required}"
    elif asked.preferred is not None:
        request_text = f"preferred {asked.preferred}"
    for layer in asked.slices:
        request_text += f", slices of {layer.size} in one {layer.topology}"
    return request_text


def _level_name_changes(tree: TopologyTree, podset: PodSetRequest) -> tuple[Remedy, ...]:
    """The levels there are, where the request names one that is not there."""
    unknown = [key for key in requested_levels(podset.topology) if key not in tree.levels]
    if not unknown:
        return ()
    near = get_close_matches(unknown[0], tree.levels, n=1)
    text = f"name a level of the topology: {', '.join(tree.levels)}"
    if near:
        text = f'write "{near[0]}" for "{unknown[0]}"; levels: {", ".join(tree.levels)}'
    value = near[0] if near else ""
    return (Remedy(kind="levelName", value=value, when="perhaps", text=text),)


def _missing_capacity_changes(
    levels: Sequence[LevelCapacity], wanted: int, *, required: bool
) -> tuple[Remedy, ...]:
    """The room that is lacking: in the best domain of a required level, else in all together."""
    asked = next((level for level in levels if level.asked and level.best), None)
    if asked is None:
        return ()
    best = asked.best[0]
    more = wanted - (best.pods if required else asked.pods)
    if more <= 0:
        return ()
    pods = "1 more pod" if more == 1 else f"{more} more pods"
    where = "/".join(best.domain) if required else "all domains together"
    short = [r for r in best.resources if r.resource == best.tightest and r.missing != "0"]
    if required and short:
        pods += f" ({short[0].missing} {short[0].resource})"
    text = f"room for {pods} in {where}"
    return (Remedy(kind="room", value=str(more), when="perhaps", text=text),)
