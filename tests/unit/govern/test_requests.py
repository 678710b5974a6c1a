"""A Workload's topologyRequest: what is refused, with which path."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import workload as model
from rackgate.jobframework import topology_request as requests
from rackgate.jobframework.topology_request import exclusive_errors, request_errors
from tests.support.bad_requests import BAD_REQUESTS, GOOD_REQUESTS, BadRequest

PATH = "spec.podSets[0].topologyRequest"


def errors(request: dict[str, Any], count: int | None = 8) -> list[str]:
    found = [*exclusive_errors(request, PATH), *request_errors(request, PATH, count=count)]
    return [error.path for error in found]


@pytest.mark.requirement("VAL-12")
@pytest.mark.field_note("P5", "P6", "W8")
@pytest.mark.parametrize("bad", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_nonsense_is_rejected_with_its_path(bad: BadRequest) -> None:
    assert f"{PATH}{bad.field}" in errors(bad.request)


@pytest.mark.parametrize("good", GOOD_REQUESTS.values(), ids=GOOD_REQUESTS)
def test_what_makes_sense_is_not_rejected(good: dict[str, Any]) -> None:
    assert errors(good) == []
    nulls: dict[str, Any] = dict.fromkeys(("required", "podSetSliceSize", "podSetGroupName"))
    assert errors({**nulls, **good}) == []


def test_an_unknown_count_is_divided_by_nothing() -> None:
    bad = BAD_REQUESTS["slice size that does not divide"]
    assert errors(bad.request, count=None) == []
    assert errors(bad.request, count=0) == []


def test_schema_and_rules_use_the_same_words() -> None:
    for name in ("ONE_REQUEST", "SLICE_PAIR", "SLICE_FORMS"):
        assert getattr(requests, name) == getattr(model, name)
