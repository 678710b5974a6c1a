"""Output of `rackgate get queues` and `rackgate get workloads` as tables."""

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
    yield "active", state if row.active or not about else f"{state} ({about})"
    yield "pending", str(row.pending_workloads)
    reserving = row.reserving_workloads - row.admitted_workloads
    more = f" and {reserving} with reserved quota" if reserving > 0 else ""
    yield "admitted", f"{row.admitted_workloads}{more}"


def _usage(row: UsageRow) -> tuple[str, ...]:
    return row.flavor, row.resource, row.used, row.nominal or "-", bar(row.share)


def workload_blocks(
    report: WorkloadReport, *, all_namespaces: bool, nothing: str, wide: bool = False
) -> Iterator[Block]:
    """Who waits, who holds quota, and the others.

    Args:
        report: the rows, sorted.
        all_namespaces: show the namespace of each.
        nothing: the line if there is no row.
        wide: with all columns.
    """
    if not report.items:
        yield Line(nothing)
        return
    pending = [row for row in report.items if row.status == PENDING]
    holding = [row for row in report.items if row.status in (QUOTA_RESERVED, ADMITTED)]
    rest = [row for row in report.items if row.status in (FINISHED, DEACTIVATED)]
    columns = tuple(_first_columns(wide=wide, all_namespaces=all_namespaces))
    if pending:
        yield Heading("PENDING")
        yield _grid(pending, (*columns, *_pending_columns(pending, wide=wide)))
    if holding:
        yield Heading("HOLDING QUOTA")
        yield _grid(holding, (*columns, _STATUS, _PRIORITY, _AGE, ("QUOTA", _quota)))
    if rest:
        yield Heading("OTHERS")
        yield _grid(rest, (*columns, _STATUS, _PRIORITY, _AGE, _MESSAGE))


Column = tuple[str, Callable[[WorkloadRow], str]]


def _grid(rows: Sequence[WorkloadRow], columns: Sequence[Column]) -> Grid:
    return Grid(
        [heading for heading, _ in columns],
        [[cell(row) or "-" for _, cell in columns] for row in rows],
    )


def _job(row: WorkloadRow) -> str:
    """As other verbs take it: the job, or the Workload of no job."""
    kind, _, name = row.job.partition("/")
    return f"{kind.lower()}/{name}" if name else f"workload/{row.name}"


_STATUS: Final[Column] = ("STATUS", lambda row: row.status)
_PRIORITY: Final[Column] = ("PRIORITY", lambda row: str(row.priority))
_AGE: Final[Column] = ("AGE", lambda row: age(row.age_seconds))
_MESSAGE: Final[Column] = ("MESSAGE", lambda row: row.message)


def _first_columns(*, wide: bool, all_namespaces: bool) -> Iterator[Column]:
    if all_namespaces:
        yield "NAMESPACE", lambda row: row.namespace
    yield "JOB", _job
    if wide:
        yield "WORKLOAD", lambda row: row.name
    yield "LOCALQUEUE", lambda row: row.local_queue
    if wide or all_namespaces:
        yield "CLUSTERQUEUE", lambda row: row.cluster_queue


def _pending_columns(rows: Sequence[WorkloadRow], *, wide: bool) -> Iterator[Column]:
    yield "POSITION", lambda row: _place(row.position_in_cluster_queue)
    # Without the right to see other namespaces, only this position is known.
    if wide or any(row.position_in_cluster_queue is None for row in rows):
        yield "IN LOCALQUEUE", lambda row: _place(row.position_in_local_queue)
    yield _PRIORITY
    yield "WAIT", lambda row: age(row.wait_seconds)
    if any(row.expected_start for row in rows):
        yield "EXPECTED START", _start
    if wide:
        yield _AGE
    yield "REASON", lambda row: row.reason
    if wide:
        yield _MESSAGE


def _place(position: int | None) -> str:
    return "-" if position is None else str(position + 1)


def _start(row: WorkloadRow) -> str:
    if not row.expected_start:
        return "-"
    return f"{'by' if row.starts_by else 'not before'} {row.expected_start}"


def _quota(row: WorkloadRow) -> str:
    return ", ".join(f"{one.amount} {one.resource} ({one.flavor})" for one in row.holds)
