"""What the demo reads from the API server, and says about it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from rackgate.api.resources import JOBS, NODES, PODS, WORKLOADS, Resource
from rackgate_cli.demo.demo import not_ready_components
from rackgate_cli.demo.job import FIRST, JobStory
from rackgate_cli.demo.story import BLOCK, RACK
from tests.support.apiserver import FakeApiServer

HOST = {"name": "n", "labels": {BLOCK: "b1", RACK: "r1"}}


Objects = tuple[Resource, dict[str, Any]]


async def look(*objects: Objects) -> tuple[JobStory, list[str]]:
    """What the demo sees of these objects, and which of them are in its way."""
    async with FakeApiServer() as server:
        for kind, obj in objects:
            server.put(kind, obj)
        client = server.client()
        stage = JobStory(client, Console(file=io.StringIO()), limit_s=1)
        await stage.refresh()
        foreign = await stage.foreign()
        await client.close()
    return stage, foreign


def pod(rank: int, phase: str = "Pending", host: str | None = None) -> dict[str, Any]:
    labels = {
        "batch.kubernetes.io/job-name": FIRST.name,
        "batch.kubernetes.io/job-completion-index": str(rank),
    }
    return {
        "metadata": {"namespace": "default", "name": f"p{rank}", "labels": labels},
        "spec": {"nodeName": host} if host else {},
        "status": {"phase": phase},
    }


def workload(**conditions: str) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "default",
            "name": "w",
            "ownerReferences": [{"name": FIRST.name}],
        },
        "status": {
            "conditions": [{"type": name, "status": status} for name, status in conditions.items()]
        },
    }


async def state_with(*pods: dict[str, Any]) -> str:
    job = {"metadata": {"name": FIRST.name, "namespace": "default"}, "status": {}}
    stage, _ = await look(
        (NODES, {"metadata": HOST}),
        (JOBS, job),
        (WORKLOADS, workload(Admitted="True")),
        *((PODS, one) for one in pods),
    )
    return stage.states[FIRST.name]


async def test_a_job_whose_pods_are_still_gated_is_not_called_running() -> None:
    gated = [pod(rank) for rank in range(FIRST.count)]
    assert await state_with(*gated) == "admitted, its pods are being ungated"
    bound = [pod(rank, "Running", "n") for rank in range(FIRST.count)]
    assert await state_with(*bound) == "running"


async def test_a_job_whose_pods_end_is_ending() -> None:
    left = [pod(rank, "Running", "n") for rank in range(1, FIRST.count)]
    assert await state_with(pod(0, "Succeeded", "n"), *left) == "ending"


async def test_what_would_take_the_storys_room_is_named() -> None:
    here = (WORKLOADS, workload(Admitted="True"))
    _, foreign = await look(here, (PODS, pod(0)), (PODS, pod(1, "Succeeded")))
    assert foreign == ["Workload default/w", "pod default/p0"]
    _, foreign = await look((WORKLOADS, workload(Finished="True")))
    assert foreign == []


@pytest.mark.parametrize(
    ("ready", "words"),
    [(True, ""), (False, "\nnot ready: ungater-0 (log: logs/ungater-0.log)")],
)
def test_a_failure_names_the_components_that_are_not_ready(ready: bool, words: str) -> None:
    parts = {"etcd": {"ready": True}, "ungater-0": {"ready": ready, "log": "logs/ungater-0.log"}}
    assert not_ready_components({"components": parts}) == words
