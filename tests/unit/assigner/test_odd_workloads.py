"""Workloads that nobody's controller made: what cannot be read stops nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate_assigner.workload.decisions import Requeue
from tests.unit.assigner.builders import (
    admissions,
    cache_with,
    fx_a,
    plan_cycle,
    podset,
    workload,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ODD = [
    "zone",
    {REQUIRED: "zone"},
    {REQUIRED: {"nodeSelectorTerms": "zone"}},
    {REQUIRED: {"nodeSelectorTerms": ["zone"]}},
    {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": "zone"}]}},
    {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": ["zone"]}]}},
    {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": ["pool"]}]}]}},
    {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": {}}]}]}},
]


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("affinity", ODD)
def test_a_template_that_makes_no_sense_holds_up_no_one_else(affinity: Any) -> None:
    cache = cache_with(fx_a())
    odd = podset(affinity={"nodeAffinity": affinity})
    cache.set_workload(workload("a-odd", [odd]))
    cache.set_workload(workload("b-right"))
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["b-right"]
    held = [decision for decision in decisions if isinstance(decision, Requeue)]
    assert [(hold.workload, hold.reason) for hold in held] == [("team/a-odd", "Misconfigured")]
    assert "nodeAffinity" in held[0].message
