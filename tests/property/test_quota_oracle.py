"""The second opinion on admission gives every answer of the data, and stands by it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.property.quota_drawing import Json, quota_scenarios, settled
from tests.support.quota_oracle import answer

DATA = Path(__file__).parent.parent / "conformance" / "data" / "quota"
SIZES = {
    "table-cases": 231,
    "generated-public": 300,
    "generated-topology": 120,
    "generated-rare": 90,
}


@pytest.mark.parametrize("name", SIZES)
def test_the_oracle_itself_gives_every_answer_of_the_data(name: str) -> None:
    asked = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))["scenarios"]
    assert len(asked) == SIZES[name]
    for one in asked:
        expected = one.pop("expected")
        assert answer(one) == expected, one["id"]


@settings(max_examples=100, deadline=None)
@given(quota_scenarios(fair=False))
def test_the_order_of_lists_does_not_show(scenario: Json) -> None:
    assert settled(scenario)
