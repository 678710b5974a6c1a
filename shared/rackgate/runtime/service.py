"""Entry point of every service: flags, settings, logs, signals, exit codes.

Exit codes: 0 after a clean stop, 1 after a failure, 2 for invalid usage or settings, 3 if another
installation is active in the cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import secrets
import signal
import socket
import sys
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import structlog

from rackgate.features import without_effect
from rackgate.runtime import clock, logs, metrics
from rackgate.runtime.settings import BaseServiceSettings, SettingsError, load_settings
from rackgate.runtime.settings_table import settings_help
from rackgate.runtime.tasks import spawn

S = TypeVar("S", bound=BaseServiceSettings)

log = structlog.get_logger()

EXIT_CONFLICT = 3
_PORT_ERRNOS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)


class ConflictingInstallationError(Exception):
    """The cluster has another installation, or Kueue, so this service must not act."""


def default_identity() -> str:
    """A unique name for this process: host name, process ID and a random part."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"


def user_agent(service: str) -> str:
    """`rackgate-<service>/<version>`; the first part is the default field manager of writes."""
    return f"rackgate-{service}/{version('rackgate')}"


def run_service(
    service: str,
    main: Callable[[S, asyncio.Event], Awaitable[None]],
    *,
    settings: type[S],
    description: str = "",
    argv: Sequence[str] | None = None,
) -> int:
    """Run a service until SIGTERM or SIGINT; return its exit code.

    Args:
        service: short name: webhook, assigner or ungater.
        main: the service; returns soon after the given event is set. If it returns or raises
            earlier, the exit code is 1, or 3 for a `ConflictingInstallationError`.
        settings: its settings class.
        description: first lines of `--help`.
        argv: arguments, `sys.argv[1:]` by default.
    """
    options = _parser(service, settings, description).parse_args(argv)
    try:
        loaded = load_settings(
            settings, service=service, config=options.config, environ=os.environ, flags=options.set
        )
    except SettingsError as error:
        return _print_errors(error)
    if not loaded.identity:
        loaded.identity = default_identity()
    clock.shift(loaded.clock_offset)
    logs.configure(service, level=loaded.log.level, format=loaded.log.format)
    metrics.BUILD_INFO.labels(service=service, version=version("rackgate")).set(1)
    try:
        return asyncio.run(_run(main, loaded))
    except Exception as error:
        conflict = _find_conflict(error)
        if conflict is not None:
            log.error("service_failed", error=str(conflict))  # noqa: TRY400 - a stack trace would hide the message
            return EXIT_CONFLICT
        cause = _only_cause(error)
        if isinstance(cause, SettingsError):
            return _print_errors(cause)
        if isinstance(cause, OSError) and cause.errno in _PORT_ERRNOS:
            log.error("service_failed", error=str(cause))  # noqa: TRY400 - a stack trace would hide the message
        else:
            log.exception("service_failed")
        return 1


def _print_errors(error: SettingsError) -> int:
    for line in error.lines:
        print(f"config: {line}", file=sys.stderr)
    return 2


def _find_conflict(error: Exception) -> BaseException | None:
    """The conflict in a failure, also if other tasks failed while the service stopped."""
    if not isinstance(error, ExceptionGroup):
        return error if isinstance(error, ConflictingInstallationError) else None
    found: BaseException | None = error.subgroup(ConflictingInstallationError)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _only_cause(error: Exception) -> Exception:
    """The cause in nested task groups that failed for one reason."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _run(main: Callable[[S, asyncio.Event], Awaitable[None]], settings: S) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    metrics.watch_gc()
    log.info("service_started", version=version("rackgate"), identity=settings.identity)
    for gate, cost in settings.features.costs().items():
        log.info("feature_gate_on", gate=gate, cost=cost)
    for gate, note in without_effect(settings.feature_gates).items():
        log.info("feature_gate_without_effect", gate=gate, note=note)
    async with asyncio.TaskGroup() as group:
        lag = spawn(group, metrics.watch_loop_lag(), "loop-lag")
        try:
            await main(settings, stop)
        finally:
            lag.cancel()
    log.info("service_stopped", requested=stop.is_set())
    return 0 if stop.is_set() else 1


class _HelpParser(argparse.ArgumentParser):
    """A parser whose list of settings is made only if it is printed."""

    epilog_of: Callable[[], str]

    def format_help(self) -> str:
        self.epilog = self.epilog_of()
        return super().format_help()


def _parser(
    service: str, settings: type[BaseServiceSettings], description: str
) -> argparse.ArgumentParser:
    parser = _HelpParser(
        prog=f"rackgate-{service}",
        description=textwrap.fill(description, 80) or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    variable = f"RACKGATE_{service.upper()}_"
    parser.epilog_of = lambda: (
        f"settings, as in the file and for --set:\n{settings_help(settings)}\n\n"
        f"environment: {variable}FIELD or {variable}BLOCK__FIELD, in snake case and capitals,\n"
        f"such as {variable}LEADER_ELECTION__LEASE_DURATION"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings, a YAML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one setting"
    )
    parser.add_argument(
        "--version", action="version", version=f"rackgate-{service} {version('rackgate')}"
    )
    return parser
