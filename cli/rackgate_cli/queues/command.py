"""`rackgate queues` and `rackgate workloads`: who waits, at which position, and who holds quota."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.errors import CommandError
from rackgate_cli.verbs import add_target, add_verb

if TYPE_CHECKING:
    from rackgate.kube.client import Client
    from rackgate_cli.queues.model import QueueReport, WorkloadReport, WorkloadRow
    from rackgate_cli.verbs import Subparsers

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
    1: "the cluster cannot be read",
    2: "the command line or the kubeconfig is wrong",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add the verbs `queues` and `workloads`."""
    queues = add_verb(
        subparsers,
        "queues",
        show_queues,
        summary="show usage, pending and admitted Workloads of each queue",
        description="Shows each ClusterQueue and the LocalQueues of a namespace: whether it is "
        "active, how many Workloads are pending and admitted, and for each flavor and resource "
        "how much of the nominal quota is used. Only reads.",
        examples=(
            "rackgate queues",
            "rackgate queues gpu -n team-a",
            "rackgate queues -A -o json | jq '.items[].pendingWorkloads'",
        ),
        exit_codes=_EXIT_CODES,
    )
    _add_common(queues, "name of a ClusterQueue or LocalQueue; default: all")
    workloads = add_verb(
        subparsers,
        "workloads",
        show_workloads,
        summary="show who waits, at which position and why, and who holds quota",
        description="Shows the Workloads of a namespace that are not finished: pending ones with "
        "position, priority, age, reason and message, the others with the quota that they hold. "
        "Positions come from the API visibility.kueue.x-k8s.io of the assigner. If it does not "
        "answer, they are computed from the objects, and a line on standard error says so. Only "
        "reads.",
        examples=(
            "rackgate workloads",
            "rackgate workloads train -n team-a         # a Workload, or the one of a job",
            "rackgate workloads -A --cluster-queue gpu --status pending",
            "rackgate workloads -l team=vision -o json | jq '.items[].positionInClusterQueue'",
        ),
        exit_codes=_EXIT_CODES,
        note="Positions of the table start at 1, those of the JSON and of the API at 0.",
    )
    _add_common(workloads, "name of a Workload or of its job; default: all")
    workloads.add_argument("--cluster-queue", metavar="NAME", help="only of this ClusterQueue")
    workloads.add_argument("--local-queue", metavar="NAME", help="only of LocalQueues of this name")
    workloads.add_argument(
        "--status",
        action="append",
        choices=tuple(_STATUSES),
        help="only with this status; may be repeated (default: all except finished)",
    )
    workloads.add_argument("-l", "--selector", metavar="SELECTOR", help="label selector")
    workloads.add_argument("--field-selector", metavar="SELECTOR", help="field selector")


def _add_common(parser: argparse.ArgumentParser, names: str) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help=names)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    parser.add_argument("-o", "--output", choices=("json",), help="print JSON")
    add_target(parser)


def show_queues(arguments: argparse.Namespace) -> int:
    """Show queues; return the exit code.

    Raises:
        CommandError: the cluster cannot be read.
    """
    from rackgate_cli.queues.view import queue_blocks
    from rackgate_cli.tables import show

    report: QueueReport = _run(arguments, _read_queues)
    if not _printed(arguments, report):
        show(queue_blocks(report))
    return 0


def show_workloads(arguments: argparse.Namespace) -> int:
    """Show Workloads; return the exit code.

    Raises:
        CommandError: the cluster cannot be read.
    """
    from rackgate_cli.queues.view import workload_blocks
    from rackgate_cli.tables import show

    where = ""

    async def read(client: Client, names: argparse.Namespace, namespace: str | None) -> Any:
        nonlocal where
        where = f" in namespace {namespace}" if namespace else ""
        return await _read_workloads(client, names, namespace)

    report: WorkloadReport = _run(arguments, read)
    if not _printed(arguments, report):
        nothing = f"No Workloads found{where}."
        show(workload_blocks(report, all_namespaces=arguments.all_namespaces, nothing=nothing))
    return 0


def _printed(arguments: argparse.Namespace, report: QueueReport | WorkloadReport) -> bool:
    """Print JSON if it is wanted, else the notes on standard error."""
    import msgspec

    from rackgate_cli.tables import clean

    if arguments.output == "json":
        sys.stdout.write(json.dumps(msgspec.to_builtins(report), indent=2) + "\n")
        return True
    for note in report.notes:
        print(f"note: {clean(note)}", file=sys.stderr)
    return False


_Read = Callable[["Client", argparse.Namespace, "str | None"], Coroutine[Any, Any, Any]]


def _run(arguments: argparse.Namespace, read: _Read) -> Any:
    from rackgate.kube.errors import KubeError
    from rackgate_cli.target import cluster_target

    target = cluster_target(arguments.state, arguments.kubeconfig, arguments.context)

    async def reading() -> Any:
        namespace = None if arguments.all_namespaces else arguments.namespace or target.namespace
        async with target.client() as client:
            return await read(client, arguments, namespace)

    try:
        return asyncio.run(reading())
    except KubeError as error:
        raise CommandError(f"the cluster cannot be read: {error}") from error


async def _read_queues(
    client: Client, arguments: argparse.Namespace, namespace: str | None
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
    kept = _require_all(rows, arguments.names, lambda row: {row.name}, "queue")
    return QueueReport(tuple(kept), tuple(found.notes))


async def _read_workloads(
    client: Client, arguments: argparse.Namespace, namespace: str | None
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
    kept = [row for row in rows if _selected(row, arguments)]
    named = _require_all(
        kept,
        arguments.names,
        lambda row: {row.name, row.job.partition("/")[2]} - {""},
        "Workload or job",
    )
    return WorkloadReport(sorted_rows(named), positions.source, tuple(positions.notes))


def _selected(row: WorkloadRow, arguments: argparse.Namespace) -> bool:
    wanted = arguments.status
    statuses = _UNFINISHED if not wanted else [one for name in wanted for one in _STATUSES[name]]
    return (
        row.status in statuses
        and arguments.cluster_queue in (None, row.cluster_queue)
        and arguments.local_queue in (None, row.local_queue)
    )


def _require_all(
    rows: Iterable[Any], names: list[str], names_of: Callable[[Any], set[str]], what: str
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
        from difflib import get_close_matches

        near = get_close_matches(missing[0], known, n=1)
        hint = f' (did you mean "{near[0]}"?)' if near else ""
        raise CommandError(f'no {what} "{missing[0]}" here{hint}')
    return [row for row in rows if names_of(row) & set(names)]
