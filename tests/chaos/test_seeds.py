"""Whole scenarios drawn from seeds: `make chaos`; SEEDS=n for more, SEED=k or SEED=3,7 for some.

Without either, two seeds that nobody chose come after the usual ones.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator

import pytest

from tests.chaos import limits
from tests.chaos.runner import Report, chaos_playground, run_scenario, say
from tests.chaos.scenario import draw
from tests.chaos.summary import line, never_injected, never_shared, table
from tests.support.playground import Playground

# For what a scenario's own limit does not end: something that holds the whole loop. The playground
# has limits of its own for its start.
BEYOND_S = 120.0
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(limits.SCENARIO_LIMIT_S + BEYOND_S, func_only=True),
]

SOME = os.environ.get("SEED")
COUNT = int(os.environ.get("SEEDS") or limits.SEEDS)
FRESH = 0 if SOME or os.environ.get("SEEDS") else 2
SEEDS = (
    [int(n) for n in SOME.split(",")]
    if SOME
    else [*range(COUNT), *(COUNT + secrets.randbelow(2**31) for _ in range(FRESH))]
)


@pytest.fixture(scope="module")
def allowance() -> limits.Allowance:
    """Counted from here: tests of other files may have run before."""
    return limits.Allowance(time.monotonic(), len(SEEDS))


@pytest.fixture(scope="module")
def playground(
    allowance: limits.Allowance, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Playground]:
    folder = tmp_path_factory.mktemp("chaos") / "state"
    with chaos_playground(folder, ("jobset", "kuberay"), with_gangs=True) as running:
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
    allowance: limits.Allowance, playground: Playground, reports: list[Report], seed: int
) -> None:
    limit_s = allowance.scenario_s(time.monotonic())
    assert limit_s, "not run: the time of all seeds together is over"
    scenario = draw(seed)
    for text in scenario.lines():
        say(text)
    report = await run_scenario(playground, scenario, limit_s=limit_s)
    reports.append(report)
    say(line(report))
    assert report.problems == [], f"replay with SEED={seed} make chaos"


@pytest.mark.requirement("OPS-12")
@pytest.mark.skipif(len(SEEDS) < limits.SEEDS, reason="so few seeds do not draw every fault")
def test_every_kind_of_fault_has_struck(reports: list[Report]) -> None:
    assert never_injected(reports) == []


@pytest.mark.requirement("OPS-12")
@pytest.mark.skipif(len(SEEDS) < limits.SEEDS, reason="so few seeds may not do all of it")
def test_quota_was_borrowed_and_jobs_were_preempted(reports: list[Report]) -> None:
    assert never_shared(reports) == []
