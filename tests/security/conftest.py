"""Playgrounds of the red team: one with all operators, one whose cluster has none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackgate.features import (
    ELASTIC_INDEXED_JOBS,
    ELASTIC_JOBS,
    GANG_SCHEDULING,
    POD_GROUPS,
    WORKLOAD_REV_N,
)
from tests.security import campaign
from tests.security.catalog import Attack, Phase
from tests.security.judge import Outcome
from tests.support.playground import Playground, rackgate, start_playground

# A running playground (its folder) to try attacks on, while one is being written.
REUSED = os.environ.get("REDTEAM_PLAYGROUND")
EVIDENCE = Path(os.environ.get("REDTEAM_EVIDENCE", ".rackgate/redteam"))
AT_ONCE = int(os.environ.get("REDTEAM_AT_ONCE", campaign.AT_ONCE))
GATES = (ELASTIC_JOBS, ELASTIC_INDEXED_JOBS)
GANG_GATES = (GANG_SCHEDULING, WORKLOAD_REV_N, POD_GROUPS)


def _reused(state: str) -> Playground:
    import json

    found = json.loads(rackgate("status", "--state", state, "--json"))
    return Playground(Path(state), Path(found["kubeconfig"]), found["server"])


@pytest.fixture(scope="session")
def full_playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """With JobSet, KubeRay and elastic jobs; all services."""
    if REUSED:
        yield _reused(REUSED)
        return
    folder = tmp_path_factory.mktemp("redteam") / "state"
    running = start_playground(folder, operators=("jobset", "kuberay"), gates=GATES)
    try:
        with running.webhooks_port():
            yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def bare_playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A cluster that knows neither JobSets nor RayClusters."""
    running = start_playground(tmp_path_factory.mktemp("redteam-bare") / "state", gates=GATES)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def gangs_playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """With gangs and plain pods."""
    if REUSED:
        yield _reused(REUSED)
        return
    folder = tmp_path_factory.mktemp("redteam-gangs") / "state"
    running = start_playground(folder, gates=GANG_GATES)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[Phase, dict[str, Outcome]]:
    """Outcomes by phase, filled phase by phase as tests ask for them."""
    return {}


@pytest.fixture
def outcome(request: pytest.FixtureRequest, outcomes: dict[Phase, dict[str, Outcome]]) -> Outcome:
    """What came of this test's attack; the first test of a phase runs all that were chosen."""
    phase, attack = request.param
    if phase not in outcomes:
        attacks = [one for where, one in _chosen(request.session) if where is phase]
        outcomes[phase] = _run(request, attacks, phase)
    return outcomes[phase][attack.id]


def _chosen(session: pytest.Session) -> Iterator[tuple[Phase, Attack]]:
    """What the tests of this session ask for, `-k` considered."""
    for item in session.items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if "outcome" in params:
            tried: tuple[Phase, Attack] = params["outcome"]
            yield tried


def _run(request: pytest.FixtureRequest, attacks: list[Attack], phase: Phase) -> dict[str, Outcome]:
    name = "bare_playground" if phase is Phase.BARE else "full_playground"
    if phase.with_gangs:
        name = "gangs_playground"
    playground: Playground = request.getfixturevalue(name)
    down = phase.webhooks_down
    if down:
        playground.run("stop", "webhook")
    try:
        return asyncio.run(
            campaign.run(playground, attacks, phase, at_once=AT_ONCE, evidence=EVIDENCE)
        )
    finally:
        if down:
            playground.run("start", "webhook")
