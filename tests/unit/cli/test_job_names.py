"""How jobs are named on the command line, and which Workloads are meant."""

from __future__ import annotations

import msgspec
import pytest

from rackgate.wire.core import OwnerReference
from rackgate.wire.kueue import Workload
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.get import kinds
from rackgate_cli.jobs.names import JobName, choose, name_of, parse
from tests.unit.assigner.builders import workload

APIS = {"Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}


def owned(name: str, kind: str = "", owner: str = "") -> Workload:
    """A Workload of a job, or of none."""
    reference = OwnerReference(
        api_version=APIS.get(kind, ""), kind=kind, name=owner, uid=f"uid-{owner}", controller=True
    )
    found = workload(name)
    references = (reference,) if kind else ()
    meta = msgspec.structs.replace(found.metadata, owner_references=references)
    return msgspec.structs.replace(found, metadata=meta)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("train", ""),
        ("job/train", "Job"),
        ("Job/train", "Job"),
        ("jobs.batch/train", "Job"),
        ("job.batch/train", "Job"),
        ("workload.kueue.x-k8s.io/train", "Workload"),
        ("jobset.jobset.x-k8s.io/train", "JobSet"),
        ("jobset/train", "JobSet"),
        ("rayclusters/train", "RayCluster"),
        ("workload/train", "Workload"),
        ("wl/train", "Workload"),
    ],
)
def test_spellings(text: str, kind: str) -> None:
    assert parse(text) == JobName(kind, "train")


@pytest.mark.parametrize("text", ["", "/", "job/", "/train", "a/b/c", "team-a/train", "cq/train"])
def test_others_are_rejected(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_a_job_is_found_by_its_name_and_its_workloads_name() -> None:
    listed = [owned("job-train-1", "Job", "train"), owned("jobset-eval-2", "JobSet", "eval")]
    for text in ("train", "job/train", "job-train-1", "workload/job-train-1"):
        assert [one.metadata.name for one in choose(parse(text), listed)] == ["job-train-1"]
    assert choose(parse("jobset/train"), listed) == []
    assert str(name_of(listed[1])) == "jobset/eval"
    assert str(name_of(owned("alone"))) == "workload/alone"


def test_a_name_of_several_kinds_must_be_written_with_its_kind() -> None:
    listed = [owned("a", "Job", "train"), owned("b", "JobSet", "train")]
    with pytest.raises(CommandError, match="the name of job/train and of jobset/train"):
        choose(parse("train"), listed)
    assert [one.metadata.name for one in choose(parse("jobset/train"), listed)] == ["b"]


def test_kinds_of_get() -> None:
    assert kinds.parse("queues", ["a"]) == (kinds.Shown("queues"), ["a"])
    assert kinds.parse("cq", []) == (kinds.Shown("queues", "ClusterQueue"), [])
    assert kinds.parse("jobs", ["a"]) == (kinds.Shown("workloads", "Job"), ["job/a"])
    assert kinds.parse("job/a", ["jobset/b"]) == (kinds.Shown("workloads"), ["job/a", "jobset/b"])
    assert kinds.parse("queue/a", []) == (kinds.Shown("queues"), ["a"])
    assert kinds.parse("clusterqueue/a", ["lq/a", "queue/b"]) == (
        kinds.Shown("queues"),
        ["clusterqueue/a", "localqueue/a", "b"],
    )
    assert kinds.parse("clusterqueue.kueue.x-k8s.io/a", [])[1] == ["clusterqueue/a"]
    assert kinds.parse("job.batch/a", [])[1] == ["job/a"]
    assert kinds.parse("workload.kueue.x-k8s.io/a", [])[1] == ["workload/a"]
    assert kinds.parse("topology.kueue.x-k8s.io/a", []) == (kinds.Shown("topology"), ["a"])
    assert kinds.parse("workloads", ["a"])[1] == ["a"]
    with pytest.raises(UsageError, match=r'"b" has no kind: write job/b'):
        kinds.parse("job/a", ["b"])
