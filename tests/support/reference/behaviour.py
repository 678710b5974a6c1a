"""The page of behaviour: every row of the ledger with its title and the tests that prove it."""

from __future__ import annotations

import contextlib
import io
from collections import defaultdict

import pytest

from tests.support.reference import REFERENCE, ROOT, page, table

LEDGER = REFERENCE / "ledger.tsv"
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
    "TST": "Tests that the sources list",
    "STR": "Future steps",
}


PURPOSE = "This page lists what Rackgate does, row by row, and the tests that prove it."


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


def text() -> str:
    """The page.

    Raises:
        SystemExit: a mark names a row that the ledger does not have.
    """
    rows, proofs = ledger(), collect()
    if unknown := sorted(set(proofs) - set(rows)):
        places = "; ".join(f"{row}: {', '.join(sorted(proofs[row]))}" for row in unknown)
        raise SystemExit(f"marks that name no ledger row: {places}")
    proven = sum(1 for row in rows if proofs.get(row))
    blocks = [
        "A row is one behavior. Its ID and title are in [ledger.tsv](ledger.tsv). A test names the rows that it"
        ' proves with `@pytest.mark.requirement("TAS-01")`.',
        f"{proven} of {len(rows)} rows are proven by at least one test.",
    ]
    for group, title in GROUPS.items():
        entries = [
            (row, claim, _tests(proofs.get(row, set())))
            for row, claim in rows.items()
            if row.split("-")[0] == group
        ]
        blocks.append(
            f"## {group}: {title}\n\n{table(('Row', 'What holds', 'Proven by'), entries)}"
        )
    return page("Behavior", PURPOSE, *blocks)


def _tests(names: set[str]) -> str:
    return "<br>".join(f"`{name}`" for name in sorted(names)) or "not yet"
