"""Every placement question of the data is answered byte for byte as expected."""

from __future__ import annotations

import gzip
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from rackgate_assigner.scenario.scenario import Scenario, answer, read_scenarios

DATA = Path(__file__).parent / "data" / "tas"
SIZES = {"table-cases": 105, "generated-public": 400, "gates-cases": 231}


@cache
def scenarios(name: str) -> tuple[Scenario, ...]:
    return read_scenarios(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


def cases() -> list[object]:
    return [
        pytest.param(scenario, id=scenario.id) for name in SIZES for scenario in scenarios(name)
    ]


@pytest.mark.requirement("TAS-13", "TAS-14", "TAS-17", "TAS-18", "TAS-21", "TAS-22", "CAP-05")
@pytest.mark.field_note("C10", "C18", "C19", "P1", "N8")
@pytest.mark.parametrize("scenario", cases())
def test_answer_is_the_expected_one(scenario: Scenario) -> None:
    assert answer(scenario) == scenario.expected


@pytest.mark.parametrize("name", SIZES)
def test_no_scenario_is_missing(name: str) -> None:
    found = Counter(scenario.id for scenario in scenarios(name))
    assert len(found) == sum(found.values()) == SIZES[name]
