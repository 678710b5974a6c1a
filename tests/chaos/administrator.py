"""The administrator of a scenario: sets its queues up, and changes them while jobs run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rackgate.api import resources as kinds
from tests.chaos.queues import QuotaPlan, changed, manifest
from tests.chaos.users import Users, at_loop_time
from tests.support.cluster import Cluster
from tests.support.objects import Object, local_queue


async def set_up(cluster: Cluster, tree: Iterable[QuotaPlan]) -> None:
    """Create the queues and Cohorts, or change those of an earlier scenario."""
    for plan in tree:
        kind = kinds.CLUSTER_QUEUES if plan.is_queue else kinds.COHORTS
        full = f"{cluster.pool}-{plan.name}"
        if await cluster.find(kind, full) is None:
            await cluster.create(kind, manifest(plan, cluster.pool))
            if plan.is_queue:
                await cluster.create(kinds.LOCAL_QUEUES, local_queue(plan.name, full))
        else:
            await write(cluster, plan)


async def write(cluster: Cluster, plan: QuotaPlan) -> None:
    """Give a queue or Cohort the spec that is planned."""
    spec = manifest(plan, cluster.pool)["spec"]

    def edit(found: Object) -> None:
        found["spec"] = spec

    kind = kinds.CLUSTER_QUEUES if plan.is_queue else kinds.COHORTS
    await cluster.replace(kind, f"{cluster.pool}-{plan.name}", edit)


async def act(users: Users, begun: float) -> None:
    """Make every change at its time, and take it back; returns when all are taken back."""
    async with asyncio.TaskGroup() as group:
        for name in {change.name for change in users.scenario.changes}:
            group.create_task(_change(users, name, begun))


async def _change(users: Users, name: str, begun: float) -> None:
    """The changes of one queue or Cohort, one after another."""
    (plan,) = (it for it in users.scenario.tree if it.name == name)

    async def become(what: str, wanted: QuotaPlan) -> None:
        await users.retry_until_done(what, lambda: write(users.cluster, wanted))

    for change in users.scenario.changes:
        if change.name == name:
            await at_loop_time(begun + change.at)
            await become(str(change), changed(plan, change.change))
            await asyncio.sleep(change.seconds)
            await become(f"{name} is as before", plan)
