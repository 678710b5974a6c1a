"""Nodes that a flavor's topology leaves out, and nodes that two flavors share."""

from __future__ import annotations

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.flavor_nodes import Survey
from rackgate_assigner.workload.info import node_info
from tests.unit.assigner.builders import RACK, cache_with, flavor, node, overlaps_of


def surveyed(cache: Cache, portion: int = 2) -> Survey:
    survey = Survey.of(cache.flavors.values())
    nodes = list(cache.nodes.values())
    for start in range(0, len(nodes), portion):
        survey.add(nodes[start : start + portion])
    return survey


@pytest.mark.requirement("TAS-04")
@pytest.mark.field_note("C18")
def test_skipped_nodes_are_counted_by_rule_and_those_without_labels_named() -> None:
    bare = [node(f"bare-{number}", ready=number > 0) for number in range(5)]
    for one in bare:
        one.metadata.labels.pop(RACK)
    others = [
        node("good"),
        node("twin", host="good"),
        node("down", ready=False),
        node("cordoned", unschedulable=True),
        node("web", labels={"pool": "web"}, ready=False),
    ]
    survey = surveyed(cache_with([*bare, *others]))
    assert survey.skipped == {
        ("tas", "missingLevel"): 5,
        ("tas", "hostname"): 1,
        ("tas", "notReady"): 1,
        ("tas", "unschedulable"): 1,
    }
    assert survey.missing_levels_text("tas") == 'bare-0, bare-1, bare-2 and 2 more: no label "rack"'
    assert survey.missing_levels_text("nowhere") == ""


@pytest.mark.requirement("TAS-33")
def test_nodes_of_two_flavors_are_counted_for_both() -> None:
    cache = cache_with(
        [node("a", labels={"team": "x"}), node("b"), node("c", labels={"team": "x"})]
    )
    cache.set_flavor(flavor("narrow", node_labels={"team": "x"}))
    cache.set_flavor(flavor("plain", None, node_labels={"team": "x"}))
    survey = surveyed(cache)
    assert survey.shared == {("narrow", "tas"): 2}
    assert survey.overlaps_of("tas") == {"narrow": 2}
    assert survey.overlaps_of("narrow") == {"tas": 2}
    assert overlaps_of(cache) == [("narrow", "tas", 2)]


def test_a_node_without_labels_of_any_flavor_costs_one_look() -> None:
    survey = Survey.of([])
    survey.add([node_info(node("a"))])
    assert (survey.skipped, survey.shared) == ({}, {})
