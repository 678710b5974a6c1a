"""One capacity that lives on: questions, admissions, departures and foreign pods in turn.

What the engine keeps between questions must never show: each answer is compared with the oracle's
on the same state written down from scratch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import msgspec

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.scenario.scenario import (
    Scenario,
    podset_requests,
    read_scenarios,
    tree_and_capacity,
)
from rackgate_assigner.topology.capacity import Capacity, charge_assignment
from rackgate_assigner.topology.placement import count
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree
from tests.support.oracle import expected
from tests.support.oracle.amounts import read
from tests.support.placement_generator import scenario_of
from tests.support.placement_generator_nodes import resources, small
from tests.support.placement_generator_podsets import draw_podsets

Json = dict[str, Any]
GATES: tuple[Json, ...] = (
    {},
    {},
    {},
    {"TASBalancedPlacement": True},
    {"TASRespectNodeAffinityPreferred": True},
    {"TASProfileMixed": False},
)


@dataclass
class World:
    """A capacity, and the same as a question.

    Attributes:
        held: what was admitted: requests and assignment, with its entries in the usage.
    """

    tree: TopologyTree
    capacity: Capacity
    question: Json
    held: list[tuple[dict[str, int], TopologyAssignment, list[Json]]] = field(default_factory=list)

    def twin(self) -> World:
        """A snapshot that lives its own life from now on."""
        question = deepcopy(self.question)
        # Entries are found again by identity: keep their places.
        place_of = {id(entry): i for i, entry in enumerate(self.question["usage"])}
        held = [
            (requests, given, [question["usage"][place_of[id(entry)]] for entry in entries])
            for requests, given, entries in self.held
        ]
        return World(self.tree, self.capacity.copy(), question, held)


def history(seed: int, steps: int = 12) -> Iterator[tuple[Json, Json, Json]]:
    """Questions asked one after another: (question, engine's answer, oracle's)."""
    chance = random.Random(seed)
    worlds = [_world(chance, seed)]
    asked: list[list[Json]] = []
    for _ in range(steps):
        world = chance.choice(worlds)
        gates = chance.choice(GATES if len(world.question["nodes"]) <= 200 else GATES[:3])
        podsets = _podsets(chance, world.question, asked, gates)
        question = {**world.question, "podSets": podsets, "gates": gates}
        question["simulateEmpty"] = chance.random() < 0.15
        answer, assignments, requests = _ask(world, question)
        yield question, answer, expected(question)
        if chance.random() < 0.6:
            _admit(world, assignments, requests)
        if chance.random() < 0.3 and world.held:
            _leave(world, world.held.pop(chance.randrange(len(world.held))))
        if chance.random() < 0.4:
            _foreign_pod(chance, world)
        if chance.random() < 0.15 and len(worlds) < 3:
            worlds.append(world.twin())


def _world(chance: random.Random, seed: int) -> World:
    question = scenario_of(seed, {})
    question.pop("replacement", None)
    question.pop("simulateEmpty", None)
    question.setdefault("usage", [])
    question.setdefault("pods", [])
    for podset in question["podSets"]:
        podset.pop("previousAssignment", None)
    if chance.random() < 0.3:
        question["usage"], question["pods"] = [], []
    tree, capacity = tree_and_capacity(_read(question))
    return World(tree, capacity, question)


def _read(question: Json) -> Scenario:
    body = {"format": "tas-scenario/1", "scenarios": [question]}
    return read_scenarios(msgspec.json.encode(body))[0]


def _podsets(
    chance: random.Random, question: Json, asked: list[list[Json]], gates: Json
) -> list[Json]:
    """New ones, or earlier ones again with other counts."""
    if asked and chance.random() < 0.6:
        podsets = deepcopy(chance.choice(asked))
        for podset in podsets:
            slices = (podset.get("topologyRequest") or {}).get("slices") or [{"size": 1}]
            if podset["count"] > 1 and not podset["name"].startswith("lead"):
                size = max(1, slices[0]["size"])
                podset["count"] = max(size, podset["count"] // size // 2 * size)
        return podsets
    podsets = draw_podsets(
        chance,
        question,
        soft=bool(gates.get("TASRespectNodeAffinityPreferred")),
        balanced=bool(gates.get("TASBalancedPlacement")),
    )
    asked.append(podsets)
    return podsets


def _ask(
    world: World, question: Json
) -> tuple[Json, dict[str, TopologyAssignment], dict[str, dict[str, int]]]:
    scenario = _read(question)
    # Small trees gain nothing from what is kept; here they show whether it is right.
    with patch.multiple(count, MIN_LEAVES=-1, COST_PER_LEAF=0):
        placement = place(
            world.tree,
            world.capacity,
            podset_requests(scenario),
            topology_name=scenario.flavor.topology,
            flavor_tolerations=scenario.flavor.tolerations,
            simulate_empty=scenario.simulate_empty,
            features=Features.of(scenario.gates),
        )
    answer: Json = {
        name: {"assignment": _written(assignment)}
        for name, assignment in placement.assignments.items()
    }
    if placement.failure is not None:
        for name in placement.failure.members:
            answer[name] = {"failure": placement.failure.message}
    requests = {podset["name"]: read(podset["requests"]) for podset in question["podSets"]}
    return answer, dict(placement.assignments), requests


def _written(assignment: TopologyAssignment) -> Json:
    return {
        "levels": list(assignment.levels),
        "domains": [{"values": list(v), "count": n} for v, n in assignment.domains],
    }


def _admit(
    world: World,
    assignments: dict[str, TopologyAssignment],
    requests: dict[str, dict[str, int]],
) -> None:
    for name, assignment in assignments.items():
        charge_assignment(world.capacity, requests[name], assignment)
        entries = [
            {"values": list(values), "requests": _quantities(requests[name]), "count": count}
            for values, count in assignment.domains
        ]
        world.question["usage"] += entries
        world.held.append((requests[name], replace(assignment), entries))


def _leave(world: World, held: tuple[dict[str, int], TopologyAssignment, list[Json]]) -> None:
    requests, assignment, entries = held
    charge_assignment(world.capacity, requests, assignment, -1)
    gone = {id(entry) for entry in entries}
    world.question["usage"] = [u for u in world.question["usage"] if id(u) not in gone]


def _foreign_pod(chance: random.Random, world: World) -> None:
    if not world.question["nodes"]:
        return
    node = chance.choice(world.question["nodes"])["name"]
    requests = small(chance, resources(world.question["nodes"]))
    world.question["pods"].append({"name": "late", "node": node, "requests": requests})
    leaf = world.tree.leaf_of_node(node)
    if leaf is not None:
        world.capacity.charge_other(leaf, read(requests))


def _quantities(amounts: dict[str, int]) -> dict[str, str]:
    return {name: f"{n}m" if name == "cpu" else str(n) for name, n in amounts.items()}
