"""Plants one fault at a time in a copy of the sources; each must turn its tests red.

Faults are kept in `faults/`, a file for each group of the ledger (that of a fault's first row).
Each names the file, text that is there exactly once, what replaces it, the ledger rows that it
breaks, and the tests that must notice: for every row of a fault a test that carries the row's mark
must turn red (`noticing.py` runs no others). Texts are short, so that they outlive edits nearby.
The tests are first run on the sound copy: they must be green there, so that a red one means the
fault. A fault that no longer applies or goes unnoticed fails the run, and so does a group of the
ledger without a fault.

Tests that draw examples run on those stored for the fault (`stored.py`) and on nothing else: a
landing would notice the fault whatever it draws. Each test with a stored example must turn red; an
example that no longer decodes or no longer catches its fault fails the run. Where only drawn
examples notice a fault, fresh ones must notice it too, in one of three rounds. `--store` draws
examples for the faults that need them and have none that catch.

Faults with `slow: true` are noticed by tests on a real control plane; each starts a playground of
its own from the copied sources.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tests.prove.noticing import FRESH, OLD
from tests.prove.stored import EXAMPLES, SAME_ORDER, Examples, load, store

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).parent / "faults"
FOLDERS = (
    "shared",
    "services",
    "osmo",
    "invariants",
    "cli",
    "tests",
    "deploy",
    "docs",
    "bench",
    "requirements",
)
FILES = ("pyproject.toml", "docker-compose.yaml", "Dockerfile", "README.md", "Makefile")
# Ledger groups, with the fewest faults each must have.
LEAST = {
    "TAS": 6,
    "CAP": 5,
    "RNK": 4,
    "UNG": 8,
    "HOOK": 6,
    "VAL": 6,
    "OPS": 5,
    "SLC": 35,
    "OSM": 30,
    "USR": 12,
    "STR": 6,
    "TST": 5,
    "GNG": 10,
}
FAST_LIMIT_S, SLOW_LIMIT_S = 300.0, 900.0
# The run without any fault is of all their tests together, in one process.
SOUND_LIMIT_S = 3600.0
# So often fresh examples are drawn before a fault counts as unnoticed by them, and so often before
# the shortest one that failed is stored.
FRESH_ROUNDS, STORE_ROUNDS = 3, 5
STORE_CHOICES = 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault.

    Attributes:
        name: what is wrong, in words with dashes.
        rows: ledger rows that it breaks; each must be noticed by a test marked for it.
        file: where it is planted, from the root.
        find: text that is there exactly once.
        replace: what stands there instead.
        tests: files, folders or tests that must notice.
        slow: the tests need a control plane.
    """

    name: str
    rows: tuple[str, ...]
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    slow: bool = False

    @property
    def groups(self) -> set[str]:
        """Ledger groups of its rows."""
        return {row.partition("-")[0] for row in self.rows}

    @property
    def group(self) -> str:
        """The group of its first row, which names the files it stands in."""
        return self.rows[0].partition("-")[0]


