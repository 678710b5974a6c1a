"""The assigner dies at every write of the life of a group of plain pods, before and after it."""

from __future__ import annotations

import asyncio
import copy
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import GANG_SCHEDULING, POD_GROUPS
from tests.support.apiserver import Fault, Object
from tests.support.apiserver_faults import Handler
from tests.support.apiserver_objects import Target
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish, settings
from tests.wire.killing import Killer, keep_running, while_running

WATCHED = ("/pods", "/workloads")
# Writes of the life below; see test_assigner_crashes.
LIFE, AT_LEAST = 32, 16
COUNT = 2


class GroupWorld(World):
    """The fake cluster with kubelets, which start and stop pods at once."""

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        if target.full_name == kinds.PODS.full_name and known is not None:
            item = copy.deepcopy(item)
            status = item.setdefault("status", {})
            if _gated(known) and not _gated(item):
                self._check_pod(item)
                item["spec"]["nodeName"] = "n1"
                status["phase"] = "Running"
                status["conditions"] = [{"type": "Ready", "status": "True"}]
            if item["metadata"].get("deletionTimestamp") and status.get("phase") == "Running":
                status.update(phase="Failed", conditions=[])
        return super()._store(target, item, known)

    def _check_pod(self, pod: Object) -> None:
        """No pod starts without quota, or beyond it."""
        name = pod["metadata"]["annotations"].get(names.WORKLOAD_ANNOTATION, "")
        workload = self.get(kinds.WORKLOADS, name, NAMESPACE) or {}
        status = workload.get("status", {})
        true = {c["type"] for c in status.get("conditions", []) if c["status"] == "True"}
        running = [one for one in self.pods() if one.get("status", {}).get("phase") == "Running"]
        if not status.get("admission") or "Admitted" not in true or "Evicted" in true:
            self.broken_rules.append(f"{pod['metadata']['name']} starts without an admission")
        if len(running) >= COUNT:
            self.broken_rules.append(f"{pod['metadata']['name']} starts beyond the admission")

    def pods(self) -> list[Object]:
        return list(self._objects.get(kinds.PODS.full_name, {}).values())

    def submit_group(self, prefix: str, count: int = COUNT) -> None:
        """Pods as they are stored after the webhook prepared them."""
        for index in range(count):
            container = {"name": "main", "resources": {"requests": {"cpu": "4"}}}
            meta = {
                "name": f"{prefix}-{index}",
                "namespace": NAMESPACE,
                "creationTimestamp": f"2026-08-01T12:00:{index:02}Z",
                "labels": {
                    names.QUEUE_LABEL: "plain",
                    names.MANAGED_LABEL: "true",
                    names.POD_GROUP_LABEL: "train",
                },
                "annotations": {names.POD_GROUP_TOTAL_ANNOTATION: str(COUNT)},
                "finalizers": [names.MANAGED_FINALIZER],
            }
            gates = [{"name": names.ADMISSION_GATE}]
            spec = {"containers": [container], "schedulingGates": gates}
            self.put(kinds.PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def running(self) -> int:
        return sum(pod["status"]["phase"] == "Running" for pod in self.pods())

    def succeed(self) -> None:
        for pod in self.pods():
            edited = copy.deepcopy(pod)
            edited["status"].update(phase="Succeeded", conditions=[])
            self.put(kinds.PODS, edited)


def _gated(pod: Object) -> bool:
    gates = pod["spec"].get("schedulingGates") or []
    return any(gate["name"] == names.ADMISSION_GATE for gate in gates)


def replica(world: World) -> AbstractAsyncContextManager[Any]:
    return assigner(world, configured=settings(featureGates={POD_GROUPS: True}))


async def _life(world: GroupWorld) -> None:
    """Admitted, drained, replaced by other pods, finished and deleted; a surplus pod comes."""
    await eventually(lambda: world.running() == COUNT)
    world.submit_group("surplus", 1)
    await eventually(lambda: len(world.pods()) == COUNT)
    world.change(
        kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(stopPolicy="HoldAndDrain")
    )
    await eventually(lambda: not world.pods() and not world.workloads())
    world.change(kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(stopPolicy="None"))
    world.submit_group("later")
    await eventually(lambda: world.running() == COUNT)
    world.succeed()
    await eventually(
        lambda: any(
            c["type"] == "Finished" and c["reason"] == "Succeeded"
            for workload in world.workloads()
            for c in workload["status"].get("conditions", [])
        )
    )
    for pod in list(world.pods()):
        world.delete(kinds.PODS, pod["metadata"]["name"])
    await eventually(lambda: not world.pods() and not world.workloads())


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("number", range(LIFE))
async def test_a_death_at_any_write_starts_no_pod_beyond_quota_and_leaves_none_behind(
    number: int, applied: bool
) -> None:
    async with GroupWorld() as world:
        furnish(world)
        killer = Killer(number, applied=applied, watched=WATCHED)
        world.faults.append(killer.fault())
        world.submit_group("first")
        await while_running(keep_running(world, killer.struck, replica), _life(world))
        assert world.broken_rules == []
        assert killer.struck.is_set() or number >= AT_LEAST


async def test_the_life_has_no_more_writes_than_are_killed() -> None:
    async with GroupWorld() as world:
        furnish(world)
        world.submit_group("first")
        await while_running(keep_running(world, asyncio.Event(), replica), _life(world))
        assert world.broken_rules == []
        assert AT_LEAST <= world.taken(WATCHED) <= LIFE


async def test_the_assigner_makes_no_gangs_of_plain_pods() -> None:
    both = settings(featureGates={POD_GROUPS: True, GANG_SCHEDULING: True})
    async with GroupWorld() as world:
        furnish(world)
        world.submit_group("first")
        for pod in world.pods():
            edited = copy.deepcopy(pod)
            edited["metadata"]["annotations"][names.GANG_TEMPLATE_ANNOTATION] = "{}"
            world.put(kinds.PODS, edited)
        async with assigner(world, configured=both):
            await _life(world)
        assert world.broken_rules == []
        plural = kinds.GANG_WORKLOADS.plural
        assert not [request for request in world.writes() if plural in request.path]


async def test_without_the_gate_nothing_is_asked_or_written_about_plain_pods() -> None:
    async with GroupWorld() as world:
        furnish(world)
        world.submit_group("first")
        async with assigner(world):
            job = world.submit("train")
            await eventually(world.started("train"))
        assert job
        assert world.running() == 0
        assert not [request for request in world.writes() if "/pods" in request.path]
        assert not [
            request
            for request in world.requests
            if names.MANAGED_LABEL in request.query.get("labelSelector", "")
        ]


@pytest.mark.requirement("OPS-07")
async def test_pods_that_their_user_keeps_changing_are_stopped() -> None:
    async with GroupWorld() as world:
        furnish(world)
        world.submit_group("pod")
        async with replica(world):
            await eventually(lambda: world.running() == COUNT)
            overtaken = change_before_deletions(world)
            world.change(
                kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(stopPolicy="HoldAndDrain")
            )
            await eventually(lambda: not world.running())
            assert overtaken


def change_before_deletions(world: GroupWorld) -> list[str]:
    """Change each pod before it is deleted; the list of their names."""
    names_of_pods: list[str] = []

    async def overtake(request: web.Request, handle: Handler) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        names_of_pods.append(name)
        note = {"example.com/changed": str(len(names_of_pods))}
        world.change(kinds.PODS, name, lambda pod: pod["metadata"]["annotations"].update(note))
        return await handle()

    world.faults.append(Fault(overtake, method="DELETE", path="/pods/", times=10**6))
    return names_of_pods
