"""The page of metrics, from those that the services declare."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

from tests.support.reference import page, table

PARTS: Final = (
    ("All services", "rackgate"),
    ("Webhook", "rackgate_webhook"),
    ("Assigner", "rackgate_assigner"),
    ("Ungater", "rackgate_ungater"),
    ("Console", "rackgate_console"),
)
PURPOSE: Final = "This page lists every metric that the services of Rackgate expose."
INTRODUCTION: Final = """\
Every replica serves its metrics at `/metrics` of its health port (8081 by default), in the Prometheus
text format. Every process also exposes `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_start_time_seconds`, `process_open_fds` and `process_max_fds`.

A histogram has the series `_bucket`, `_sum` and `_count`. The values of labels are bounded: no label
holds a pod, a Workload or a UID.

Alerts and a dashboard for these metrics are in `deploy/monitoring`. See
[Monitor Rackgate](../tasks/monitor.md)."""

KUEUE: Final = """\
With `metrics.kueueNames: true` in their configurations, the assigner and the ungater serve these series,
too, with the values of the metrics of the same name above, so that dashboards and alerts that were made
for Kueue work. Series under both names cost a scrape twice the size, so the setting is off by default.

`replica_role` is `leader` or `follower` in the assigner; in the ungater, where all replicas act, it is
`standalone`. The labels `priority_class` and `is_group` of Kueue are not served: queries that group by other
labels are not affected. A query that expects series of one process only must not select a job."""


def import_all(package: str) -> None:
    """Import every module of a package, so that all it declares is known."""
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def _sections() -> Iterator[str]:
    from rackgate.runtime.metrics import DECLARED

    seen = 0
    for title, package in PARTS:
        import_all(package)
        rows = [
            (
                f"`{metric.name}`",
                metric.kind,
                ", ".join(f"`{label}`" for label in metric.labels),
                metric.help_text,
            )
            for metric in sorted(DECLARED[seen:], key=lambda entry: entry.name)
        ]
        yield f"## {title}\n\n{table(('Metric', 'Type', 'Labels', 'Meaning'), rows)}"
        seen = len(DECLARED)


def _kueue_section() -> str:
    from rackgate.runtime.kueue_metrics import LABELS, MISSING, PREFIX, ROLE

    rows = [
        (f"`{PREFIX}{name}`", ", ".join(f"`{label}`" for label in (*labels, ROLE)))
        for name, labels in LABELS.items()
    ]
    missing = [(f"`{PREFIX}{name}`", instead) for name, instead in MISSING.items()]
    return "\n\n".join(
        (
            "## Kueue's names",
            KUEUE,
            table(("Metric", "Labels"), rows),
            "These metrics of Kueue are not served:",
            table(("Metric", "Use instead"), missing),
        )
    )


def text() -> str:
    """The page. Needs a process that has imported no service yet."""
    return page("Metrics", PURPOSE, INTRODUCTION, *_sections(), _kueue_section())
