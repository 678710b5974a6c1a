"""A replica that takes over sees the start of a job before its admission."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from rackgate.api import resources as kinds
from rackgate.wire.kueue import ClusterQueue, Workload
from rackgate_assigner.assigner import Assigner
from tests.support.apiserver import Object, Stream
from tests.wire.assigner_world import NAMESPACE, World, assigner, eventually, furnish

JOB = f"{NAMESPACE}/train"


@asynccontextmanager
async def taken_over(world: World) -> AsyncIterator[tuple[Assigner, Stream]]:
    """A replica that begins to act; it sees that `train` runs, but not yet that it is admitted."""
    furnish(world)
    async with assigner(world, acts=False) as replica:
        (late,) = [s for s in world.streams if s.target.full_name == kinds.WORKLOADS.full_name]
        async with assigner(world):
            world.submit("first", 64, queue="plain", cpu="1")
            await eventually(world.started("first"))
            world.submit("train", 64, queue="plain", cpu="1")
            await eventually(world.shows("train", "QuotaReserved", "False"))
            stored, name = replica.watches.workloads.store, world.workload("train")["metadata"]
            await eventually(lambda: f"{NAMESPACE}/{name['name']}" in stored)
            late.flows.clear()
            world.complete("first")
            await eventually(world.started("train"))
        jobs = replica.watches.kinds["Job"].store
        await eventually(lambda: not jobs[JOB].spec.suspend)
        before = len(world.requests)
        acting = asyncio.create_task(replica.act())
        await eventually(
            lambda: [r for r in world.requests[before:] if r.path.endswith(name["name"])]
        )
        try:
            yield replica, late
        finally:
            acting.cancel()
            await asyncio.wait((acting,))


@pytest.mark.requirement("OPS-06")
async def test_a_job_whose_admission_is_seen_late_keeps_running() -> None:
    async with World() as world, taken_over(world) as (replica, late):
        before = len(world.requests)
        late.flows.set()
        stored = replica.watches.workloads.store
        await eventually(
            lambda: any(found.status.admission is not None for found in stored.values())
        )
        world.submit("next", 1, queue="queue", cpu="1")
        await eventually(world.started("next"))
        assert world.runs("train")
        changes = [r for r in world.requests[before:] if r.method == "PATCH"]
        assert not [r for r in changes if r.path.endswith("/jobs/train")]
        assert world.broken_rules == []


async def test_a_job_whose_admission_ended_before_it_was_seen_is_stopped() -> None:
    async with World() as world, taken_over(world):
        name = world.workload("train")["metadata"]["name"]
        world.change(kinds.WORKLOADS, name, lambda item: item.pop("status"))
        await eventually(lambda: not world.runs("train"))


def _shows(stored: Mapping[str, Workload], message: str) -> bool:
    return any(one.message == message for item in stored.values() for one in item.status.conditions)


def _quota_of(queue: ClusterQueue) -> str:
    return str(queue.spec.resource_groups[0].flavors[0].resources[0].nominal_quota)


@pytest.mark.requirement("OPS-06")
async def test_a_message_that_is_right_again_before_the_watch_shows_another_one_stays() -> None:
    """The watch still shows it, so it seems to need no write; then it shows the other one."""
    async with World() as world:
        furnish(world)
        async with assigner(world) as replica:

            def quota(cpu: str) -> None:
                def edit(queue: Object) -> None:
                    flavor = queue["spec"]["resourceGroups"][0]["flavors"][0]
                    flavor["resources"][0]["nominalQuota"] = cpu

                world.change(kinds.CLUSTER_QUEUES, "plain", edit)

            def message() -> str:
                found = world.workload("large")["status"]["conditions"]
                return str(next(one["message"] for one in found if one["type"] == "QuotaReserved"))

            async def decided_with(cpu: str) -> None:
                queues = replica.watches.cluster_queues.store
                await eventually(lambda: _quota_of(queues["plain"]) == cpu)
                seen = replica.scheduler.cycles
                replica.scheduler.request_cycle()
                await eventually(lambda: replica.scheduler.cycles > seen)

            world.submit("large", 100, queue="plain", cpu="1")
            await eventually(world.shows("large", "QuotaReserved", "False"))
            first, stored = message(), replica.watches.workloads.store
            await eventually(lambda: _shows(stored, first))
            (late,) = [s for s in world.streams if s.target.full_name == kinds.WORKLOADS.full_name]
            late.flows.clear()
            quota("60")
            await eventually(lambda: message() != first)
            quota("64")
            await decided_with("64")
            late.flows.set()
            await eventually(lambda: message() == first)
