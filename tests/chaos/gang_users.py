"""The people of gangs: they create them, act on their Workloads of gangs, and lose pods.

Only their user creates plain pods again that were deleted, and looks again and again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from rackgate.api import resources as kinds
from rackgate.api.names import FinishedReason
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.kube.errors import KubeError
from tests.chaos.gangs import (
    LABEL,
    GangAction,
    GangKind,
    GangPlan,
    gang_manifest,
    gang_workload,
    kept_pods,
)
from tests.chaos.users import Users, at_loop_time
from tests.support.cluster import WaitedTooLongError, until
from tests.support.composite_views import live_pods, ray_selector
from tests.support.objects import Object

LOOK_EVERY_S = 0.5
# How long a Workload of gangs is away.
AWAY_S = 3.0
ENDED_LIMIT_S = 180.0
RESOURCES: Final = {
    GangKind.JOB: kinds.JOBS,
    GangKind.RAY: kinds.RAY_CLUSTERS,
    GangKind.SET: kinds.STATEFUL_SETS,
    GangKind.DEPLOYMENT: kinds.DEPLOYMENTS,
}


@dataclass
class GangUsers:
    """Carries a scenario's gangs out, beside `users`.

    Attributes:
        done: pods without a controller that have all succeeded, by the name of their gang.
        killed: pods that were deleted while they ran.
    """

    users: Users
    done: set[str] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)

    async def act(self, begun: float) -> None:
        """Do everything at its time, counted from loop time `begun`; returns when all is done."""
        async with asyncio.TaskGroup() as group:
            for plan in self.users.scenario.gangs:
                group.create_task(self._live(plan, begun))

    async def keep_groups(self) -> None:
        """Create missing pods until all pods of a group or gang have succeeded, for ever."""
        plans = [plan for plan in self.users.scenario.gangs if plan.is_kept]
        while plans:
            await asyncio.sleep(LOOK_EVERY_S)
            for plan in plans:
                if plan.name not in self.users.created or plan.name in self.done:
                    continue
                try:
                    await self._keep(plan)
                except (KubeError, TimeoutError):
                    self.users.refusals += 1

    async def ended(self) -> list[str]:
        """Wait until what has no end runs, and pods have succeeded; returns what has not."""
        wrong: list[str] = []

        async def all_ended() -> bool:
            await asyncio.sleep(LOOK_EVERY_S)
            wrong.clear()
            for plan in self.users.scenario.gangs:
                try:
                    wrong.extend(await self._faults(plan))
                except (KubeError, TimeoutError) as error:
                    wrong.append(f"{plan.name}: {error}")
            return not wrong

        try:
            await until("all gangs run or have ended", all_ended, timeout_s=ENDED_LIMIT_S)
        except WaitedTooLongError:
            return list(wrong)
        return []

    async def _live(self, plan: GangPlan, begun: float) -> None:
        users = self.users
        await at_loop_time(begun + plan.at)
        if plan.has_workload and plan.action is not GangAction.LATE:
            await self._create_workload(plan)
        if not plan.is_kept:  # `keep_groups` does it
            kind, made = RESOURCES[plan.kind], gang_manifest(plan)
            what = f"{plan.name} is created"
            await users.retry_until_done(what, lambda: users.create(kind, made))
        users.created.add(plan.name)
        await at_loop_time(begun + plan.action_at)
        match plan.action:
            case GangAction.LATE:
                await self._create_workload(plan)
            case GangAction.REMAKE:
                await users.retry_until_done(
                    f"the Workload of gangs {plan.name} is deleted",
                    lambda: users.cluster.delete(GANG_WORKLOADS, plan.name),
                )
                await asyncio.sleep(AWAY_S)
                await self._create_workload(plan)
            case GangAction.KILL:
                await users.retry_until_done(
                    f"a pod of {plan.name} is deleted", lambda: self._kill(plan)
                )
            case GangAction.NONE:
                return

    async def _create_workload(self, plan: GangPlan) -> None:
        await self.users.retry_until_done(
            f"the Workload of gangs {plan.name} is created",
            lambda: self.users.create(GANG_WORKLOADS, gang_workload(plan)),
        )

    async def _kill(self, plan: GangPlan) -> None:
        """Delete a pod that runs, if there is one."""
        for pod in await self.users.cluster.pods_of(plan.name):
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
                await self.users.cluster.delete(kinds.PODS, pod["metadata"]["name"])
                self.killed.append(pod["metadata"]["name"])
                return

    async def _pods(self, plan: GangPlan) -> dict[str, Object]:
        selector = f"{LABEL}={plan.name}"
        found = await self.users.cluster.list_all(kinds.PODS, labelSelector=selector)
        return {pod["metadata"]["name"]: pod for pod in found}

    async def _keep(self, plan: GangPlan) -> None:
        wanted, present = kept_pods(plan), await self._pods(plan)
        phases = [pod["status"]["phase"] for pod in present.values()]
        outcome = await self._outcome(plan)
        # A drained node loses pods that have succeeded, too.
        ended = outcome == FinishedReason.SUCCEEDED or (outcome and plan.kind is GangKind.PODS)
        if phases.count("Succeeded") == plan.pods or ended:
            self.done.add(plan.name)
            return
        for name, made in wanted.items():
            if name not in present:
                await self.users.create(kinds.PODS, made)
                continue
            # What is left of a run that failed is of no use for the next one.
            is_old = outcome and not present[name]["spec"].get("schedulingGates")
            if is_old or present[name]["status"]["phase"] == "Failed":
                await self.users.cluster.delete(kinds.PODS, name)

    async def _outcome(self, plan: GangPlan) -> str:
        """Why the Workload of a group or gang is finished; "" while it is not."""
        # That of a group has its name.
        prefix = f"gang-{plan.name}-" if plan.kind is GangKind.BARE else plan.name
        for found in await self.users.cluster.list_all(kinds.WORKLOADS):
            for condition in found.get("status", {}).get("conditions", []):
                ended = (condition["type"], condition["status"]) == ("Finished", "True")
                if ended and found["metadata"]["name"].startswith(prefix):
                    return str(condition["reason"])
        return ""

    async def _faults(self, plan: GangPlan) -> list[str]:
        """Why a gang has not come to its end yet; Jobs are looked at with all others."""
        if plan.is_kept:
            if plan.name in self.done:
                return []
            return [f"{plan.name} has not ended", *map(_told, (await self._pods(plan)).values())]
        if plan.ends:
            return []
        is_ray = plan.kind is GangKind.RAY
        selector = ray_selector(plan.name) if is_ray else f"{LABEL}={plan.name}"
        pods = await live_pods(self.users.cluster, selector)
        bound = [
            pod
            for pod in pods
            if pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
        ]
        if len(bound) == len(pods) == plan.pods:
            return []
        return [f"{plan.name}: {len(bound)} of {plan.pods} pods are bound", *map(_told, pods)]


def _told(pod: Object) -> str:
    """A pod, for people."""
    meta, spec = pod["metadata"], pod["spec"]
    gates = [gate["name"] for gate in spec.get("schedulingGates", [])]
    deleted = "deleted" if "deletionTimestamp" in meta else ""
    return f"{meta['name']} {pod['status']['phase']} {spec.get('nodeName')} {gates} {deleted}"
