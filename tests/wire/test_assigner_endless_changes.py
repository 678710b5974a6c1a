"""A user changes its own objects before each write that would end their use of quota.

A write that is bound to a version conflicts each time. What the write depends on stays the same,
so it is made all the same (ADR 75).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate_assigner.jobs import controller as jobs_controller
from tests.support.apiserver import Fault, Object
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.assigner_world import NAMESPACE, World, eventually
from tests.wire.test_assigner_preemption import acting, add_condition, submit

pytestmark = pytest.mark.requirement("OPS-07")

Edit = Callable[[Object, int], object]


def note(item: Object, number: int) -> None:
    """An annotation of the user."""
    item["metadata"].setdefault("annotations", {})["example.com/changed"] = str(number)


def switch(item: Object, number: int) -> None:
    """Whether the Workload is active."""
    item["spec"]["active"] = bool(number % 2)


def change_before_writes(world: World, resource: Resource, name: str, edit: Edit) -> list[str]:
    """Change an object before each patch of it, until it is gone; the list of these patches."""
    count, met = itertools.count(1), []

    async def overtake(request: web.Request, handle: Handler) -> web.StreamResponse:
        met.append((await request.read()).decode())
        if world.get(resource, name, NAMESPACE) is not None:
            world.change(resource, name, lambda item: edit(item, next(count)))
        return await handle()

    path = resource.path(NAMESPACE, name)
    world.faults.append(Fault(overtake, method="PATCH", path=path, times=10**6))
    return met


async def start(world: World, priority: str) -> str:
    """Start Job `first`, of four pods; the name of its Workload."""
    submit(world, "first", 4, priority)
    await eventually(world.started("first"))
    name: str = world.workload("first")["metadata"]["name"]
    return name


@pytest.mark.parametrize("edit", [note, switch])
async def test_a_workload_that_its_user_keeps_changing_gives_way(edit: Edit) -> None:
    async with World() as world, acting(world):
        name = await start(world, "low")
        met = change_before_writes(world, kinds.WORKLOADS, name, edit)
        submit(world, "urgent", 4, "high")
        await eventually(world.started("urgent"))
        assert world.condition("first", "Evicted")[0] == "True"
        assert world.condition("first", "QuotaReserved")[0] == "False"
        assert met
        assert world.broken_rules == []


async def test_a_job_that_its_user_keeps_changing_gives_way() -> None:
    async with World() as world, acting(world):
        before = submit(world, "first", 4, "low")["spec"]["template"]
        await eventually(world.started("first"))
        met = change_before_writes(world, kinds.JOBS, "first", note)
        submit(world, "urgent", 4, "high")
        await eventually(world.started("urgent"))
        job = world.job("first")
        assert job["spec"]["template"] == before
        assert names.WORKLOAD_ANNOTATION not in job["metadata"]["annotations"]
        assert len(met) == 2  # the suspension, and the template as its user wrote it
        assert world.broken_rules == []


async def test_a_workload_that_is_deleted_and_changed_gives_its_quota_back() -> None:
    async with World() as world, acting(world):
        submit(world, "first", 4, "low")
        await eventually(world.started("first"))
        old = world.workload("first")["metadata"]
        change_before_writes(world, kinds.WORKLOADS, old["name"], note)
        submit(world, "urgent", 4, "high")
        world.delete(kinds.WORKLOADS, old["name"])
        await eventually(world.started("urgent"))


async def test_a_workload_past_its_time_is_deactivated_whatever_is_changed() -> None:
    async with World() as world, acting(world):
        name = await start(world, "low")
        change_before_writes(world, kinds.WORKLOADS, name, note)
        limit = {"maximumExecutionTimeSeconds": 1}
        labels = {"kueue.x-k8s.io/max-exec-time-seconds": "1"}
        world.change(kinds.JOBS, "first", lambda job: job["metadata"]["labels"].update(labels))
        world.change(kinds.WORKLOADS, name, lambda item: item["spec"].update(limit))
        await eventually(lambda: not world.runs("first"))
        assert world.workload("first")["spec"]["active"] is False


async def test_a_workload_gets_the_lower_priority_of_its_class_whatever_is_changed() -> None:
    async with World() as world, acting(world):
        name = await start(world, "middle")
        change_before_writes(world, kinds.WORKLOADS, name, note)
        lower = {"metadata": {"name": "middle"}, "value": 0}
        world.put(kinds.WORKLOAD_PRIORITY_CLASSES, lower)
        await eventually(lambda: world.workload("first")["spec"]["priority"] == 0)


async def test_another_status_is_not_written_over() -> None:
    """Between the conflict and the second write, another writer changes the status."""
    async with World() as world, acting(world):
        name = await start(world, "low")
        types: list[str] = []

        async def overtake(request: web.Request, handle: Handler) -> web.StreamResponse:
            body = await request.read()
            if b'"Evicted"' not in body or len(types) >= 2:
                return await handle()
            types.append(request.content_type)
            if len(types) == 1:
                world.change(kinds.WORKLOADS, name, lambda item: note(item, 1))
            else:
                world.change(kinds.WORKLOADS, name, add_condition)
            return await handle()

        world.faults.append(Fault(overtake, method="PATCH", path=f"{name}/status", times=10**6))
        submit(world, "urgent", 4, "high")
        await eventually(world.started("urgent"))
        assert types == ["application/apply-patch+yaml", "application/json-patch+json"]
        kept = [one["type"] for one in world.workload("first")["status"]["conditions"]]
        assert "Other" in kept


class StarvedWorld(World):
    """The status of a Job named `first` stays as it is from `starved` on."""

    starved = False

    def _job_changes(self, item: Object, known: Object | None) -> None:
        kept = known["status"] if known is not None else {}
        super()._job_changes(item, known)
        if self.starved and item["metadata"]["name"] == "first":
            item["status"] = kept


def pod(world: World, **spec: Any) -> Object:
    """A pod of Job `first`."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "first",
        "uid": world.job("first")["metadata"]["uid"],
        "controller": True,
    }
    labels = {"batch.kubernetes.io/controller-uid": owner["uid"]}
    meta = {"name": "first-0", "namespace": NAMESPACE, "labels": labels, "ownerReferences": [owner]}
    return {"metadata": meta, "spec": {"containers": [], **spec}, "status": {"phase": "Pending"}}


async def test_a_job_without_pods_gives_its_quota_back_though_its_status_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not admitted again before its status says that its pods are gone."""
    monkeypatch.setattr(jobs_controller, "STATUS_LATE_S", 0.2)
    async with StarvedWorld() as world, acting(world):
        submit(world, "first", 4, "low")
        await eventually(world.started("first"))
        world.put(kinds.PODS, pod(world))
        world.starved = True
        submit(world, "urgent", 4, "high")
        await eventually(lambda: world.job("first")["spec"]["suspend"])
        with pytest.raises(AssertionError):  # a pod that no node has yet may still run
            await until(world.started("urgent"), within_s=1)
        world.remove(kinds.PODS, "first-0", NAMESPACE)
        await eventually(world.started("urgent"))
        await eventually(lambda: world.events("StatusLate"))
        world.complete("urgent")
        with pytest.raises(AssertionError):
            await until(lambda: world.admitted("first"), within_s=0.5)
        world.starved = False
        world.change(kinds.JOBS, "first", lambda job: note(job, 1))
        await eventually(world.started("first"))
