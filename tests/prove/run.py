"""Plants one fault at a time in a copy of the sources; each must turn its tests red.

Faults are kept in `faults.yaml` beside this file: the file, what is found there, what replaces it,
the ledger rows that it breaks, and the tests that must notice. A fault that no longer applies, or
that its tests do not notice, fails the run. The tests are first run on the sound copy: they must
be green there, so that a red one means the fault.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("shared", "services", "cli", "tests", "deploy", "docs", "bench", "requirements")
FILES = ("pyproject.toml", "docker-compose.yaml", "Dockerfile", "README.md", "Makefile")


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault."""

    name: str
    rows: tuple[str, ...]
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]


def faults() -> list[Fault]:
    """All faults of faults.yaml, in its order."""
    raw = yaml.safe_load((Path(__file__).parent / "faults.yaml").read_text())
    return [
        Fault(
            entry["name"],
            tuple(entry["rows"]),
            entry["file"],
            entry["find"],
            entry["replace"],
            tuple(entry["tests"]),
        )
        for entry in raw
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


def run_tests(tree: Path, tests: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run tests against the copied sources: its folders come first on the path."""
    folders = [
        tree / "shared",
        *(tree / "services" / name for name in ("webhook", "assigner", "ungater")),
        tree / "cli",
        tree,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:randomly"]
    return subprocess.run(
        [*command, *tests],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


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


def judge(tree: Path, fault: Fault) -> str | None:
    """None when the tests notice the fault, else what is wrong."""
    try:
        sound = plant(tree, fault)
    except (LookupError, FileNotFoundError) as error:
        return str(error)
    try:
        result = run_tests(tree, fault.tests)
    finally:
        (tree / fault.file).write_text(sound)
    if result.returncode == 1:
        return None
    tail = "\n".join(result.stdout.splitlines()[-5:])
    return f"no test turned red (exit code {result.returncode}):\n{tail}"


def main() -> int:
    """Plant every fault, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only faults whose name contains one of these")
    arguments = parser.parse_args()
    chosen = [
        fault
        for fault in faults()
        if not arguments.names or any(part in fault.name for part in arguments.names)
    ]
    failures = 0
    with tempfile.TemporaryDirectory(prefix="rackgate-prove-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        every = sorted({test for fault in chosen for test in fault.tests})
        sound = run_tests(tree, every)
        if sound.returncode != 0:
            sys.stderr.write(f"the tests fail without any fault:\n{sound.stdout[-3000:]}\n")
            return 1
        for fault in chosen:
            begin = time.monotonic()
            wrong = judge(tree, fault)
            mark = "✗" if wrong else "✓"
            took = time.monotonic() - begin
            sys.stdout.write(f"{mark} {fault.name} ({', '.join(fault.rows)}; {took:.1f} s)\n")
            sys.stdout.flush()
            if wrong:
                failures += 1
                sys.stderr.write(f"  {wrong}\n")
    sys.stdout.write(f"{len(chosen) - failures} of {len(chosen)} faults were noticed\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
