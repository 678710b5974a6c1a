"""Runs the check once or continuously."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import logging
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import structlog

from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate_cli.cluster import interruptible
from rackgate_cli.cluster.lists import Progress
from rackgate_cli.cluster.managed import unmanaged
from rackgate_cli.cluster.target import target_of
from rackgate_cli.errors import CommandError, first_error
from rackgate_cli.invariants import view
from rackgate_cli.invariants.follow import ClusterFollower, FollowCallbacks
from rackgate_cli.invariants.probe import (
    clock_skew_s,
    namespace_is_known,
    unreadable_collections,
)
from rackgate_cli.invariants.probe import warning as clock_warning
from rackgate_cli.tables import clean, show, show_json
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.judge import judge, skipped_rules
from rackgate_invariants.reading import ESSENTIAL, read_cluster
from rackgate_invariants.rules.catalog import RULES
from rackgate_invariants.tracker import Change, Tracker

NO_LOGS = logging.CRITICAL


def run(arguments: argparse.Namespace) -> int:
    """Check as the command line says; return the exit code.

    Raises:
        CommandError: the cluster cannot be read.
    """
    # Most objects live as long as the command, so frequent collections find nothing.
    gc.set_threshold(50_000, 50, 100)
    # The client's log lines are for services.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(NO_LOGS))
    try:
        return interruptible.run(_run(arguments))
    except KubeError as error:
        raise _unreadable(error) from error
    except BaseExceptionGroup as errors:
        first = first_error(errors)
        if isinstance(first, KubeError):
            raise _unreadable(first) from errors
        raise first from errors


def _unreadable(error: KubeError) -> CommandError:
    return CommandError(f"the cluster cannot be read: {error}")


async def _run(arguments: argparse.Namespace) -> int:
    target = target_of(arguments, "invariants")
    tracker = Tracker(arguments.settle, arguments.patience, trust_object_times=not arguments.watch)
    async with target.client() as client:
        if arguments.watch:
            return await watch(client, tracker, arguments)
        return await once(client, tracker, arguments)


async def once(client: Client, tracker: Tracker, arguments: argparse.Namespace) -> int:
    """Check with two readings, the second only if the first shows a breach.

    Raises:
        CommandError: nothing can be checked.
        KubeError: the API server does not answer.
    """
    clock_skew = await clock_skew_s(client)
    namespace_known = await _namespace_known(client, arguments.namespace)
    unmanaged_namespaces = await unmanaged(client, arguments.namespace)
    cluster = await _read(client, arguments.namespace, clock_skew, unmanaged_namespaces)
    candidates = judge(cluster)
    if candidates:
        tracker.update(cluster.read_at, candidates)
        await asyncio.sleep(arguments.settle)
        cluster = await _read(client, arguments.namespace, clock_skew, unmanaged_namespaces)
        tracker.update(cluster.read_at, judge(cluster))
    result = view.CheckResult(
        cluster,
        tracker.active_breaches,
        skipped_rules(cluster),
        _warnings(cluster, clock_skew, namespace_known),
    )
    if arguments.json:
        show_json(view.document(result))
    else:
        show(view.result_blocks(result))
    return 1 if result.found else 0


async def _namespace_known(client: Client, namespace: str | None) -> bool:
    return namespace is None or await namespace_is_known(client, namespace)


def _warnings(cluster: Cluster, clock_skew: float, namespace_known: bool) -> list[str]:
    """Why the result is less certain."""
    found = [clock_warning(clock_skew)] if clock_skew else []
    if not (namespace_known or cluster.pods or cluster.workloads or cluster.jobs):
        found.append(
            "no objects were found, and the namespace cannot be read: check that it exists"
        )
    return found


async def _read(
    client: Client, namespace: str | None, clock_skew: float, unmanaged_namespaces: frozenset[str]
) -> Cluster:
    progress = Progress()
    try:
        cluster = await read_cluster(
            client, namespace, unmanaged=unmanaged_namespaces, on_page=progress.add
        )
    finally:
        progress.done()
    _require_essential(cluster.unread)
    return dataclasses.replace(cluster, read_at=cluster.read_at - clock_skew)


def _require_essential(unread: Mapping[str, str]) -> None:
    if all(kind.plural in unread for kind in ESSENTIAL):
        reasons = "; ".join(unread[kind.plural] for kind in ESSENTIAL)
        raise CommandError(f"nothing can be checked: {reasons}")


async def watch(client: Client, tracker: Tracker, arguments: argparse.Namespace) -> int:
    """Check continuously until interrupted or until the time is over.

    Returns:
        1 after any breach; else 2 if the cluster could not be read at the end; else 0.

    Raises:
        CommandError: nothing can be checked.
        KubeError: the API server does not answer.
    """
    clock_skew = await clock_skew_s(client)
    namespace_known = await _namespace_known(client, arguments.namespace)
    unread = await unreadable_collections(client, arguments.namespace)
    _require_essential(unread)
    # Until here an interrupt ends the command as usual.
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    unmanaged_namespaces = await unmanaged(client, arguments.namespace)
    world = ClusterState(
        unread=unread, whole=arguments.namespace is None, unmanaged=unmanaged_namespaces
    )
    rules_longer_than_watch = _rules_longer_than_watch(arguments)
    watch_printer = _WatchPrinter(
        arguments.json, world, tracker, rules_longer_than_watch, clock_skew, namespace_known
    )
    following = ClusterFollower(
        client,
        world,
        tracker,
        FollowCallbacks(watch_printer.changed, watch_printer.connection, watch_printer.synced),
        arguments.interval,
        arguments.namespace,
        clock_skew_s=clock_skew,
    )
    await following.run(stop, arguments.limit)
    watch_printer.end(following.unchecked_s, disconnected=following.disconnected)
    if tracker.total:
        return 1
    return 2 if following.disconnected else 0


def _rules_longer_than_watch(arguments: argparse.Namespace) -> dict[str, str]:
    """Patient rules that cannot count before the watch ends, each with the reason."""
    limit, patience = arguments.limit, arguments.patience
    if limit is None or limit > patience:
        return {}
    why = f"--for {limit:g}s ends before --patience {patience:g}s"
    return {rule.id: why for rule in RULES.values() if rule.patient}


@dataclasses.dataclass(frozen=True, slots=True)
class _WatchPrinter:
    """Prints one line per event of `--watch`."""

    as_json: bool
    world: ClusterState
    tracker: Tracker
    rules_longer_than_watch: Mapping[str, str]
    clock_skew: float
    namespace_known: bool

    def line(self, text: str, event: str, more: Mapping[str, Any] | None = None) -> None:
        """Print the text, or with `--json` the event and `more`."""
        now = view.format_time(datetime.now(UTC).timestamp())
        fields = {"event": event, "at": now, **(more or {})}
        print(json.dumps(fields) if self.as_json else f"{now} {clean(text)}", flush=True)

    def changed(self, changes: list[Change]) -> None:
        for change in changes:
            breach, since = change.breach, view.format_time(change.since)
            where = f"{breach.rule} {breach.subject}"
            fields = {**view.as_json(breach), "since": since}
            if change.ended:
                self.line(f"ended   {where}", "ended", fields)
            else:
                suffix = f", since {since}" if change.at - change.since >= 1 else ""
                self.line(f"BREACH  {where}: {breach.found}{suffix}", "breach", fields)

    def connection(self, words: str) -> None:
        if words:
            self.line(f"paused  the cluster cannot be read: {words}", "paused", {"why": words})
        else:
            self.line("resumed the cluster can be read again", "resumed")

    def synced(self) -> None:
        cluster = self.world.cluster(0.0)
        skipped = {**self.rules_longer_than_watch, **skipped_rules(cluster)}
        warnings = _warnings(cluster, self.clock_skew, self.namespace_known)
        if not self.as_json:
            show([*view.warning_blocks(warnings), *view.skipped_blocks(skipped)])
        more = {
            "apiVersion": view.API_VERSION,
            "checked": view.checked(cluster),
            "notChecked": skipped,
            "warnings": warnings,
        }
        self.line(f"watching {view.format_extent(cluster)}", "watching", more)

    def end(self, unchecked_s: float, *, disconnected: bool) -> None:
        """Print the summary; `unchecked_s` is the time in which nothing was checked."""
        cluster, total = self.world.cluster(0.0), self.tracker.total
        active = len(self.tracker.active_breaches)
        text = f"watched {view.format_extent(cluster)}: {view.format_breaches(total)}"
        if total:
            text += f", {active} of them still active"
        if disconnected:
            text += ", but the cluster could not be read to the end"
        if unchecked_s >= 1:
            text += f"; not checked for {unchecked_s:.0f} s"
        more = {
            "checked": view.checked(cluster),
            "breaches": total,
            "standing": active,
            "complete": not disconnected,
            "notJudgedSeconds": round(unchecked_s, 1),
        }
        self.line(text, "summary", more)
