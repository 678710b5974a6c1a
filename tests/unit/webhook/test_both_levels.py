"""Two levels in one request: refused by default, allowed behind the gate, checked either way."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate_webhook.admission.validate import validate
from tests.support.objects import BLOCK, RACK, job
from tests.unit.webhook.reviews import review
from tests.unit.webhook.test_validate import WORKLOAD, governed, workload

WHERE = "spec.template.metadata.annotations"


def errors(kind: str, found: dict[str, Any], stored: dict[str, Any] | None = None) -> list[str]:
    """Paths of what is refused behind the gate."""
    admission_response = validate(review(kind, found, stored), both_levels=True)
    return [error.path for error in admission_response.errors]


@pytest.mark.field_note("G6")
def test_a_job_may_require_a_block_and_prefer_a_rack() -> None:
    asked = governed(job("train", 2, required=BLOCK, preferred=RACK))
    assert errors("batch/Job", asked) == []
    (error,) = validate(review("batch/Job", asked)).errors
    assert error.path == WHERE
    assert "more than one topology request" in error.problem


def test_a_job_may_be_given_its_second_level_while_it_is_suspended() -> None:
    before = governed(job("train", 2, required=BLOCK))
    after = governed(job("train", 2, required=BLOCK, preferred=RACK))
    assert errors("batch/Job", after, before) == []
    assert not validate(review("batch/Job", after, before)).allowed


@pytest.mark.parametrize("first", ["required", "preferred"])
def test_unconstrained_still_excludes_a_level(first: str) -> None:
    level: dict[str, Any] = {first: RACK}
    asked = job("train", 2, **level)
    annotations = asked["spec"]["template"]["metadata"]["annotations"]
    annotations[names.UNCONSTRAINED_TOPOLOGY] = "true"
    assert errors("batch/Job", governed(asked)) == [WHERE]
    both = workload(topologyRequest={**level, "unconstrained": True})
    assert errors(WORKLOAD, both) == ["spec.podSets[0].topologyRequest"]


def test_both_levels_are_checked_one_by_one() -> None:
    asked = governed(job("train", 2, required="a//b", preferred="c//d"))
    assert errors("batch/Job", asked) == [
        f"{WHERE}[{names.REQUIRED_TOPOLOGY}]",
        f"{WHERE}[{names.PREFERRED_TOPOLOGY}]",
    ]


def test_a_workload_may_carry_both_levels_behind_the_gate_alone() -> None:
    both = workload(topologyRequest={"required": BLOCK, "preferred": RACK})
    assert errors(WORKLOAD, both) == []
    (error,) = validate(review(WORKLOAD, both)).errors
    assert error.path == "spec.podSets[0].topologyRequest"
