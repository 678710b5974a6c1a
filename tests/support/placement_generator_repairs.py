"""Earlier assignments of generated placement questions: to repair or to resize."""

from __future__ import annotations

import random
from typing import Any

from tests.support.oracle import expected
from tests.support.placement_generator_nodes import HOST

Json = dict[str, Any]


def add_replacement(chance: random.Random, scenario: Json, *, owned: bool) -> None:
    """A node breaks under pods that were placed by the rules, or now and then by chance."""
    assignments = _placed(chance, scenario)
    if not assignments:
        return
    usage = scenario.setdefault("usage", [])
    for podset in scenario["podSets"]:
        for domain in assignments.get(podset["name"], {"domains": []})["domains"]:
            usage.append({**domain, "requests": podset["requests"]})
    values = [
        domain["values"][-1]
        for podset in scenario["podSets"]
        if podset["name"] in assignments
        for domain in assignments[podset["name"]]["domains"]
    ]
    broken = [chance.choice(values)]
    others = sorted(set(values) - set(broken))
    if others and chance.random() < 0.15:
        broken.append(chance.choice(others))
    # Only what lost a pod is asked about, as in the data.
    asked = [
        podset
        for podset in scenario["podSets"]
        if any(
            domain["values"][-1] == broken[0]
            for domain in assignments.get(podset["name"], {"domains": []})["domains"]
        )
    ]
    if chance.random() < 0.9:
        scenario["podSets"] = asked
    scenario["replacement"] = {"unhealthyNodes": broken, "assignments": assignments}
    if owned:
        scenario["replacement"]["ownedBySinglePod"] = True
    scenario.pop("simulateEmpty", None)
    _break(chance, scenario, broken)


def _break(chance: random.Random, scenario: Json, broken: list[str]) -> None:
    lowest = scenario["levels"][-1]
    for node in list(scenario["nodes"]):
        if node["labels"].get(lowest) in broken:
            fate = chance.random()
            if fate < 0.6:
                node["ready"] = False
            elif fate < 0.9:
                scenario["nodes"].remove(node)
        elif chance.random() < 0.005:
            node["ready"] = False


def add_previous(chance: random.Random, scenario: Json) -> None:
    """Pod sets were placed before with other counts."""
    assignments = _placed(chance, scenario)
    for podset in scenario["podSets"]:
        assignment = assignments.get(podset["name"])
        if assignment is None or chance.random() < 0.15:
            continue
        before = sum(domain["count"] for domain in assignment["domains"])
        if (podset["count"] - before) % _size(podset):
            # A rest that no slice holds is refused by the engine, on purpose.
            continue
        podset["previousAssignment"] = assignment
        if podset["name"].startswith("lead"):
            continue
        size = _size(podset)
        change = chance.choice([-3, -1, 0, 1, 1, 2, 3, 8, podset["count"] // size]) * size
        podset["count"] = max(size, podset["count"] + change)
    if chance.random() < 0.1 and scenario["nodes"]:
        chance.choice(scenario["nodes"])["ready"] = False


def _size(podset: Json) -> int:
    slices = (podset.get("topologyRequest") or {}).get("slices") or [{"size": 1}]
    return max(1, int(slices[0]["size"]))


def _placed(chance: random.Random, scenario: Json) -> dict[str, Json]:
    """Assignments that pod sets could have had: by the rules, with every node well."""
    well = [{**node, "ready": True, "unschedulable": False} for node in scenario["nodes"]]
    before = {
        **scenario,
        "nodes": well if chance.random() < 0.8 else scenario["nodes"],
        "gates": {},
        "simulateEmpty": chance.random() < 0.1,
    }
    answer = expected(before)
    found = {
        name: entry["assignment"]
        for name, entry in answer.items()
        if entry.get("assignment", {}).get("domains")
    }
    if chance.random() < 0.05:
        found |= _scattered(chance, scenario)
    return found


def _scattered(chance: random.Random, scenario: Json) -> dict[str, Json]:
    """Pods anywhere, whatever was asked."""
    levels = scenario["levels"]
    paths = sorted(
        {
            tuple(node["labels"][level] for level in levels)
            for node in scenario["nodes"]
            if all(level in node["labels"] for level in levels)
        }
    )
    if not paths:
        return {}
    hosts = levels[-1] == HOST
    found = {}
    for podset in scenario["podSets"]:
        most = 1 if podset["name"].startswith("lead") else 4
        places = sorted(chance.sample(paths, min(len(paths), chance.randint(1, most))))
        found[podset["name"]] = {
            "levels": levels[-1:] if hosts else levels,
            "domains": [
                {"values": list(path[-1:] if hosts else path), "count": chance.randint(1, most)}
                for path in places
            ],
        }
    return found
