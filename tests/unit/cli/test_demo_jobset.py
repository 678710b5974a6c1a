"""What the demo promises of JobSets, judged on seats alone."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate_cli.demo.jobset import EVAL, JOBS, TRAIN, failed_checks, manifest, rank_of
from rackgate_cli.demo.story import JOBSET_NAMES, BoundPod

LEADER = [BoundPod(0, "b1", "r4", "b1-r4-n1")]


def workers(jobs: int, block: str = "b1") -> list[BoundPod]:
    return [
        BoundPod(job * 8 + pod, block, f"r{job + 1}", f"{block}-r{job + 1}-n{pod + 1}")
        for job in range(jobs)
        for pod in range(8)
    ]


def test_kept_promises_are_not_reported() -> None:
    assert failed_checks(TRAIN, workers(3), LEADER) == []
    assert failed_checks(EVAL, workers(2, "b2")) == []


def test_a_job_that_leaves_its_rack_is_reported() -> None:
    taken = workers(3)
    taken[9] = BoundPod(9, "b1", "r4", "b1-r4-n8")
    (line,) = failed_checks(TRAIN, taken, LEADER)
    assert "job 1 run in" in line


def test_a_leader_in_another_block_is_reported() -> None:
    (line,) = failed_checks(TRAIN, workers(3), [BoundPod(0, "b2", "r1", "x")])
    assert "required one block" in line


def test_a_missing_leader_and_missing_workers_are_reported() -> None:
    lines = failed_checks(TRAIN, workers(3)[1:])
    assert any("leaders" in line for line in lines)
    assert any("ranks" in line for line in lines)


def test_ranks_run_over_job_index_and_completion_index() -> None:
    labels = {names.JOB_INDEX_LABEL: "2", names.COMPLETION_INDEX_LABEL: "3"}
    assert rank_of({"metadata": {"labels": labels}}) == 19


@pytest.mark.parametrize("name", JOBSET_NAMES)
def test_each_job_asks_for_a_rack_and_all_for_a_block(name: str) -> None:
    parts = manifest(name)["spec"]["replicatedJobs"]
    assert parts[-1]["replicas"] == JOBS[name]
    annotations = parts[-1]["template"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations[names.SLICE_SIZE] == "8"
    assert [part["name"] for part in parts] == (["leader"] if name == TRAIN else []) + ["workers"]
