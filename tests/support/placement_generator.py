"""Random `tas-scenario/1` questions of the conformance data's kind, and of wilder kinds.

A scenario is drawn from a seed alone, so that a differing one can be named, kept and looked at.
`expected` is not filled in: that is the oracle's and the engine's to say.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from tests.support.placement_generator_nodes import HOST, draw_nodes, draw_usage
from tests.support.placement_generator_podsets import draw_podsets
from tests.support.placement_generator_repairs import add_previous, add_replacement

Json = dict[str, Any]
LADDERS = (
    (["block", "rack", HOST], 42),
    (["zone", "block", "rack", HOST], 16),
    (["rack", HOST], 13),
    (["zone", "block", "rack"], 10),
    ([HOST], 6),
    (["block", "rack"], 5),
    (["block", HOST], 4),
    (["zone", "block", "rack", "tray"], 4),
    (["rack"], 2),
    (["region", "zone", "block", "rack", "tray", HOST], 2),
)
GATES: tuple[tuple[Json, int], ...] = (
    ({}, 60),
    ({"TASBalancedPlacement": True}, 14),
    ({"TASRespectNodeAffinityPreferred": True}, 10),
    ({"ElasticJobsViaWorkloadSlicesWithTAS": True}, 8),
    ({"TASProfileMixed": False}, 6),
    ({"SkipReassignmentForPodOwnedWorkloads": False}, 2),
)


def scenario(seed: int) -> Json:
    """One question; the same for the same seed."""
    chance = random.Random(seed)
    gates = _weighted(chance, GATES)
    if chance.random() < 0.03:
        gates = {**gates, **_weighted(chance, GATES)}
    return _draw(chance, f"seed-{seed}", gates)


def scenario_of(seed: int, gates: Json) -> Json:
    """One question under gates of the caller's choice."""
    return _draw(random.Random(seed), f"seed-{seed}", gates)


def scenarios() -> st.SearchStrategy[Json]:
    """For Hypothesis: any scenario; a failing one is printed with its seed as id."""
    return st.integers(0, 2**48 - 1).map(scenario)


def _draw(chance: random.Random, name: str, gates: Json) -> Json:
    names = _weighted(chance, LADDERS)
    levels = [level if level == HOST else f"topo.example/{level}" for level in names]
    balanced = bool(gates.get("TASBalancedPlacement"))
    # The engine gives up even spread where the search for it would hold up a cycle.
    nodes = draw_nodes(chance, levels, large=not balanced)
    found: Json = {
        "id": name,
        "tags": [],
        "levels": levels,
        "flavor": _flavor(chance),
        "nodes": nodes,
    }
    if gates:
        found["gates"] = gates
    found |= draw_usage(chance, levels, nodes)
    soft = bool(gates.get("TASRespectNodeAffinityPreferred"))
    found["podSets"] = draw_podsets(chance, found, soft=soft, balanced=balanced)
    if chance.random() < 0.1:
        found["simulateEmpty"] = True
    owned = gates.get("SkipReassignmentForPodOwnedWorkloads") is False
    if gates.get("ElasticJobsViaWorkloadSlicesWithTAS"):
        add_previous(chance, found)
    elif chance.random() < 0.09 or owned:
        add_replacement(chance, found, owned=owned or chance.random() < 0.1)
    return found


def _flavor(chance: random.Random) -> Json:
    flavor: Json = {"topology": chance.choice(["default", "default", "dc-east"])}
    if chance.random() < 0.2:
        flavor["nodeLabels"] = {"pool": "tas"}
    if chance.random() < 0.13:
        flavor["tolerations"] = [
            chance.choice(
                [
                    {"key": "dedicated", "operator": "Exists"},
                    {"operator": "Exists", "effect": "NoExecute"},
                    {
                        "key": "dedicated",
                        "operator": "Equal",
                        "value": "batch",
                        "effect": "NoSchedule",
                    },
                    {"operator": "Exists"},
                ]
            )
        ]
    return flavor


def _weighted(chance: random.Random, choices: tuple[tuple[Any, int], ...]) -> Any:
    values, weights = zip(*choices, strict=True)
    return chance.choices(values, weights)[0]
