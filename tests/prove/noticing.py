"""The pytest plugin of the planted faults: which marked tests turn red.

Loaded with `-p tests.prove.noticing`. Only tests marked for one of the asked rows are run, so a
red test always carries the mark of a row that it is to prove; the run ends as soon as every asked
row has one, and every test with a stored example of the fault is red. A test counts as red by its
own words: a fixture that fails before it proves nothing.

Tests that draw examples are run either on those stored for the fault alone, or on fresh ones; what
fails then is part of the answer, so that it can be stored.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

import rackgate
from tests.prove.stored import Recorder, StoredExamples, load

FRESH, OLD = "fresh", "stored"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of a run."""
    group = parser.getgroup("planted faults")
    group.addoption("--prove-rows", default="", help="ledger rows, with commas")
    group.addoption("--prove-report", help="file for the answer, as JSON")
    group.addoption("--prove-all", action="store_true", help="run on when every row is red")
    group.addoption("--prove-fault", default="", help="the fault whose stored examples are run")
    group.addoption("--prove-draws", choices=(OLD, FRESH), default=OLD, help="which examples")


def pytest_configure(config: pytest.Config) -> None:
    """Take up work, once it is sure that the copied sources are the ones that run."""
    if not config.getoption("--prove-report"):
        return
    if not Path(rackgate.__file__).is_relative_to(Path.cwd()):
        raise pytest.UsageError(f"{rackgate.__file__} is not of the copied sources")
    rows = frozenset(filter(None, config.getoption("--prove-rows").split(",")))
    own = load().get(config.getoption("--prove-fault"), {})
    fresh = config.getoption("--prove-draws") == FRESH
    examples: Recorder | StoredExamples = Recorder() if fresh else StoredExamples([own])
    settings.register_profile(
        "prove",
        database=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # Shrinking a counterexample would take minutes; that there is one is enough.
        phases=(Phase.explicit, Phase.generate if fresh else Phase.reuse),
    )
    settings.load_profile("prove")
    config.pluginmanager.register(
        Noticing(
            rows,
            Path(config.getoption("--prove-report")),
            examples,
            run_on=config.getoption("--prove-all"),
        )
    )


class Noticing:
    """Selects tests by their marks and notes which of them turn red."""

    def __init__(
        self,
        rows: frozenset[str],
        report: Path,
        examples: Recorder | StoredExamples,
        *,
        run_on: bool,
    ) -> None:
        self.rows, self.report, self.run_on = rows, report, run_on
        self.examples = examples
        self.marked: dict[str, set[str]] = {}
        self.red: dict[str, set[str]] = defaultdict(set)
        self.broken: set[str] = set()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep the tests that are marked for an asked row."""
        left = []
        for item in items:
            marks = {str(row) for mark in item.iter_markers("requirement") for row in mark.args}
            if marks & self.rows:
                self.marked[item.nodeid] = marks & self.rows
            else:
                left.append(item)
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.nodeid in self.marked]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Tell the examples which test asks."""
        self.examples.test = item.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a red test."""
        if not report.failed:
            return
        if report.when == "setup":
            self.broken.add(report.nodeid)
            return
        for row in self.marked[report.nodeid]:
            self.red[row].add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End the run when there is nothing more to learn."""
        if self.rows <= set(self.red) and self._expected() <= self._all_red() and not self.run_on:
            pytest.exit(f"every row is red, the last one by {nodeid}", returncode=1)

    def pytest_sessionfinish(self) -> None:
        """Write the answer."""
        answer = {
            "marked": {nodeid: sorted(rows) for nodeid, rows in self.marked.items()},
            "red": {row: sorted(nodeids) for row, nodeids in self.red.items()},
            "broken": sorted(self.broken),
            "drawn": self._drawn(),
        }
        self.report.write_text(json.dumps(answer))

    def _all_red(self) -> set[str]:
        return set().union(*self.red.values())

    def _expected(self) -> set[str]:
        """Tests with stored examples, all of which must be red."""
        return set(self.examples.by_test) if isinstance(self.examples, StoredExamples) else set()

    def _drawn(self) -> dict[str, str]:
        """Red tests that drew, with the example that failed if it was fresh."""
        if isinstance(self.examples, StoredExamples):
            return dict.fromkeys(sorted(self.examples.given & self._all_red()), "")
        return {
            test: base64.b64encode(example).decode()
            for test, example in self.examples.saved.items()
            if test in self._all_red()
        }
