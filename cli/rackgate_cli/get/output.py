"""Prints reports: tables, JSON, YAML and names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from rackgate_cli.get.topology import DomainRow, TopologyReport, topology_blocks
from rackgate_cli.queues.model import QueueReport, QueueRow, WorkloadReport, WorkloadRow
from rackgate_cli.queues.view import queue_blocks, workload_blocks
from rackgate_cli.tables import Block, clean, show, show_json

if TYPE_CHECKING:
    Report: TypeAlias = QueueReport | WorkloadReport | TopologyReport
    Row: TypeAlias = QueueRow | WorkloadRow | DomainRow

# These change with every reading.
_TIMES = {"age_seconds": None, "wait_seconds": None}


def print_report(report: Report, output: str | None, *, all_namespaces: bool, nothing: str) -> None:
    """Print a whole report; notes go to standard error.

    Args:
        report: the rows, sorted.
        output: json, yaml, name, wide, or None for a table.
        all_namespaces: show the namespace of each Workload.
        nothing: the line if there is no row.
    """
    if output == "json":
        show_json(msgspec.to_builtins(report))
    elif output == "yaml":
        _show_yaml(report)
    elif output == "name":
        sys.stdout.write("".join(f"{name_of(row)}\n" for row in report.items))
    else:
        _print_notes(report)
        wide = output == "wide"
        show(blocks(report, wide=wide, all_namespaces=all_namespaces, nothing=nothing))


def print_changes(
    before: Report, after: Report, output: str | None, *, all_namespaces: bool
) -> None:
    """Print the rows that are new or have changed, and which rows are gone."""
    old = {_key(row): _without_times(row) for row in before.items}
    items = [row for row in after.items if old.get(_key(row)) != _without_times(row)]
    kept = {_key(row) for row in after.items}
    gone = [row for row in before.items if _key(row) not in kept]
    if output in ("json", "yaml"):
        for row in items:
            if output == "json":
                show_json(msgspec.to_builtins(row))
            else:
                _show_yaml(row)
        return
    if output == "name":
        sys.stdout.write("".join(f"{name_of(row)}\n" for row in items))
        return
    if items:
        changed: Any = msgspec.structs.replace(after, items=tuple(items))
        show(blocks(changed, wide=output == "wide", all_namespaces=all_namespaces, nothing=""))
    for row in gone:
        namespace = _key(row)[1] if all_namespaces else ""
        where = f" in namespace {clean(namespace)}" if namespace else ""
        print(f"{clean(name_of(row))}{where} is not shown any more", file=sys.stderr)


def _key(row: Row) -> tuple[str, str]:
    """Name with the kind, and namespace: rows of two namespaces may have one name."""
    return name_of(row), "" if isinstance(row, DomainRow) else row.namespace


def _without_times(row: Row) -> Row:
    known = {field.name for field in msgspec.structs.fields(row)}
    return msgspec.structs.replace(row, **{k: v for k, v in _TIMES.items() if k in known})


def _print_notes(report: Report) -> None:
    for note in report.notes:
        print(f"note: {clean(note)}", file=sys.stderr)


def _show_yaml(value: Report | Row) -> None:
    from rackgate_cli.plain_yaml import show_yaml  # loads yaml, which others do without

    show_yaml(msgspec.to_builtins(value))


def name_of(row: Row) -> str:
    """The name of a row as `kubectl -o name` writes it."""
    if isinstance(row, QueueRow):
        return f"{row.kind.lower()}.kueue.x-k8s.io/{row.name}"
    if isinstance(row, WorkloadRow):
        return f"workload.kueue.x-k8s.io/{row.name}"
    return row.name


def blocks(report: Report, *, wide: bool, all_namespaces: bool, nothing: str) -> Iterator[Block]:
    """A report as tables."""
    if isinstance(report, QueueReport):
        return queue_blocks(report)
    if isinstance(report, WorkloadReport):
        return workload_blocks(report, all_namespaces=all_namespaces, nothing=nothing, wide=wide)
    return topology_blocks(report)
