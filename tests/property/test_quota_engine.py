"""Drawn quota questions: the engine's answers are the oracle's, texts byte for byte."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rackgate_assigner.quota_scenario.scenario import answers
from tests.property.quota_drawing import (
    Json,
    quota_scenario,
    quota_scenarios,
    settled,
    wide_quota_scenario,
)
from tests.support.quota_oracle import answer

SEEDS = st.integers(0, 2**48 - 1)


def engine(question: Json) -> Json:
    """The engine's `expected` of a question, through the format's own reader."""
    body = {"format": "quota-scenario/1", "scenarios": [question]}
    (found,) = answers(json.dumps(body).encode())
    answered: Json = json.loads(json.dumps(found["expected"]))
    return answered


# Flavors that share nodes: what one takes counts on an empty cluster, too.
@example(2126655629)
@pytest.mark.requirement("STR-07")
@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_answers_and_texts_are_the_oracles(seed: int) -> None:
    """Many of them: a scenario of a seed is drawn fast, but does not shrink."""
    question = quota_scenario(seed)
    assume(settled(question))
    assert engine(question) == answer(question)


# A head of a queue beyond its borrowing limit holds nothing.
@example(241)
@pytest.mark.requirement("STR-07")
@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_answers_in_deep_and_crowded_trees_are_the_oracles(seed: int) -> None:
    question = wide_quota_scenario(seed)
    assume(settled(question))
    assert engine(question) == answer(question)


def test_a_node_in_use_beyond_its_capacity_holds_who_requests_nothing_of_what_it_lacks() -> None:
    """The plan and the look at the room when it is processed agree, so it is not tried for ever."""
    found = engine(_on_a_full_node({"cpu": "0", "memory": "1Gi"}))
    assert list(found["admitted"]) == ["ns/waits"]
    assert found["admitted"]["ns/waits"]["podSets"][0]["topology"]["domains"][0]["values"] == ["h"]
    refused = engine(_on_a_full_node({"cpu": "1m", "memory": "1Gi"}))
    assert refused["admitted"] == {}


def _on_a_full_node(requests: Json) -> Json:
    """One node of 1 cpu, of which 2 are in use, and one workload that waits."""
    host = {"levels": ["kubernetes.io/hostname"], "domains": [{"values": ["h"], "count": 1}]}
    held = {"name": "main", "count": 1, "flavors": {"cpu": "f"}, "usage": {"cpu": "2"}}
    quotas = {"cpu": {"nominal": "9"}, "memory": {"nominal": "9Gi"}}
    return {
        "id": "full",
        "tags": [],
        "flavors": [{"name": "f", "topology": "t"}],
        "topologies": [{"name": "t", "levels": ["kubernetes.io/hostname"]}],
        "nodes": [
            {
                "name": "h",
                "labels": {"kubernetes.io/hostname": "h"},
                "allocatable": {"cpu": "1", "memory": "4Gi", "pods": "9"},
            }
        ],
        "clusterQueues": [
            {
                "name": "q",
                "resourceGroups": [
                    {"resources": ["cpu", "memory"], "flavors": [{"name": "f", "quotas": quotas}]}
                ],
            }
        ],
        "localQueues": [{"namespace": "ns", "name": "q", "clusterQueue": "q"}],
        "workloads": [
            {
                "namespace": "ns",
                "name": "runs",
                "podSets": [{"name": "main", "count": 1}],
                "admission": {"clusterQueue": "q", "podSets": [{**held, "topology": host}]},
                "reservedAt": -1,
            },
            {
                "namespace": "ns",
                "name": "waits",
                "queue": "q",
                "podSets": [{"name": "main", "count": 1, "requests": requests}],
            },
        ],
    }


@settings(max_examples=60, deadline=None)
@given(quota_scenarios())
def test_small_questions_have_the_oracles_answers(question: Json) -> None:
    """A question that differs is made as small as it can be."""
    assume(settled(question))
    assert engine(question) == answer(question)


def differences(first: int, count: int) -> Iterator[int]:
    """Seeds of questions with two answers."""
    for seed in range(first, first + count):
        question = quota_scenario(seed)
        if engine(question) != answer(question) and settled(question):
            yield seed


if __name__ == "__main__":
    found = list(differences(int(sys.argv[1]), int(sys.argv[2])))
    print(f"{len(found)} differ: {found[:20]}")
    sys.exit(bool(found))
