"""Runs the check once, or for as long as it is watched."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import logging
import signal
import sys
from collections.abc import Mapping

import structlog

from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate_cli.errors import CommandError
from rackgate_cli.invariants import view
from rackgate_cli.invariants.clocks import ahead_s
from rackgate_cli.invariants.clocks import warning as clock_warning
from rackgate_cli.invariants.follow import Following, Heard
from rackgate_cli.invariants.probe import first_of, namespace_is_known, unreadable
from rackgate_cli.managed import unmanaged
from rackgate_cli.tables import show
from rackgate_cli.target import Progress, door
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.judge import judge, unable
from rackgate_invariants.reading import read_cluster
from rackgate_invariants.rows.sources import ESSENTIAL
from rackgate_invariants.rules.catalog import RULES
from rackgate_invariants.tracker import Change, Tracker
from rackgate_invariants.world import World

SILENT = logging.CRITICAL


def run(arguments: argparse.Namespace) -> int:
    """Check as the command line says; return the exit code.

    Raises:
        CommandError: the cluster cannot be read.
    """
    # Most of what is kept lives as long as the command; looking through it often finds nothing.
    gc.set_threshold(50_000, 50, 100)
    # The client's own lines are for services: here the printer tells what matters.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(SILENT))
    try:
        return asyncio.run(_run(arguments))
    except KubeError as error:
        raise _unreadable(error) from error
    except BaseExceptionGroup as errors:
        first = first_of(errors)
        if isinstance(first, KubeError):
            raise _unreadable(first) from errors
        raise first from errors


def _unreadable(error: KubeError) -> CommandError:
    return CommandError(f"the cluster cannot be read: {error}")


async def _run(arguments: argparse.Namespace) -> int:
    entrance = door(arguments.state, arguments.kubeconfig, arguments.context)
    entrance = dataclasses.replace(entrance, user_agent="rackgate-invariants")
    tracker = Tracker(arguments.settle, arguments.patience, hasty=not arguments.watch)
    async with entrance.client() as client:
        if arguments.watch:
            return await watch(client, tracker, arguments)
        return await once(client, tracker, arguments)


async def once(client: Client, tracker: Tracker, arguments: argparse.Namespace) -> int:
    """Check with two readings a moment apart; the second only when the first shows anything.

    Raises:
        CommandError: nothing can be checked.
        KubeError: the API server does not answer.
    """
    ahead = await ahead_s(client)
    known = await _known(client, arguments.namespace)
    alone = await unmanaged(client, arguments.namespace)
    cluster = await _read(client, arguments.namespace, ahead, alone)
    candidates = judge(cluster)
    if candidates:
        tracker.update(cluster.read_at, candidates)
        await asyncio.sleep(arguments.settle)
        cluster = await _read(client, arguments.namespace, ahead, alone)
        tracker.update(cluster.read_at, judge(cluster))
    answer = view.Answer(
        cluster, tracker.standing, unable(cluster), _warnings(cluster, ahead, known)
    )
    if arguments.json:
        # Escaped, so that no name from a cluster can steer a terminal.
        sys.stdout.write(json.dumps(view.document(answer), indent=2) + "\n")
    else:
        show(view.once(answer))
    return 1 if answer.found else 0


async def _known(client: Client, namespace: str | None) -> bool:
    return namespace is None or await namespace_is_known(client, namespace)


def _warnings(cluster: Cluster, ahead: float, known: bool) -> list[str]:
    """What makes an answer less certain, in words."""
    found = [clock_warning(ahead)] if ahead else []
    if not (known or cluster.pods or cluster.workloads or cluster.jobs):
        found.append("nothing is there, and whether there is such a namespace may not be asked")
    return found


async def _read(
    client: Client, namespace: str | None, ahead: float, alone: frozenset[str]
) -> Cluster:
    progress = Progress()
    try:
        cluster = await read_cluster(client, namespace, unmanaged=alone, told=progress.add)
    finally:
        progress.done()
    _check_enough(cluster.unread)
    return dataclasses.replace(cluster, read_at=cluster.read_at - ahead)


def _check_enough(unread: Mapping[str, str]) -> None:
    if all(kind.plural in unread for kind in ESSENTIAL):
        reasons = "; ".join(unread[kind.plural] for kind in ESSENTIAL)
        raise CommandError(f"nothing can be checked: {reasons}")


async def watch(client: Client, tracker: Tracker, arguments: argparse.Namespace) -> int:
    """Follow until interrupted or for as long as asked.

    Returns:
        1 when there was any breach; else 2 when the end of the time could not be judged; else 0.

    Raises:
        CommandError: nothing can be checked.
        KubeError: the API server does not answer.
    """
    ahead = await ahead_s(client)
    known = await _known(client, arguments.namespace)
    unread = await unreadable(client, arguments.namespace)
    _check_enough(unread)
    # From here on; until then an interrupt ends the command as it ends any other.
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    alone = await unmanaged(client, arguments.namespace)
    world = World(unread=unread, whole=arguments.namespace is None, unmanaged=alone)
    printer = view.Printer(for_programs=arguments.json)
    telling = _Telling(printer, world, tracker, _too_short(arguments), ahead, known)
    following = Following(
        client,
        world,
        tracker,
        Heard(telling.changed, telling.connection, telling.synced),
        arguments.interval,
        arguments.namespace,
        ahead_s=ahead,
    )
    await following.run(stop, arguments.limit)
    telling.end(following.unjudged_s, blind=following.blind)
    if tracker.total:
        return 1
    return 2 if following.blind else 0


def _too_short(arguments: argparse.Namespace) -> dict[str, str]:
    """Rules that cannot count before the watch ends, each with the reason."""
    limit, patience = arguments.limit, arguments.patience
    if limit is None or limit > patience:
        return {}
    why = f"--for {limit:g}s ends before --patience {patience:g}s"
    return {rule.id: why for rule in RULES.values() if rule.patient}


@dataclasses.dataclass(frozen=True, slots=True)
class _Telling:
    """What is printed while a cluster is followed.

    Attributes:
        too_short: rules that cannot count before the end, each with the reason.
        ahead: seconds that this machine's clock is ahead of the API server's.
        known: the namespace, if there is one, is there for certain.
    """

    printer: view.Printer
    world: World
    tracker: Tracker
    too_short: Mapping[str, str]
    ahead: float
    known: bool

    def changed(self, changes: list[Change]) -> None:
        for change in changes:
            self.printer.change(change)

    def connection(self, words: str) -> None:
        if words:
            text = f"paused  the cluster cannot be read: {words}"
            self.printer.line(text, "paused", {"why": words})
        else:
            self.printer.line("resumed the cluster can be read again", "resumed")

    def synced(self) -> None:
        cluster = self.world.cluster(0.0)
        left_out = {**self.too_short, **unable(cluster)}
        warnings = _warnings(cluster, self.ahead, self.known)
        self.printer.blocks([*view.warned(warnings), *view.left_out(left_out)])
        more = {
            "apiVersion": view.API_VERSION,
            "checked": view.checked(cluster),
            "notChecked": left_out,
            "warnings": warnings,
        }
        self.printer.line(f"watching {view.extent(cluster)}", "watching", more)

    def end(self, unjudged_s: float, *, blind: bool) -> None:
        """The summary.

        Args:
            unjudged_s: for how long nothing was judged.
            blind: so it was at the end.
        """
        cluster, total = self.world.cluster(0.0), self.tracker.total
        standing = len(self.tracker.standing)
        text = f"watched {view.extent(cluster)}: {view.breaches_of(total)}"
        if total:
            text += f", {standing} of them still there"
        if blind:
            text += ", but the cluster could not be read to the end"
        if unjudged_s >= 1:
            text += f"; not judged for {unjudged_s:.0f} s"
        more = {
            "checked": view.checked(cluster),
            "breaches": total,
            "standing": standing,
            "complete": not blind,
            "notJudgedSeconds": round(unjudged_s, 1),
        }
        self.printer.line(text, "summary", more)
