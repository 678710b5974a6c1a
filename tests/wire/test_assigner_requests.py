"""What a Job costs the API server: each request of its life is asked once, and none in vain."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate_assigner import assumed_writes
from rackgate_assigner.assigner import Assigner
from rackgate_assigner.jobs import controller as jobs
from tests.support import objects
from tests.support.apiserver import Fault, Object
from tests.support.apiserver_faults import Handler
from tests.support.objects import RACK
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings


class LaggingWorld(World):
    """A fake cluster whose watch of Workloads can be held back."""

    def __init__(self) -> None:
        super().__init__()
        self.lags = False
        self._late: list[tuple[str, str, Object]] = []

    def _publish(self, kind: str, full_name: str, item: Object) -> None:
        if self.lags and full_name == kinds.WORKLOADS.full_name:
            self._late.append((kind, full_name, item))
        else:
            super()._publish(kind, full_name, item)

    def catch_up(self) -> None:
        """Let the watch show what it held back."""
        self.lags = False
        for late in self._late:
            super()._publish(*late)
        self._late.clear()


@pytest_asyncio.fixture
async def world() -> AsyncIterator[LaggingWorld]:
    async with LaggingWorld() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


def asked(world: World) -> Counter[tuple[str, str]]:
    """Requests about Jobs and Workloads by method and kind, watches and lists apart."""
    found: Counter[tuple[str, str]] = Counter()
    for request in world.requests:
        _, _, what = request.path.partition("/namespaces/team/")
        kind, *rest = what.split("/")
        if kind in ("jobs", "workloads") and (rest or request.method != "GET"):
            found[request.method, "/".join([kind, *rest[1:]])] += 1
    return found


def creations(world: World) -> int:
    return asked(world)["POST", "workloads"]


def touch(world: World, name: str) -> None:
    """An event of a Job about which nothing is to be done."""
    stamp = str(next(_STAMPS))
    world.change(kinds.JOBS, name, lambda o: o["metadata"].update(annotations={"stamp": stamp}))


_STAMPS = itertools.count()


async def marker(world: World, name: str) -> None:
    """Return when a Job that came later runs: everything told before has been looked at."""
    world.submit(name, 1, queue="plain")
    await eventually(world.started(name))


@pytest.mark.requirement("OPS-09")
async def test_a_plain_job_costs_six_writes_and_two_events(world: LaggingWorld) -> None:
    async with assigner(world, configured=settings(cycle={"minInterval": 0.01})):
        world.submit("train", required=RACK)
        await eventually(world.shows("train", "PodsReady", "True"))
        world.complete("train")
        await eventually(lambda: not world.workload("train")["metadata"].get("finalizers"))
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: not world.workloads())
        counted = asked(world)
        await eventually(lambda: len(world.events("Admitted") + world.events("Started")) == 2)
        world.submit("marker", 1, queue="plain", required=None)
        await eventually(lambda: world.events("Started")[1:] and world.events("Admitted")[1:])
    assert counted == {
        ("POST", "workloads"): 1,
        ("PATCH", "workloads/status"): 3,
        ("PATCH", "workloads"): 1,
        ("PATCH", "jobs"): 1,
    }
    stored = world._objects[kinds.EVENTS.full_name].values()
    told = Counter((e["reason"], e["regarding"]["kind"]) for e in stored)
    assert told == {("Admitted", "Workload"): 2, ("Started", "Job"): 2}


async def test_a_job_that_succeeded_before_its_pods_were_seen_ready_says_both_at_once(
    world: LaggingWorld,
) -> None:
    world.faults.append(Fault.slow(0.3, method="PATCH", path="/jobs/train"))
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.admitted("train"))
        world.lags = True
        await eventually(world.started("train"))
        world.complete("train")
        world.catch_up()
        await eventually(world.shows("train", "Finished", "True", "Succeeded"))
        assert world.condition("train", "PodsReady")[0] == "True"


async def test_what_was_created_is_not_created_again_while_the_watch_lags(
    world: LaggingWorld,
) -> None:
    async with assigner(world):
        world.lags = True
        world.submit("train", required=RACK)
        await eventually(world.workloads)
        for _ in range(5):
            touch(world, "train")
            await asyncio.sleep(0)
        touch(world, "train")
        reconciled = asked(world)
        await eventually(lambda: world.get(kinds.JOBS, "train", "team") is not None)
        world.submit("other", 1, required=RACK)
        await eventually(lambda: len(world.workloads()) == 2)
        touch(world, "other")
        world.catch_up()
        await eventually(lambda: world.runs("train") and world.runs("other"))
        assert creations(world) == 2
        assert ("GET", "workloads") not in asked(world) | reconciled


@pytest.mark.requirement("OPS-07")
async def test_a_creation_that_failed_is_repeated(world: LaggingWorld) -> None:
    world.faults.append(Fault.status(500, method="POST", path="/workloads", times=2))
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(world.started("train"))
        assert creations(world) == 3


@pytest.mark.requirement("OPS-07")
async def test_a_workload_that_no_watch_ever_showed_is_created_again(
    world: LaggingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assumed_writes, "ASSUMED_FOR_S", 0.3)
    async with assigner(world):
        world.lags = True
        world.submit("train", required=RACK)
        await eventually(world.workloads)
        (made,) = world.workloads()
        name = made["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda o: o["metadata"].update(finalizers=[]))
        world.remove(kinds.WORKLOADS, name, "team")
        world._late.clear()  # the watch was away meanwhile
        world.lags = False
        touch(world, "train")
        await eventually(world.started("train"))
        assert creations(world) == 2


@pytest.mark.requirement("OPS-07")
async def test_nothing_is_kept_of_creations_that_were_seen(world: LaggingWorld) -> None:
    async with assigner(world) as replica:
        world.submit("train", required=RACK)
        world.submit("gone", 40, required=RACK)
        await eventually(lambda: world.runs("train") and len(world.workloads()) == 2)
        await eventually(world.shows("gone", "QuotaReserved", "False"))
        assert len(replica.jobs._assumed_creations) == 0
        world.lags = True
        world.submit("late", 40, required=RACK)
        await eventually(lambda: len(world.workloads()) == 3)
        assert len(replica.jobs._assumed_creations) == 1
        world.delete(kinds.JOBS, "late")
        await eventually(lambda: len(replica.jobs._assumed_creations) == 0)


@pytest.mark.steady_clock
@pytest.mark.requirement("OPS-07")
async def test_a_finished_workload_without_its_job_is_left_to_the_garbage_collector(
    world: LaggingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "GARBAGE_COLLECTION_S", 3.0)
    async with assigner(world) as replica:
        world.submit("train", required=RACK)
        await eventually(world.shows("train", "PodsReady", "True"))
        world.complete("train")
        await eventually(lambda: not world.workload("train")["metadata"].get("finalizers"))
        name = world.workload("train")["metadata"]["name"]
        # The label goes, the Job stays: no garbage collector comes, and it is asked for after all.
        world.change(kinds.JOBS, "train", lambda o: o["metadata"].update(labels={}))
        await eventually(lambda: "team/train" not in replica.watches.kinds["Job"].store)
        await marker(world, "marker")
        assert ("GET", "jobs") not in asked(world)
        assert world.get(kinds.WORKLOADS, name, "team") is not None
        await eventually(lambda: world.get(kinds.WORKLOADS, name, "team") is None)
        assert asked(world)["GET", "jobs"] == 1
        await eventually(lambda: not replica.jobs._left_to_collector_until)
        assert names.QUEUE_LABEL not in str(world.job("train"))


async def test_a_pending_workload_of_a_deleted_job_is_asked_about_and_deleted_once(
    world: LaggingWorld,
) -> None:
    async with assigner(world) as replica:
        world.submit("train", 40, required=RACK)
        await eventually(world.shows("train", "QuotaReserved", "False"))
        owner = world.workload("train")["metadata"]["name"]
        before = asked(world)
        # The garbage collector is slow: only Rackgate deletes it.
        job = world._objects[kinds.JOBS.full_name].pop("team/train")
        world._publish("DELETED", kinds.JOBS.full_name, job)
        await eventually(lambda: world.get(kinds.WORKLOADS, owner, "team") is None)
        await marker(world, "marker")
        since = asked(world) - before - Counter({("POST", "workloads"): 1})
        assert since["GET", "jobs"] == 1
        assert since["DELETE", "workloads"] == 1
        assert since["PATCH", "workloads"] == 1
        await eventually(lambda: not replica.jobs._missing_owners)
        assert not replica.jobs._assumed_writes._outdated.keys() & {("Workload", f"team/{owner}")}


class Late:
    """Answers rightly, but not before it may; `asked` tells that it was asked."""

    def __init__(self) -> None:
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    async def answer(self, _: web.Request, handle: Handler) -> web.StreamResponse:
        answer = await handle()
        self.asked.set()
        await self.may.wait()
        return answer


async def test_an_answer_that_comes_after_the_workload_went_is_not_kept(
    world: LaggingWorld,
) -> None:
    late = Late()
    async with assigner(world) as replica:
        world.submit("train", required=RACK)
        await eventually(world.shows("train", "PodsReady", "True"))
        name = world.workload("train")["metadata"]["name"]
        world.faults.append(Fault(late.answer, method="PATCH", path=f"/workloads/{name}/status"))
        world.complete("train")
        await eventually(late.asked.is_set)
        world.change(kinds.WORKLOADS, name, lambda o: o["metadata"].update(finalizers=[]))
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: f"team/{name}" not in replica.watches.workloads.store)
        late.may.set()
        await marker(world, "marker")
        found = replica.jobs._assumed_writes._outdated
        await eventually(lambda: ("Workload", f"team/{name}") not in found)


async def deleted_meanwhile(world: LaggingWorld, replica: Assigner, late: Late, name: str) -> None:
    """Delete a Job whose patch is under way, then answer it; returns when nothing is left to do."""
    world.delete(kinds.JOBS, name)
    await eventually(lambda: f"team/{name}" not in replica.watches.kinds["Job"].store)
    late.may.set()
    await marker(world, "marker")
    await eventually(lambda: not len(replica.jobs.queue))


@pytest.mark.requirement("OPS-07")
async def test_an_answer_that_comes_after_the_job_went_is_not_kept(world: LaggingWorld) -> None:
    late = Late()
    world.faults.append(Fault(late.answer, method="PATCH", path="/jobs/train"))
    async with assigner(world) as replica:
        world.submit("train", required=RACK)
        await eventually(late.asked.is_set)
        await deleted_meanwhile(world, replica, late, "train")
        assert ("Job", "team/train") not in replica.jobs._assumed_writes._outdated


@pytest.mark.requirement("OPS-07")
async def test_an_answer_that_comes_after_the_queue_went_is_not_kept(world: LaggingWorld) -> None:
    late = Late()
    async with assigner(world) as replica:
        await marker(world, "first")
        fault = Fault(late.answer, method="PATCH", path="/localqueues/extra/status")
        world.faults.append(fault)
        queue = objects.local_queue("extra", "cq")
        queue["metadata"]["namespace"] = "team"
        world.put(kinds.LOCAL_QUEUES, queue)
        await eventually(late.asked.is_set)
        world.remove(kinds.LOCAL_QUEUES, "extra", "team")
        await eventually(lambda: "team/extra" not in replica.watches.local_queues.store)
        late.may.set()
        written = replica.statuses.writes
        await marker(world, "second")
        await eventually(lambda: replica.statuses.writes > written)
        assert "team/extra" not in {key.name for key in replica.statuses._spacing._written}


@pytest.mark.requirement("OPS-07")
async def test_a_pause_that_ended_after_the_workload_went_is_not_kept(world: LaggingWorld) -> None:
    late = Late()
    async with assigner(world) as replica:
        world.submit("huge", 40, required=RACK)
        await eventually(world.shows("huge", "QuotaReserved", "False"))
        name = world.workload("huge")["metadata"]["name"]
        world.faults.append(Fault(late.answer, method="PATCH", path=f"/workloads/{name}/status"))
        over = {"count": 1, "requeueAt": "2026-01-01T00:00:00Z"}
        world.change(kinds.WORKLOADS, name, lambda o: o["status"].update(requeueState=over))
        await eventually(late.asked.is_set)
        world.change(kinds.WORKLOADS, name, lambda o: o["metadata"].update(finalizers=[]))
        world.delete(kinds.JOBS, "huge")
        await eventually(lambda: f"team/{name}" not in replica.watches.workloads.store)
        late.may.set()
        await marker(world, "marker")
        await eventually(lambda: not len(replica.jobs.queue))
        assert ("Workload", f"team/{name}") not in replica.jobs._assumed_writes._outdated


async def test_a_waiting_reason_answered_after_the_workload_went_is_not_kept(
    world: LaggingWorld,
) -> None:
    late = Late()
    world.faults.append(Fault(late.answer, method="PATCH", path="/workloads/job-huge"))
    async with assigner(world) as replica:
        world.submit("huge", 40, required=RACK)
        await eventually(late.asked.is_set)
        name = world.workload("huge")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda o: o["metadata"].update(finalizers=[]))
        world.delete(kinds.JOBS, "huge")
        await eventually(lambda: f"team/{name}" not in replica.watches.workloads.store)
        late.may.set()
        world.submit("next", 40, required=RACK)
        await eventually(world.shows("next", "QuotaReserved", "False"))

        def only_what_is_left_is_kept() -> bool:
            # The Workload may have been created again before the deletion of its Job was seen.
            left = {f"team/{one['metadata']['name']}" for one in world.workloads()}
            return bool(left) and set(replica.scheduler._message_limiter._written) == left

        await eventually(only_what_is_left_is_kept)


async def test_a_claim_answered_after_its_job_went_is_not_kept(world: LaggingWorld) -> None:
    late = Late()
    world.faults.append(Fault(late.answer, method="GET", path="/jobsets/set"))
    parent = world.put(kinds.JOBSETS, {"metadata": {"name": "set", "namespace": "team"}})
    owner = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "name": "set",
        "uid": parent["metadata"]["uid"],
        "controller": True,
    }
    child = objects.job("child", 1)
    child["metadata"].update(namespace="team", ownerReferences=[owner])
    child["spec"]["suspend"] = True
    async with assigner(world) as replica:
        world.put(kinds.JOBS, child)
        await eventually(late.asked.is_set)
        await deleted_meanwhile(world, replica, late, "child")
        assert replica.jobs._verified_owners == {}
