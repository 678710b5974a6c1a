"""The page that starts a playground, run as it is printed, with a state folder of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.playground import DOWN_LIMIT_S, rackgate
from tests.support.task_pages import FOLDER, Runner

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_the_page_starts_a_playground_runs_a_job_and_removes_it(tmp_path: Path) -> None:
    state, work = tmp_path / "state", tmp_path / "work"
    work.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    try:
        Runner(work, {"RACKGATE_STATE": str(state), "PATH": path}).run(
            FOLDER / "run-a-playground.md"
        )
        assert not state.exists(), "--purge removes the folder"
    finally:
        if state.exists():
            rackgate("down", "--state", str(state), "--purge", limit_s=DOWN_LIMIT_S)
