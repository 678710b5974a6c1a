"""The assigner never forgets a Job that something may have changed for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.apiserver import Fault, Object
from tests.support.apiserver_faults import Handler
from tests.support.objects import POOL_LABEL, RACK
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with World() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


def _value(name: str, value: int, **more: object) -> Object:
    return {"metadata": {"name": name}, "value": value, **more}


def _make_room(world: World) -> None:
    """Room for five pods of 4 cpu in one rack."""
    bigger = {"cpu": "16", "memory": "32Gi", "pods": "110"}
    for name in ("pool-11-1", "pool-11-2"):
        world.change(kinds.NODES, name, lambda o: o["status"].update(allocatable=bigger))


@pytest.mark.requirement("OPS-07")
async def test_a_waiting_job_follows_a_new_value_of_its_class_and_starts(world: World) -> None:
    world.put(kinds.WORKLOAD_PRIORITY_CLASSES, _value("high", 7))
    async with assigner(world):
        world.submit("train", 5, required=RACK, labels={names.PRIORITY_CLASS_LABEL: "high"})
        await eventually(world.shows("train", "QuotaReserved", "False"))
        world.put(kinds.WORKLOAD_PRIORITY_CLASSES, _value("high", 9))
        await eventually(lambda: world.workload("train")["spec"]["priority"] == 9)
        _make_room(world)
        await eventually(world.started("train"))


@pytest.mark.requirement("OPS-07")
async def test_a_default_class_that_comes_or_goes_strands_no_waiting_job(world: World) -> None:
    async with assigner(world):
        world.submit("train", 5, required=RACK)
        await eventually(world.shows("train", "QuotaReserved", "False"))
        world.put(kinds.PRIORITY_CLASSES, _value("normal", 5, globalDefault=True))
        await eventually(lambda: world.workload("train")["spec"]["priority"] == 5)
        world.remove(kinds.PRIORITY_CLASSES, "normal")
        await eventually(lambda: world.workload("train")["spec"]["priority"] == 0)
        _make_room(world)
        await eventually(world.started("train"))


async def test_jobs_whose_pods_would_be_rejected_start_when_what_rejects_them_changes(
    world: World,
) -> None:
    most = {"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "2"}}
    named = {"name": "limits", "namespace": NAMESPACE}
    world.put(kinds.LIMIT_RANGES, {"metadata": named, "spec": {"limits": [most]}})
    async with assigner(world):
        world.submit("large", 1, required=RACK)
        world.submit("boxed", 1, cpu="1", required=RACK, pod={"runtimeClassName": "kata"})
        for name in ("large", "boxed"):
            await eventually(world.shows(name, "QuotaReserved", "False", "Misconfigured"))
        world.put(kinds.RUNTIME_CLASSES, {"metadata": {"name": "kata"}})
        await eventually(world.started("boxed"))
        world.remove(kinds.LIMIT_RANGES, "limits", NAMESPACE)
        await eventually(world.started("large"))


async def test_a_class_that_goes_is_no_news_for_a_job_that_has_its_workload(world: World) -> None:
    world.put(kinds.WORKLOAD_PRIORITY_CLASSES, _value("high", 7))
    async with assigner(world):
        world.submit("train", required=RACK, labels={names.PRIORITY_CLASS_LABEL: "high"})
        await eventually(world.started("train"))
        world.remove(kinds.WORKLOAD_PRIORITY_CLASSES, "high")
        world.change(kinds.JOBS, "train", lambda o: o["metadata"]["labels"].update(seen="again"))
        world.submit("marker", queue="plain")
        await eventually(world.started("marker"))
        assert world.workload("train")["spec"]["priority"] == 7
    assert world.events("WorkloadPriorityClassNotFound") == []


@pytest.mark.requirement("OPS-07")
async def test_what_was_decided_during_a_write_is_decided_again_after_it(world: World) -> None:
    answered = asyncio.Event()

    async def late(_: web.Request, handle: Handler) -> web.StreamResponse:
        answer = await handle()
        await answered.wait()
        return answer

    world.faults.append(Fault(late, method="PATCH", path="/workloads/job-train"))
    async with assigner(world) as replica:
        world.submit("train", required=RACK)
        await eventually(world.shows("train", "PodsReady", "True"))
        name = world.workload("train")["metadata"]["name"]
        cycles = replica.scheduler.cycles
        world.change(kinds.WORKLOADS, name, lambda o: o["spec"].update(active=False))
        await eventually(lambda: replica.scheduler.cycles > cycles)
        answered.set()
        await eventually(world.shows("train", "Evicted", "True", "Deactivated"))
        await eventually(lambda: not world.runs("train"))


@pytest.mark.parametrize("meanwhile", [False, True], ids=["running", "restarted"])
async def test_a_pending_workload_that_its_user_deactivates_says_so(
    world: World, meanwhile: bool
) -> None:
    def activate(name: str, active: bool) -> None:
        world.change(kinds.WORKLOADS, name, lambda own: own["spec"].update(active=active))

    async with assigner(world):
        world.submit("large", count=1000)
        await eventually(world.shows("large", "QuotaReserved", "False", "ExceedsMaxQuota"))
        name = world.workload("large")["metadata"]["name"]
        if not meanwhile:
            activate(name, False)
            await eventually(world.shows("large", "QuotaReserved", "False", "Suspended"))
            activate(name, True)
            await eventually(world.shows("large", "QuotaReserved", "False", "ExceedsMaxQuota"))
    if meanwhile:
        activate(name, False)
        async with assigner(world):
            await eventually(world.shows("large", "QuotaReserved", "False", "Suspended"))


async def test_a_job_that_failed_to_start_is_queued_again_by_another_queue(world: World) -> None:
    def two_groups(queue: Object) -> None:
        quota = [{"name": "memory", "nominalQuota": "64Gi"}]
        flavor = {"name": "slow", "resources": quota}
        queue["spec"]["resourceGroups"].append(
            {"coveredResources": ["memory"], "flavors": [flavor]}
        )

    slow = {"metadata": {"name": "slow"}, "spec": {"nodeLabels": {POOL_LABEL: "third"}}}
    world.put(kinds.FLAVORS, slow)
    world.change(kinds.CLUSTER_QUEUES, "plain", two_groups)
    requests = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    async with assigner(world):
        world.submit("train", queue="plain", pod={"containers": [{"name": "c", **requests}]})
        await eventually(world.shows("train", "Finished", "True", "FailedToStart"))
        label = {names.QUEUE_LABEL: "elsewhere"}
        world.change(kinds.JOBS, "train", lambda o: o["metadata"].update(labels=label))
        await eventually(world.shows("train", "QuotaReserved", "False", "Misconfigured"))
        assert world.workload("train")["spec"]["queueName"] == "elsewhere"


async def test_a_name_that_was_taken_for_a_moment_is_tried_again(world: World) -> None:
    world.faults.append(Fault.status(409, "AlreadyExists", method="POST", path="/workloads"))
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(world.started("train"))


async def test_nothing_is_remembered_of_jobs_that_are_gone(world: World) -> None:
    async with assigner(world) as replica:
        world.submit("train", required=RACK, labels={names.PRIORITY_CLASS_LABEL: "never"})
        await eventually(lambda: world.events("WorkloadPriorityClassNotFound"))
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: not replica.watches.kinds["Job"].store)
        assert not replica.jobs.waiting


@pytest.mark.requirement("OPS-07")
async def test_a_workload_whose_admission_is_rejected_for_ever_blocks_no_one(world: World) -> None:
    refused = Fault.status(422, "Invalid", "no way", method="PATCH", path="/workloads/job-first")
    refused.times = 1000
    world.faults.append(refused)
    async with assigner(world):
        world.submit("first", 16, preferred=RACK)
        await eventually(lambda: refused.times < 1000)
        world.submit("second", 16, preferred=RACK)
        await eventually(world.started("second"))
        await eventually(lambda: world.events("WorkloadUpdateRefused"))
    assert world.events("WorkloadUpdateRefused")[0]["note"] == "no way"


@pytest.mark.requirement("OPS-09")
@pytest.mark.parametrize("path", ["/jobs/train", "/workloads"])
async def test_who_forbids_what_a_job_needs_is_asked_to_its_user(world: World, path: str) -> None:
    method = "POST" if path == "/workloads" else "PATCH"
    world.faults.append(Fault.status(403, "Forbidden", "policy says no", method=method, path=path))
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(world.started("train"))
        told = "ErrWorkloadCompose" if path == "/workloads" else "JobUpdateRefused"
        await eventually(lambda: world.events(told))
    assert "policy says no" in world.events(told)[0]["note"]
