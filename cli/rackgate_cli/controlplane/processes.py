"""Starting, recognising and ending the playground's processes.

A process is known by its id and its start time, so an id that the system gave to another
program later is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 8192


@dataclass(frozen=True)
class ProcessRecord:
    """One started process, as kept in the state folder.

    Attributes:
        name: component name, for instance "etcd" or "webhook-0".
        pid: process id.
        started: opaque start time, equal only for the same process on the same boot.
        argv: the full command line.
        log: file that takes its output.
        ready_url: URL that answers 200 once it is ready.
    """

    name: str
    pid: int
    started: str
    argv: tuple[str, ...]
    log: str
    ready_url: str


def start_time(pid: int) -> str | None:
    """Return what tells this process from a later one of the same id; None if it has ended.

    A zombie counts as ended: it holds no port and no file any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    except (OSError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold spaces.
    fields = stat.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{_boot_id()}/{ticks}"


def _start_time_by_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = done.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def spawn(
    name: str, argv: Sequence[str], *, log: Path, ready_url: str, env: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], ProcessRecord]:
    """Start a process in a session of its own that outlives the caller.

    Raises:
        OSError: the program cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(env),
        )
    started = start_time(child.pid) or "ended"
    record = ProcessRecord(name, child.pid, started, tuple(argv), str(log), ready_url)
    return child, record


def alive(record: ProcessRecord) -> bool:
    """Tell whether the recorded process, and not another of its id, still runs."""
    return start_time(record.pid) == record.started


def send(record: ProcessRecord, number: signal.Signals) -> bool:
    """Signal the recorded process; return False if it has ended already."""
    try:
        handle = os.pidfd_open(record.pid)
    except (OSError, AttributeError):
        return _send_by_pid(record, number)
    try:
        # The handle pins the process, so nothing can take the id between check and signal.
        if not alive(record):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _send_by_pid(record: ProcessRecord, number: signal.Signals) -> bool:
    if not alive(record):
        return False
    try:
        os.kill(record.pid, number)
    except ProcessLookupError:
        return False
    return True


def end(records: Iterable[ProcessRecord], *, grace_s: float) -> list[str]:
    """End processes: TERM to all, wait up to `grace_s` seconds, KILL what is left, wait again.

    Returns:
        Names of those that had to be killed, sorted.
    """
    left = [record for record in records if send(record, signal.SIGTERM)]
    left = _await_end(left, grace_s)
    killed = sorted(record.name for record in left if send(record, signal.SIGKILL))
    _await_end(left, grace_s)
    return killed


def _await_end(records: list[ProcessRecord], limit_s: float) -> list[ProcessRecord]:
    deadline = time.monotonic() + limit_s
    left = [record for record in records if alive(record)]
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [record for record in left if alive(record)]
    return left


def log_tail(path: Path, lines: int = 15) -> str:
    """Return the last lines of a log, indented, or a note that there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text.splitlines()[-lines:]) or "  (empty log)"
