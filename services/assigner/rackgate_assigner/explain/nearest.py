"""Which domains come closest to holding a PodSet, and what each of them lacks.

Counted by the functions that placement itself counts with, so the numbers are those of its
refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rackgate.features import Features
from rackgate.wire.core import Toleration
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import DomainRoom, Holder, LevelRoom, ResourceRoom
from rackgate_assigner.quota.quota import quantity
from rackgate_assigner.topology.capacity import Capacity, per_pod
from rackgate_assigner.topology.experimental.careful import look_closely, takes_care
from rackgate_assigner.topology.experimental.packing import packed_shares, packs
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.topology.placement.assign import Shortfall, choose_start
from rackgate_assigner.topology.placement.count import NO_LIMIT, Counts, Room, pods_that_fit
from rackgate_assigner.topology.placement.count_cache import Shape, count_domains
from rackgate_assigner.topology.placement.distribute import order_with_leader
from rackgate_assigner.topology.placement.node_matching import Eligibility, eligibility
from rackgate_assigner.topology.placement.request import Question, read_question
from rackgate_assigner.topology.tree import IntVector, TopologyTree


@dataclass(frozen=True, slots=True)
class Occupant:
    """Pods on one leaf that take room of it.

    Attributes:
        kind: Workload or Pod.
        name: `namespace/name`.
        requests: per pod, without the implied 1 of `pods`.
    """

    kind: str
    name: str
    pods: int
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class View:
    """One unit of PodSets before the leaves of a tree, counted as they are and as if empty.

    Attributes:
        worker: amounts of one worker, with its 1 of `pods`.
        free: by resource that is asked for, shape (leaves,); earlier PodSets are taken out.
        usable: shape (leaves,), where taints, selectors and affinity let pods be.
        shortfall: where the search ends without a place, None when there is one.
    """

    tree: TopologyTree
    question: Question
    judged: Eligibility
    worker: Mapping[str, int]
    leader: Mapping[str, int] | None
    free: Mapping[str, IntVector]
    usable: npt.NDArray[np.bool_]
    counts: Counts
    empty: Counts
    shortfall: Shortfall | None


def look(
    flavor_topology: FlavorTopology,
    unit: tuple[PodSetRequest, PodSetRequest | None],
    features: Features,
    before: Sequence[tuple[Mapping[int, int], PodSetRequest]] = (),
) -> View:
    """Count one unit.

    Args:
        flavor_topology: tree, numbers and flavor.
        unit: workers, and a leader or None.
        features: feature gates.
        before: earlier PodSets of the Workload, each with its pods by leaf.

    Raises:
        RequestError: the request cannot be met on these levels, whatever the room.
    """
    tree, (workers, leader) = flavor_topology.tree, unit
    question = read_question(
        tree.levels,
        workers,
        workers.count,
        workers.topology.slices if workers.topology else (),
        mixed_profile=features.profile_mixed,
        both_levels=features.required_and_preferred,
    )
    judged = eligibility(
        tree,
        workers,
        flavor_topology.flavor.tolerations,
        soft_affinity=features.node_affinity_preferred,
    )
    shape = Shape(
        per_pod(workers.requests),
        per_pod(leader.requests) if leader is not None and leader.count else None,
        judged,
    )
    room, empty = (
        _room(flavor_topology.capacity, before, simulate_empty=flag) for flag in (False, True)
    )
    count = _counter(question, unit, shape, flavor_topology.flavor.tolerations, features)
    counts = count(room)
    usable = np.ones(tree.leaf_count, dtype=np.bool_)
    if judged.blocked is not None:
        usable = ~judged.blocked
    return View(
        tree,
        question,
        judged,
        shape.worker,
        shape.leader,
        _free(room, shape.worker),
        usable,
        counts,
        count(empty),
        _shortfall(counts, room, features),
    )


def _counter(
    question: Question,
    unit: tuple[PodSetRequest, PodSetRequest | None],
    shape: Shape,
    tolerations: Sequence[Toleration],
    features: Features,
) -> Callable[[Room], Counts]:
    """Phase 1, counted as the search counts it."""
    workers = unit[0]
    leader = unit[1] if shape.leader is not None else None

    def count(room: Room) -> Counts:
        if not takes_care(features, room, leader):
            return count_domains(room.capacity.tree, question, room, shape)
        return look_closely(
            question,
            room,
            workers,
            leader,
            flavor_tolerations=tolerations,
            leaf_range=None,
            features=features,
        ).counts

    return count


def _shortfall(counts: Counts, room: Room, features: Features) -> Shortfall | None:
    found = packed_shares(counts, room, features) if packs(features) else choose_start(counts)
    return found if isinstance(found, Shortfall) else None


def _free(room: Room, worker: Mapping[str, int]) -> dict[str, IntVector]:
    """Free amounts of what is asked for, over the leaves; a resource that is nowhere is 0."""
    nothing = np.zeros(room.capacity.tree.leaf_count, dtype=np.int64)
    found = {resource: room.of(resource) for resource in sorted(worker) if worker[resource]}
    return {resource: nothing if free is None else free for resource, free in found.items()}


def _room(
    capacity: Capacity,
    before: Sequence[tuple[Mapping[int, int], PodSetRequest]],
    *,
    simulate_empty: bool,
) -> Room:
    room = Room(capacity, simulate_empty=simulate_empty)
    for spots, podset in before:
        room.assume(list(spots), list(spots.values()), per_pod(podset.requests))
    return room


def level_rooms(
    view: View, occupants: Mapping[int, Sequence[Occupant]], top: int
) -> tuple[LevelRoom, ...]:
    """Every level with its best domains, coarsest first.

    Args:
        view: what was counted.
        occupants: who takes room, by leaf.
        top: domains per level and holders per domain to name.
    """
    if not view.tree.leaf_count:
        return ()
    found = []
    wanted = view.question.count
    for index, level in enumerate(view.tree.levels):
        pods = view.counts.level(index).pods
        total = int(pods.sum())
        found.append(
            LevelRoom(
                level=level,
                asked=index == view.question.level,
                domains=len(pods),
                pods=total,
                best=tuple(
                    _domain_room(view, index, domain, occupants, top)
                    for domain in best_domains(view, index, top)
                ),
                fragmented=total >= wanted > int(pods.max(initial=0)),
            )
        )
    return tuple(found)


def best_domains(view: View, level: int, top: int) -> list[int]:
    """The domains that hold most, best first; ties go to the first path.

    Placement's own order where a leader or a score counts, so that the first is the one whose
    number a refusal of a required level names.
    """
    numbers = view.counts.level(level)
    ids = np.arange(len(numbers.pods), dtype=np.int64)
    if numbers.lead is not None or numbers.score is not None:
        ordered = order_with_leader(numbers, ids, least_free=False)
    else:
        ordered = np.lexsort([-numbers.pods, -numbers.slices])
    best: list[int] = ordered[:top].tolist()
    return best


def _domain_room(
    view: View,
    level: int,
    domain: int,
    occupants: Mapping[int, Sequence[Occupant]],
    top: int,
) -> DomainRoom:
    numbers, empty = view.counts.level(level), view.empty.level(level)
    start, end = view.tree.leaf_ranges[level][domain : domain + 2].tolist()
    resources = resource_rooms(view, start, end)
    pods, wanted = int(numbers.pods[domain]), view.question.count
    nodes = slice(*np.searchsorted(view.tree.node_leaves, (start, end)).tolist())
    inside = view.usable[view.tree.node_leaves[nodes]]
    held = holders_of(
        [found for leaf in range(start, end) for found in occupants.get(leaf, ())], view.worker
    )
    led = numbers.lead is not None and bool(numbers.lead[domain])
    enough = all(found.missing == "0" for found in resources)
    tightest = min(resources, key=lambda found: found.pods, default=None)
    return DomainRoom(
        domain=view.tree.paths[level][domain],
        pods=pods,
        pods_when_empty=int(empty.pods[domain]),
        slices=int(numbers.slices[domain]),
        pods_with_leader=int(numbers.pods_led[domain]) if led else None,
        nodes=len(inside),
        usable_nodes=int(inside.sum()),
        tightest=tightest.resource if tightest is not None and inside.any() else "",
        fragmented=enough and pods < wanted,
        resources=resources,
        holders=tuple(held[:top]),
        more_holders=max(0, len(held) - top),
    )


def resource_rooms(view: View, start: int, end: int) -> tuple[ResourceRoom, ...]:
    """Resources that are asked for, over the usable leaves from `start` to before `end`."""
    mask = view.usable[start:end]
    found = []
    for resource, over_all in view.free.items():
        amount = view.worker[resource]
        here = np.maximum(over_all[start:end][mask], 0)
        free, fits = int(here.sum()), int(pods_that_fit(amount, here, len(here)).sum())
        wanted = amount * view.question.count
        if view.leader is not None:
            wanted += view.leader.get(resource, 0)
        found.append(
            ResourceRoom(
                resource=resource,
                per_pod=quantity(resource, amount),
                wanted=quantity(resource, wanted),
                free=quantity(resource, free),
                pods=min(fits, NO_LIMIT),
                missing=quantity(resource, max(0, wanted - free)),
                stranded=quantity(resource, free - fits * amount),
            )
        )
    return tuple(found)


def holders_of(found: Sequence[Occupant], resources: Mapping[str, int]) -> list[Holder]:
    """Occupants added up by who they are, most pods first; amounts of `resources` alone."""
    pods: dict[tuple[str, str], int] = {}
    amounts: dict[tuple[str, str], dict[str, int]] = {}
    for one in found:
        who = (one.kind, one.name)
        pods[who] = pods.get(who, 0) + one.pods
        total = amounts.setdefault(who, {})
        for resource, amount in one.requests.items():
            if resource in resources:
                total[resource] = total.get(resource, 0) + amount * one.pods
    return [
        Holder(
            kind="Workload" if kind == "Workload" else "Pod",
            name=name,
            pods=pods[kind, name],
            amounts={r: quantity(r, value) for r, value in sorted(amounts[kind, name].items())},
        )
        for kind, name in sorted(pods, key=lambda who: (-pods[who], who))
    ]
