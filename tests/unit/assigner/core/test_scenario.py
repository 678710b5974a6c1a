"""Reading `tas-scenario/1` and giving answers in its shape."""

from __future__ import annotations

import json
from typing import Any

from rackgate_assigner.scenario.scenario import answer, answers, read_scenarios

HOST = "kubernetes.io/hostname"


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "id": "one",
        "levels": [HOST],
        "flavor": {"topology": "default", "nodeLabels": {"pool": "tas"}},
        "nodes": [
            {
                "name": f"node-{i}",
                "labels": {HOST: f"x{i}", "pool": "tas"},
                "allocatable": {"cpu": "1500m", "memory": "2Gi", "pods": "3"},
            }
            for i in range(2)
        ],
        "podSets": [{"name": "main", "count": 1, "requests": {"cpu": "0.5"}}],
        **changes,
    }


def text(*scenarios: dict[str, Any]) -> bytes:
    return json.dumps({"format": "tas-scenario/1", "scenarios": scenarios}).encode()


def ask(**changes: Any) -> Any:
    (only,) = read_scenarios(text(scenario(**changes)))
    return answer(only)


def hosts(**changes: Any) -> dict[str, int]:
    domains = ask(**changes)["main"]["assignment"]["domains"]
    return {domain["values"][0]: domain["count"] for domain in domains}


def test_an_answer_has_the_shape_of_the_data() -> None:
    assert list(answers(text(scenario()))) == [
        {
            "id": "one",
            "expected": {
                "main": {
                    "assignment": {"levels": [HOST], "domains": [{"values": ["x0"], "count": 1}]}
                }
            },
        }
    ]


def test_running_pods_count_and_ended_or_unbound_ones_do_not() -> None:
    busy = {"name": "p", "node": "node-0", "phase": "Running", "requests": {"cpu": "1500m"}}
    assert hosts(pods=[busy]) == {"x1": 1}
    assert hosts(pods=[{**busy, "phase": "Failed"}]) == {"x0": 1}
    assert hosts(pods=[{**busy, "node": None}]) == {"x0": 1}
    assert hosts(pods=[{"node": "node-0", "phase": "Running"}] * 3) == {"x1": 1}


def test_usage_counts_unless_an_empty_cluster_is_simulated() -> None:
    usage = [{"values": ["x0"], "requests": {"cpu": "500m"}, "count": 3}]
    assert hosts(usage=usage) == {"x1": 1}
    assert hosts(usage=usage, simulateEmpty=True) == {"x0": 1}
    assert hosts(usage=[{"values": ["gone"], "count": 1}]) == {"x0": 1}


def test_a_replacement_without_broken_nodes_is_an_ordinary_question() -> None:
    assert hosts(replacement={"unhealthyNodes": [], "assignments": {}}) == {"x0": 1}


def test_levels_may_hold_hostile_numbers_without_overflow() -> None:
    huge = {
        "name": "node-9",
        "labels": {HOST: "x9", "pool": "tas"},
        "allocatable": {"cpu": "9E", "memory": "8Ei", "pods": "9E"},
    }
    podsets = [{"name": "main", "count": 2**31 - 1, "requests": {"cpu": "1m", "memory": "1"}}]
    assert hosts(nodes=[huge], podSets=podsets) == {"x9": 2**31 - 1}
