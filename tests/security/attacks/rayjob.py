"""RayJobs that grow, stop and start, or submit in another way than they were admitted for."""

from __future__ import annotations

from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import HOURS, World
from tests.support.objects import Object

WORKERS = f"{names.RAY_NODE_TYPE_LABEL}=worker"
GROUP = "/spec/rayClusterSpec/workerGroupSpecs/0"
REPLICAS = f"{GROUP}/replicas"
CPU = "spec/containers/0/resources/requests/cpu"


async def running(world: World, workers: int = 3, **more: Any) -> None:
    """A RayJob `ray` with so many workers of 4 CPU."""
    made = world.rayjob("ray", workers, **more)
    assert await world.attacker.create(kinds.RAY_JOBS, made) is not None
    await world.bound(WORKERS, workers)


async def another(world: World) -> None:
    """A second RayJob, as large as the first one was."""
    await world.attacker.create(kinds.RAY_JOBS, world.rayjob("next", 3))
    await world.hold(10)


def put(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}


@attack(
    cases={
        "workers": {"path": REPLICAS, "value": 40},
        "worker-cpu": {"path": f"{GROUP}/template/{CPU}", "value": "12"},
        "submitter-cpu": {"path": f"/spec/submitterPodTemplate/{CPU}", "value": "12"},
    },
    needs=("kuberay",),
    ci=("workers", "submitter-cpu"),
)
async def raised_while_it_runs(world: World, path: str, value: Any) -> None:
    """Also the RayCluster that KubeRay made of it; its pods are deleted, so that others come."""
    await running(world)
    await world.attacker.json_patch(kinds.RAY_JOBS, "ray", [put(path, value)])
    for one in await world.attacker.all(kinds.RAY_CLUSTERS):
        inner = path.replace("/rayClusterSpec", "")
        if "submitter" not in inner:
            name = one["metadata"]["name"]
            await world.attacker.json_patch(kinds.RAY_CLUSTERS, name, [put(inner, value)])
    for pod in await world.living():
        await world.attacker.delete(kinds.PODS, pod["metadata"]["name"], grace_s=0)
    await world.hold(10)


@attack(needs=("kuberay",))
async def suspend_flipped(world: World) -> None:
    """Its pods take hours to go each time, and another RayJob waits."""
    await running(world, terminate=HOURS)
    async for number in world.rounds(8, 0.6):
        change = {"spec": {"suspend": number % 2 == 0}}
        await world.attacker.merge(kinds.RAY_JOBS, "ray", change)
    await another(world)


@attack(needs=("kuberay",), cases={"at-once": {"pause_s": 0.0}, "slowly": {"pause_s": 4.0}})
async def mode_flipped(world: World, pause_s: float) -> None:
    """Admitted without a submitter, it is to get one, which asks for 12 CPU."""
    container = world.pod("unused", "12")["spec"]["containers"][0]
    template: Object = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    await running(world, submissionMode="HTTPMode", submitterPodTemplate=template)
    for spec in (
        {"submissionMode": "K8sJobMode"},
        {"submissionMode": "K8sJobMode", "suspend": True},
        {"suspend": False},
        {"submissionMode": "HTTPMode", "suspend": True},
        {"submissionMode": "K8sJobMode", "suspend": False},
    ):
        await world.attacker.merge(kinds.RAY_JOBS, "ray", {"spec": spec})
        await world.hold(pause_s)
    await another(world)
