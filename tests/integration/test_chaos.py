"""A short piece of the chaos suite, see docs/design/testing.md: one scenario of each fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.runner import chaos_playground, run_scenario, say
from tests.chaos.scenario import Fault, brief
from tests.chaos.summary import line

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.requirement("OPS-12", "OPS-03", "OPS-06", "UNG-10", "UNG-13", "UNG-14", "UNG-15")
@pytest.mark.requirement("UNG-18", "CAP-09")
async def test_jobs_end_though_services_and_the_api_server_break(tmp_path: Path) -> None:
    scenario = brief(7)
    with chaos_playground(tmp_path / "state") as playground:
        report = await run_scenario(playground, scenario)
    say(line(report))
    assert report.problems == []
    assert report.borrowed_cpu
    assert report.preemptions
    assert set(report.faults) >= {Fault.PAUSE, Fault.KILL_AFTER, Fault.APISERVER, Fault.LOSE}
