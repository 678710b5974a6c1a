"""What a failed test on a cluster tells: pods instead of `[]`, objects in short, services' logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rackgate.api import resources as kinds
from tests.support import evidence, in_short
from tests.support.cluster import WaitedTooLongError, exactly_bound
from tests.support.objects import Object
from tests.support.playground import Playground

GATED: Object = {
    "metadata": {"name": "train-1", "deletionTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"schedulingGates": [{"name": "example.com/a"}, {"name": "example.com/b"}]},
    "status": {"phase": "Pending"},
}
BOUND: Object = {
    "metadata": {"name": "train-0"},
    "spec": {"nodeName": "n1"},
    "status": {"phase": "Running"},
}


async def test_waiting_in_vain_for_bound_pods_tells_each_pod_that_was_seen() -> None:
    async def seen() -> list[Object]:
        return [BOUND, GATED]

    assert await exactly_bound("one", seen, 1) == [BOUND]
    with pytest.raises(WaitedTooLongError) as caught:
        await exactly_bound("3 pods of train are bound", seen, 3, timeout_s=0)
    told = str(caught.value)
    assert "3 pods of train are bound: not within 0 s" in told
    assert "train-0: Running, on n1" in told
    gates = "gated by example.com/a and example.com/b"
    assert f"train-1: Pending, not bound, {gates}, being deleted" in told


def test_a_workload_is_reported_with_its_podsets_and_every_condition() -> None:
    condition = {"type": "QuotaReserved", "status": "False", "reason": "R", "message": "m" * 999}
    found: Object = {
        "metadata": {"name": "w", "ownerReferences": [{"kind": "Job", "name": "train"}]},
        "spec": {"active": False, "podSets": [{"name": "main", "count": 4}]},
        "status": {"conditions": [condition]},
    }
    head, told = in_short.workload(found).splitlines()
    assert head == "w: podsets main 4; nothing granted; not active; of Job train"
    assert told.strip().startswith("QuotaReserved=False R: mmm")
    assert len(told) < 300


def test_a_job_is_reported_with_its_counts() -> None:
    status = {"active": 2, "failed": 0, "conditions": [{"type": "Complete", "status": "True"}]}
    found: Object = {
        "metadata": {"name": "train"},
        "spec": {"parallelism": 4, "suspend": True},
        "status": status,
    }
    head, told = in_short.job(found).splitlines()
    assert head == "train: suspended, parallelism 4, active 2"
    assert told.strip() == "Complete=True :"


@pytest.mark.parametrize("short", [short for _, short in evidence.SHOWN])
@pytest.mark.parametrize("found", [{}, {"metadata": None, "spec": None, "status": None}])
def test_an_object_without_anything_is_reported_as_well(found: Object, short: object) -> None:
    assert callable(short)
    assert isinstance(short(found), str)


def test_of_events_the_last_are_reported_in_their_order() -> None:
    made = [
        {"reason": f"R{n}", "regarding": {"name": "w"}, "eventTime": f"2026-01-01T00:{n:02}:00Z"}
        for n in range(59)
    ]
    head, *lines = evidence.in_lines(kinds.EVENTS, in_short.event, reversed(made))
    assert head == f"Event: {evidence.EVENTS}"
    assert [line.split()[1] for line in lines] == [f"R{n}" for n in range(34, 59)]


def test_of_a_log_the_last_lines_about_the_namespace_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "assigner-0.log"
    lines = [f'{{"n":{n},"namespace":"{"mine" if n % 2 else "other"}"}}' for n in range(200)]
    log.write_bytes("\n".join([*lines, '"mine" ' + "x" * 5000]).encode() + b"\n\xff")
    first, *told = evidence.mentions(log, "mine").splitlines()
    assert first == "(41 earlier lines)"
    assert len(told) == evidence.LOG_LINES
    assert told[0].startswith('{"n":83,')
    assert told[-1].startswith('"mine" xxx')
    assert len(told[-1]) == evidence.LOG_WIDTH
    assert evidence.mentions(log, "nobody") == "no line of 202"
    assert "cannot be read" in evidence.mentions(tmp_path / "none.log", "mine")


def test_a_cluster_that_is_gone_is_reported_and_nothing_is_raised(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("assigner-0", "webhook-1", "etcd"):
        (logs / f"{name}.log").write_text("about mine\n")
    gone = Playground(tmp_path, tmp_path / "kubeconfig", "https://127.0.0.1:1")
    told = dict(evidence.about(gone, "mine"))
    assert list(told) == [
        "namespace mine",
        "log of assigner-0 about mine",
        "log of webhook-1 about mine",
    ]
    assert told["namespace mine"].startswith("cannot be read: ")
    assert told["log of assigner-0 about mine"] == "about mine"
    assert "about mine" in evidence.text(gone, "mine")


def test_a_test_without_a_cluster_has_nothing_to_show() -> None:
    assert evidence.sections({"tmp_path": Path(), "playground": None}) == []