def faults() -> list[Fault]:
    """All faults, file by file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there
    return [
        Fault(**{**entry, "rows": tuple(entry["rows"]), "tests": tuple(entry["tests"])})
        for file in sorted(FAULTS.glob("*.yaml"))
        for document in yaml.load_all(file.read_text(), loader)
        for entry in document
    ]


def copy_tree(target: Path) -> None:
    """Copy the sources, without caches, to `target`."""
    ignore = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.pyc")
    for folder in FOLDERS:
        if (ROOT / folder).exists():
            shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    for file in FILES:
        if (ROOT / file).exists():
            shutil.copy(ROOT / file, target / file)


@dataclass(frozen=True, slots=True)
class Result:
    """What a test run said.

    Attributes:
        code: exit code of pytest; -1 when it took too long.
        marked: tests that were run.
        red: red tests by row.
        broken: tests whose fixtures failed.
        drawn: red tests that drew examples; what failed, where they were fresh.
        tail: last lines that pytest printed.
    """

    code: int
    marked: dict[str, list[str]] = field(default_factory=dict)
    red: dict[str, list[str]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    drawn: dict[str, str] = field(default_factory=dict)
    tail: str = ""

    def all_red(self) -> set[str]:
        """Red tests of any row."""
        return set().union(*self.red.values())


def run_tests(
    tree: Path,
    tests: Iterable[str],
    rows: Iterable[str],
    limit_s: float,
    *,
    fault: str = "",
    draws: str = OLD,
    run_on: bool = False,
) -> Result:
    """Run the tests of some rows against the copied sources: its folders come first on the path.

    Services that a test starts inherit the path, so they run the copied sources too.
    """
    folders = [
        tree / "shared",
        *(tree / "services" / name for name in ("webhook", "assigner", "ungater", "console")),
        *(tree / name for name in ("osmo", "invariants", "cli")),
        tree,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONDONTWRITEBYTECODE": "1",  # two edits within a second would look alike
        **SAME_ORDER,
    }
    report = tree / "report.json"
    report.unlink(missing_ok=True)
    plugin = ["-p", "tests.prove.noticing", "--prove-report", str(report)]
    plugin += ["--prove-fault", fault, "--prove-draws", draws]
    chosen = ["--prove-rows", ",".join(sorted(rows)), *(["--prove-all"] if run_on else [])]
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", *plugin, *chosen, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return Result(-1, tail=f"no end within {late.timeout:g} s")
    tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
    if not report.exists():
        return Result(done.returncode, tail=tail)
    answer: dict[str, Any] = json.loads(report.read_text())
    return Result(done.returncode, **answer, tail=tail)


def plant(tree: Path, fault: Fault) -> str:
    """Put the fault in; returns the sound text for putting it back.

    Raises:
        LookupError: the text to replace is not there exactly once.
    """
    path = tree / fault.file
    sound = path.read_text()
    if sound.count(fault.find) != 1:
        raise LookupError(
            f"{fault.file}: the text to replace is there {sound.count(fault.find)} times"
        )
    path.write_text(sound.replace(fault.find, fault.replace))
    return sound


def judge(
    tree: Path, fault: Fault, examples: dict[str, bytes], *, run_on: bool = False
) -> tuple[str | None, Result | None]:
    """None when the tests notice the fault, else what is wrong; and what the tests said.

    Args:
        tree: the copied sources.
        fault: what to plant.
        examples: those stored for the fault, by test.
        run_on: do not stop when every row is red.
    """
    try:
        sound = plant(tree, fault)
    except (LookupError, FileNotFoundError) as error:
        return str(error), None
    try:
        result = run_fault(tree, fault, fault.rows, OLD, run_on=run_on)
        if problem := _unnoticed(fault.rows, result):
            return problem, result
        if idle := examples.keys() - result.all_red():
            return f"stored examples do not catch it: {', '.join(sorted(idle))}", result
        lacking = _by_draws_alone(fault, result)
        for _ in range(FRESH_ROUNDS if lacking else 0):
            fresh = run_fault(tree, fault, lacking, FRESH)
            lacking = [row for row in lacking if not fresh.red.get(row)]
            if not lacking:
                break
            result = replace(result, tail=fresh.tail)
    finally:
        (tree / fault.file).write_text(sound)
    if lacking:
        rows, rounds = ", ".join(lacking), FRESH_ROUNDS
        return f"no fresh example is red for {rows} in {rounds} rounds:\n{result.tail}", result
    return None, result


def run_fault(
    tree: Path, fault: Fault, rows: Iterable[str], draws: str, *, run_on: bool = False
) -> Result:
    """Run the tests of a planted fault."""
    limit_s = SLOW_LIMIT_S if fault.slow else FAST_LIMIT_S
    return run_tests(tree, fault.tests, rows, limit_s, fault=fault.name, draws=draws, run_on=run_on)


def _unnoticed(rows: Iterable[str], result: Result) -> str | None:
    unnoticed = [row for row in rows if not result.red.get(row)]
    if not unnoticed:
        return None
    broken = f", {len(result.broken)} could not begin" if result.broken else ""
    return (
        f"no red test is marked for {', '.join(unnoticed)}: {len(result.marked)} marked tests"
        f"{broken}, exit code {result.code}:\n{result.tail}"
    )


def _by_draws_alone(fault: Fault, result: Result) -> list[str]:
    """Rows that only drawn examples noticed."""
    return [row for row in fault.rows if set(result.red.get(row, ())) <= result.drawn.keys()]


def drawn_anew(tree: Path, fault: Fault, examples: dict[str, bytes]) -> dict[str, bytes]:
    """Examples that catch a fault: the stored ones that still do, and fresh ones for the rest.

    Tests without draws may notice every row: then nothing is drawn. Of the fresh ones that fail
    the shortest of each test stays.
    """
    sound = plant(tree, fault)
    try:
        result = run_fault(tree, fault, fault.rows, OLD)
        kept = {test: examples[test] for test in examples.keys() & result.all_red()}
        lacking = [row for row in fault.rows if not result.red.get(row)]
        found: dict[str, dict[str, bytes]] = {row: {} for row in lacking}
        times: Counter[str] = Counter()
        for _ in range(STORE_ROUNDS if lacking else 0):
            wanted = [row for row in lacking if times[row] < STORE_CHOICES]
            if not wanted:
                break
            fresh = run_fault(tree, fault, wanted, FRESH)
            for row in wanted:
                for test in fresh.drawn.keys() & set(fresh.red.get(row, ())):
                    example = base64.b64decode(fresh.drawn[test])
                    known = found[row].get(test, example)
                    found[row][test] = min(known, example, key=len)
                    times[row] += 1
    finally:
        (tree / fault.file).write_text(sound)
    for of_row in found.values():
        if of_row:  # one test is enough for a row: that with the shortest example
            test = min(of_row, key=lambda test: len(of_row[test]))
            kept[test] = min(of_row[test], kept.get(test, of_row[test]), key=len)
    return kept


def sound_tests_fail(tree: Path, chosen: Sequence[Fault]) -> str | None:
    """Run all chosen tests without any fault; what they say when they are not green."""
    for slow in (False, True):
        of_kind = [fault for fault in chosen if fault.slow is slow]
        if not of_kind:
            continue
        tests = sorted({test for fault in of_kind for test in fault.tests})
        rows = {row for fault in of_kind for row in fault.rows}
        result = run_tests(tree, tests, rows, SOUND_LIMIT_S, draws=FRESH, run_on=True)
        if result.code != 0:
            return f"the tests fail without any fault:\n{result.tail}\n"
    return None


def tell(result: Result) -> None:
    """List which marked tests noticed a fault and which did not."""
    red = {nodeid for nodeids in result.red.values() for nodeid in nodeids}
    names = Counter(nodeid.partition("[")[0] for nodeid in result.marked)
    for name, cases in sorted(names.items()):
        noticed = sum(nodeid.partition("[")[0] == name for nodeid in red)
        rows = {
            row for nodeid, of in result.marked.items() if nodeid.startswith(name) for row in of
        }
        sys.stdout.write(f"    {noticed:4} of {cases:4} red  {name} ({', '.join(sorted(rows))})\n")


def main() -> int:
    """Plant every fault, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only faults whose name contains one of these")
    parser.add_argument("--fast", action="store_true", help="leave out what needs a control plane")
    parser.add_argument("--all", action="store_true", help="list every test that notices, and not")
    parser.add_argument(
        "--stored", action="store_true", help="only faults that stored examples catch"
    )
    parser.add_argument(
        "--store", action="store_true", help="draw examples for faults that need some, store them"
    )
    parser.add_argument("--trust", action="store_true", help="skip the run without any fault")
    arguments = parser.parse_args()
    examples = load()
    chosen = [
        fault
        for fault in faults()
        if not (fault.slow and (arguments.fast or arguments.store))
        and (fault.name in examples or not arguments.stored)
        and (not arguments.names or any(part in fault.name for part in arguments.names))
    ]
    planted: Counter[str] = Counter()
    noticed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="rackgate-prove-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        if not arguments.trust and (problem := sound_tests_fail(tree, chosen)):
            sys.stderr.write(problem)
            return 1
        for fault in chosen:
            begin = time.monotonic()
            own = examples.get(fault.name, {})
            wrong, result = judge(tree, fault, own, run_on=arguments.all)
            if wrong and arguments.store and renew(tree, fault, examples):
                own = examples[fault.name]
                wrong, result = judge(tree, fault, own, run_on=arguments.all)
            took = time.monotonic() - begin
            planted.update(fault.groups)
            noticed.update(() if wrong else fault.groups)
            mark = "✗" if wrong else "✓"
            sys.stdout.write(f"{mark} {fault.name} ({', '.join(fault.rows)}; {took:.1f} s)\n")
            if wrong:
                sys.stdout.write(f"  {wrong}\n")
            if result is not None and arguments.all:
                tell(result)
            sys.stdout.flush()
    part = arguments.names or arguments.fast or arguments.stored or arguments.store
    return summary(planted, noticed, whole=not part)


