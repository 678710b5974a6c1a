from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackgate_cli.controlplane import processes
from rackgate_cli.controlplane.processes import Child, ProcessRecord, await_ready
from rackgate_cli.errors import CommandError

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('up', flush=True); time.sleep(60)"
)


class Started:
    """Starts Python one-liners and ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[Child] = []

    def __call__(self, code: str, name: str = "worker") -> tuple[Child, ProcessRecord]:
        log = self.folder / f"{name}.log"
        child, record = processes.spawn(
            name,
            [sys.executable, "-c", code],
            log=log,
            ready_url="http://127.0.0.1:9/readyz",
            env=os.environ,
        )
        self.children.append(child)
        return child, record

    def up(self, code: str) -> tuple[Child, ProcessRecord]:
        """Start, and wait for its first word."""
        child, record = self(code)
        deadline = time.monotonic() + 120
        while "up" not in Path(record.log).read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return child, record


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    for child in started.children:
        child.kill()
        child.wait()


def test_a_running_process_is_recognised_and_an_ended_one_is_not(start: Started) -> None:
    child, record = start(SLEEP)
    assert processes.alive(record)
    child.kill()
    child.wait()
    assert not processes.alive(record)


def test_a_zombie_counts_as_ended(start: Started) -> None:
    child, record = start("pass")
    deadline = time.monotonic() + 120
    while processes.alive(record):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert child.returncode is None, "nobody reaped it yet"


def test_another_process_under_a_recorded_id_is_never_signalled(start: Started) -> None:
    child, record = start(SLEEP)
    earlier = dataclasses.replace(record, started="an earlier boot/1")
    assert not processes.alive(earlier)
    assert not processes.send(earlier, signal.SIGKILL)
    assert processes.end([earlier], grace_s=0.1) == []
    assert child.poll() is None


def test_a_process_ends_on_request(start: Started) -> None:
    child, record = start.up(SLEEP)
    assert processes.end([record], grace_s=120) == []
    assert child.wait() == -signal.SIGTERM


def test_a_process_that_does_not_end_on_request_is_killed(start: Started) -> None:
    child, record = start.up(STUBBORN)
    assert processes.end([record], grace_s=0.2) == ["worker"]
    assert child.wait() == -signal.SIGKILL


def test_a_process_lives_in_a_session_of_its_own(start: Started) -> None:
    _, record = start(SLEEP)
    assert os.getsid(record.pid) == record.pid


def test_waiting_for_a_process_that_exited_shows_the_end_of_its_log(start: Started) -> None:
    started = start("import sys; print('no such flag'); sys.exit(3)", "etcd")
    with pytest.raises(CommandError, match=r'"etcd" exited with code 3.*\n  no such flag'):
        await_ready({"etcd": started}, {"": None}, 120)  # type: ignore[dict-item] # plain http


def test_waiting_for_a_process_that_never_answers_ends(start: Started) -> None:
    started = start(SLEEP, "etcd")
    with pytest.raises(CommandError, match=r'not ready after 0 s:\n"etcd": '):
        await_ready({"etcd": started}, {"": None}, 0.1)  # type: ignore[dict-item] # plain http
