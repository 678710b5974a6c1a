from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
import structlog

from rackgate.runtime import clock
from rackgate.runtime.service import default_identity, run_service
from rackgate.runtime.settings import BaseServiceSettings, SettingsError


class Example(BaseServiceSettings):
    kind: Literal["ExampleConfiguration"] = "ExampleConfiguration"
    """Kind."""
    ending: str = "stop"
    """How the example ends."""


async def refuse() -> None:
    raise SettingsError(["connection: leads nowhere"])


async def main(settings: Example, stop: asyncio.Event) -> None:
    assert settings.identity
    if settings.ending == "late":
        assert clock.now() - datetime.now(UTC) > timedelta(seconds=1700)
        stop.set()
    if settings.ending == "crash":
        raise LookupError("planted")
    if settings.ending == "refuse":
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())
    if settings.ending == "no-port":
        raise OSError(errno.EADDRINUSE, "address 127.0.0.1:8081 already in use")
    if settings.ending == "stop":
        stop.set()


def run(*arguments: str) -> int:
    return run_service("example", main, settings=Example, description="An example.", argv=arguments)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    clock.shift(0)


def test_a_requested_stop_is_success() -> None:
    assert run() == 0


def test_a_gate_with_a_price_is_reported_at_the_start_where_it_is_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--set", "featureGates.RackgateFewestDomains=true") == 0
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (told,) = [line for line in said if line["event"] == "feature_gate_on"]
    assert told["gate"] == "RackgateFewestDomains"
    assert "compared with 6 to 9 % without the gate" in told["cost"]
    assert run() == 0
    assert "feature_gate_on" not in capsys.readouterr().err


def test_a_gate_of_kueue_without_effect_is_reported_at_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--set", "featureGates.PartialAdmission=true") == 0
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (told,) = [line for line in said if line["event"] == "feature_gate_without_effect"]
    assert told["gate"] == "PartialAdmission"
    assert "job-min-parallelism" in told["note"]


@pytest.mark.requirement("OPS-12")
def test_a_replica_can_be_given_a_clock_that_is_ahead() -> None:
    assert run("--set", "ending=late", "--set", "clockOffset=1800") == 0


def test_a_crash_is_a_failure_that_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--set", "ending=crash") == 1
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert last["event"] == "service_failed"
    assert "LookupError: planted" in last["exception"]


@pytest.mark.requirement("OPS-11")
def test_settings_that_show_wrong_only_later_exit_with_2_as_well(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("--set", "ending=refuse") == 2
    err = capsys.readouterr().err
    assert err.splitlines()[-1] == "config: connection: leads nowhere"
    assert "Traceback" not in err


def test_a_taken_port_is_said_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--set", "ending=no-port") == 1
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert last["event"] == "service_failed"
    assert "127.0.0.1:8081 already in use" in last["error"]
    assert "exception" not in last


def test_an_end_that_no_one_asked_for_is_a_failure() -> None:
    assert run("--set", "ending=return") == 1


@pytest.mark.requirement("OPS-11")
def test_wrong_settings_exit_with_2_and_name_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: config.rackgate.dev/v1alpha1\nkind: ExampleConfiguration\nendin: x\n"
    )
    assert run("--config", str(config)) == 2
    expected = 'config: unknown key "endin" (did you mean "ending"?)\n'
    assert capsys.readouterr().err == expected


def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--nonsense")
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_help_lists_flags_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--help")
    assert ended.value.code == 0
    out = capsys.readouterr().out
    for text in (
        "An example.",
        "--config",
        "--set",
        "ending (",
        "How the example ends.",
        "RACKGATE_",
    ):
        assert text in out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("rackgate-example ")


def test_identities_are_never_shared() -> None:
    assert default_identity() != default_identity()
