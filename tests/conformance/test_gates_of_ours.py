"""`rackgate place` knows the gates of ours by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rackgate_cli.__main__ import main

BLOCK, RACK, HOST = "topo.example/block", "topo.example/rack", "kubernetes.io/hostname"


def scenario(rooms: dict[str, int], count: int, asked: dict[str, str], *gates: str) -> Any:
    """Hosts by `block/rack/host` with so many cpu."""
    nodes = [
        {
            "name": path.split("/")[-1],
            "labels": dict(zip((BLOCK, RACK, HOST), path.split("/"), strict=True)),
            "allocatable": {"cpu": str(cpu), "pods": "110"},
        }
        for path, cpu in rooms.items()
    ]
    return {
        "id": "one",
        "levels": [BLOCK, RACK, HOST],
        "flavor": {"topology": "default"},
        "nodes": nodes,
        "gates": dict.fromkeys(gates, True),
        "podSets": [
            {"name": "main", "count": count, "requests": {"cpu": "1"}, "topologyRequest": asked}
        ],
    }


TEN_AND_TEN = ({"b/r1/x1": 19, "b/r2/x2": 10, "b/r3/x3": 10}, 20, {"preferred": RACK})
TWO_LEVELS = (
    {"b1/r1/x1": 2, "b1/r2/x2": 2, "b2/r3/x3": 3, "b2/r4/x4": 3},
    3,
    {"required": BLOCK, "preferred": RACK},
)


@pytest.mark.parametrize(
    ("question", "gate", "expected"),
    [
        (TEN_AND_TEN, "", {"x1": 19, "x2": 1}),
        (TEN_AND_TEN, "RackgateFewestDomains", {"x2": 10, "x3": 10}),
        (TWO_LEVELS, "", {"x1": 2, "x2": 1}),
        (TWO_LEVELS, "RackgateRequiredAndPreferred", {"x3": 3}),
    ],
)
def test_a_scenario_turns_gates_on_by_name(
    question: tuple[dict[str, int], int, dict[str, str]],
    gate: str,
    expected: dict[str, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = scenario(*question, *filter(None, [gate]))
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"format": "tas-scenario/1", "scenarios": [asked]}))
    assert main(["place", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)["expected"]["main"]["assignment"]["domains"]
    assert {domain["values"][0]: domain["count"] for domain in found} == expected
