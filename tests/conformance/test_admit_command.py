"""`rackgate admit` answers scenario files, plain or gzipped, one JSON line per scenario."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rackgate_cli import admit
from rackgate_cli.__main__ import main

DATA = Path(__file__).parent / "data" / "quota"


@pytest.mark.parametrize("packed", [True, False], ids=["gzipped", "plain"])
def test_admit_prints_one_answer_per_line_in_the_order_of_the_files(
    packed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, asked = [], []
    for name in ("table-cases", "generated-rare"):
        file = DATA / f"{name}.json.gz"
        body = gzip.decompress(file.read_bytes())
        if not packed:
            file = tmp_path / f"{name}.json"
            file.write_bytes(body)
        files.append(str(file))
        asked += json.loads(body)["scenarios"]
    assert main(["admit", *files]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers == [{"id": one["id"], "expected": one["expected"]} for one in asked]


WORKLOAD = {"namespace": "ns", "name": "w", "podSets": [{"name": "main", "count": 1}]}
SCENARIO = {"id": "one", "clusterQueues": [{"name": "q"}], "workloads": [WORKLOAD]}


def file_of(**changes: Any) -> bytes:
    scenarios = [SCENARIO, {**SCENARIO, **changes}]
    return json.dumps({"format": "quota-scenario/1", "scenarios": scenarios}).encode()


def podset(**changes: Any) -> Mapping[str, Any]:
    return {**WORKLOAD, "podSets": [{"name": "main", "count": 1, **changes}]}


QUOTA = {"resources": ["cpu"], "flavors": [{"name": "f", "quotas": {"cpu": {"nominal": "-1"}}}]}
CIRCLE = [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "the file is not JSON: "),
        (b"[]", "must be an object with quota-scenario/1"),
        (b" ", "the file is empty: a quota-scenario/1 document is required"),
        (b"\xff\xfe", "the file is not UTF-8: invalid start byte"),
        (b"\x1f\x8bbroken", "is not a complete gzip file"),
        (b'{"format": "tas-scenario/1"}', 'format: "tas-scenario/1": must be "quota-scenario/1"'),
        (b'{"format": "quota-scenario/1"}', "scenarios: is required"),
        (file_of(id=4), "scenarios[1].id: 4: must be a string"),
        (
            file_of(workloads=[{**WORKLOAD, "priority": "high"}]),
            'scenarios[1].workloads[0].priority: "high": must be a whole number',
        ),
        (
            file_of(workloads=[{**WORKLOAD, "priority": 1 << 40}]),
            "scenarios[1].workloads[0].priority: 1099511627776: must be no more than 2147483647",
        ),
        (
            file_of(workloads=[podset(requests={"cpu": "x"})]),
            'scenarios[1].workloads[0].podSets[0].requests.cpu: "x": must be a quantity',
        ),
        (
            file_of(workloads=[podset(minCount=2)]),
            "scenarios[1].workloads[0].podSets[0].minCount: 2: must be no more than count, 1",
        ),
        (
            file_of(clusterQueues=[{"name": "q", "resourceGroups": [QUOTA]}]),
            "scenarios[1].clusterQueues[0].resourceGroups[0].flavors[0].quotas.cpu.nominal: "
            '"-1": must not be negative',
        ),
        (
            file_of(workloads=[WORKLOAD, WORKLOAD]),
            'scenarios[1].workloads[1]: "ns/w": is in workloads[0] already',
        ),
        (
            file_of(workloads=[{**WORKLOAD, "reservedAt": 1}]),
            "scenarios[1].workloads[0].admission: must be set with reservedAt",
        ),
        (
            file_of(flavors=[{"name": "f", "topology": "t"}]),
            'scenarios[1].flavors[0].topology: "t": must be the name of one of the topologies',
        ),
        (file_of(gates={"Nonsense": True}), 'scenarios[1].gates["Nonsense"]: unknown feature gate'),
        (
            file_of(cohorts=CIRCLE),
            'scenarios[1].cohorts[0].parent: "b": Cohort "a" is above itself',
        ),
    ],
)
def test_a_bad_file_is_rejected_with_its_fault_and_prints_no_answer(
    body: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(body)
    assert main(["admit", str(file)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert str(file) in printed.err


def test_all_faults_of_a_file_are_named_up_to_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(file_of(clusterQueues=[{"name": number} for number in range(30)]))
    assert main(["admit", str(file)]) == 2
    printed = capsys.readouterr().err
    assert "scenarios[1].clusterQueues[19].name: 19: must be a string" in printed
    assert "10 more errors are not shown" in printed


def test_what_is_too_large_is_not_read_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admit, "MAX_BYTES", 1 << 20)
    file = tmp_path / "large.json"
    file.write_bytes(gzip.compress(b" " * (5 << 20)))
    assert main(["admit", str(file)]) == 2
    assert "is larger than 1 MiB: split its scenarios" in capsys.readouterr().err
