"""Whole scenarios drawn from seeds: `make chaos`; SEEDS=n for more, SEED=k or SEED=3,7 for some."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.chaos.runner import Report, chaos_playground, run_scenario, say
from tests.chaos.scenario import draw
from tests.chaos.summary import line, table
from tests.support.playground import Playground

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

SOME = os.environ.get("SEED")
SEEDS = [int(n) for n in SOME.split(",")] if SOME else range(int(os.environ.get("SEEDS") or 20))


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    folder = tmp_path_factory.mktemp("chaos") / "state"
    with chaos_playground(folder, ("jobset", "kuberay")) as running:
        yield running


@pytest.fixture(scope="module")
def reports() -> Iterator[list[Report]]:
    found: list[Report] = []
    yield found
    say(table(found))


@pytest.mark.requirement("OPS-12", "OPS-02", "OPS-03", "OPS-06", "OPS-07", "UNG-10", "UNG-13")
@pytest.mark.requirement("UNG-14", "UNG-15", "UNG-18", "CAP-09", "HOOK-15")
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_job_ends_placed_whatever_breaks(
    playground: Playground, reports: list[Report], seed: int
) -> None:
    scenario = draw(seed)
    for text in scenario.lines():
        say(text)
    report = await run_scenario(playground, scenario)
    reports.append(report)
    say(line(report))
    assert report.problems == [], f"replay with SEED={seed} make chaos"
