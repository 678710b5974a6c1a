"""The people of JobSets and of elastic jobs: they create them, resize them, suspend and delete.

A Job's size is what its user writes. A RayCluster's is written by Ray's autoscaler, which looks
again and again and so mends what was lost.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.errors import KubeError
from tests.chaos.composites import (
    GROUP,
    ElasticPlan,
    SetPlan,
    elastic_manifest,
    set_manifest,
)
from tests.chaos.endings import finished
from tests.chaos.job_options import UserAction
from tests.chaos.users import PATIENCE_S, Users, at_loop_time
from tests.support.cluster import until
from tests.support.objects import Object
from tests.support.ray_autoscaler import RayAutoscaler

LOOK_EVERY_S = 0.5


def kind_of(plan: SetPlan | ElasticPlan) -> Resource:
    """The kind of which a plan's object is."""
    if isinstance(plan, SetPlan):
        return kinds.JOBSETS
    return kinds.RAY_CLUSTERS if plan.ray else kinds.JOBS


@dataclass
class ElasticUsers:
    """Carries a scenario's JobSets and elastic jobs out, beside `users`."""

    users: Users

    async def act(self, begun: float) -> None:
        """Do everything at its time, counted from loop time `begun`; returns when all is done."""
        scenario, pool = self.users.scenario, self.users.cluster.pool
        async with asyncio.TaskGroup() as group:
            for jobset in scenario.sets:
                group.create_task(self._live(jobset, set_manifest(jobset, pool), begun))
            for plan in scenario.elastic:
                group.create_task(self._live(plan, elastic_manifest(plan, pool), begun))
                if not plan.ray:
                    group.create_task(self._resize(plan, begun))

    async def autoscale(self) -> None:
        """Be the autoscalers of all RayClusters, for ever."""
        async with asyncio.TaskGroup() as group:
            for plan in self.users.scenario.elastic:
                if plan.ray:
                    group.create_task(self._autoscale(plan))

    async def _live(self, plan: SetPlan | ElasticPlan, made: Object, begun: float) -> None:
        users = self.users
        await at_loop_time(begun + plan.at)
        await users.retry_until_done(
            f"{plan.name} is created", lambda: users.create(kind_of(plan), made)
        )
        users.created.add(plan.name)
        if plan.user_action is not UserAction.NONE:
            await at_loop_time(begun + plan.fate_at)
            await users.retry_until_done(
                f"{plan.name} meets its fate", lambda: self._handle_user_action(plan)
            )

    async def _handle_user_action(self, plan: SetPlan | ElasticPlan) -> None:
        cluster, kind = self.users.cluster, kind_of(plan)
        match plan.user_action:
            case UserAction.DELETE:
                self.users.deleted.add(plan.name)
                await cluster.delete(kind, plan.name)
            case UserAction.SUSPEND:
                if not finished(await cluster.get(kind, plan.name)):
                    await cluster.merge(kind, plan.name, {"spec": {"suspend": True}})
            case UserAction.DEACTIVATE:
                await self.users.deactivate(plan.name, active=False)
            case _:
                return

    async def _resize(self, plan: ElasticPlan, begun: float) -> None:
        async def created() -> bool:
            return plan.name in self.users.created

        for moment, size in plan.sizes:
            await at_loop_time(begun + moment)
            # Its creation may have been rejected until now: a write before it would be lost.
            await until(f"{plan.name} is created", created, timeout_s=PATIENCE_S)
            spec = {"parallelism": size}
            if plan.together:
                spec["completions"] = size

            async def write(spec: dict[str, int] = spec) -> None:
                await self.users.cluster.merge(kinds.JOBS, plan.name, {"spec": spec})

            await self.users.retry_until_done(f"{plan.name} has {size} pods", write)

    async def _autoscale(self, plan: ElasticPlan) -> None:
        users = self.users
        ray = RayAutoscaler(users.cluster.client, users.cluster.namespace, plan.name)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if plan.name not in users.created or plan.name in users.deleted:
                continue
            try:
                found = await users.cluster.find(kinds.RAY_CLUSTERS, plan.name)
                # Ray's autoscaler lives in the head pod: without it nobody writes.
                if found is not None and found.get("status", {}).get("state") == "ready":
                    await self._scale(ray, plan, found)
            except (KubeError, TimeoutError):
                users.refusals += 1

    async def _scale(self, ray: RayAutoscaler, plan: ElasticPlan, found: Object) -> None:
        second = asyncio.get_running_loop().time() - self.users.begun
        wanted, workers = plan.wanted(second), await ray.workers(GROUP)
        asked = found["spec"]["workerGroupSpecs"][0]["replicas"]
        if len(workers) < wanted and asked != wanted:
            await ray.launch(**{GROUP: wanted - len(workers)})
        elif len(workers) > wanted:
            await ray.terminate(*workers[wanted:])
        else:
            await ray.tick()