def renew(tree: Path, fault: Fault, examples: Examples) -> bool:
    """Draw and store what a fault needs, here and in the copied sources; False if nothing new."""
    known = examples.get(fault.name, {})
    try:
        own = drawn_anew(tree, fault, known)
    except (LookupError, FileNotFoundError):
        return False
    if own == known:
        return False
    examples[fault.name] = own
    group = {one.name for one in faults() if one.group == fault.group}
    of_group = {name: found for name, found in load().items() if name in group}
    of_group[fault.name] = own
    store(fault.group, of_group)
    store(fault.group, of_group, tree / EXAMPLES.relative_to(ROOT))
    size = sum(map(len, own.values()))
    sys.stdout.write(f"  stored: {len(own)} examples of {size} bytes\n")
    return True


def summary(planted: Counter[str], noticed: Counter[str], *, whole: bool) -> int:
    """Print the figures per ledger group; 1 when something is unnoticed, or a group is bare."""
    for group in LEAST:
        if planted[group] or whole:
            sys.stdout.write(f"{group}: {noticed[group]} of {planted[group]} faults were noticed\n")
    bare = [group for group, least in LEAST.items() if planted[group] < least] if whole else []
    if bare:
        sys.stdout.write(f"too few faults for {', '.join(bare)}\n")
    return 1 if bare or planted != noticed else 0


if __name__ == "__main__":
    sys.exit(main())
