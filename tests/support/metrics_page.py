"""Writes docs/metrics.md from the metrics that the services declare.

python -m tests.support.metrics_page [--check]
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
HEAD: Final = """\
# Metrics

Written by `python -m tests.support.metrics_page` from what the services declare: do not edit.

Every replica serves them at `/metrics` of its health port (8081), in the Prometheus text format.
Besides these each process tells `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_virtual_memory_bytes`, `process_start_time_seconds`, `process_open_fds` and
`process_max_fds`. A histogram has the series `_bucket`, `_sum` and `_count`. Labels are bounded:
never a pod, a Workload or a UID.
"""
PARTS: Final = (
    ("All services", "rackgate"),
    ("Webhook", "rackgate_webhook"),
    ("Assigner", "rackgate_assigner"),
    ("Ungater", "rackgate_ungater"),
)


def import_all(package: str) -> None:
    """Import every module of a package, so that all it declares is known."""
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, f"{package}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def lines() -> Iterator[str]:
    """The page, line by line. Needs a process that has imported no service yet."""
    from rackgate.runtime.metrics import DECLARED

    yield HEAD
    told = 0
    for title, package in PARTS:
        import_all(package)
        yield f"## {title}\n"
        yield "| metric | type | labels | meaning |"
        yield "|---|---|---|---|"
        for metric in sorted(DECLARED[told:], key=lambda entry: entry.name):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            yield f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help_text} |"
        yield ""
        told = len(DECLARED)


def main() -> int:
    """Write the page, or say whether it is as it would be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the page is stale")
    wanted = "\n".join(lines()).rstrip() + "\n"
    if not parser.parse_args().check:
        PAGE.write_text(wanted)
    elif not PAGE.exists() or PAGE.read_text() != wanted:
        print(f"{PAGE.name} is stale: python -m tests.support.metrics_page", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
