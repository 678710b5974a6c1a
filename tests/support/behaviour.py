"""Writes docs/behaviour.md: every ledger row with its title and the tests that prove it.

`python -m tests.support.behaviour` writes the page, `--check` fails when it is stale or when a
mark names a row that the ledger does not have.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / "docs" / "ledger.tsv"
PAGE = ROOT / "docs" / "behaviour.md"
GROUPS = {
    "TAS": "Topology-aware scheduling",
    "CAP": "Capacity accounting",
    "RNK": "Rank-ordered placement",
    "UNG": "Ungater",
    "SLC": "Workload slices",
    "OSM": "OSMO topology keys",
    "GNG": "Gang workloads",
    "HOOK": "Admission webhook",
    "VAL": "Validation and queue activity",
    "OPS": "Services and operation",
    "USR": "User stories",
    "TST": "Tests the sources list",
    "STR": "Future steps",
}


def ledger() -> dict[str, str]:
    """Ledger rows: ID to title."""
    rows = (line.split("\t", 1) for line in LEDGER.read_text().splitlines() if line)
    return {row[0]: row[1] for row in rows}


class Collector:
    """A pytest plugin that notes which test carries which mark."""

    def __init__(self) -> None:
        self.proofs: dict[str, set[str]] = defaultdict(set)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Read the marks of every collected test; parameters of one test count once."""
        for item in items:
            name = item.nodeid.split("[")[0]
            for mark in item.iter_markers("requirement"):
                for row in mark.args:
                    self.proofs[str(row)].add(name)


def collect() -> dict[str, set[str]]:
    """Row ID to the tests marked with it, from a collection run of all tests."""
    collector = Collector()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = pytest.main(
            ["--collect-only", "-p", "no:terminal", str(ROOT / "tests")], plugins=[collector]
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"collecting the tests failed ({code!r}):\n{printed.getvalue()}")
    return collector.proofs


def page(rows: dict[str, str], proofs: dict[str, set[str]]) -> str:
    """The page's text."""
    proven = sum(1 for row in rows if proofs.get(row))
    lines = [
        "# Behaviour",
        "",
        "What Rackgate does, row by row, and the tests that show it. Written by `make behaviour`.",
        "",
        f"{proven} of {len(rows)} rows are proven by at least one test.",
    ]
    for group, title in GROUPS.items():
        lines += [
            "",
            f"## {group}: {title}",
            "",
            "| row | what holds | proven by |",
            "|---|---|---|",
        ]
        for row, text in rows.items():
            if row.split("-")[0] != group:
                continue
            tests = "<br>".join(f"`{name}`" for name in sorted(proofs.get(row, ()))) or "not yet"
            lines.append(f"| {row} | {text} | {tests} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the page is stale")
    arguments = parser.parse_args()
    rows, proofs = ledger(), collect()
    if unknown := sorted(set(proofs) - set(rows)):
        places = "; ".join(f"{row}: {', '.join(sorted(proofs[row]))}" for row in unknown)
        sys.stderr.write(f"marks that name no ledger row: {places}\n")
        return 1
    text = page(rows, proofs)
    if arguments.check:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.stderr.write(f"{PAGE.relative_to(ROOT)} is stale: run `make behaviour`\n")
            return 1
        return 0
    PAGE.write_text(text)
    sys.stdout.write(f"{PAGE.relative_to(ROOT)} written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
