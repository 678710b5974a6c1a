"""`rackgate get`: queues and their usage, who waits and who holds quota, domains and their usage.

`rackgate queues` and `rackgate workloads` are short for `rackgate get queues` and `rackgate get
workloads` (ADR 70).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rackgate_cli import completion
from rackgate_cli.cluster import interruptible
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import add_namespace, add_target, add_verb, did_you_mean

if TYPE_CHECKING:
    from rackgate.kube.client import Client
    from rackgate_cli.get.kinds import Shown
    from rackgate_cli.get.topology import TopologyReport
    from rackgate_cli.queues.model import QueueReport, WorkloadReport, WorkloadRow
    from rackgate_cli.verbs import Subparsers

    Report: TypeAlias = QueueReport | WorkloadReport | TopologyReport

# What --status takes, with the statuses of Kueue.
_STATUSES: Final = {
    "pending": ("Pending",),
    "quotareserved": ("QuotaReserved",),
    "admitted": ("Admitted",),
    "finished": ("Finished",),
    "deactivated": ("Deactivated",),
    "all": ("Pending", "QuotaReserved", "Admitted", "Finished", "Deactivated"),
}
_UNFINISHED: Final = ("Pending", "QuotaReserved", "Admitted", "Deactivated")
_EXIT_CODES: Final = {
    0: "shown",
    1: "the cluster cannot be read, or there is no such object",
    2: "the command line or the kubeconfig is wrong",
}
FORMATS: Final = ("json", "yaml", "name", "wide")
_NOTE: Final = "Positions of the tables start at 1, those of JSON, YAML and the API at 0."
_READS: Final = "Only reads."


def add_parser(subparsers: Subparsers) -> None:
    """Add the verbs `get`, `queues` and `workloads`."""
    get = add_verb(
        subparsers,
        "get",
        run,
        summary="show queues, Workloads or domains, with their usage",
        description="Shows queues (is it active, how many Workloads are pending and admitted, how "
        "much of the quota is used), workloads (pending ones with position, priority, wait and "
        "reason, the others with the quota that they hold), or topology (nodes and usage of each "
        "domain). Positions come from the API visibility.kueue.x-k8s.io of the assigner. If it "
        "does not answer, they are computed from the objects, and a line on standard error says "
        f"so. {_READS}",
        examples=(
            "rackgate get queues -n team-a",
            "rackgate get workloads -A --cluster-queue gpu --status pending",
            "rackgate get job/train jobset/eval -o wide",
            "rackgate get topology --level rack",
            "rackgate get workloads -w",
        ),
        exit_codes=_EXIT_CODES,
        note=_NOTE,
    )
    if completion.is_asked():
        _add_kinds(get)
    else:
        get.add_argument(
            "kind",
            metavar="KIND",
            help="queues (clusterqueues, localqueues), workloads (jobs, jobsets, rayclusters, "
            "rayjobs) or topology; or KIND/NAME",
        )
        _add_get_flags(get)
        get.set_defaults(
            needed="specify what to show: queues, workloads or topology, a kind such as "
            "clusterqueues or jobs, or KIND/NAME"
        )
    queues = add_verb(
        subparsers,
        "queues",
        run,
        summary='short for "get queues"',
        description=f"The same as `rackgate get queues`. {_READS}",
        examples=("rackgate queues gpu -n team-a", "rackgate queues -A -o json"),
        exit_codes=_EXIT_CODES,
    )
    queues.set_defaults(kind="queues")
    _add_common(queues, "names of ClusterQueues or LocalQueues; default: all")
    workloads = add_verb(
        subparsers,
        "workloads",
        run,
        summary='short for "get workloads"',
        description=f"The same as `rackgate get workloads`. {_READS}",
        examples=("rackgate workloads train -n team-a", "rackgate workloads -A --status pending"),
        exit_codes=_EXIT_CODES,
        note=_NOTE,
    )
    workloads.set_defaults(kind="workloads")
    _add_common(workloads, "names of Workloads or of their jobs, or KIND/NAME; default: all")
    _add_workload_flags(workloads)


def _add_kinds(get: argparse.ArgumentParser) -> None:
    """Let kinds be verbs: argcomplete finds no names after a flag that follows a positional."""
    from rackgate_cli.get.kinds import WORDS

    verbs = get.add_subparsers()
    for word in WORDS:
        if "." in word:  # with the group: for names that other commands print
            continue
        kind = verbs.add_parser(word)
        kind.set_defaults(kind=word)
        _add_get_flags(kind)


def _add_get_flags(get: argparse.ArgumentParser) -> None:
    _add_common(get, "names; default: all")
    _add_workload_flags(get)
    get.add_argument(
        "--level",
        default="",
        metavar="KEY",
        help='of topology: the domains of this level; "rack" stands for "example.com/rack" '
        "(default: the lowest level that is not the hostname)",
    )


def _add_common(parser: argparse.ArgumentParser, names: str) -> None:
    nargs = "+" if completion.is_asked() else "*"
    named = parser.add_argument("names", metavar="NAME", nargs=nargs, help=names)
    completion.set_completer(named, completion.named)
    where = parser.add_mutually_exclusive_group()
    completion.set_completer(add_namespace(where), completion.namespaces)
    where.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument(
        "-o",
        "--output",
        choices=FORMATS,
        help="wide: with more columns, of Workloads; name: only names, for other commands; "
        "json and yaml: all",
    )
    parser.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="keep running, and print what changes; with -o json or yaml, "
        "the report comes first, then each changed row alone",
    )
    add_target(parser)


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    flags = parser.add_argument_group("of workloads")
    flags.add_argument("--cluster-queue", metavar="NAME", help="only of this ClusterQueue")
    flags.add_argument("--local-queue", metavar="NAME", help="only of LocalQueues of this name")
    flags.add_argument(
        "--status",
        action="append",
        choices=tuple(_STATUSES),
        help="only with this status; may be repeated (default: all except finished)",
    )
    flags.add_argument("-l", "--selector", metavar="SELECTOR", help="label selector")
    flags.add_argument("--field-selector", metavar="SELECTOR", help="field selector")


_WORKLOAD_FLAGS: Final = {
    "cluster_queue": "--cluster-queue",
    "local_queue": "--local-queue",
    "status": "--status",
    "selector": "--selector",
    "field_selector": "--field-selector",
}


def run(arguments: argparse.Namespace) -> int:
    """Show what is asked for; return the exit code.

    Raises:
        CommandError: the cluster cannot be read, or a name does not exist.
        UsageError: the command line is wrong.
    """
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of
    from rackgate_cli.get import kinds

    shown, arguments.names = kinds.parse(arguments.kind, arguments.names)
    _check_flags(arguments, shown.report)
    target = target_of(arguments, "get")

    async def reading() -> None:
        namespace = None if arguments.all_namespaces else arguments.namespace or target.namespace
        async with target.client() as client:
            await _show(client, arguments, shown, namespace)

    try:
        interruptible.run(reading())
    except KubeError as error:
        raise CommandError(f"the cluster cannot be read: {error}") from error
    return 0


def _check_flags(arguments: argparse.Namespace, report: str) -> None:
    if report != "workloads":
        for name, flag in _WORKLOAD_FLAGS.items():
            if getattr(arguments, name, None):
                raise UsageError(f"{flag} selects Workloads, not {report}")
    if report != "topology" and getattr(arguments, "level", None):
        raise UsageError(f"--level selects domains of a topology, not {report}")
    if report == "topology" and arguments.watch:
        raise UsageError("-w works for queues and workloads, not for topology")


async def _show(
    client: Client, arguments: argparse.Namespace, shown: Shown, namespace: str | None
) -> None:
    from rackgate_cli.get.output import print_changes, print_report
    from rackgate_cli.get.watching import call_on_changes

    everywhere = namespace is None
    report = await read_report(client, arguments, shown, namespace)
    nothing = f"No {_NOUNS[shown.report]} found{f' in namespace {namespace}' if namespace else ''}."
    print_report(report, arguments.output, all_namespaces=everywhere, nothing=nothing)

    async def print_what_changed() -> None:
        nonlocal report
        later = await read_report(client, arguments, shown, namespace)
        print_changes(report, later, arguments.output, all_namespaces=everywhere)
        report = later
        sys.stdout.flush()

    if arguments.watch:
        sys.stdout.flush()
        await call_on_changes(client, shown.report, namespace, print_what_changed)


_NOUNS: Final = {"queues": "queues", "workloads": "Workloads", "topology": "topologies"}


async def read_report(
    client: Client, arguments: argparse.Namespace, shown: Shown, namespace: str | None
) -> Report:
    """Read what is asked for.

    Raises:
        CommandError: a name does not exist, or a right is missing.
        KubeError: the cluster cannot be read.
    """
    if shown.report == "queues":
        return await _read_queues(client, arguments.names, shown.only, namespace)
    if shown.report == "workloads":
        return await _read_workloads(client, arguments, shown.only, namespace)
    return await _read_topology(client, arguments, namespace)


async def _read_queues(
    client: Client, names: Sequence[str], only: str, namespace: str | None
) -> QueueReport:
    from rackgate_cli.queues.model import QueueReport, cluster_queue_row, local_queue_row
    from rackgate_cli.queues.reading import read_queues

    found = await read_queues(client, namespace)
    cluster = found.cluster_queues or {}
    rows = [cluster_queue_row(queue) for _, queue in sorted(cluster.items())]
    rows += [
        local_queue_row(queue, cluster.get(queue.spec.cluster_queue))
        for _, queue in sorted(found.local_queues.items())
    ]
    rows = [row for row in rows if only in ("", row.kind)]
    kept = _require_all(
        rows, names, lambda row: {row.name, f"{row.kind.lower()}/{row.name}"}, "queue"
    )
    return QueueReport(tuple(kept), tuple(found.notes))


async def _read_workloads(
    client: Client, arguments: argparse.Namespace, only: str, namespace: str | None
) -> WorkloadReport:
    from datetime import UTC, datetime

    from rackgate_cli.queues.model import (
        NO_POSITION,
        WorkloadReport,
        sorted_rows,
        workload_row,
    )
    from rackgate_cli.queues.reading import (
        read_classes,
        read_positions,
        read_queues,
        read_workloads,
    )

    selectors = {
        key: value
        for key, value in (
            ("labelSelector", arguments.selector),
            ("fieldSelector", arguments.field_selector),
        )
        if value
    }
    queues = await read_queues(client, namespace)
    classes = await read_classes(client)
    workloads = await read_workloads(client, namespace, selectors)
    positions = await read_positions(client, workloads, queues, classes)
    now = datetime.now(UTC)
    rows = [
        workload_row(
            workload,
            queues.cluster_queue_of,
            classes,
            positions.found.get(workload.metadata.key, NO_POSITION),
            now,
        )
        for workload in workloads
    ]
    kept = [row for row in rows if _selected(row, arguments, only)]
    named = _require_all(kept, arguments.names, _names_of, "Workload or job")
    return WorkloadReport(sorted_rows(named), positions.source, tuple(positions.notes))


def _names_of(row: WorkloadRow) -> set[str]:
    """What its user may write for it."""
    kind, _, job = row.job.partition("/")
    names = {row.name, f"workload/{row.name}"}
    return names | {job, f"{kind.lower()}/{job}"} if job else names


async def _read_topology(
    client: Client, arguments: argparse.Namespace, namespace: str | None
) -> TopologyReport:
    from rackgate.features import Features
    from rackgate_assigner.cache.cache import Cache
    from rackgate_cli.explain.reading import MissingRightsError, read
    from rackgate_cli.get.topology import topology_report

    try:
        found = await read(client, Cache(Features()), namespace or "default")
    except MissingRightsError as error:
        raise CommandError(error.rights) from error
    return topology_report(found.cache, arguments.names, arguments.level)


def _selected(row: WorkloadRow, arguments: argparse.Namespace, only: str) -> bool:
    wanted = arguments.status
    statuses = _UNFINISHED if not wanted else [one for name in wanted for one in _STATUSES[name]]
    return (
        row.status in statuses
        and only in ("", row.job.partition("/")[0])
        and arguments.cluster_queue in (None, row.cluster_queue)
        and arguments.local_queue in (None, row.local_queue)
    )


def _require_all(
    rows: Iterable[Any], names: Sequence[str], names_of: Callable[[Any], set[str]], what: str
) -> list[Any]:
    """The rows with these names, all without any.

    Raises:
        CommandError: a name has no row.
    """
    rows = list(rows)
    if not names:
        return rows
    known = {name for row in rows for name in names_of(row)}
    missing = [name for name in names if name not in known]
    if missing:
        raise CommandError(
            f'no {what} "{missing[0]}" here{did_you_mean(missing[0], sorted(known))}'
        )
    return [row for row in rows if names_of(row) & set(names)]
