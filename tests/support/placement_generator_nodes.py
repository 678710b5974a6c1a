"""Nodes, usage and foreign pods of generated placement questions."""

from __future__ import annotations

import random
from typing import Any

HOST = "kubernetes.io/hostname"
Json = dict[str, Any]
WORDS = ("ada", "bor", "cyg", "dra", "eri", "for", "gru", "hya", "lyr", "nor", "oct")
ACCEL = "example.com/accel"
# Equal but for their case, or prefixes of one another: the tightest is the first in byte order.
ODD = ("A.example/x", "a.example/x", "a.example/x-y", "ephemeral-storage")
TAINTS: tuple[Json, ...] = (
    {"key": "spot", "value": "true", "effect": "PreferNoSchedule"},
    {"key": "dedicated", "value": "infer", "effect": "NoSchedule"},
    {"key": "dedicated", "value": "batch", "effect": "NoSchedule"},
    {"key": "gen", "value": "3", "effect": "NoSchedule"},
    {"key": "gen", "value": "x", "effect": "NoSchedule"},
    {"key": "maint", "effect": "NoExecute"},
)


def draw_nodes(chance: random.Random, levels: list[str], *, large: bool) -> list[Json]:
    """One to 200 nodes, rarely and if `large` 1,500, below a random hierarchy, in no order."""
    paths = _paths(chance, levels, large=large)
    extra = [name for name in ("memory", ACCEL) if chance.random() < 0.35]
    if chance.random() < 0.1:
        extra += chance.sample(ODD, chance.randint(1, 4))
    shapes = [_shape(chance, extra) for _ in range(chance.choice([1, 1, 1, 2, 2, 3, 6]))]
    tainted = chance.choice([0, 0, 0, 0.1, 0.3, 0.6])
    fading = chance.choice([0, 0, 0.03, 0.15])
    prefix = chance.choice(["x", "node-"])
    nodes: list[Json] = []
    for number, path in enumerate(paths):
        name = f"x{number}" if prefix == "x" else f"node-{number:04}"
        labels = dict(zip(levels, path, strict=True))
        if levels[-1] == HOST:
            labels[HOST] = name if path[-1] is None else str(path[-1])
        nodes.append(
            {
                "name": name,
                "labels": labels | _more_labels(chance),
                "allocatable": dict(chance.choice(shapes)),
            }
        )
    if chance.random() < 0.05 and levels[-1] == HOST and len(levels) > 1 and nodes:
        # A host that is called like a rack.
        nodes[0]["labels"][HOST] = nodes[0]["labels"][levels[0]]
    for node in nodes:
        _wear(chance, node, levels, tainted, fading)
    chance.shuffle(nodes)
    return nodes


def _wear(
    chance: random.Random, node: Json, levels: list[str], tainted: float, fading: float
) -> None:
    if chance.random() < tainted:
        node["taints"] = chance.sample(TAINTS, chance.choice([1, 1, 1, 2, 3]))
    if chance.random() < fading:
        node["ready"] = False
    if chance.random() < fading:
        node["unschedulable"] = True
    if chance.random() < fading:
        del node["labels"][chance.choice(levels)]


def _more_labels(chance: random.Random) -> dict[str, str]:
    labels = {}
    if chance.random() < 0.85:
        labels["pool"] = chance.choice(["tas", "tas", "tas", "tas", "other"])
    if chance.random() < 0.5:
        labels["disk"] = chance.choice(["ssd", "hdd"])
    if chance.random() < 0.7:
        labels["gen"] = chance.choice(["1", "2", "3", "4", "10", "-1", "old"])
    return labels


def _paths(
    chance: random.Random, levels: list[str], *, large: bool
) -> list[tuple[str | None, ...]]:
    """Label values of every node; the host's own name is left open."""
    name_of = chance.choice([_plain, _padded, _mixed, _words])
    local = chance.random() < 0.4
    most = chance.choice([4, 8, 16, 16, 16, 30, 50, 100, 200])
    if chance.random() < 0.01 and large:
        most = chance.choice([500, 1500])
    widths = [chance.randint(2, chance.choice([2, 3, 5, 9 if most <= 200 else 60])) for _ in levels]
    found: list[tuple[str | None, ...]] = []
    serial = [0] * len(levels)

    def grow(path: tuple[str | None, ...]) -> None:
        depth = len(path)
        if len(found) >= most:
            return
        if depth == len(levels):
            found.extend([path] * (1 if levels[-1] == HOST else chance.choice([1, 1, 2, 4])))
            return
        for place in range(chance.randint(1, widths[depth])):
            if levels[depth] == HOST:
                grow((*path, None))
                continue
            serial[depth] += 1
            number = place + 1 if local else serial[depth]
            grow((*path, name_of(chance, levels[depth].rpartition("/")[2][0], number)))

    grow(())
    if len(levels) == 1 or chance.random() < 0.7:
        while len(found) < most // 2:
            grow(())
    return found


