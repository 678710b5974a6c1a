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
from rackgate_assigner.explain.exclusions import exclusions, inside, outside
from rackgate_assigner.explain.explanation import Change, FlavorView, LevelRoom, Place, PodSetPlaces
from rackgate_assigner.explain.nearest import Occupant, View, level_rooms, look
from rackgate_assigner.explain.remedies import remedies
from rackgate_assigner.explain.what_if import Trial
from rackgate_assigner.scheduler.flavor_assigner import requested_levels
from rackgate_assigner.topology.model import NodeFacts, Placement, PodSetRequest
from rackgate_assigner.topology.placement.request import RequestError
from rackgate_assigner.topology.tree import TopologyTree


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an explanation reads besides the tree.

    Attributes:
        nodes: all nodes of the cluster.
        occupants: who takes room, by leaf of the tree.
        features: state of feature gates.
        top: how many domains, holders and names are listed each time.
    """

    nodes: Iterable[NodeFacts] = ()
    occupants: Mapping[int, Sequence[Occupant]] = field(default_factory=dict)
    features: Features = DEFAULTS
    top: int = 3


def explain_placement(
    flavor_topology: FlavorTopology, podsets: Sequence[PodSetRequest], around: Surroundings
) -> FlavorView:
    """How PodSets fare in one flavor. Pure; the numbers of `flavor_topology` are only read.

    Args:
        flavor_topology: the flavor's tree and numbers.
        podsets: those of a Workload that are placed in this flavor, in its order.
        around: nodes, occupants, gates and how much to list.
    """
    trial = Trial(flavor_topology, podsets, around.features)
    placement = trial.place()
    known = _known(flavor_topology, podsets, placement, around.top)
    if placement.refused is None:
        asked = "; ".join(dict.fromkeys(asked_words(podset) for podset in podsets))
        return FlavorView(**known, asked=asked, fits=True, fits_when_empty=True)
    names = placement.refused.members or (placement.refused.podset,)
    refused = [podset for podset in podsets if podset.name in names]
    workers, leader = unit_of(refused)
    before = [
        (spots_of(flavor_topology.tree, placement.assignments[podset.name]), podset)
        for podset in podsets
        if podset.name in placement.assignments
    ]
    known |= {
        "refused": tuple(names),
        "leader": leader.name if leader is not None else "",
        "asked": asked_words(workers),
        "message": placement.refused.message,
        "fits_when_empty": trial.place(empty=True).refused is None,
        "wanted": workers.count,
    }
    try:
        view = look(flavor_topology, (workers, leader), around.features, before)
    except RequestError:
        names_it = _level_name(flavor_topology.tree, workers)
        return FlavorView(**known, changes=names_it, excluded=_outside(flavor_topology, around))
    within = inside(view, workers)
    changes = remedies(trial, refused, list(within))
    excluded = exclusions([outside(flavor_topology, around.nodes), within], around.top)
    return _refused_view(view, around, {**known, "excluded": excluded}, changes)


def _known(
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
            places_of(name, assignment, top) for name, assignment in placement.assignments.items()
        ),
    }


def _refused_view(
    view: View, around: Surroundings, known: dict[str, Any], changes: tuple[Change, ...]
) -> FlavorView:
    levels = level_rooms(view, around.occupants, around.top)
    question, shortfall = view.question, view.shortfall
    known["wanted"] = question.need
    return FlavorView(
        **known,
        fitting=shortfall.fitting if shortfall is not None else None,
        unit="pod" if question.size == 1 else "slice",
        slice_size=question.size,
        levels=levels,
        changes=(*_room(levels, question.count, required=question.required), *changes),
    )


def _outside(flavor_topology: FlavorTopology, around: Surroundings) -> tuple[Any, ...]:
    return exclusions([outside(flavor_topology, around.nodes)], around.top)


def unit_of(members: Sequence[PodSetRequest]) -> tuple[PodSetRequest, PodSetRequest | None]:
    """Workers and leader of PodSets that are placed together, as placement tells them apart."""
    if len(members) != 2:
        return members[0], None
    workers, leader = members
    return (leader, workers) if leader.count > workers.count else (workers, leader)


def spots_of(tree: TopologyTree, assignment: TopologyAssignment) -> dict[int, int]:
    """Pods by leaf of an assignment made on this very tree."""
    found = ((tree.leaf_of_values(values), count) for values, count in assignment.domains)
    return {leaf: count for leaf, count in found if leaf is not None}


def places_of(podset: str, assignment: TopologyAssignment, top: int) -> PodSetPlaces:
    """An assignment, cut to its first domains."""
    return PodSetPlaces(
        podset=podset,
        domains=len(assignment.domains),
        places=tuple(
            Place(domain=values, pods=count) for values, count in assignment.domains[:top]
        ),
    )


def asked_words(podset: PodSetRequest) -> str:
    """A topology request in words."""
    asked = podset.topology
    if asked is None:
        return "unconstrained (implied by the queue)"
    words = "unconstrained"
    if asked.required is not None:
        words = f"required {asked.required}"
    elif asked.preferred is not None:
        words = f"preferred {asked.preferred}"
    for layer in asked.slices:
        words += f", slices of {layer.size} in one {layer.topology}"
    return words


def _level_name(tree: TopologyTree, podset: PodSetRequest) -> tuple[Change, ...]:
    """The levels there are, where the request names one that is not there."""
    unknown = [key for key in requested_levels(podset.topology) if key not in tree.levels]
    if not unknown:
        return ()
    near = get_close_matches(unknown[0], tree.levels, n=1)
    text = f"name a level of the topology: {', '.join(tree.levels)}"
    if near:
        text = f'write "{near[0]}" for "{unknown[0]}"; levels: {", ".join(tree.levels)}'
    value = near[0] if near else ""
    return (Change(kind="levelName", value=value, when="perhaps", text=text),)


def _room(levels: Sequence[LevelRoom], wanted: int, *, required: bool) -> tuple[Change, ...]:
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
    return (Change(kind="room", value=str(more), when="perhaps", text=text),)
