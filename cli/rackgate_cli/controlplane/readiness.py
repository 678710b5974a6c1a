"""Waiting until processes answer that they are ready."""

from __future__ import annotations

import http.client
import ssl
import subprocess
import time
import urllib.parse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane.processes import ProcessRecord, alive, log_tail
from rackgate_cli.errors import CommandError

_POLL_S: Final = 0.05
_ASK_LIMIT_S: Final = 2.0

Child = subprocess.Popen[bytes]


def tls_contexts(pki: Path) -> dict[str, ssl.SSLContext]:
    """Return the TLS settings for asking the control plane, by component ("" for all others)."""
    contexts = {}
    for name, authority, client in (("etcd", "etcd-ca", "etcd-client"), ("", "ca", "admin-client")):
        context = ssl.create_default_context(cafile=str(pki / f"{authority}.crt"))
        context.load_cert_chain(str(pki / f"{client}.crt"), str(pki / f"{client}.key"))
        contexts[name] = context
    return contexts


def answer(url: str, context: ssl.SSLContext | None) -> str | None:
    """Ask `url`; return None for status 200, else what came instead, on one line."""
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
    """Ask a process whether it is ready; None for yes, else the reason."""
    return answer(record.ready_url, contexts.get(record.name, contexts[""]))


def await_ready(
    started: Mapping[str, tuple[Child | None, ProcessRecord]],
    contexts: Mapping[str, ssl.SSLContext],
    limit_s: float,
) -> None:
    """Wait until every process is ready, asking all in parallel.

    Args:
        started: by name; the child if this very process started it.
        contexts: as from `tls_contexts`.
        limit_s: seconds for all together.

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
            reasons = dict(
                zip(
                    waiting,
                    pool.map(lambda item: ask(item[1], contexts), waiting.values()),
                    strict=True,
                )
            )
            waiting = {name: item for name, item in waiting.items() if reasons[name] is not None}
            if not waiting:
                return
            if time.monotonic() >= deadline:
                raise CommandError(_not_ready(waiting, reasons, limit_s))
            time.sleep(_POLL_S)


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
