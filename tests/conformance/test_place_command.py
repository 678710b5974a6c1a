"""`rackgate place` answers scenario files, plain or gzipped, one JSON line per scenario."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rackgate_cli import place
from rackgate_cli.__main__ import main

DATA = Path(__file__).parent / "data" / "tas"


@pytest.mark.parametrize("packed", [True, False], ids=["gzipped", "plain"])
def test_place_prints_one_answer_per_line_in_the_order_of_the_file(
    packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = DATA / "table-cases.json.gz"
    body = gzip.decompress(file.read_bytes())
    if not packed:
        file = tmp_path / "cases.json"
        file.write_bytes(body)
    asked = json.loads(body)["scenarios"]
    assert main(["place", str(file)]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers == [{"id": one["id"], "expected": one["expected"]} for one in asked]


SCENARIO = {
    "id": "one",
    "levels": ["kubernetes.io/hostname"],
    "flavor": {"topology": "default"},
    "nodes": [],
    "podSets": [{"name": "main", "count": 1, "requests": {"cpu": "1"}}],
}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "truncated"),
        (b"\xff\xfe", "the file is not UTF-8: invalid start byte"),
        (b"\x1f\x8b\x08broken", "is not a complete gzip file"),
        (
            b'{"format": "tas-scenario/9", "scenarios": []}',
            'format: "tas-scenario/9": must be "tas-scenario/1"',
        ),
        (
            b'{"format": "tas-scenario/1", "scenarios": [{"id": 4}]}',
            "scenarios[0].id: 4: must be a string",
        ),
        (
            json.dumps(
                {
                    "format": "tas-scenario/1",
                    "scenarios": [
                        SCENARIO,
                        {**SCENARIO, "id": "two", "usage": [], "gates": {"Nonsense": True}},
                    ],
                }
            ).encode(),
            'scenarios[1].gates: "Nonsense": unknown feature gate (known: Elastic',
        ),
        (
            json.dumps(
                {
                    "format": "tas-scenario/1",
                    "scenarios": [
                        {
                            **SCENARIO,
                            "podSets": [{"name": "m", "count": 1, "requests": {"cpu": "x"}}],
                        }
                    ],
                }
            ).encode(),
            'scenarios[0].podSets[0].requests["cpu"]: "x": must be a quantity',
        ),
    ],
)
def test_a_bad_file_is_rejected_with_its_fault_and_prints_no_answer(
    body: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(body)
    assert main(["place", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert str(file) in printed.err


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["place", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", [".", "no\0name", "x" * 5000])
def test_what_is_no_file_is_said_without_a_traceback(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["place", name]) == 2
    assert "cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_too_large_is_not_read_whole(
    packed: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(place, "MAX_BYTES", 1 << 20)
    body = b" " * (5 << 20)
    file = tmp_path / "large.json"
    file.write_bytes(gzip.compress(body) if packed else body)
    assert main(["place", str(file)]) == 2
    assert "is larger than 1 MiB: split its scenarios" in capsys.readouterr().err
