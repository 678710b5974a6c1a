"""Output of `rackgate queues` and `rackgate workloads` as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rackgate_cli.queues.model import (
    ADMITTED,
    DEACTIVATED,
    FINISHED,
    PENDING,
    QUOTA_RESERVED,
    QueueReport,
    QueueRow,
    UsageRow,
    WorkloadReport,
    WorkloadRow,
)
from rackgate_cli.tables import Block, Grid, Heading, Line

BAR_WIDTH: Final = 20
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"))


def bar(share: float | None) -> str:
    """A bar of fixed width and the percentage; "-" if the share is unknown."""
    if share is None:
        return "-"
    filled = min(BAR_WIDTH, max(0, round(share * BAR_WIDTH)))
    if share > 0:
        filled = max(1, filled)  # what is used shows
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share * 100:.0f}%"


def age(seconds: int | None) -> str:
    """As kubectl prints ages: the largest unit that gives at least 2, so 119 s and 2 m."""
    if seconds is None:
        return "-"
    for unit, letter in _UNITS:
        if seconds >= 2 * unit:
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"


def queue_blocks(report: QueueReport) -> Iterator[Block]:
    """Each queue with its state, and a bar for each flavor and resource."""
    if not report.items:
        yield Line("No queues found.")
    for row in report.items:
        yield Heading(f"{row.kind} {_name(row)}")
        yield Grid((), list(_facts(row)))
        if row.usage:
            headings = ("FLAVOR", "RESOURCE", "USED", "NOMINAL", "USAGE")
            yield Grid(headings, [_usage(usage) for usage in row.usage])


def _name(row: QueueRow) -> str:
    return f"{row.namespace}/{row.name}" if row.namespace else row.name


def _facts(row: QueueRow) -> Iterator[tuple[str, str]]:
    if row.cluster_queue:
        yield "ClusterQueue", row.cluster_queue
    state = {True: "yes", False: "no", None: "unknown"}[row.active]
    about = f"{row.reason}: {row.message}" if row.reason else row.message
    yield "active", state if row.active else f"{state} ({about})"
    yield "pending", str(row.pending_workloads)
    reserving = row.reserving_workloads - row.admitted_workloads
    more = f" and {reserving} with reserved quota" if reserving > 0 else ""
    yield "admitted", f"{row.admitted_workloads}{more}"


def _usage(row: UsageRow) -> tuple[str, ...]:
    return row.flavor, row.resource, row.used, row.nominal or "-", bar(row.share)


def workload_blocks(
    report: WorkloadReport, *, all_namespaces: bool, nothing: str
) -> Iterator[Block]:
    """Who waits, who holds quota, and the others.

    Args:
        report: the rows, sorted.
        all_namespaces: show the namespace of each.
        nothing: the line if there is no row.
    """
    if not report.items:
        yield Line(nothing)
        return
    pending = [row for row in report.items if row.status == PENDING]
    holding = [row for row in report.items if row.status in (QUOTA_RESERVED, ADMITTED)]
    rest = [row for row in report.items if row.status in (FINISHED, DEACTIVATED)]
    if pending:
        yield Heading("PENDING")
        headings = ("POSITION", "IN LOCALQUEUE", "PRIORITY", "AGE", "REASON", "MESSAGE")
        yield _grid(pending, headings, _pending_cells, all_namespaces)
    if holding:
        yield Heading("HOLDING QUOTA")
        yield _grid(holding, ("STATUS", "PRIORITY", "AGE", "QUOTA"), _holding_cells, all_namespaces)
    if rest:
        yield Heading("OTHERS")
        yield _grid(rest, ("STATUS", "PRIORITY", "AGE", "MESSAGE"), _other_cells, all_namespaces)


def _grid(
    rows: Sequence[WorkloadRow],
    headings: Sequence[str],
    cells: Callable[[WorkloadRow], tuple[str, ...]],
    all_namespaces: bool,
) -> Grid:
    first = ("NAMESPACE",) if all_namespaces else ()
    return Grid(
        (*first, "NAME", "JOB", "LOCALQUEUE", "CLUSTERQUEUE", *headings),
        [
            (
                *((row.namespace,) if all_namespaces else ()),
                row.name,
                row.job or "-",
                row.local_queue or "-",
                row.cluster_queue or "-",
                *cells(row),
            )
            for row in rows
        ],
    )


def _place(position: int | None) -> str:
    return "-" if position is None else str(position + 1)


def _pending_cells(row: WorkloadRow) -> tuple[str, ...]:
    return (
        _place(row.position_in_cluster_queue),
        _place(row.position_in_local_queue),
        str(row.priority),
        age(row.age_seconds),
        row.reason or "-",
        row.message,
    )


def _holding_cells(row: WorkloadRow) -> tuple[str, ...]:
    held = ", ".join(f"{one.amount} {one.resource} ({one.flavor})" for one in row.holds)
    return row.status, str(row.priority), age(row.age_seconds), held or "-"


def _other_cells(row: WorkloadRow) -> tuple[str, ...]:
    return row.status, str(row.priority), age(row.age_seconds), row.message or "-"
