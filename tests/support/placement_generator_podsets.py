"""Pod sets of generated placement questions."""

from __future__ import annotations

import random
from typing import Any

from tests.support.oracle.amounts import fit, per_pod, read
from tests.support.placement_generator_nodes import ACCEL, ODD, resources

Json = dict[str, Any]
TOLERATIONS: tuple[Json, ...] = (
    {"key": "gen", "operator": "Gt", "value": "2", "effect": "NoSchedule"},
    {"key": "gen", "operator": "Lt", "value": "3", "effect": "NoSchedule"},
    {"key": "gen", "operator": "Lt", "value": "4"},
    {"key": "gen", "operator": "Gt", "value": "three"},
    {"key": "dedicated", "operator": "Equal", "value": "batch", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "infer"},
    {"operator": "Exists"},
    {"key": "maint", "operator": "Exists"},
    {"key": "maint"},
    {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"},
    {"operator": "Equal", "value": "batch"},
    {"value": "infer", "effect": "NoExecute"},
)
EXPRESSIONS: tuple[Json, ...] = (
    {"key": "disk", "operator": "DoesNotExist"},
    {"key": "disk", "operator": "Exists"},
    {"key": "disk", "operator": "In", "values": ["ssd"]},
    {"key": "disk", "operator": "In", "values": ["ssd", "hdd"]},
    {"key": "disk", "operator": "NotIn", "values": ["hdd"]},
    {"key": "gen", "operator": "Lt", "values": ["4"]},
    {"key": "gen", "operator": "Gt", "values": ["1"]},
    {"key": "gen", "operator": "Gt", "values": ["-2"]},
    {"key": "gen", "operator": "NotIn", "values": ["2", "3"]},
    {"key": "pool", "operator": "In", "values": ["tas"]},
)


def draw_podsets(
    chance: random.Random, scenario: Json, *, soft: bool, balanced: bool
) -> list[Json]:
    """One to four pod sets; some form groups of workers and leader, in any places."""
    found: list[Json] = []
    for number in range(chance.choices([1, 2, 3, 4], [62, 23, 11, 4])[0]):
        podset = _podset(chance, scenario, f"ps{number}", soft=soft, balanced=balanced)
        found.append(podset)
        if chance.random() < 0.22 and podset["count"] > 0:
            podset["group"] = f"g{number}"
            if chance.random() < 0.95:
                leader = _leader(chance, scenario, number)
                if chance.random() < 0.8 and "topologyRequest" in podset and len(leader) < 5:
                    leader["topologyRequest"] = podset["topologyRequest"]
                found.insert(chance.choice([len(found), len(found), len(found) - 1]), leader)
    if chance.random() < 0.1:
        chance.shuffle(found)
    return found


def _leader(chance: random.Random, scenario: Json, number: int) -> Json:
    requests = _requests(chance, resources(scenario["nodes"]))
    leader: Json = {"name": f"lead{number}", "count": 1, "requests": requests}
    leader["group"] = f"g{number}"
    if chance.random() < 0.1:
        # All of this is ignored.
        leader["nodeSelector"] = {"disk": "ssd"}
        leader["tolerations"] = [chance.choice(TOLERATIONS)]
        request = _topology_request(chance, scenario["levels"], preferring=False)
        # But for slices: beside workers of one pod the first of the two is the workers, and a
        # count that slices do not divide is refused by the engine, on purpose.
        if request is not None and not request.pop("slices", None):
            leader["topologyRequest"] = request
    return leader


def _podset(
    chance: random.Random, scenario: Json, name: str, *, soft: bool, balanced: bool
) -> Json:
    levels = scenario["levels"]
    podset: Json = {"name": name, "requests": _requests(chance, resources(scenario["nodes"]))}
    request = _topology_request(chance, levels, preferring=balanced)
    size = 1
    if request is not None:
        podset["topologyRequest"] = request
        size = max(1, (request.get("slices") or [{"size": 1}])[0].get("size", 1))
    podset["count"] = _count(chance, scenario, podset["requests"], size)
    if chance.random() < 0.1:
        podset["nodeSelector"] = chance.choice(
            [{"pool": "tas"}, {"disk": "ssd"}, {"gen": "2"}, {"pool": "tas", "disk": "hdd"}]
        )
    if chance.random() < 0.25:
        podset["tolerations"] = chance.sample(TOLERATIONS, chance.choice([1, 1, 2, 3]))
    affinity = _affinity(chance, soft=soft)
    if affinity:
        podset["nodeAffinity"] = affinity
    return podset


def _count(chance: random.Random, scenario: Json, requests: Json, size: int) -> int:
    """Often near what could fit somewhere, where answers are most telling."""
    if chance.random() < 0.02:
        return 0
    request = per_pod(read(requests))
    fits = [fit(request, read(node["allocatable"]))[0] for node in scenario["nodes"]]
    total = sum(fits)
    largest = chance.choice(
        [
            1,
            4,
            8,
            max(fits, default=0),
            max(fits, default=0) * 2,
            total // 8,
            total // 4,
            total // 2,
            total,
            total,
        ]
    )
    count = chance.randint(max(1, largest // 2), max(1, largest))
    return max(1, count // size) * size


def _requests(chance: random.Random, extra: list[str]) -> dict[str, str]:
    if chance.random() < 0.02:
        return {}
    cpu = ["1", "1", "1", "2", "750m", "100m", "0.5", "250m", "500m", "1500m", "4", "0"]
    requests = {"cpu": chance.choice(cpu)}
    if chance.random() < 0.5 and "memory" in extra:
        memory = ["256Mi", "500M", "1Gi", "1500Mi", "2Gi", "0.1", "1500m", "0"]
        requests["memory"] = chance.choice(memory)
    if chance.random() < 0.5 and ACCEL in extra:
        requests[ACCEL] = chance.choice(["1", "1", "2", "4", "0"])
    for name in ODD:
        if name in extra and chance.random() < 0.7:
            requests[name] = chance.choice(["1", "1", "2", "3"])
    if chance.random() < 0.01:
        requests["example.com/none"] = chance.choice(["1", "0"])
    if chance.random() < 0.01:
        requests["pods"] = "1"
    if chance.random() < 0.03:
        del requests["cpu"]
    return requests


def _topology_request(chance: random.Random, levels: list[str], *, preferring: bool) -> Json | None:
    kinds = ["required", "preferred", "unconstrained", "implied", "slices-only", "empty"]
    weights = [27, 26, 12, 8, 8, 0.5]
    if preferring:
        weights = [4, 60, 8, 3, 3, 0.5]
    kind = chance.choices(kinds, weights)[0]
    if kind == "implied":
        return None
    request: Json = {}
    level = chance.randrange(len(levels))
    if kind in ("required", "preferred"):
        request[kind] = levels[level] if chance.random() < 0.995 else "topo.example/cage"
    elif kind == "unconstrained":
        request["unconstrained"] = True
    if kind == "slices-only" or (kind in ("required", "preferred") and chance.random() < 0.35):
        first = 0 if kind == "slices-only" else level
        request["slices"] = _slices(chance, levels, first)
    elif kind == "unconstrained" and chance.random() < 0.05:
        request["slices"] = _slices(chance, levels, 0)
    return request


def _slices(chance: random.Random, levels: list[str], first: int) -> list[Json]:
    """Mostly at or below the level `first`, each layer below the one before; some broken."""
    place = chance.randrange(first, len(levels))
    size = chance.choice([1, 2, 2, 2, 3, 4, 4, 6, 8, 12])
    slices = [{"topology": levels[place], "size": size}]
    while place + 1 < len(levels) and chance.random() < 0.35:
        place = chance.randrange(place + 1, len(levels))
        size = chance.choice([part for part in range(1, size + 1) if size % part == 0])
        slices.append({"topology": levels[place], "size": size})
    if chance.random() < 0.02:
        layer = chance.choice(slices)
        layer["topology"] = chance.choice([*levels, "topo.example/cage"])
    if chance.random() < 0.01:
        chance.choice(slices)["size"] = chance.choice([3, 5])
    if chance.random() < 0.005:
        slices[0]["size"] = 0
        del slices[1:]
    return slices


def _affinity(chance: random.Random, *, soft: bool) -> Json:
    affinity: Json = {}
    if chance.random() < 0.05:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": [_term(chance) for _ in range(chance.choice([1, 1, 2, 3]))]
        }
    if chance.random() < (0.85 if soft else 0.02):
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": chance.choice([1, 1, 5, 10, 50, 100]), "preference": _term(chance)}
            for _ in range(chance.choice([1, 1, 2, 3]))
        ]
    return affinity


def _term(chance: random.Random) -> Json:
    return {"matchExpressions": chance.choices(EXPRESSIONS, k=chance.choice([1, 1, 2]))}