def _plain(_chance: random.Random, letter: str, number: int) -> str:
    return f"{letter}{number}"


def _padded(_chance: random.Random, letter: str, number: int) -> str:
    return f"{letter}-{number:03}"


def _mixed(chance: random.Random, letter: str, number: int) -> str:
    return (
        chance.choice([letter, letter.upper()]) + chance.choice(["", ".", "_", "-"]) + str(number)
    )


def _words(_chance: random.Random, _letter: str, number: int) -> str:
    round_, place = divmod(number - 1, len(WORDS))
    return WORDS[place] + (str(round_) if round_ else "")


def _shape(chance: random.Random, extra: list[str]) -> dict[str, str]:
    shape = {
        "cpu": chance.choice(
            ["1", "1500m", "2", "2500m", "3900m", "4", "6", "7910m", "8", "16", "0.1", "64"]
        ),
        "pods": chance.choice(["110", "110", "110", "110", "64", "16", "8", "5", "3"]),
    }
    sizes = {
        "memory": ["2Gi", "8Gi", "10G", "7500Mi", "31000Mi", "16Gi", "1e10"],
        ACCEL: ["1", "2", "4", "8", "8"],
    } | {name: ["1", "2", "5", "20", "0"] for name in ODD}
    for name, amounts in sizes.items():
        if name in extra and chance.random() < 0.95:
            shape[name] = chance.choice(amounts)
    if chance.random() < 0.02:
        del shape["pods"]
    return shape


def resources(nodes: list[Json]) -> list[str]:
    """What the nodes have, apart from cpu and pods."""
    return sorted({name for node in nodes for name in node["allocatable"]} - {"cpu", "pods"})


def draw_usage(chance: random.Random, levels: list[str], nodes: list[Json]) -> Json:
    """`usage` and `pods`, each often absent; some name leaves or nodes that do not exist."""
    found: Json = {}
    if chance.random() < 0.5:
        found["usage"] = [
            {
                "values": _values(chance, levels, node),
                "requests": small(chance, resources(nodes)),
                "count": chance.choice([1, 1, 1, 2, 3, 8]),
            }
            for node in _some(chance, nodes)
        ]
    if chance.random() < 0.33:
        found["pods"] = [
            _pod(chance, number, node, resources(nodes))
            for number, node in enumerate(_some(chance, nodes))
        ]
    return found


def _some(chance: random.Random, nodes: list[Json]) -> list[Json]:
    density = chance.choice([0.1, 0.3, 0.6, 0.6, 1.2])
    return [chance.choice(nodes) for _ in range(max(1, int(len(nodes) * density)))]


def _values(chance: random.Random, levels: list[str], node: Json) -> list[str]:
    values = [node["labels"].get(level, "none") for level in levels]
    if chance.random() < 0.03:
        values[-1] = "gone"
    return values[-1:] if levels[-1] == HOST else values


def _pod(chance: random.Random, number: int, node: Json, extra: list[str]) -> Json:
    pod: Json = {"name": f"sys-{number}", "phase": "Running"}
    if chance.random() < 0.95:
        pod["node"] = node["name"] if chance.random() < 0.97 else "gone"
    if chance.random() < 0.2:
        pod["phase"] = chance.choice(["Succeeded", "Failed", "Pending"])
    if chance.random() < 0.9:
        pod["requests"] = small(chance, extra)
    return pod


def small(chance: random.Random, extra: list[str]) -> dict[str, str]:
    requests = {"cpu": chance.choice(["100m", "250m", "500m", "0.5", "1", "1500m"])}
    if chance.random() < 0.3 and "memory" in extra:
        requests["memory"] = chance.choice(["256Mi", "500M", "1Gi", "2Gi"])
    if chance.random() < 0.3 and ACCEL in extra:
        requests[ACCEL] = chance.choice(["1", "1", "2", "4"])
    requests |= {name: chance.choice(["1", "2"]) for name in ODD if name in extra}
    return requests
