"""Starts, identifies and stops the playground's processes, and waits until they are ready.

A process is identified by its id and its start time, so a process that reuses the id is never
signaled.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rackgate_cli.errors import CommandError

_POLL_S: Final = 0.02
_TAIL_BYTES: Final = 8192


@dataclass(frozen=True)
class ProcessRecord:
    """One started process, as kept in the state folder.

    Attributes:
        name: component name, for instance "etcd" or "webhook-0".
        pid: process id.
        started: opaque start time, unique on one boot.
        argv: the full command line.
        log: file of its output.
        ready_url: URL that answers 200 once it is ready.
    """

    name: str
    pid: int
    started: str
    argv: tuple[str, ...]
    log: str
    ready_url: str


def start_time(pid: int) -> str | None:
    """Return the start time of a process; None if it has exited.

    A zombie counts as exited: it has no open port or file.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    except (OSError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may contain spaces.
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
    """Start a process in its own session, so that it outlives the caller.

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
    """Return whether the recorded process still runs."""
    return start_time(record.pid) == record.started


def send(record: ProcessRecord, number: signal.Signals) -> bool:
    """Signal the recorded process; return False if it has exited."""
    try:
        handle = os.pidfd_open(record.pid)
    except (OSError, AttributeError):
        return _send_by_pid(record, number)
    try:
        # The pidfd pins the process: its id is not reused between check and signal.
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
    """Stop processes: TERM, wait up to `grace_s` seconds, KILL those left, wait again.

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


_READY_POLL_S: Final = 0.05
_ASK_LIMIT_S: Final = 2.0

Child = subprocess.Popen[bytes]


def tls_contexts(pki: Path) -> dict[str, ssl.SSLContext]:
    """Return the TLS contexts for readiness checks, by component ("" for all others)."""
    contexts = {}
    for name, authority, client in (("etcd", "etcd-ca", "etcd-client"), ("", "ca", "admin-client")):
        context = ssl.create_default_context(cafile=str(pki / f"{authority}.crt"))
        context.load_cert_chain(str(pki / f"{client}.crt"), str(pki / f"{client}.key"))
        contexts[name] = context
    return contexts


def answer(url: str, context: ssl.SSLContext | None) -> str | None:
    """Request `url`; return None for status 200, else the failure on one line."""
    parts = urllib.parse.urlsplit(url)
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.netloc, timeout=_ASK_LIMIT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=_ASK_LIMIT_S)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        body = response.read(400).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return None if response.status == 200 else f"HTTP {response.status}: {' '.join(body.split())}"


def ask(record: ProcessRecord, contexts: Mapping[str, ssl.SSLContext]) -> str | None:
    """Return None if a process is ready, else the reason."""
    return answer(record.ready_url, contexts.get(record.name, contexts[""]))


def await_ready(
    started: Mapping[str, tuple[Child | None, ProcessRecord]],
    contexts: Mapping[str, ssl.SSLContext],
    limit_s: float,
) -> None:
    """Wait until every process is ready, checking all concurrently.

    Args:
        started: by name; with the child if this process started it.
        contexts: as from `tls_contexts`.
        limit_s: total seconds for all.

    Raises:
        CommandError: one exited (with the tail of its log) or is not ready in time.
    """
    deadline = time.monotonic() + limit_s
    waiting = dict(started)
    reasons: dict[str, str | None] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(waiting))) as pool:
        while waiting:
            for name, (child, record) in waiting.items():
                _raise_if_exited(name, child, record)
            answers = pool.map(lambda item: ask(item[1], contexts), waiting.values())
            reasons = dict(zip(waiting, answers, strict=True))
            waiting = {name: item for name, item in waiting.items() if reasons[name] is not None}
            if not waiting:
                return
            if time.monotonic() >= deadline:
                raise CommandError(_not_ready(waiting, reasons, limit_s))
            time.sleep(_READY_POLL_S)


def _raise_if_exited(name: str, child: Child | None, record: ProcessRecord) -> None:
    code = child.poll() if child is not None else None
    if code is None and alive(record):
        return
    how = "" if code is None else f" with code {code}" if code >= 0 else f" by signal {-code}"
    log = Path(record.log)
    raise CommandError(f'"{name}" exited{how}; the end of {log}:\n{log_tail(log)}')


def _not_ready(
    waiting: Mapping[str, tuple[Child | None, ProcessRecord]],
    reasons: Mapping[str, str | None],
    limit_s: float,
) -> str:
    lines = [f"not ready after {limit_s:.0f} s:"]
    for name, (_, record) in waiting.items():
        log = Path(record.log)
        lines.append(f'"{name}": {reasons[name]}; the end of {log}:\n{log_tail(log)}')
    return "\n".join(lines)
