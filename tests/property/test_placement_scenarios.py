"""Generated questions, with every gate: the engine's answers are the oracle's, and are sound."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oracle import expected
from tests.support.oracle.amounts import per_pod, read
from tests.support.oracle.nodes import HOST, Hierarchy
from tests.support.oracle.request import unit_of
from tests.support.placement_differences import engine
from tests.support.placement_generator import GATES, scenario, scenario_of, scenarios
from tests.support.placement_history import history

Json = dict[str, Any]
DATA = Path(__file__).parent.parent / "conformance" / "data" / "tas"
MANY = settings(max_examples=200, deadline=None)
FEW = settings(max_examples=60, deadline=None)
SEEDS = st.integers(0, 2**48 - 1)


@pytest.mark.parametrize("name", ["table-cases", "generated-public", "gates-cases"])
def test_the_oracle_itself_gives_every_answer_of_the_data(name: str) -> None:
    asked = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))["scenarios"]
    assert asked
    for one in asked:
        assert expected(one) == one["expected"], one["id"]


@pytest.mark.requirement("TAS-06", "TAS-07", "TAS-17", "TAS-18", "TAS-19", "TAS-21", "CAP-05")
@MANY
@given(scenarios())
def test_answers_and_texts_are_the_oracles(question: Json) -> None:
    assert engine(question) == expected(question)


@pytest.mark.parametrize("gates", [gates for gates, _ in GATES if gates], ids="+".join)
@FEW
@given(SEEDS)
def test_answers_and_texts_are_the_oracles_behind_every_gate(gates: Json, seed: int) -> None:
    question = scenario_of(seed, gates)
    assert engine(question) == expected(question)


def test_pruning_for_the_leader_spares_domains_that_host_none() -> None:
    """Even spread keeps the order of their hosts: here x16 goes before x3."""
    hosts = {"x2": ("b1", "8", "1"), "x3": ("b1", "10", "0"), "x16": ("b9", "11", "0")}
    preferred = {"topologyRequest": {"preferred": "topo/block"}, "group": "g"}
    question = {
        "id": "pruning",
        "gates": {"TASBalancedPlacement": True},
        "levels": ["topo/block", HOST],
        "flavor": {"topology": "default"},
        "nodes": [
            {
                "name": name,
                "labels": {"topo/block": block, HOST: name},
                "allocatable": {"cpu": cpu, "gpu": gpu, "pods": "110"},
            }
            for name, (block, cpu, gpu) in hosts.items()
        ],
        "podSets": [
            {"name": "workers", "count": 20, "requests": {"cpu": "1"}, **preferred},
            {"name": "leader", "count": 1, "requests": {"cpu": "1", "gpu": "1"}, **preferred},
        ],
    }
    answer = engine(question)
    assert answer == expected(question)
    assert counts(answer, "workers") == {("x2",): 7, ("x3",): 6, ("x16",): 7}


def placed(question: Json, answer: Json) -> list[tuple[Json, Json | None, Json]]:
    """Workers, leader and answer of every unit that has assignments for all its members."""
    found, seen = [], set()
    for first in question["podSets"]:
        workers, leader = unit_of(question["podSets"], first)
        names = [member["name"] for member in (workers, leader) if member is not None]
        if names[0] in seen:
            continue
        seen |= set(names)
        if all("assignment" in answer.get(name, {}) for name in names):
            found.append((workers, leader, answer))
    return found


def counts(answer: Json, name: str) -> dict[tuple[str, ...], int]:
    domains = answer[name]["assignment"]["domains"]
    assert len({tuple(domain["values"]) for domain in domains}) == len(domains)
    return {tuple(domain["values"]): domain["count"] for domain in domains}


def asked_for(question: Json, podset: Json) -> int:
    """Its count, or what it has where a node is replaced."""
    current = (question.get("replacement") or {}).get("assignments", {}).get(podset["name"])
    return int(sum(d["count"] for d in current["domains"]) if current else podset["count"])


def deep_slices(question: Json) -> bool:
    """Slices two or more levels below the requested one: even spread may hand out too few."""
    return bool(question.get("gates", {}).get("TASBalancedPlacement")) and any(
        (podset.get("topologyRequest") or {}).get("slices") for podset in question["podSets"]
    )


@pytest.mark.requirement("TAS-12")
@MANY
@given(scenarios())
def test_counts_add_up_and_no_domain_comes_twice(question: Json) -> None:
    answer = engine(question)
    for workers, leader, _ in placed(question, answer):
        given_out = counts(answer, workers["name"])
        assert all(count >= 1 for count in given_out.values())
        if not deep_slices(question):
            assert sum(given_out.values()) == asked_for(question, workers)
        if leader is not None:
            # A leader keeps its domain on a resize, also one that had more pods (section 12).
            before = leader.get("previousAssignment", {"domains": []})["domains"]
            kept = sum(domain["count"] for domain in before)
            assert sum(counts(answer, leader["name"]).values()) in {1, kept or 1}


@pytest.mark.requirement("TAS-21", "CAP-04", "CAP-11")
@MANY
@given(scenarios())
def test_no_leaf_gets_more_than_it_has(question: Json) -> None:
    """Of what it takes now; kept pods of a replacement are in the usage already."""
    answer = engine(question)
    hierarchy = Hierarchy(question)
    kept: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for name, current in (question.get("replacement") or {}).get("assignments", {}).items():
        for domain in current["domains"]:
            if domain["values"][-1] != question["replacement"]["unhealthyNodes"][0]:
                kept[name, tuple(domain["values"])] += domain["count"]
    before = {leaf.path: dict(leaf.free) for leaf in hierarchy.leaves}
    touched: dict[tuple[str, ...], set[str]] = {}
    for podset in question["podSets"]:
        if podset.get("previousAssignment") or "assignment" not in answer.get(podset["name"], {}):
            continue
        request = per_pod(read(podset["requests"]))
        for values, count in counts(answer, podset["name"]).items():
            leaf = hierarchy.leaf(values)
            if leaf is None:  # a single pod's own assignment stays, whatever became of its node
                assert question["replacement"]["ownedBySinglePod"]
                continue
            new = count - kept[podset["name"], values]
            if new <= 0 or (question.get("replacement") or {}).get("ownedBySinglePod"):
                continue
            for resource, amount in request.items():
                leaf.free[resource] = leaf.free.get(resource, 0) - amount * new
                if amount:
                    touched.setdefault(leaf.path, set()).add(resource)
    for leaf in hierarchy.leaves:
        for resource in touched.get(leaf.path, ()):
            assert leaf.free[resource] >= 0, (leaf.path, resource, before[leaf.path])


@pytest.mark.requirement("TAS-06")
@MANY
@given(scenarios())
def test_a_required_level_is_never_left_and_slices_are_whole(question: Json) -> None:
    if question.get("replacement") or question.get("gates"):
        return
    levels = question["levels"]
    hierarchy = Hierarchy(question)
    answer = engine(question)
    for workers, leader, _ in placed(question, answer):
        request = workers.get("topologyRequest") or {}
        paths: Counter[tuple[str, ...]] = Counter()
        for values, count in counts(answer, workers["name"]).items():
            leaf = hierarchy.leaf(values)
            assert leaf is not None
            paths[leaf.path] += count
        for layer in request.get("slices") or []:
            depth = levels.index(layer["topology"]) + 1
            sums: Counter[tuple[str, ...]] = Counter()
            for path, count in paths.items():
                sums[path[:depth]] += count
            assert all(count % layer["size"] == 0 for count in sums.values())
        if leader is not None:
            for values in counts(answer, leader["name"]):
                leaf = hierarchy.leaf(values)
                assert leaf is not None
                paths[leaf.path] += 1
        if request.get("required"):
            depth = levels.index(request["required"]) + 1
            assert len({path[:depth] for path in paths}) <= 1


@pytest.mark.requirement("TAS-22")
@pytest.mark.field_note("C19")
@FEW
@given(scenarios(), st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_changes_an_answer(
    question: Json, shuffler: random.Random
) -> None:
    mixed = deepcopy(question)
    for key in ("nodes", "usage", "pods"):
        shuffler.shuffle(mixed.get(key, []))
    for node in mixed["nodes"]:
        node["labels"] = dict(reversed(node["labels"].items()))
    first = engine(question)
    assert engine(question) == first
    assert engine(mixed) == first


def roomier(question: Json, chance: random.Random) -> Json:
    """The same question with one node more, larger or less closed."""
    found = deepcopy(question)
    kind = chance.choice(["new", "larger", "open", "emptier"])
    node = chance.choice(found["nodes"])
    if kind == "new":
        node = deepcopy(node)
        node["name"] = "newcomer"
        if HOST in node["labels"]:
            node["labels"][HOST] = "newcomer"
        found["nodes"].append(node)
    elif kind == "larger":
        for resource, amount in list(node["allocatable"].items()):
            whole = read({resource: amount})[resource] + chance.randint(0, 8000)
            node["allocatable"][resource] = f"{whole}m" if resource == "cpu" else str(whole)
    elif kind == "open":
        node |= {"ready": True, "unschedulable": False, "taints": []}
    else:
        found["usage"] = found.get("usage", [])[:-1]
        found["pods"] = found.get("pods", [])[:-1]
    return found


@pytest.mark.requirement("TAS-17", "TAS-19")
@MANY
@given(SEEDS, st.randoms(use_true_random=False))
def test_a_fit_stays_a_fit_with_more_room(seed: int, chance: random.Random) -> None:
    """Promised for one unit only: the next may find its place taken by the one before it."""
    question = scenario(seed)
    if question.get("replacement") or not question["nodes"]:
        return
    workers, leader = unit_of(question["podSets"], question["podSets"][0])
    question["podSets"] = [workers] if leader is None else [workers, leader]
    if "assignment" in engine(question).get(workers["name"], {}):
        assert "assignment" in engine(roomier(question, chance))[workers["name"]]


@pytest.mark.requirement("TAS-17")
@FEW
@given(SEEDS)
def test_a_fit_of_many_pods_is_a_fit_of_fewer(seed: int) -> None:
    question = scenario_of(seed, {})
    if question.get("replacement"):
        return
    podset = next((one for one in question["podSets"] if not one.get("group")), None)
    if podset is None:
        return
    question["podSets"] = [podset]
    slices = (podset.get("topologyRequest") or {}).get("slices") or [{"size": 1}]
    if "assignment" not in engine(question)[podset["name"]]:
        return
    for count in range(0, podset["count"], slices[0]["size"] or 1):
        podset["count"] = count
        if count % 7 == 0 or podset["count"] < 10:
            assert "assignment" in engine(question)[podset["name"]]


@pytest.mark.requirement("TAS-22", "CAP-02", "CAP-09", "CAP-11")
@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_what_is_kept_between_questions_never_shows(seed: int) -> None:
    for number, (question, ours, theirs) in enumerate(history(seed)):
        assert ours == theirs, f"question {number}: {question['podSets']}"
