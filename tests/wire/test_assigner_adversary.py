"""What a namespace user writes into Jobs, Workloads and pods gives him no quota of others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.wire.batch import Job
from rackgate_assigner.assigner import Assigner
from rackgate_assigner.jobs.patches import workload_body
from rackgate_assigner.jobs.state import Priority, workload_name_of
from tests.support.objects import Object, fx_a_nodes
from tests.wire.assigner_world import (
    NAMESPACE,
    START,
    World,
    assigner,
    eventually,
    furnish,
    settings,
)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with World() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


def used(replica: Assigner, queue: str = "plain") -> int:
    """Cpu in use of a queue, in whole cores."""
    pairs = replica.cache.totals.used().get(queue, {})
    return sum(amount for (_, resource), amount in pairs.items() if resource == "cpu") // 1000


def bind(world: World, job: Object, count: int, **meta: Any) -> None:
    """Living pods of a Job, of 4 cpu each."""
    if "deletionTimestamp" in meta:
        meta["finalizers"] = ["kubelet.example/runs"]  # this API server knows no grace period
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "controller": True}
    host = fx_a_nodes("pool")[0]["metadata"]["name"]
    for index in range(count):
        name = f"{job['metadata']['name']}-{index}"
        world.put(
            kinds.PODS,
            {
                "metadata": {
                    "name": name,
                    "namespace": NAMESPACE,
                    "uid": f"uid-{name}",
                    "ownerReferences": [{**owner, "uid": job["metadata"]["uid"]}],
                    **meta,
                },
                "spec": {
                    "nodeName": host,
                    "containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}],
                },
                "status": {"phase": "Running"},
            },
        )


def unbind(world: World, job: Object, *indices: int) -> None:
    """Pods are gone."""
    for index in indices:
        world.remove(kinds.PODS, f"{job['metadata']['name']}-{index}", NAMESPACE)


def held(world: World, name: str) -> Callable[[], bool]:
    """A question: does the Workload of a Job hold quota?"""
    return lambda: bool(world.workload(name).get("status", {}).get("admission"))


def forged(kind: str, uid: str = "invented") -> Object:
    """A controller that nobody checked."""
    version = {"JobSet": "jobset.x-k8s.io/v1alpha2", "RayCluster": "ray.io/v1"}[kind]
    return {"apiVersion": version, "kind": kind, "name": "x", "uid": uid, "controller": True}


async def running(world: World, replica: Assigner, name: str, count: int = 2) -> Object:
    """A plain Job that runs, with its pods."""
    world.submit(name, count, queue="plain")
    await eventually(world.started(name))
    bind(world, world.job(name), count)
    await eventually(lambda: replica.cache.live_pod_count(world.job(name)["metadata"]["uid"]).total)
    return world.job(name)


@pytest.mark.requirement("HOOK-10")
@pytest.mark.parametrize("kind", ["JobSet", "RayCluster"])
async def test_a_job_with_a_forged_owner_is_a_job_like_any_other(world: World, kind: str) -> None:
    async with assigner(world):
        world.submit("forged", 20, queue="plain", spec={"suspend": False})
        world.change(
            kinds.JOBS, "forged", lambda o: o["metadata"].update(ownerReferences=[forged(kind)])
        )
        await eventually(lambda: world.job("forged")["spec"]["suspend"] is True)
        await eventually(world.shows("forged", "QuotaReserved", "False"))
        await eventually(lambda: world.events("OwnerNotFound"))
    world.broken_rules.clear()  # it came running


async def test_a_running_job_that_claims_an_owner_keeps_its_admission(world: World) -> None:
    async with assigner(world) as replica:
        await running(world, replica, "train")
        world.change(
            kinds.JOBS, "train", lambda o: o["metadata"].update(ownerReferences=[forged("JobSet")])
        )
        bind(world, world.job("train"), 5)
        await eventually(lambda: used(replica) == 20)
        await eventually(lambda: world.job("train")["spec"]["suspend"] is True)


async def test_quota_is_held_until_the_last_pod_of_a_suspended_job_is_gone(world: World) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train")
        bind(world, job, 2, deletionTimestamp=START)
        world.change(kinds.JOBS, "train", lambda o: o["spec"].update(suspend=True))
        await eventually(world.shows("train", "Evicted", "True"))
        world.submit("next", 16, queue="plain")
        await eventually(world.shows("next", "QuotaReserved", "False"))
        assert (used(replica), held(world, "train")()) == (8, True)
        unbind(world, job, 0)
        await eventually(lambda: replica.cache.live_pod_count(job["metadata"]["uid"]).total == 1)
        assert not world.runs("next")
        unbind(world, job, 1)
        await eventually(world.started("next"))


async def test_the_gate_releases_quota_while_pods_terminate(world: World) -> None:
    configured = settings(featureGates={"RackgateHoldQuotaForTerminatingPods": False})
    async with assigner(world, configured=configured) as replica:
        job = await running(world, replica, "train")
        bind(world, job, 2, deletionTimestamp=START)
        world.change(kinds.JOBS, "train", lambda o: o["spec"].update(suspend=True))
        world.submit("next", 16, queue="plain")
        await eventually(world.started("next"))


async def test_status_of_a_job_that_tells_of_terminating_pods_is_believed(world: World) -> None:
    async with assigner(world):
        world.submit("train", 2, queue="plain")
        await eventually(world.started("train"))

        def suspend(job: Object) -> None:
            job["spec"]["suspend"] = True
            job["status"]["terminating"] = 2

        world.change(kinds.JOBS, "train", suspend)
        await eventually(world.shows("train", "Evicted", "True"))
        world.submit("next", 16, queue="plain")
        await eventually(world.shows("next", "QuotaReserved", "False"))
        assert held(world, "train")()
        world.change(kinds.JOBS, "train", lambda o: o["status"].update(terminating=0))
        await eventually(world.started("next"))


async def test_a_deleted_job_that_a_finalizer_keeps_holds_its_quota(world: World) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train")
        world.change(
            kinds.JOBS, "train", lambda o: o["metadata"].update(finalizers=["mine.example/x"])
        )
        world.delete(kinds.JOBS, "train")
        world.delete(kinds.WORKLOADS, world.workload("train")["metadata"]["name"])
        world.submit("next", 16, queue="plain")
        await eventually(world.shows("next", "QuotaReserved", "False"))
        assert (used(replica), held(world, "train")()) == (8, True)
        unbind(world, job, 0, 1)
        world.remove(kinds.JOBS, "train", NAMESPACE)
        await eventually(world.started("next"))


async def test_pods_that_their_job_leaves_behind_hold_its_quota(world: World) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train")
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda o: o["metadata"].update(ownerReferences=[]))
        bind(world, job, 2, ownerReferences=[])
        world.delete(kinds.JOBS, "train")
        world.submit("next", 16, queue="plain")
        await eventually(world.shows("next", "QuotaReserved", "False"))
        assert used(replica) == 8
        unbind(world, job, 0, 1)
        await eventually(world.started("next"))
        assert [w["metadata"]["name"] for w in world.workloads()] != [name]


async def test_a_job_whose_workload_is_stripped_and_deleted_is_stopped(world: World) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train")
        name = world.workload("train")["metadata"]["name"]

        def strip(workload: Object) -> None:
            workload["metadata"].update(ownerReferences=[], labels={}, finalizers=[])

        world.change(kinds.WORKLOADS, name, strip)
        world.remove(kinds.WORKLOADS, name, NAMESPACE)
        await eventually(lambda: world.job("train")["spec"]["suspend"] is True)
        assert used(replica) == 8
        unbind(world, job, 0, 1)
        await eventually(world.started("train"))
        world.broken_rules.clear()  # that it ran without a Workload is what this is about


@pytest.mark.parametrize("owner", ["itself", "another kind"])
async def test_a_workload_with_a_strange_owner_gives_everything_back(
    world: World, owner: str
) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train")
        found = world.workload("train")["metadata"]
        strange = {
            "itself": {
                "apiVersion": names.API_VERSION,
                "kind": "Workload",
                "name": found["name"],
                "uid": found["uid"],
                "controller": True,
            },
            "another kind": {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": "mine",
                "uid": "real",
                "controller": True,
            },
        }[owner]
        world.change(
            kinds.WORKLOADS,
            found["name"],
            lambda o: o["metadata"].update(
                ownerReferences=[strange], annotations={names.ELASTIC_ANNOTATION: "true"}
            ),
        )
        world.delete(kinds.JOBS, "train")
        unbind(world, job, 0, 1)
        await eventually(lambda: world.workloads() == [])
        await eventually(lambda: used(replica) == 0)


@pytest.mark.requirement("CAP-02")
async def test_pods_beyond_those_admitted_stop_a_plain_job(world: World) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train")
        bind(world, job, 10)
        await eventually(lambda: used(replica) == 40)
        await eventually(world.shows("train", "Evicted", "True", "PodsBeyondAdmission"))
        await eventually(lambda: world.job("train")["spec"]["suspend"] is True)
        assert used(replica) == 40
        unbind(world, job, *range(10))
        await eventually(world.started("train"))


async def test_a_pod_that_takes_long_to_end_leaves_no_room_for_its_replacement(
    world: World,
) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train", 3)
        bind(world, job, 1, deletionTimestamp=START, deletionGracePeriodSeconds=3600)
        bind_one = {**world.job("train"), "metadata": {**job["metadata"], "name": "again"}}
        bind(world, bind_one, 1)
        await eventually(world.shows("train", "Evicted", "True", "PodsBeyondAdmission"))


async def test_pods_that_are_replaced_stop_nothing(world: World) -> None:
    async with assigner(world) as replica:
        job = await running(world, replica, "train", 3)
        bind(world, job, 3, deletionTimestamp=START)
        bind(world, {**job, "metadata": {**job["metadata"], "name": "again"}}, 3)
        await eventually(lambda: used(replica) == 24)
        cycles = replica.scheduler.cycles
        world.submit("next", 1, queue="plain")
        await eventually(world.started("next"))
        assert replica.scheduler.cycles > cycles
        assert world.runs("train")


def by_hand(world: World, name: str, edit: Callable[[Object], object] | None = None) -> Object:
    """The Workload of a Job as its user writes it, before the assigner does."""
    job = msgspec.json.decode(json.dumps(world.job(name)), type=Job)
    workload = workload_body(job, workload_name_of(job), Priority())
    workload["metadata"]["namespace"] = NAMESPACE
    if edit is not None:
        edit(workload)
    return world.put(kinds.WORKLOADS, workload)


def need_less(workload: Object) -> None:
    (container,) = workload["spec"]["podSets"][0]["template"]["spec"]["containers"]
    container["resources"]["requests"]["cpu"] = "1m"


FORGED: dict[str, Callable[[Object], object]] = {
    "fewer pods": lambda w: w["spec"]["podSets"][0].update(count=1),
    "may be fewer pods": lambda w: w["spec"]["podSets"][0].update(minCount=1),
    "less cpu": need_less,
    "another queue": lambda w: w["spec"].update(queueName="queue"),
    "a higher priority": lambda w: w["spec"].update(priority=1_000_000),
    "longer": lambda w: w["spec"].update(maximumExecutionTimeSeconds=1_000_000),
    "elastic": lambda w: w["metadata"].update(annotations={names.ELASTIC_ANNOTATION: "true"}),
    "of another job": lambda w: w["metadata"].update(labels={names.JOB_UID_LABEL: "invented"}),
    "of no job": lambda w: w["metadata"].update(labels={}),
    "another name": lambda w: w["metadata"].update(name="by-hand"),
    "no finalizer": lambda w: w["metadata"].update(finalizers=[]),
}


@pytest.mark.requirement("HOOK-10")
@pytest.mark.parametrize("forged", FORGED)
async def test_a_workload_written_by_hand_is_admitted_as_its_job_requests(
    world: World, forged: str
) -> None:
    """Whoever may create Workloads may name the own Job as its controller."""
    world.submit("train", 2, queue="plain")
    honest = by_hand(world, "train")
    world.remove(kinds.WORKLOADS, honest["metadata"]["name"], NAMESPACE)
    written = by_hand(world, "train", FORGED[forged])
    async with assigner(world) as replica:
        await eventually(world.started("train"))
        await eventually(lambda: used(replica) == 8)
    (found,) = world.workloads()
    assert found["spec"] == honest["spec"]
    assert names.ELASTIC_ANNOTATION not in found["metadata"].get("annotations", {})
    assert (found["metadata"]["uid"] == written["metadata"]["uid"]) == (forged != "of another job")
    assert world.condition("train", "Evicted") == ("", "")


HARMLESS = ("of no job", "another name", "no finalizer")


@pytest.mark.requirement("HOOK-10")
@pytest.mark.parametrize("forged", [forged for forged in FORGED if forged not in HARMLESS])
async def test_a_workload_written_by_hand_waits_until_it_says_what_its_job_requests(
    world: World, forged: str
) -> None:
    async with assigner(world, acts=False) as standby:
        world.submit("train", 2, queue="plain")
        uid = by_hand(world, "train", FORGED[forged])["metadata"]["uid"]
        seen = standby.watches.workloads.store
        await eventually(lambda: [one.metadata.uid for one in seen.values()] == [uid])
        (found,) = seen.values()
        await eventually(lambda: standby.jobs.job_for(found))
        assert not standby.jobs.is_in_sync(found)
        by_hand(world, "train")
        await eventually(lambda: [standby.jobs.is_in_sync(one) for one in seen.values()] == [True])


@pytest.mark.requirement("HOOK-10")
@pytest.mark.parametrize("forged", ["fewer pods", "less cpu", "of another job"])
async def test_a_job_does_not_run_under_a_workload_that_was_admitted_without_it(
    world: World, forged: str
) -> None:
    """A Workload without a job belongs to its user, who may name a controller later."""
    world.submit("train", 2, queue="plain")
    kept: Object = {}

    def without_a_job(workload: Object) -> None:
        FORGED[forged](workload)
        kept.update(workload["metadata"])
        workload["metadata"].update(ownerReferences=[], labels={})

    written = by_hand(world, "train", without_a_job)["metadata"]
    claim = {field: kept[field] for field in ("ownerReferences", "labels")}
    async with assigner(world) as replica:
        await eventually(lambda: "admission" in world.workloads()[0].get("status", {}))
        await eventually(lambda: world.events("ErrWorkloadCompose"))  # the name is taken
        world.change(kinds.WORKLOADS, written["name"], lambda o: o["metadata"].update(claim))
        await eventually(world.started("train"))
        await eventually(lambda: used(replica) == 8)
    (found,) = world.workloads()
    (podset,) = found["spec"]["podSets"]
    (container,) = podset["template"]["spec"]["containers"]
    assert (podset["count"], container["resources"]["requests"]["cpu"]) == (2, "4")
    same_uid = found["metadata"]["uid"] == written["uid"]
    assert same_uid == (forged != "of another job")
