"""Broken nodes under running Jobs: the assigner against a fake cluster over real HTTP."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.topology.assignment import decode
from rackgate_assigner.node_replacement.unhealthy import HostAssessment, JobPod, PodState
from rackgate_assigner.watches import decode_pod
from tests.support.apiserver import Fault, Object
from tests.support.objects import BLOCK, HOST
from tests.unit.assigner.builders import rebuild_matches
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish, settings

GATES_OFF = {"featureGates": {"TASFailedNodeReplacementFailFast": False}}


class Rack(World):
    """The fake cluster with pods: `fill` does what ungater, scheduler and Job controller do."""

    made = 0

    def hosts(self, job: str = "train") -> dict[str, int]:
        """Pods by host as assigned."""
        given = self.workload(job)["status"]["admission"]["podSetAssignments"][0]
        return {values[-1]: n for values, n in decode(given["topologyAssignment"]).domains}

    def named(self, job: str = "train") -> list[str]:
        """Names in status.unhealthyNodes."""
        found = self.workload(job)["status"].get("unhealthyNodes", [])
        return [entry["name"] for entry in found]

    def pod(self, host: str, job: str = "train", **status: Any) -> str:
        """A pod of the Job that is bound to its host, or gated without one."""
        self.made += 1
        uid, workload = self.job(job)["metadata"]["uid"], self.workload(job)
        gated = not host
        spec: Object = {"containers": [{"resources": {"requests": {"cpu": "8"}}}]}
        if gated:
            spec["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
        else:
            spec["nodeSelector"] = {HOST: host}
        if host and not status.get("conditions"):
            spec["nodeName"] = host
        name = f"{job}-{self.made}"
        self.put(
            kinds.PODS,
            {
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "labels": {
                        names.PODSET_LABEL: "main",
                        names.TAS_LABEL: "true",
                        "batch.kubernetes.io/controller-uid": uid,
                    },
                    "annotations": {names.WORKLOAD_ANNOTATION: workload["metadata"]["name"]},
                    "ownerReferences": [
                        {"kind": "Job", "name": job, "uid": uid, "controller": True}
                    ],
                },
                "spec": spec,
                "status": {"phase": "Pending" if gated else "Running", **status},
            },
        )
        return name

    def fill(self, job: str = "train") -> dict[str, str]:
        """One bound pod for each that is assigned; names by host."""
        return {host: self.pod(host, job) for host in self.hosts(job)}

    def breaks(self, host: str) -> None:
        self._ready(host, "False")

    def mends(self, host: str) -> None:
        self._ready(host, "True")

    def _ready(self, host: str, status: str) -> None:
        item = copy.deepcopy(self.get(kinds.NODES, host))
        assert item is not None
        item["status"]["conditions"] = [{"type": "Ready", "status": status}]
        self.put(kinds.NODES, item)

    def ends(self, name: str) -> None:
        """The pod is gone, and the Job controller makes another, gated one."""
        self.remove(kinds.PODS, name, NAMESPACE)
        self.pod("")

    def lists(self) -> int:
        """How often pods of one Job were listed."""
        return sum(
            "controller-uid" in request.query.get("labelSelector", "") for request in self.requests
        )

    def moved_from(self, host: str) -> Callable[[], bool]:
        return lambda: host not in self.hosts() and not self.named()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[Rack]:
    async with Rack() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


async def train(world: Rack, count: int = 3) -> dict[str, str]:
    """A running Job with one pod of 8 cpu a host within a block of four hosts."""
    world.submit("train", count, cpu="8", required=BLOCK)
    await eventually(world.started("train"))
    return world.fill()


@pytest.mark.requirement("STR-05")
@pytest.mark.field_note("N1", "C20")
async def test_pods_of_a_broken_node_get_another_place_and_the_others_stay(world: Rack) -> None:
    async with assigner(world):
        pods = await train(world)
        before = world.workload("train")["status"]
        broken, *others = pods
        assert world.lists() == 0, "healthy nodes cost no request"
        world.breaks(broken)
        await eventually(lambda: world.lists() > 0)
        assert world.named() == [], "its pod still runs"
        world.ends(pods[broken])
        await eventually(world.moved_from(broken))
        assert set(others) < set(world.hosts())
        await eventually(lambda: world.events("NodesReplaced"))
    after = world.workload("train")["status"]
    for status in (before, after):
        status["admission"]["podSetAssignments"][0].pop("topologyAssignment")
    assert after["admission"] == before["admission"]
    assert world.condition("train", "QuotaReserved") == ("True", "QuotaReserved")
    marks = [
        (item.get("status", {}).get("unhealthyNodes"), "admission" in item.get("status", {}))
        for _, _, resource, item in world._history
        if resource == kinds.WORKLOADS.full_name
    ]
    assert ([{"name": broken}], True) in marks


@pytest.mark.field_note("N7")
async def test_two_nodes_that_break_at_once_are_both_replaced(world: Rack) -> None:
    async with assigner(world):
        pods = await train(world, 2)
        for host, name in pods.items():
            world.breaks(host)
            world.ends(name)
        await eventually(lambda: not set(world.hosts()) & set(pods) and not world.named())
        assert sum(world.hosts().values()) == 2
        assert world.condition("train", "Evicted") == ("", "")


@pytest.mark.field_note("N3")
async def test_a_node_that_recovers_before_its_pods_end_is_not_replaced(world: Rack) -> None:
    async with assigner(world) as replica:
        pods = await train(world)
        before = world.hosts()
        broken = next(iter(pods))
        world.breaks(broken)
        await eventually(lambda: world.lists() > 0)
        world.mends(broken)
        await eventually(lambda: not replica.failures._watched)
        assert (world.hosts(), world.named()) == (before, [])


async def test_without_another_place_the_job_is_evicted_with_its_reason(world: Rack) -> None:
    async with assigner(world):
        pods = await train(world, 4)
        broken = next(iter(pods))
        world.breaks(broken)
        world.ends(pods[broken])
        await eventually(world.shows("train", "Evicted", "True", "NodeFailures"))
        assert world.condition("train", "Requeued") == ("True", "NodeFailures")
        await eventually(lambda: world.events("EvictedDueToNodeFailures"))
        for pod in list(world._objects[kinds.PODS.full_name].values()):
            world.remove(kinds.PODS, pod["metadata"]["name"], NAMESPACE)
        # Its eviction is announced before it is stopped: until then it has its old places.
        await eventually(lambda: world.admitted("train") and broken not in world.hosts())
        await eventually(world.started("train"))
        assert world.named() == []


@pytest.mark.field_note("N3")
async def test_with_fail_fast_off_the_job_runs_on_until_there_is_a_place_again(
    world: Rack,
) -> None:
    async with assigner(world, configured=settings(**GATES_OFF)):
        pods = await train(world, 4)
        broken = next(iter(pods))
        world.breaks(broken)
        world.ends(pods[broken])
        await eventually(lambda: world.events("SecondPassFailed"))
        assert world.named() == [broken]
        assert world.admitted("train")
        assert world.condition("train", "Evicted") == ("", "")
        world.mends(broken)
        await eventually(lambda: world.named() == [])
        assert broken in world.hosts()
        assert len(world.events("SecondPassFailed")) == 1, "one word, however often it is tried"


async def test_a_healthy_node_that_a_user_names_is_replaced(world: Rack) -> None:
    async with assigner(world):
        await train(world)
        chosen = next(iter(world.hosts()))
        name = world.workload("train")["metadata"]["name"]
        marks = [{"name": chosen}]
        world.change(kinds.WORKLOADS, name, lambda o: o["status"].update(unhealthyNodes=marks))
        await eventually(world.moved_from(chosen))
        assert sum(world.hosts().values()) == 3


async def test_a_name_that_means_nothing_is_taken_out(world: Rack) -> None:
    async with assigner(world):
        await train(world)
        before = world.hosts()
        name = world.workload("train")["metadata"]["name"]
        marks = [{"name": "nobody"}]
        world.change(kinds.WORKLOADS, name, lambda o: o["status"].update(unhealthyNodes=marks))
        await eventually(lambda: world.named() == [])
        assert world.hosts() == before


@pytest.mark.field_note("N6")
async def test_a_pod_that_waits_for_a_broken_node_is_set_failed(world: Rack) -> None:
    async with assigner(world):
        pods = await train(world)
        broken = next(iter(pods))
        world.remove(kinds.PODS, pods[broken], NAMESPACE)
        unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        stuck = world.pod(broken, phase="Pending", conditions=[unschedulable])
        world.breaks(broken)
        await eventually(world.moved_from(broken))

        def found() -> Any:
            return world.get(kinds.PODS, stuck, NAMESPACE)

        # Its end is written beside the move, not before it.
        await eventually(lambda: found()["status"]["phase"] == "Failed")
        pod = found()
        ended = next(c for c in pod["status"]["conditions"] if c["type"] == "TerminatedByKueue")
        assert (ended["status"], ended["reason"]) == ("True", "UnschedulableOnAssignedNode")
        await eventually(lambda: world.events("PodTerminatedByKueue"))
        named = [r for r in world.requests if b"unhealthyNodes" in r.body]
        ended = [r for r in world.requests if b"TerminatedByKueue" in r.body and "/pods/" in r.path]
        assert world.requests.index(named[0]) < world.requests.index(ended[0]), (
            "else its successor may be sent to the same host"
        )


@pytest.mark.field_note("N6", "U2")
async def test_no_pod_is_ended_by_a_view_of_the_workload_that_is_behind(world: Rack) -> None:
    async with assigner(world) as replica:
        pods = await train(world)
        key = f"{NAMESPACE}/{world.workload('train')['metadata']['name']}"
        await eventually(lambda: replica.cache.workloads[key].admitted)
        host = next(iter(pods))
        unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        name = world.pod(host, phase="Pending", conditions=[unschedulable])
        stored: Any = world.get(kinds.PODS, name, NAMESPACE)
        pod = JobPod(
            name,
            NAMESPACE,
            stored["metadata"]["uid"],
            stored["metadata"]["resourceVersion"],
            "main",
            host,
            PodState.PINNED,
            unschedulable=True,
        )
        await eventually(lambda: "PodsReady" in str(world.workload("train")))
        store = replica.watches.workloads.store

        def caught_up() -> bool:
            stored = world.workload("train")["metadata"]["resourceVersion"]
            return bool(store[key].metadata.resource_version == stored)

        await eventually(caught_up)
        now = store[key]
        behind = msgspec.structs.replace(
            now, metadata=msgspec.structs.replace(now.metadata, resource_version="1")
        )
        await replica.failures._apply(behind, HostAssessment(stranded_pods=(pod,)))
        stored = world.get(kinds.PODS, name, NAMESPACE)
        assert stored["status"]["phase"] == "Pending"
        await replica.failures._apply(now, HostAssessment(stranded_pods=(pod,)))
        stored = world.get(kinds.PODS, name, NAMESPACE)
        assert stored["status"]["phase"] == "Failed"


async def test_running_pods_on_a_node_that_is_not_ready_are_not_listed_time_and_again(
    world: Rack,
) -> None:
    async with assigner(world) as replica:
        pods = await train(world)
        broken = next(iter(pods))
        world.breaks(broken)
        await eventually(lambda: replica.failures._queue._delayed)
        loop = asyncio.get_running_loop()
        (timer,) = replica.failures._queue._delayed.values()
        assert timer.when() - loop.time() > 60, "bound pods are watched"
        pod = copy.deepcopy(world.get(kinds.PODS, pods[broken], NAMESPACE))
        assert pod is not None
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        key = f"{NAMESPACE}/{pods[broken]}"
        failures, known = replica.failures, replica.watches.pods.store[key]
        # Told without a wait between, as anything else may wake it up meanwhile.
        failures._changed_keys.clear()
        failures.on_pod_upsert(known, decode_pod(msgspec.json.encode(pod)))
        assert failures._changed_keys == set(), "readiness is the node's business"
        failures.on_pod_upsert(None, known)
        assert failures._changed_keys, "a pod that is new is somebody's business"
        world.ends(pods[broken])
        await eventually(world.moved_from(broken))


@pytest.mark.field_note("U11")
async def test_a_replica_that_takes_over_finds_what_broke_before(world: Rack) -> None:
    async with assigner(world):
        pods = await train(world)
    broken = next(iter(pods))
    world.remove(kinds.NODES, broken)
    world.ends(pods[broken])
    async with assigner(world):
        await eventually(world.moved_from(broken))


@pytest.mark.parametrize(
    "fault",
    [
        Fault.status(409, "Conflict", method="PATCH", path="/status"),
        Fault.cut(applied=True, method="PATCH", path="/status"),
        Fault.cut(method="PATCH", path="/status"),
    ],
    ids=["refused", "applied, answer lost", "lost"],
)
async def test_a_swap_is_written_until_it_is_known_to_be_there(world: Rack, fault: Fault) -> None:
    async with assigner(world) as replica:
        pods = await train(world)
        broken = next(iter(pods))
        fault.times = 3
        world.faults.append(fault)
        world.breaks(broken)
        world.ends(pods[broken])
        await eventually(world.moved_from(broken))
        await eventually(lambda: not replica.cache.assumed)
        assert fault.times < 2, "naming and moving need no third write"
        assert rebuild_matches(replica.cache) == []
