"""What the assigner does around Jobs: queue status, finalizers, standing by, and resting."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from tests.support.objects import RACK, Object
from tests.wire.assigner_world import World, assigner, eventually, furnish, settings


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    async with World() as running:
        furnish(running)
        yield running
        assert running.broken_rules == []


def _has_finalizer(world: World, kind: Resource, name: str) -> bool:
    found = world.get(kind, name)
    return found is not None and bool(found["metadata"].get("finalizers"))


async def test_queue_status_is_counted_once_and_then_rests(world: World) -> None:
    async with assigner(world) as replica:
        world.submit("train", required=RACK)
        world.submit("huge", 40, required=RACK)

        def counted() -> bool:
            queue: Any = world.get(kinds.CLUSTER_QUEUES, "cq")
            status = queue.get("status", {})
            return (status.get("pendingWorkloads"), status.get("admittedWorkloads")) == (1, 1)

        await eventually(counted)
        local = functools.partial(world.get, kinds.LOCAL_QUEUES, "queue", "team")
        await eventually(lambda: (local() or {}).get("status", {}).get("admittedWorkloads") == 1)
        before = -1
        for _ in range(40):  # answers to the first writes may still be on their way
            if replica.statuses.writes == before:
                break
            before = replica.statuses.writes
            replica.statuses.mark_all()
            await asyncio.sleep(0.3)  # one whole round
        assert replica.statuses.writes == before


@pytest.mark.steady_clock  # after a stall the queue counts as quiet
async def test_counts_of_a_queue_that_changes_on_and_on_are_written_now_and_then(
    world: World,
) -> None:
    """Written in every round there would be fifteen writes about each of the two queues."""
    spaced = settings(queueStatus={"minInterval": 0.2, "maxInterval": 60})
    async with assigner(world, configured=spaced) as replica:
        loop = asyncio.get_running_loop()
        end, number = loop.time() + 3.0, 0
        while loop.time() < end:
            world.submit(f"train-{number}", 1, queue="plain", cpu="1")
            await eventually(world.shows(f"train-{number}", "PodsReady", "True"))
            world.complete(f"train-{number}")
            await eventually(world.shows(f"train-{number}", "Finished", "True"))
            number += 1
        assert replica.statuses.writes <= 16
        # Another condition does not wait for its turn.
        world.change(kinds.CLUSTER_QUEUES, "plain", lambda o: o["spec"].update(stopPolicy="Hold"))
        stopped = functools.partial(_is_active, world, "plain")
        await eventually(lambda: stopped() is False)


def _is_active(world: World, name: str) -> bool | None:
    found: Any = world.get(kinds.CLUSTER_QUEUES, name)
    for condition in found.get("status", {}).get("conditions", []):
        if condition["type"] == "Active":
            return bool(condition["status"] == "True")
    return None


async def test_an_idle_cluster_is_left_alone(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        world.submit("huge", 40, required=RACK)
        await eventually(lambda: world.condition("train", "PodsReady")[0] == "True")
        await eventually(lambda: world.condition("huge", "QuotaReserved")[0] == "False")
        seen = -1
        while seen != len(world.requests):  # until a whole second brings nothing new
            seen = len(world.requests)
            await asyncio.sleep(1.0)
        assert [r.path for r in world.requests[seen:]] == []


@pytest.mark.requirement("OPS-06")
async def test_a_standby_writes_nothing_and_takes_over_without_new_events(world: World) -> None:
    async with assigner(world, acts=False) as replica:
        world.submit("train", required=RACK)
        await eventually(lambda: "team/train" in replica.watches.kinds["Job"].store)
        assert world.writes() == []
        taking_over = asyncio.create_task(replica.act())
        await eventually(lambda: world.runs("train"))
        taking_over.cancel()
        await asyncio.wait((taking_over,))
        await eventually(lambda: not replica.acting)


async def test_kinds_in_use_keep_their_finalizer(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.condition("train", "PodsReady")[0] == "True")
        for kind, name in (
            (kinds.TOPOLOGIES, "dc"),
            (kinds.FLAVORS, "tas"),
            (kinds.CLUSTER_QUEUES, "cq"),
        ):
            await eventually(functools.partial(_has_finalizer, world, kind, name))
            world.delete(kind, name)
        world.delete(kinds.JOBS, "train")
        await eventually(lambda: world.get(kinds.CLUSTER_QUEUES, "cq") is None)
        await eventually(lambda: world.get(kinds.TOPOLOGIES, "dc") is None)


POLICY = {"migration": {"mode": "TryPreferredFlavors"}}
SCOPE = {"admissionMode": "UsageBasedAdmissionFairSharing"}


async def test_unsupported_fields_are_reported_once(world: World) -> None:
    async with assigner(world):
        world.change(
            kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(concurrentAdmissionPolicy=POLICY)
        )
        await eventually(lambda: world.events("UnsupportedField"))
        assert "spec.concurrentAdmissionPolicy" in world.events("UnsupportedField")[0]["note"]


async def test_fields_that_only_admission_fair_sharing_reads_are_named_while_it_is_off(
    world: World,
) -> None:
    async with assigner(world):
        world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(admissionScope=SCOPE))
        await eventually(lambda: world.events("UnsupportedField"))
        note = world.events("UnsupportedField")[0]["note"]
        assert "spec.admissionScope" in note
        assert "usageHalfLifeTime" in note


async def test_fields_set_before_the_assigner_acts_are_named_too(world: World) -> None:
    world.change(
        kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(concurrentAdmissionPolicy=POLICY)
    )
    async with assigner(world):
        await eventually(lambda: world.events("UnsupportedField"))
        assert "spec.concurrentAdmissionPolicy" in world.events("UnsupportedField")[0]["note"]


@pytest.mark.requirement("OPS-09")
async def test_the_condition_follows_edits_although_no_decision_follows(world: World) -> None:
    """The job runs, and its Workload stays as it is."""

    def said() -> str:
        found = {one["type"]: one for one in world.workload("train")["status"]["conditions"]}
        return str(found.get("UnsupportedFields", {}).get("message", ""))

    def annotations(of: Object) -> dict[str, str]:
        found: dict[str, str] = of["metadata"].setdefault("annotations", {})
        return found

    boost = "kueue.x-k8s.io/priority-boost"
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
        before = world.workload("train")["status"]["admission"]
        world.change(kinds.JOBS, "train", lambda o: annotations(o).update({boost: "5"}))
        await eventually(lambda: boost in said())
        world.change(
            kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(concurrentAdmissionPolicy=POLICY)
        )
        await eventually(lambda: "spec.concurrentAdmissionPolicy" in said() and boost in said())
        world.change(kinds.JOBS, "train", lambda o: annotations(o).pop(boost))
        await eventually(lambda: said() and boost not in said())
        world.change(
            kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].pop("concurrentAdmissionPolicy")
        )
        await eventually(lambda: said() == "")
        assert world.workload("train")["status"]["admission"] == before
        assert world.runs("train")


@pytest.mark.requirement("OPS-09")
async def test_the_condition_of_an_edit_that_no_replica_saw_is_removed(world: World) -> None:
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
    stale = {
        "type": "UnsupportedFields",
        "status": "True",
        "reason": "UnsupportedField",
        "message": "of an annotation that is gone",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    name = world.workload("train")["metadata"]["name"]
    world.change(kinds.WORKLOADS, name, lambda o: o["status"]["conditions"].insert(0, stale))
    async with assigner(world):
        await eventually(
            lambda: "UnsupportedFields" not in str(world.workload("train")["status"]["conditions"])
        )


async def test_an_annotation_added_to_a_job_later_is_named(world: World) -> None:
    """A change of annotations does not change the generation."""
    async with assigner(world):
        world.submit("train", required=RACK)
        await eventually(lambda: world.runs("train"))
        assert not world.events("UnsupportedField")
        added = {"kueue.x-k8s.io/priority-boost": "5"}
        world.change(
            kinds.JOBS,
            "train",
            lambda o: o["metadata"].setdefault("annotations", {}).update(added),
        )
        await eventually(lambda: world.events("UnsupportedField"))
        assert "priority-boost" in world.events("UnsupportedField")[0]["note"]
