"""The assigner against a fake cluster over real HTTP: Jobs in, Workloads and running Jobs out."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.runtime.metrics import REGISTRY
from rackgate.topology.assignment import decode
from rackgate_assigner.__main__ import serve
from rackgate_assigner.assigner import Assigner
from rackgate_cli.controlplane import ports
from tests.support import objects
from tests.support.apiserver import Fault, Object
from tests.support.apiserver_faults import Handler
from tests.support.objects import BLOCK, RACK
from tests.support.waiting import until
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish, settings


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with World() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


def _more_cycles(replica: Assigner, seen: int) -> bool:
    return replica.scheduler.cycles > seen


def template(world: World, name: str) -> Object:
    found: Object = world.job(name)["spec"]["template"]
    return found


@pytest.mark.requirement("TAS-16", "TAS-25", "TAS-10")
async def test_a_job_gets_a_workload_an_assignment_and_one_start_patch(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
    workload = world.workload("train")
    meta = workload["metadata"]
    assert meta["finalizers"] == [names.IN_USE_FINALIZER]
    assert meta["labels"] == {names.JOB_UID_LABEL: world.job("train")["metadata"]["uid"]}
    assert workload["spec"]["podSets"][0]["topologyRequest"]["required"] == RACK
    assert names.WORKLOAD_ANNOTATION not in str(workload["spec"]["podSets"])
    given = workload["status"]["admission"]["podSetAssignments"][0]
    assert given["resourceUsage"] == {"cpu": "16"}
    assert decode(given["topologyAssignment"]).count == 4
    started = template(world, "train")
    assert started["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] == meta["name"]
    assert started["metadata"]["labels"][names.PODSET_LABEL] == "main"
    assert started["spec"]["schedulingGates"] == [{"name": names.TOPOLOGY_GATE}]
    patches = [r for r in world.accepted() if "/jobs/" in r.path]
    assert len(patches) == 1


@pytest.mark.requirement("TAS-16")
async def test_no_observer_sees_an_admission_without_its_assignment(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
    for _, _, resource, item in world._history:
        if resource == kinds.WORKLOADS.full_name and item.get("status", {}).get("admission"):
            states = {c["type"]: c["status"] for c in item["status"]["conditions"]}
            assert states["QuotaReserved"] == states["Admitted"] == "True"
            assert "topologyAssignment" in str(item["status"]["admission"])


@pytest.mark.requirement("TAS-17", "CAP-07", "OPS-09")
async def test_a_job_without_room_waits_with_one_event_and_starts_when_a_node_comes(
    world: World,
) -> None:
    async with assigner(world) as replica:
        world.submit("train", 5, required=RACK)
        await eventually(lambda: world.condition("train", "QuotaReserved")[0] == "False")
        await eventually(lambda: world.events("TopologyPlacementFailed"))
        for seen in range(replica.scheduler.cycles, replica.scheduler.cycles + 3):
            replica.scheduler.request_cycle()
            await eventually(functools.partial(_more_cycles, replica, seen))
        assert len(world.events("TopologyPlacementFailed")) == 1
        assert not world.runs("train")
        node: Any = world.get(kinds.NODES, "pool-11-1")
        bigger = {**node["status"], "allocatable": {"cpu": "16", "pods": "110"}}
        world.put(kinds.NODES, {**node, "status": bigger})
        await eventually(lambda: world.runs("train"))


@pytest.mark.requirement("TAS-24", "TAS-26")
async def test_a_deactivated_workload_gives_back_template_and_usage_and_returns(
    world: World,
) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        original = template(world, "train")
        await eventually(lambda: world.condition("train", "PodsReady")[0] == "True")
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda o: o["spec"].update(active=False))
        await eventually(lambda: world.condition("train", "Admitted") == ("False", "NoReservation"))
        assert world.condition("train", "Evicted") == ("True", "Deactivated")
        assert world.condition("train", "Requeued") == ("False", "Deactivated")
        assert "admission" not in world.workload("train")["status"]
        assert template(world, "train") == original
        assert names.WORKLOAD_ANNOTATION not in str(world.job("train")["metadata"])
        world.change(kinds.WORKLOADS, name, lambda o: o["spec"].update(active=True))
        await eventually(lambda: world.runs("train"))
        assert world.condition("train", "Evicted") == ("False", "QuotaReserved")
        assert world.condition("train", "Requeued") == ("True", "Reactivated")


@pytest.mark.requirement("VAL-02", "VAL-13")
async def test_an_unknown_level_deactivates_with_its_reason_until_it_is_fixed(
    world: World,
) -> None:
    async with assigner(world):
        world.submit("train", required="example.com/shelf")
        await eventually(
            lambda: (
                (own := world.workload_of(world.job("train"))) and own["spec"]["active"] is False
            )
        )
        own = world.workload("train")
        assert world.condition("train", "Evicted") == ("True", "DeactivatedDueToInvalidTopology")
        assert world.condition("train", "DeactivationTarget")[0] == "True"
        assert "example.com/shelf" in str(own["status"]["conditions"])
        await eventually(lambda: world.events("EvictedDueToDeactivatedDueToInvalidTopology"))
        assert not world.runs("train")
        marks = {names.REQUIRED_TOPOLOGY: RACK}
        world.change(
            kinds.JOBS,
            "train",
            lambda o: o["spec"]["template"]["metadata"].update(annotations=marks),
        )
        # Activated before the Workload follows its Job it would be judged by the old request.
        await eventually(lambda: RACK in str(world.workload("train")["spec"]["podSets"]))
        name = own["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda o: o["spec"].update(active=True))
        await eventually(world.started("train"))
        assert world.condition("train", "DeactivationTarget") == ("", "")
        assert world.condition("train", "Requeued") == ("True", "Reactivated")


async def test_a_job_suspended_by_its_user_is_queued_again(world: World) -> None:
    async with assigner(world):
        for name, queue in (("tas", "queue"), ("plain", "plain")):
            world.submit(name, queue=queue)
            await eventually(world.started(name))
            world.change(kinds.JOBS, name, lambda o: o["spec"].update(suspend=True))
            await eventually(world.shows(name, "Requeued", "True", "JobSuspended"))
            await eventually(world.started(name))


async def test_a_raised_plain_job_is_queued_at_its_new_size(world: World) -> None:
    async with assigner(world):
        world.submit("plain", 2, queue="plain")
        await eventually(lambda: world.runs("plain"))
        world.change(kinds.JOBS, "plain", lambda o: o["spec"].update(parallelism=3, completions=3))
        await eventually(lambda: world.condition("plain", "Requeued") == ("True", "JobChanged"))
        await eventually(
            lambda: (
                world.workload("plain")["spec"]["podSets"][0]["count"] == 3 and world.runs("plain")
            )
        )
        await eventually(lambda: world.events("EvictedDueToJobChanged"))
    assert len(world.events("EvictedDueToJobChanged")) == 1


@pytest.mark.requirement("CAP-02")
@pytest.mark.parametrize("queue", ["queue", "plain"])
async def test_a_running_job_that_requests_no_pods_any_more_releases_its_quota(
    world: World, queue: str
) -> None:
    async with assigner(world):
        world.submit("train", 4, queue=queue)
        await eventually(world.started("train"))
        world.change(kinds.JOBS, "train", lambda o: o["spec"].update(parallelism=0))
        await eventually(lambda: world.workload_of(world.job("train")) is None)
        assert world.job("train")["spec"]["suspend"] is True
        await eventually(lambda: world.events("EvictedDueToJobChanged"))
        (event,) = world.events("EvictedDueToJobChanged")
        assert event["note"] == "the Job requests no pods"
        # It is not started without pods, and queued as soon as it requests some.
        world.change(kinds.JOBS, "train", lambda o: o["spec"].update(parallelism=2))
        await eventually(world.started("train"))
        assert world.workload("train")["spec"]["podSets"][0]["count"] == 2
    assert world.broken_rules == []


async def test_a_raised_topology_job_runs_on_and_says_how_to_resize(world: World) -> None:
    async with assigner(world):
        world.submit("train", 2, required=RACK)
        await eventually(lambda: world.runs("train"))
        world.change(kinds.JOBS, "train", lambda o: o["spec"].update(parallelism=3, completions=3))
        await eventually(lambda: world.events("ResizeNotSupported"))
        assert world.runs("train")
        assert world.condition("train", "Evicted") == ("", "")


@pytest.mark.requirement("CAP-02")
async def test_a_finished_job_frees_its_room_and_its_workload(world: World) -> None:
    async with assigner(world):
        world.submit("first", 16, preferred=RACK)
        await eventually(lambda: world.runs("first"))
        world.submit("second", 4, required=RACK)
        await eventually(lambda: world.condition("second", "QuotaReserved")[0] == "False")
        world.complete("first")
        await eventually(lambda: world.runs("second"))
        await eventually(lambda: not world.workload("first")["metadata"].get("finalizers"))
        assert world.condition("first", "Finished") == ("True", "Succeeded")


@pytest.mark.requirement("OPS-09")
async def test_how_long_a_job_waited_and_ran_is_counted(world: World) -> None:
    counted = {
        "workload_creation_latency_seconds": {"job_kind": "Job"},
        "execution_time_seconds": {"cluster_queue": "cq"},
    }

    def counts() -> list[float]:
        return [
            REGISTRY.get_sample_value(f"rackgate_{name}_count", labels) or 0.0
            for name, labels in counted.items()
        ]

    before = counts()
    async with assigner(world):
        world.submit("first", 2, required=RACK)
        await eventually(lambda: world.runs("first"))
        world.complete("first")
        await eventually(lambda: counts() == [count + 1 for count in before])


@pytest.mark.requirement("OPS-09")
async def test_a_workload_that_is_made_again_does_not_count_as_late(world: World) -> None:
    """The Job was created long ago, and nothing was slow."""
    name, labels = "rackgate_workload_creation_latency_seconds_count", {"job_kind": "Job"}
    before = REGISTRY.get_sample_value(name, labels) or 0.0

    def uid() -> str:
        found = world.workload_of(world.job("train"))
        return "" if found is None else str(found["metadata"]["uid"])

    def replaced(old: str) -> bool:
        return uid() not in ("", old)

    async with assigner(world) as replica:
        world.submit("train", required=RACK)
        for _ in range(2):
            await eventually(lambda: world.runs("train"))
            assert REGISTRY.get_sample_value(name, labels) == before + 1
            old = uid()
            world.delete(kinds.WORKLOADS, world.workload("train")["metadata"]["name"])
            await eventually(functools.partial(replaced, old))
        await eventually(lambda: world.runs("train"))
        assert REGISTRY.get_sample_value(name, labels) == before + 1
        # Another Job of the same name counts, and nothing is kept of the first.
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: world.workloads() == [])
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
        assert REGISTRY.get_sample_value(name, labels) == before + 2
        assert not replica.jobs._had_workload


async def test_a_deleted_job_takes_its_workload_along(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: world.workloads() == [])


async def test_a_deleted_workload_stops_its_job_and_is_made_again(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
        first = world.workload("train")["metadata"]["uid"]
        world.delete(kinds.WORKLOADS, world.workload("train")["metadata"]["name"])
        await eventually(
            lambda: (
                world.workload_of(world.job("train"))
                and world.workload("train")["metadata"]["uid"] != first
                and world.runs("train")
            )
        )
    suspension = b'{"op":"add","path":"/spec/suspend","value":true}'
    assert sum("/jobs/" in r.path and suspension in r.body for r in world.accepted()) == 1


@pytest.mark.field_note("W9")
async def test_a_workload_is_owned_by_uid_not_by_name(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
        old = world.workload("train")["metadata"]["name"]
        world.delete(kinds.JOBS, "train")
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
        await eventually(lambda: len(world.workloads()) == 1)
        assert world.workload("train")["metadata"]["name"] != old


async def test_a_job_that_runs_without_admission_is_stopped_and_queued(world: World) -> None:
    async with assigner(world):
        world.submit("stray", 20, required=BLOCK, spec={"suspend": False})
        await eventually(lambda: world.condition("stray", "QuotaReserved")[0] == "False")
        assert not world.runs("stray")
    assert world.broken_rules == ["stray runs without an admission"]
    world.broken_rules.clear()


async def test_an_unknown_priority_class_delays_the_workload_until_it_appears(
    world: World,
) -> None:
    async with assigner(world):
        world.submit("train", required=RACK, labels={names.PRIORITY_CLASS_LABEL: "high"})
        await eventually(lambda: world.events("WorkloadPriorityClassNotFound"))
        assert world.workloads() == []
        world.put(kinds.WORKLOAD_PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 7})
        await eventually(lambda: world.runs("train"))
        assert world.workload("train")["spec"]["priority"] == 7


@pytest.mark.requirement("TAS-25")
async def test_flavors_that_disagree_fail_to_start_and_a_fixed_job_is_queued_again(
    world: World,
) -> None:
    def two_groups(queue: Object) -> None:
        quota = [{"name": "memory", "nominalQuota": "64Gi"}]
        flavor = {"name": "slow", "resources": quota}
        group = {"coveredResources": ["memory"], "flavors": [flavor]}
        queue["spec"]["resourceGroups"].append(group)

    world.put(kinds.FLAVORS, objects.flavor("slow", "third", None))
    world.change(kinds.CLUSTER_QUEUES, "plain", two_groups)
    requests = {"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    async with assigner(world):
        world.submit("train", queue="plain", pod={"containers": [{"name": "c", **requests}]})
        await eventually(world.shows("train", "Finished", "True", "FailedToStart"))
        assert not world.runs("train")
        await eventually(lambda: world.events("FailedToStart"))
        assert "nodeSelector" in world.events("FailedToStart")[0]["note"]
        requests["resources"]["requests"].pop("memory")
        edited = [{"name": "c", **requests}]
        world.change(
            kinds.JOBS,
            "train",
            lambda o: o["spec"]["template"]["spec"].update(containers=edited),
        )
        await eventually(world.started("train"))


async def test_a_job_of_another_controller_or_without_label_is_left_alone(world: World) -> None:
    async with assigner(world):
        world.submit("foreign", spec={"managedBy": "kueue.x-k8s.io/multikueue"})
        world.submit("free", queue=None)
        world.submit("none", 0)
        world.submit("marker", queue="plain")
        await eventually(lambda: world.runs("marker"))
    touched = [r.path for r in world.writes() if "/jobs/" in r.path]
    assert all(path.endswith("/marker") for path in touched)
    assert len(world.workloads()) == 1


async def test_a_removed_queue_label_leaves_the_job_as_its_user_wrote_it(world: World) -> None:
    async with assigner(world) as replica:
        world.submit("train", 20, required=RACK)
        original = template(world, "train")

        def created(job: Object) -> None:
            inner = job["spec"]["template"]
            inner["spec"]["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
            inner["metadata"]["labels"] = {names.PODSET_LABEL: "main"}

        world.change(kinds.JOBS, "train", created)
        await eventually(lambda: world.condition("train", "QuotaReserved")[0] == "False")
        world.change(kinds.JOBS, "train", lambda o: o["metadata"].update(labels={}))
        await eventually(lambda: world.workloads() == [])
        assert template(world, "train") == original
        assert not world.runs("train")
        await eventually(lambda: world.events("DeletedWorkload"))
        # Nothing is kept of what is not followed.
        await eventually(lambda: replica.jobs._assumed_writes._outdated == {})


@pytest.mark.requirement("CAP-11")
async def test_an_unanswered_admission_is_never_given_away(world: World) -> None:
    world.faults.append(Fault.cut(applied=True, method="PATCH", path="/workloads/job-first"))
    async with assigner(world):
        world.submit("first", 4, required=RACK)
        await eventually(world.workloads)
        for index in range(4):
            world.submit(f"other-{index}", 4, required=RACK)
        await eventually(lambda: world.runs("first"))
        await eventually(lambda: sum(world.runs(f"other-{i}") for i in range(4)) == 3)
    hosts = [
        host
        for workload in world.workloads()
        if (given := workload.get("status", {}).get("admission"))
        for host, _ in decode(given["podSetAssignments"][0]["topologyAssignment"]).domains
    ]
    assert len(hosts) == len(set(hosts)) == 8


@pytest.mark.requirement("CAP-09")
async def test_nothing_is_admitted_before_every_list_was_read(world: World) -> None:
    node = objects.fx_a_nodes("pool")[0]["metadata"]["name"]
    container = {"name": "c", "resources": {"requests": {"cpu": "8"}}}
    foreign = {
        "metadata": {"name": "foreign", "namespace": "other", "uid": "foreign"},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }
    world.put(kinds.PODS, foreign)
    world.submit("train", 16)

    async def late(_: web.Request, handle: Handler) -> web.StreamResponse:
        """Pods are listed last, and not before an assigner that does not wait would have acted."""
        with contextlib.suppress(AssertionError):
            await until(lambda: world.admitted("train"), 1)
        return await handle()

    world.faults.append(Fault(late, method="GET", path="/api/v1/pods", watch=False))
    stop = asyncio.Event()
    with ports.reserved({"health": None}) as held:
        configured = settings(
            connection={"server": world.url}, health={"host": "127.0.0.1", "port": held["health"]}
        )
        running = asyncio.create_task(serve(configured, stop))
        await eventually(lambda: world.condition("train", "QuotaReserved")[0])
        assert world.condition("train", "QuotaReserved") == ("False", "TopologyPlacementFailed")
        stop.set()
        await running


@pytest.mark.requirement("CAP-11")
async def test_room_is_taken_while_an_admission_is_on_its_way(world: World) -> None:
    """Also from who comes first in the next cycle."""
    world.put(kinds.WORKLOAD_PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 7})
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("cq", "tas", {"cpu": "1000"}))
    asked, answered = asyncio.Event(), asyncio.Event()

    async def wait(_: web.Request, handle: Handler) -> web.StreamResponse:
        asked.set()
        await answered.wait()
        return await handle()

    world.faults.append(Fault(wait, method="PATCH", path="/workloads/job-first"))
    async with assigner(world):
        world.submit("first", 16)
        await asyncio.wait_for(asked.wait(), 60)
        world.submit("second", 16, labels={names.PRIORITY_CLASS_LABEL: "high"})
        await eventually(lambda: world.condition("second", "QuotaReserved")[0])
        assert world.condition("second", "QuotaReserved") == ("False", "TopologyPlacementFailed")
        answered.set()
        await eventually(lambda: world.runs("first"))


@pytest.mark.requirement("CAP-11")
async def test_room_of_an_admission_that_is_rejected_goes_to_others(world: World) -> None:
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("cq", "tas", {"cpu": "1000"}))
    path = "/workloads/job-first"
    refusal = Fault.status(403, "Forbidden", "no", method="PATCH", path=path, times=10**9)
    world.faults.append(refusal)
    async with assigner(world):
        world.submit("first", 16)
        await eventually(lambda: refusal.times < 10**9)
        world.submit("second", 16)
        await eventually(lambda: world.runs("second"))


@pytest.mark.requirement("OPS-07")
@pytest.mark.parametrize("code", [403, 409, 429, 500])
async def test_a_rejected_write_is_decided_again(world: World, code: int) -> None:
    world.faults.append(Fault.status(code, method="PATCH", path="/workloads/", times=2))
    world.faults.append(Fault.status(code, method="PATCH", path="/jobs/", times=2))
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.condition("train", "PodsReady")[0] == "True")


async def test_a_start_rejected_for_what_it_says_is_no_crash_loop(world: World) -> None:
    world.faults.append(Fault.status(422, "Invalid", "no way", method="PATCH", path="/jobs/"))
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(world.shows("train", "Finished", "True", "FailedToStart"))
        await eventually(lambda: world.events("FailedToStart"))
    assert world.events("FailedToStart")[0]["note"] == "no way"


async def test_a_job_starts_with_fewer_pods_and_gets_its_parallelism_back(world: World) -> None:
    marks = {names.MIN_PARALLELISM_ANNOTATION: "2"}
    async with assigner(world):
        world.submit("train", 6, required=RACK)
        world.change(kinds.JOBS, "train", lambda o: o["metadata"].update(annotations=marks))
        await eventually(lambda: world.runs("train"))
        assert world.job("train")["spec"]["parallelism"] == 4
        workload = world.workload("train")
        assert workload["spec"]["podSets"][0]["count"] == 6
        assert workload["status"]["admission"]["podSetAssignments"][0]["count"] == 4
        name = workload["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda o: o["spec"].update(active=False))
        await eventually(lambda: world.condition("train", "Admitted")[0] == "False")
        assert world.job("train")["spec"]["parallelism"] == 6
        world.change(kinds.WORKLOADS, name, lambda o: o["spec"].update(active=True))
        await eventually(lambda: world.runs("train"))
        assert world.job("train")["spec"]["parallelism"] == 4


@pytest.mark.requirement("OPS-09")
async def test_what_has_no_effect_is_a_condition_until_it_is_gone(world: World) -> None:
    """It comes with the pending reason, in one write, and goes when the job is edited."""
    async with assigner(world) as replica:
        annotations = {names.ELASTIC_ANNOTATION: "true"}
        job = objects.job("train", 5, cpu="4", required=RACK)
        job["metadata"] |= {"namespace": NAMESPACE, "annotations": annotations}
        job["spec"]["suspend"] = True
        world.put(kinds.JOBS, job)
        await eventually(lambda: world.condition("train", "QuotaReserved")[0] == "False")
        # One write has both.
        for _, _, resource, item in world._history:
            if resource == kinds.WORKLOADS.full_name and item.get("status", {}).get("conditions"):
                found = {one["type"]: one for one in item["status"]["conditions"]}
                assert found["UnsupportedFields"]["reason"] == "UnsupportedField"
                assert names.ELASTIC_ANNOTATION in found["UnsupportedFields"]["message"]
        world.change(kinds.JOBS, "train", lambda o: o["metadata"].pop("annotations"))
        seen = replica.watches.kinds["Job"].store
        await eventually(lambda: not seen[f"{NAMESPACE}/train"].metadata.annotations)
        node: Any = world.get(kinds.NODES, "pool-11-1")
        bigger = {**node["status"], "allocatable": {"cpu": "16", "pods": "110"}}
        world.put(kinds.NODES, {**node, "status": bigger})
        await eventually(lambda: world.runs("train"))
        assert "UnsupportedFields" not in str(world.workload("train")["status"]["conditions"])
