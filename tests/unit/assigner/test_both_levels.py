"""Workloads that ask for two levels at once: held by default, placed behind the gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Deactivate, Requeue
from tests.unit.assigner.builders import (
    BLOCK,
    RACK,
    admissions,
    cache_with,
    domains,
    fx_a,
    plan_cycle,
    podset,
    workload,
)

ON = {"RackgateRequiredAndPreferred": True}


def cache_asked(features: Mapping[str, bool], **asked: Any) -> Cache:
    """FX-A and one Workload of 12 pods."""
    cache = cache_with(fx_a(), features=features)
    cache.set_workload(workload("w", [podset(count=12, topology=asked)]))
    return cache


@pytest.mark.field_note("G6", "P6")
def test_both_levels_count_behind_the_gate() -> None:
    assignment = admissions(plan_cycle(cache_asked(ON, required=BLOCK, preferred=RACK)))["w"]
    assert domains(assignment) == {"b1-r1-1": 8, "b1-r1-2": 4}


def test_without_the_gate_such_a_workload_is_held_and_reported_so() -> None:
    (decision,) = plan_cycle(cache_asked({}, required=BLOCK, preferred=RACK))
    assert isinstance(decision, Requeue)
    assert decision.reason == "Misconfigured"
    assert decision.message.startswith("spec.podSets[0].topologyRequest: at most one of required")
    (other,) = plan_cycle(cache_asked(ON, required=BLOCK, unconstrained=True))
    assert isinstance(other, Requeue)
    assert other.reason == "Misconfigured"


@pytest.mark.requirement("VAL-02")
def test_a_preferred_level_above_the_required_one_is_named_by_its_path() -> None:
    said = (
        f'spec.podSets[0].topologyRequest.preferred: level "{BLOCK}" is above the required level '
        f'"{RACK}" in topology "default" (levels: {BLOCK}, {RACK}, kubernetes.io/hostname)'
    )
    (decision,) = plan_cycle(cache_asked(ON, required=RACK, preferred=BLOCK))
    assert isinstance(decision, Deactivate)
    assert decision.message == said
    keeps = ON | {"DeactivateInvalidTopology": False}
    (held,) = plan_cycle(cache_asked(keeps, required=RACK, preferred=BLOCK))
    assert isinstance(held, Requeue)
    assert held.message == said


def test_equal_levels_are_in_order() -> None:
    cache = cache_asked(ON, required=RACK, preferred=RACK)
    assert list(admissions(plan_cycle(cache))) == ["w"]
