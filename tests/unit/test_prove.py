"""The planted faults still fit the sources; `make prove` plants them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.prove.run import FAULTS, LEAST, ROOT, Fault, faults
from tests.support.reference.behaviour import ledger

ALL = faults()


@cache
def marked_rows(path: str) -> set[str]:
    """Rows named by marks in a file or folder of tests."""
    place = ROOT / path
    files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
    found: set[str] = set()
    for file in files:
        for arguments in re.findall(r"mark\.requirement\(([^)]*)\)", file.read_text()):
            found.update(re.findall(r'"([A-Z]+-\d+)"', arguments))
    return found


@pytest.mark.parametrize("fault", ALL, ids=lambda fault: fault.name)
def test_a_fault_fits_its_file_and_names_rows_and_tests_that_are_there(fault: Fault) -> None:
    sound = (ROOT / fault.file).read_text()
    assert sound.count(fault.find) == 1, f"{fault.file}: the text to replace"
    assert fault.replace != fault.find
    assert fault.rows
    assert set(fault.rows) <= set(ledger())
    assert all((ROOT / test).exists() for test in fault.tests)
    assert set(fault.rows) <= set().union(*map(marked_rows, fault.tests)), "marks"


@pytest.mark.parametrize("fault", [f for f in ALL if f.file.endswith(".py")], ids=lambda f: f.name)
def test_a_planted_fault_is_python_still(fault: Fault) -> None:
    sound = (ROOT / fault.file).read_text()
    compile(sound.replace(fault.find, fault.replace), fault.file, "exec")


@pytest.mark.parametrize("fault", [f for f in ALL if f.file.endswith("yaml")], ids=lambda f: f.name)
def test_a_planted_fault_is_yaml_still(fault: Fault) -> None:
    sound = (ROOT / fault.file).read_text()
    assert list(yaml.safe_load_all(sound.replace(fault.find, fault.replace)))


def test_only_slow_faults_need_a_control_plane() -> None:
    for fault in ALL:
        on_cluster = [test.startswith(("tests/integration", "tests/chaos")) for test in fault.tests]
        assert on_cluster == [fault.slow] * len(fault.tests), fault.name


def test_every_group_has_its_faults() -> None:
    planted = Counter(group for fault in ALL for group in fault.groups)
    assert {group: planted[group] for group in LEAST if planted[group] < LEAST[group]} == {}


@pytest.mark.parametrize(
    "file", sorted((ROOT / "tests").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT))
)
def test_marks_stand_on_tests(file: Path) -> None:
    """A mark on a helper that was written in between marks nothing."""
    misplaced = [
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.lower().startswith("test")
        and any("pytest.mark." in ast.unparse(mark) for mark in node.decorator_list)
    ]
    assert misplaced == []


def test_every_claimed_row_has_a_planted_fault() -> None:
    claimed = marked_rows("tests")
    planted = {row for fault in ALL for row in fault.rows}
    assert sorted(claimed - planted) == []


def test_names_of_faults_differ() -> None:
    assert len({fault.name for fault in ALL}) == len(ALL)


def test_a_fault_stands_in_the_file_of_its_first_rows_group() -> None:
    for file in FAULTS.glob("*.yaml"):
        for entry in yaml.safe_load(file.read_text()):
            assert entry["rows"][0].partition("-")[0].lower() == file.stem, entry["name"]
