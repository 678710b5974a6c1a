"""The people of RayJobs: they create them, suspend and delete them, and see that they run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rackgate.api import resources as kinds
from rackgate.kube.errors import KubeError
from rackgate.resources import quantity
from tests.chaos.job_options import UserAction
from tests.chaos.rayjobs import QUEUE, RayJobPlan, cpu_used, rayjob_manifest
from tests.chaos.users import Users, at_loop_time
from tests.support.cluster import Cluster, WaitedTooLongError, until
from tests.support.composite_views import live_pods, ray_selector, usage
from tests.support.objects import Object

RUNNING_LIMIT_S: Final = 240.0


@dataclass
class RayJobUsers:
    """Carries a scenario's RayJobs out, beside `users`."""

    users: Users

    async def act(self, begun: float) -> None:
        """Do everything at its time, counted from loop time `begun`; returns when all is done."""
        async with asyncio.TaskGroup() as group:
            for plan in self.users.scenario.rayjobs:
                group.create_task(self._live(plan, begun))

    async def running(self) -> list[str]:
        """Wait until all run that were not deleted; returns what does not."""
        wrong: list[str] = []

        async def all_run() -> bool:
            await asyncio.sleep(0.5)
            wrong.clear()
            try:
                for plan in self._left():
                    wrong.extend(await _faults(self.users.cluster, plan))
                wrong.extend(await self._miscounted())
            except (KubeError, TimeoutError) as error:
                wrong.append(str(error))
            return not wrong

        if self.users.scenario.rayjobs:
            try:
                await until("all RayJobs run", all_run, timeout_s=RUNNING_LIMIT_S)
            except WaitedTooLongError:
                return list(wrong)
        return []

    def _left(self) -> list[RayJobPlan]:
        users = self.users
        return [plan for plan in users.scenario.rayjobs if plan.name not in users.deleted]

    async def _miscounted(self) -> list[str]:
        expected = sum(map(cpu_used, self._left()))
        found = await usage(self.users.cluster, queue=QUEUE.name)
        if quantity.amount("cpu", found) == expected:
            return []
        return [f"usage of {QUEUE.name} is {found} cpu, not {expected}m"]

    async def _live(self, plan: RayJobPlan, begun: float) -> None:
        users = self.users
        await at_loop_time(begun + plan.at)
        made = rayjob_manifest(plan)
        await users.retry_until_done(
            f"{plan.name} is created", lambda: users.create(kinds.RAY_JOBS, made)
        )
        users.created.add(plan.name)
        if plan.user_action is UserAction.NONE:
            return
        await at_loop_time(begun + plan.fate_at)
        await users.retry_until_done(f"{plan.name} meets its fate", lambda: self._fate(plan))

    async def _fate(self, plan: RayJobPlan) -> None:
        cluster = self.users.cluster
        if plan.user_action is UserAction.DELETE:
            self.users.deleted.add(plan.name)
            await cluster.delete(kinds.RAY_JOBS, plan.name)
        else:
            await cluster.merge(kinds.RAY_JOBS, plan.name, {"spec": {"suspend": True}})


async def _faults(cluster: Cluster, plan: RayJobPlan) -> list[str]:
    """What is not yet as it is when it runs."""
    found = await cluster.get(kinds.RAY_JOBS, plan.name)
    status = found.get("status", {})
    said = f"{plan.name}: suspend {found['spec'].get('suspend')}, {_said(status)}"
    ray = status.get("rayClusterName", "")
    pods = await live_pods(cluster, ray_selector(ray)) if ray else []
    pods += await live_pods(cluster, f"job-name={plan.name}")
    bound = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
    ]
    if len(pods) == len(bound) == plan.pods:
        return []
    return [f"{said}, {len(bound)} of {len(pods)} pods are bound, not {plan.pods}"]


def _said(status: Object) -> str:
    parts = ("jobDeploymentStatus", "jobStatus", "reason", "message")
    return " ".join(str(status[part]) for part in parts if status.get(part)) or "no status"
