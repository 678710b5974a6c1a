"""What must be true of elastic jobs once the faults have stopped: size, places, usage, slices."""

from __future__ import annotations

import asyncio
import json

from rackgate.api import resources as kinds
from rackgate.kube.errors import KubeError
from rackgate.resources import quantity
from tests.chaos.composites import GROUP, ElasticPlan
from tests.chaos.users import Users
from tests.support.cluster import Cluster, WaitedTooLongError, until
from tests.support.composite_views import live_pods, ray_selector, usage
from tests.support.objects import Object

RESIZED_LIMIT_S = 180.0
MAIN = "main"
JOB_LABEL = "batch.kubernetes.io/job-name"


async def wait_all_resized(users: Users) -> list[str]:
    """Wait until every elastic job is as large as it asks, placed, and counted exactly.

    To be asked when nothing else runs.

    Returns:
        What is wrong.
    """
    plans = [plan for plan in users.scenario.elastic if plan.name not in users.deleted]
    queues = [plan.name for plan in users.scenario.tree if plan.is_queue]
    wrong: list[str] = []

    async def settled() -> bool:
        wrong.clear()
        try:
            for plan in plans:
                wrong.extend(await _faults(users.cluster, plan))
            wrong.extend(await _miscounted(users.cluster, plans, queues))
        except (KubeError, TimeoutError) as error:
            wrong.append(str(error))
        await asyncio.sleep(0.4)
        return not wrong

    if users.scenario.elastic:
        try:
            await until("all elastic jobs are settled", settled, timeout_s=RESIZED_LIMIT_S)
        except WaitedTooLongError:
            return list(wrong)
    return []


async def _faults(cluster: Cluster, plan: ElasticPlan) -> list[str]:
    """What a parent, its slices and its pods are not yet."""
    podset = GROUP if plan.ray else MAIN
    owned = await cluster.list_all(kinds.WORKLOADS)
    parents = [one for one in owned if _owned_by(one, plan.name)]
    if len(parents) != 1:
        return [f"{plan.name}: {len(parents)} Workloads"]
    (parent,) = parents
    name = parent["metadata"]["name"]
    wrong = []
    asked = {it["name"]: it["count"] for it in parent["spec"]["podSets"]}
    status = parent.get("status", {})
    given = {
        it["name"]: it["count"] for it in status.get("admission", {}).get("podSetAssignments", [])
    }
    if not asked.get(podset) == given.get(podset) == plan.last:
        wrong.append(f"{plan.name}: asks {asked}, has {given}, wants {plan.last} of {podset}")
    left = [one["metadata"]["name"] for one in owned if _owned_by(one, name)]
    if left:
        wrong.append(f"{plan.name}: slices {left}")
    if status.get("foldedSlices"):
        wrong.append(f"{plan.name}: foldedSlices {status['foldedSlices']}")
    wrong += await _misplaced(cluster, plan)
    if wrong:
        wrong.append(f"{plan.name}: conditions {json.dumps(status.get('conditions', []))}")
    return wrong


async def _misplaced(cluster: Cluster, plan: ElasticPlan) -> list[str]:
    selector = ray_selector(plan.name) if plan.ray else f"{JOB_LABEL}={plan.name}"
    pods = await live_pods(cluster, selector)
    wrong = [
        f"{plan.name}: pod {pod['metadata']['name']} has gates "
        f"{pod['spec'].get('schedulingGates', [])} and node {pod['spec'].get('nodeName')}"
        for pod in pods
        if pod["spec"].get("schedulingGates") or not pod["spec"].get("nodeName")
    ]
    expected = plan.last + plan.ray
    return wrong + [f"{plan.name}: {len(pods)} pods, not {expected}"] * (len(pods) != expected)


async def _miscounted(cluster: Cluster, plans: list[ElasticPlan], queues: list[str]) -> list[str]:
    """Queues that do not use what their elastic jobs have: all others have ended."""
    wrong = []
    for queue in queues:
        expected = sum(round(plan.cpu_used * 1000) for plan in plans if plan.queue == queue)
        found = await usage(cluster, queue=queue)
        if quantity.amount("cpu", found) != expected:
            wrong.append(f"usage of {queue} is {found} cpu, not {expected}m")
    return wrong


def _owned_by(workload: Object, name: str) -> bool:
    return any(o["name"] == name for o in workload["metadata"].get("ownerReferences", []))
