"""Stored examples are those that failed, and every landing tries them."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import SkipTest

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from tests.prove.run import ROOT, faults
from tests.prove.stored import Recorder, StoredExamples, load, store

FAULTS = {fault.name: fault for fault in faults()}
STORED = [(fault, test) for fault, tests in load().items() for test in tests]


class FoundError(Exception):
    """A drawn value for which the code under test is wrong."""


def run(database: ExampleDatabase, phase: Phase, limit: int) -> None:
    """A property that fails for one value in twenty."""

    @settings(database=database, phases=(phase,), derandomize=False, max_examples=2000)
    @given(st.integers(0, 2**40), st.text(max_size=3))
    def holds(number: int, _text: str) -> None:
        if number % 20 == 7 and number > limit:
            raise FoundError

    holds()


def test_what_failed_once_fails_again_without_drawing() -> None:
    recorder = Recorder()
    recorder.test = "tests/test_numbers.py::test_holds"
    with pytest.raises(FoundError):
        run(recorder, Phase.generate, 1000)
    stored = StoredExamples([recorder.saved])
    stored.test = "tests/test_numbers.py::test_another"
    with pytest.raises(SkipTest):  # it has nothing to run
        run(stored, Phase.reuse, 1000)
    assert stored.given == set()
    stored.test = recorder.test
    with pytest.raises(FoundError):
        run(stored, Phase.reuse, 1000)
    run(stored, Phase.reuse, 2**40)  # the sound code
    with pytest.raises(FoundError):
        run(stored, Phase.reuse, 1000)
    assert stored.given == {recorder.test}


def test_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    examples = {"a-fault": {"tests/b.py::test_b": b"\x01", "tests/a.py::test_a": b""}}
    store("TAS", examples | {"without": {}}, tmp_path)
    assert load(tmp_path) == examples
    assert [file.name for file in tmp_path.iterdir()] == ["tas.json"]
    store("TAS", {}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("fault", "test"), STORED)
def test_a_stored_example_is_of_a_fault_and_of_one_of_its_tests(fault: str, test: str) -> None:
    assert fault in FAULTS
    file, _, name = test.partition("::")
    assert any(file == part or file.startswith(f"{part}/") for part in FAULTS[fault].tests)
    top = name.partition("::")[0].partition("[")[0]
    assert re.search(rf"^(async def|def|class) {top}\b", (ROOT / file).read_text(), re.MULTILINE)
