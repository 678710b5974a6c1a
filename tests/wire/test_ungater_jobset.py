"""Pods of JobSets and of RayClusters' clean-up: whose they are, in which order they go."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api.resources import JOBS, PODS, WORKLOADS
from rackgate.kube.client import METADATA, METADATA_LIST
from tests.support.waiting import until
from tests.wire.ungater_world import R1, R2, STREAMS, Object, Replica, World, sample

Start = Callable[..., Replica]

OWNER = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "name": "train",
    "uid": "train-jobset",
    "controller": True,
}


def jobset(world: World, counts: dict[tuple[str, ...], int], *, replicas: int) -> None:
    """The Workload of a JobSet with one replicatedJob, admitted."""
    made = copy.deepcopy(world.workload(counts))
    made["metadata"]["ownerReferences"] = [OWNER]
    (podset,) = made["spec"]["podSets"]
    podset["topologyRequest"] = {
        "required": "rack",
        "podIndexLabel": names.COMPLETION_INDEX_LABEL,
        "subGroupIndexLabel": names.JOB_INDEX_LABEL,
        "subGroupCount": replicas,
    }
    world.server.put(WORKLOADS, made)


def child_job(world: World, job: int, *, attempt: int = 0) -> None:
    meta = {
        "name": f"train-main-{job}",
        "namespace": "team",
        "uid": f"job-{job}-{attempt}",
        "labels": {names.JOBSET_NAME_LABEL: "train", names.JOB_INDEX_LABEL: str(job)},
        "ownerReferences": [OWNER],
    }
    spec = {"template": {"spec": {"containers": [{"name": "main", "image": "x" * 1000}]}}}
    world.server.put(JOBS, {"metadata": meta, "spec": spec})


def pod(world: World, job: int, index: int, *, attempt: int = 0, **metadata: Any) -> str:
    """A pod of a child Job; returns its name."""
    name = f"train-main-{job}-{index}-{attempt}"
    labels = {
        names.PODSET_LABEL: "main",
        names.TAS_LABEL: "true",
        names.COMPLETION_INDEX_LABEL: str(index),
        names.JOB_INDEX_LABEL: str(job),
        names.JOB_REPLICAS_LABEL: "2",
        names.RESTART_ATTEMPT_LABEL: str(attempt),
    }
    meta: Object = {
        "name": name,
        "namespace": "team",
        "labels": labels,
        "annotations": {names.WORKLOAD_ANNOTATION: "train"},
        "ownerReferences": [
            {"kind": "Job", "name": "j", "uid": f"job-{job}-{attempt}", "controller": True}
        ],
        **metadata,
    }
    spec = {"schedulingGates": [{"name": names.TOPOLOGY_GATE}], "nodeSelector": {}}
    world.server.put(PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
    return name


@pytest.mark.requirement("TAS-28", "RNK-03", "RNK-07", "USR-08")
async def test_pods_wait_for_their_child_jobs_and_go_where_their_ranks_say(
    world: World, start: Start
) -> None:
    jobset(world, {R2: 3, R1: 1}, replicas=2)
    for job in (1, 0):
        for index in (1, 0):
            pod(world, job, index)
    replica = start()
    await replica.knows(4)
    await until(lambda: replica.leads)
    await replica.idle()
    assert world.asked("PATCH") == []
    child_job(world, 0)
    await world.released(2)
    child_job(world, 1)
    await world.released(4)
    assert world.domains() == {
        "train-main-0-0-0": R2,
        "train-main-0-1-0": R2,
        "train-main-1-0-0": R2,
        "train-main-1-1-0": R1,
    }
    assert world.events() == []


@pytest.mark.requirement("TAS-28")
async def test_of_child_jobs_and_nodes_only_the_metadata_is_asked_for(
    world: World, start: Start
) -> None:
    child_job(world, 0)
    replica = start(lead=False)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    jobs, nodes = world.asked("GET", "/jobs"), world.asked("GET", "/nodes")
    for asked in (jobs, nodes):
        assert {r.headers["Accept"] for r in asked if r.watch} == {METADATA}
        assert {r.headers["Accept"] for r in asked if not r.watch} == {METADATA_LIST}
    assert {r.query["labelSelector"] for r in jobs} == {names.JOBSET_NAME_LABEL}
    others = [r for r in world.server.requests if not r.path.endswith(("/jobs", "/nodes"))]
    assert {r.headers["Accept"] for r in others} == {"application/json"}


async def test_without_any_jobset_the_list_is_empty_and_the_replica_ready(
    world: World, start: Start
) -> None:
    world.workload({R1: 1})
    world.pods(0)
    replica = start()
    await world.released(1)
    assert replica.ungater.missing() == []
    assert len(replica.ungater.machine.owners) == 0


@pytest.mark.requirement("UNG-10", "RNK-06")
async def test_a_restarted_jobset_waits_for_the_pods_of_its_earlier_attempt(
    world: World, start: Start
) -> None:
    jobset(world, {R1: 1, R2: 1}, replicas=2)
    for job in (0, 1):
        child_job(world, job)
        pod(world, job, 0)
    replica = start()
    await world.released(2)
    await replica.has_no_open_requests()
    for job in (0, 1):  # one Job is gone before its pods are, under one name all the time
        child_job(world, job, attempt=1)
        pod(world, job, 0, attempt=1)
    await until(lambda: len(replica.ungater.machine.owners) == 2)
    await replica.knows(4)
    await replica.idle()
    assert len(world.asked("PATCH")) == 2, "both places are taken"
    world.server.remove(PODS, "train-main-1-0-0", "team")
    await world.released(2)
    await until(lambda: "train-main-1-0-1" in world.domains())
    assert world.domains()["train-main-1-0-1"] == R2
    world.server.remove(PODS, "train-main-0-0-0", "team")
    await until(lambda: world.domains().get("train-main-0-0-1") == R1)
    assert world.events() == []


@pytest.mark.field_note("E20")
async def test_pods_that_clean_up_behind_a_raycluster_are_never_touched(
    world: World, start: Start
) -> None:
    """They come from the head's template, with gate and marks, and their Workload may be gone."""
    meta = copy.deepcopy(world.pod(0)["metadata"])
    meta["labels"][names.RAY_NODE_TYPE_LABEL] = names.RAY_CLEANUP_TYPE
    world.server.put(PODS, {**(world.server.get(PODS, "train-0", "team") or {}), "metadata": meta})
    meta = copy.deepcopy(world.pod(1)["metadata"])
    meta["labels"][names.RAY_NODE_TYPE_LABEL] = "worker"
    world.server.put(PODS, {**(world.server.get(PODS, "train-1", "team") or {}), "metadata": meta})
    replica = start(resync_period=1)
    await replica.knows(1)
    await until(lambda: sample("gated_pods_without_workload") == 1)
    world.workload({R1: 2})
    await world.released(1)
    await replica.idle()
    assert set(world.domains()) == {"train-1"}
    assert len(world.asked("PATCH")) == 1
