"""The people of a scenario: they create, suspend, deactivate and delete Jobs, and take nodes out.

They speak to the API server directly, try again when they are refused, and know nothing of
faults.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError, NotFoundError
from tests.chaos.endings import finished
from tests.chaos.job_options import TopologyMode, UserAction
from tests.chaos.queues import priority_label
from tests.chaos.scenario import FlapPlan, JobPlan, Scenario
from tests.support.cluster import Cluster, until
from tests.support.objects import Object, job

OWN_GATE = "chaos.test/hold"
OWN_TAINT = "chaos.test/out"
PATIENCE_S = 90.0
# Until another job is admitted, whatever breaks meanwhile.
AFTER_LIMIT_S = 240.0
LIFT_EVERY_S = 0.3


def manifest(plan: JobPlan, pool: str) -> Object:
    """The Job as its user writes it."""
    found = job(
        plan.name,
        plan.pods,
        queue=plan.queue,
        cpu=str(plan.cpu),
        labels=priority_label(plan.priority, pool),
        required=plan.level if plan.topology_mode is TopologyMode.REQUIRED else None,
        preferred=plan.level if plan.topology_mode is TopologyMode.PREFERRED else None,
        indexed=plan.indexed,
        run_seconds=plan.run_s,
        # Pods of drained nodes fail; that is no reason to give the Job up.
        spec={"backoffLimit": 1000},
        pod={"schedulingGates": [{"name": OWN_GATE}]}
        if plan.user_action is UserAction.HOLD
        else None,
    )
    marks = found["spec"]["template"]["metadata"].setdefault("annotations", {})
    if plan.topology_mode is TopologyMode.UNCONSTRAINED:
        marks[names.UNCONSTRAINED_TOPOLOGY] = "true"
    if plan.linger_s:
        marks["rackgate.dev/terminate-seconds"] = str(plan.linger_s)
    return found


@dataclass
class Users:
    """Carries a scenario's Jobs and flaps out.

    Attributes:
        created, deleted: names of jobs of all kinds.
        begun: loop time of the scenario's beginning.
        refusals: how often somebody had to try again.
        lost_gates: pods whose own gate went without its owner taking it off.
    """

    cluster: Cluster
    scenario: Scenario
    created: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    begun: float = 0.0
    refusals: int = 0
    lost_gates: set[str] = field(default_factory=set)
    _lifted: set[str] = field(default_factory=set)
    _may_lift: set[str] = field(default_factory=set)

    async def act(self, begun: float) -> None:
        """Do everything at its time, counted from loop time `begun`; returns when all is done."""
        self.begun = begun
        async with asyncio.TaskGroup() as group:
            for plan in self.scenario.jobs:
                group.create_task(self._live(plan, begun))
            for flap in self.scenario.flaps:
                group.create_task(self._flap(flap, begun))

    async def lift_gates(self) -> None:
        """Take own gates off pods whose time has come, and watch over the others, for ever."""
        held = {plan.name for plan in self.scenario.jobs if plan.user_action is UserAction.HOLD}
        while held:
            await asyncio.sleep(LIFT_EVERY_S)
            try:
                for name in sorted(held):
                    await self._lift(name)
            except (KubeError, TimeoutError):
                continue

    async def deactivate(self, name: str, active: bool) -> None:
        """Set `spec.active` of a Job's Workload."""
        workload = await self.cluster.workload_of(name)
        change = {"spec": {"active": active}}
        await self.cluster.merge(kinds.WORKLOADS, workload["metadata"]["name"], change)

    async def _live(self, plan: JobPlan, begun: float) -> None:
        await at_loop_time(begun + plan.at)
        if plan.after:
            what = f"{plan.after} is admitted"
            await until(what, lambda: self._is_admitted(plan.after), timeout_s=AFTER_LIMIT_S)
        made = manifest(plan, self.cluster.pool)
        await self.retry_until_done(
            f"Job {plan.name} is created", lambda: self.create(kinds.JOBS, made)
        )
        self.created.add(plan.name)
        if plan.user_action is UserAction.NONE:
            return
        await at_loop_time(begun + plan.fate_at)
        await self.retry_until_done(
            f"Job {plan.name} meets its fate", lambda: self._handle_user_action(plan)
        )

    async def _is_admitted(self, name: str) -> bool:
        try:
            found = await self.cluster.list_all(kinds.WORKLOADS)
        except (KubeError, TimeoutError):
            return False
        return any(
            it.get("status", {}).get("admission") is not None
            and any(owner["name"] == name for owner in it["metadata"].get("ownerReferences", []))
            for it in found
        )

    async def create(self, kind: Resource, made: Object) -> None:
        """Create an object; one that is there already is fine."""
        try:
            await self.cluster.create(kind, made)
        except KubeError as error:
            # An attempt without an answer may have been applied.
            if error.status != 409:
                raise

    async def _handle_user_action(self, plan: JobPlan) -> None:
        match plan.user_action:
            case UserAction.DELETE:
                await self.cluster.delete(kinds.JOBS, plan.name)
                self.deleted.add(plan.name)
            case UserAction.SUSPEND:
                if not finished(await self.cluster.get(kinds.JOBS, plan.name)):
                    await self.cluster.merge(kinds.JOBS, plan.name, {"spec": {"suspend": True}})
            case UserAction.DEACTIVATE:
                await self.deactivate(plan.name, active=False)
            case UserAction.HOLD:
                self._may_lift.add(plan.name)
            case UserAction.NONE:
                return

    async def _lift(self, name: str) -> None:
        for pod in await self.cluster.pods_of(name):
            gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]
            uid, pod_name = pod["metadata"]["uid"], pod["metadata"]["name"]
            if OWN_GATE not in gates:
                if uid not in self._lifted:
                    self.lost_gates.add(pod_name)
                continue
            if name not in self._may_lift:
                continue
            self._lifted.add(uid)
            change = {"spec": {"schedulingGates": [{"name": OWN_GATE, "$patch": "delete"}]}}
            path = kinds.PODS.path(self.cluster.namespace, pod_name)
            await _strategic(self.cluster.client, path, change)

    async def _flap(self, flap: FlapPlan, begun: float) -> None:
        name = f"{self.cluster.pool}-n{flap.host:02}"
        taint = {"key": OWN_TAINT, "effect": "NoExecute"}
        out: Object = {"taints": [taint]} if flap.kind == "taint" else {"unschedulable": True}
        back: Object = {"taints": None} if flap.kind == "taint" else {"unschedulable": None}
        await at_loop_time(begun + flap.at)

        async def change(spec: Object) -> None:
            await self.cluster.merge(kinds.NODES, name, {"spec": spec})

        await self.retry_until_done(f"node {name} is out", lambda: change(out))
        if flap.kind == "drain":
            await self.retry_until_done(f"node {name} is drained", lambda: self._drain(name))
        await asyncio.sleep(flap.seconds)
        await self.retry_until_done(f"node {name} is back", lambda: change(back))

    async def _drain(self, node: str) -> None:
        for pod in await self.cluster.list_all(kinds.PODS, fieldSelector=f"spec.nodeName={node}"):
            await self.cluster.delete(kinds.PODS, pod["metadata"]["name"])

    async def retry_until_done(self, what: str, action: Callable[[], Awaitable[None]]) -> None:
        """Try an action until it succeeds, or what it is about is gone."""

        async def done() -> bool:
            try:
                await action()
            except NotFoundError:
                return True
            except (KubeError, TimeoutError):
                self.refusals += 1
                await asyncio.sleep(0.5)
                return False
            return True

        await until(what, done, timeout_s=PATIENCE_S)


async def _strategic(client: Client, path: str, change: Object) -> None:
    await client.patch(path, json.dumps(change).encode(), PatchType.STRATEGIC)


async def at_loop_time(moment: float) -> None:
    """Sleep until a time of the running loop."""
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))
