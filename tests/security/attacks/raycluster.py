"""RayClusters that grow, shrink, stop and start, or say that they do."""

from __future__ import annotations

from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.security.catalog import attack
from tests.security.world import HOURS, World
from tests.support.cluster import until
from tests.support.objects import Object

RAY = f"{names.RAY_CLUSTER_LABEL}=ray"
GROUP = "/spec/workerGroupSpecs/0"
REPLICAS = f"{GROUP}/replicas"


async def running(world: World, replicas: int = 3, **more: Any) -> None:
    """A RayCluster `ray`: a head of 1 CPU (1.5 with the autoscaler) and so many workers."""
    made = world.raycluster("ray", replicas, **more)
    assert await world.attacker.create(kinds.RAY_CLUSTERS, made) is not None
    hosts = more.get("hosts", 1)
    await world.bound(RAY, 1 + replicas * hosts)


async def another(world: World, replicas: int = 3) -> None:
    """A second cluster, as large as the first one was."""
    made = world.raycluster("next", replicas, cpu="4")
    await world.attacker.create(kinds.RAY_CLUSTERS, made)
    await world.hold(10)


def put(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}


def no_list(pods: list[Object]) -> list[Object]:
    return [put(REPLICAS, 0)]


def invented_names(pods: list[Object]) -> list[Object]:
    strategy = {"workersToDelete": ["nobody-1", "nobody-2", "nobody-3"]}
    return [put(REPLICAS, 0), put(f"{GROUP}/scaleStrategy", strategy)]


def fewer_hosts(pods: list[Object]) -> list[Object]:
    return [put(f"{GROUP}/numOfHosts", 1)]


def head_listed(pods: list[Object]) -> list[Object]:
    strategy = {
        "workersToDelete": [
            one["metadata"]["name"] for one in pods if "head" in one["metadata"]["name"]
        ]
    }
    return [put(REPLICAS, 0), put(f"{GROUP}/scaleStrategy", strategy)]


def lower_most(pods: list[Object]) -> list[Object]:
    return [put(f"{GROUP}/minReplicas", 0), put(f"{GROUP}/maxReplicas", 1)]


@attack(
    cases={
        "no-list": {"change": no_list},
        "invented-names": {"change": invented_names},
        "fewer-hosts": {"change": fewer_hosts, "hosts": 3, "replicas": 1},
        "head-listed": {"change": head_listed},
        "lower-maximum": {"change": lower_most},
    },
    needs=("kuberay",),
    ci=("no-list", "invented-names", "fewer-hosts"),
)
async def shrunk_and_its_pods_stay(
    world: World, change: Any, hosts: int = 1, replicas: int = 3
) -> None:
    """KubeRay keeps the pods of a cluster that scales itself unless they are listed."""
    await running(world, replicas, cpu="4", autoscaling=True, hosts=hosts)
    pods = await world.living(RAY)
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", change(pods))
    await world.hold(2)
    await another(world)


@attack(needs=("kuberay",), topology=None)
async def shrunk_while_its_pods_take_hours_to_go(world: World) -> None:
    """Listed, deleted, and alive for hours."""
    await running(world, 3, cpu="4", autoscaling=True, terminate=HOURS)
    workers = await world.living(f"{RAY},{names.RAY_NODE_TYPE_LABEL}=worker")
    strategy = {"workersToDelete": [one["metadata"]["name"] for one in workers]}
    change = [put(REPLICAS, 0), put(f"{GROUP}/scaleStrategy", strategy)]
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", change)
    await another(world)


@attack(needs=("kuberay",), seconds=150)
async def replicas_alternate(world: World) -> None:
    """One and forty, in turns, faster than anybody follows."""
    await running(world, 1, cpu="1", autoscaling=True)
    async for number in world.rounds(12, 0.7):
        change = [put(REPLICAS, 40 if number % 2 == 0 else 1)]
        await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", change)
    await world.hold(6)


@attack(
    needs=("kuberay",),
)
async def raised_without_the_autoscaler(world: World) -> None:
    """Three workers become forty; KubeRay makes them at once."""
    await running(world, 3, cpu="4")
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", [put(REPLICAS, 40)])
    await world.hold(10)


@attack(needs=("kuberay",))
async def suspend_flipped(world: World) -> None:
    """Its pods take hours to go each time, and another cluster waits."""
    await running(world, 3, cpu="4", terminate=HOURS)
    async for number in world.rounds(8, 0.6):
        change = {"spec": {"suspend": number % 2 == 0}}
        await world.attacker.merge(kinds.RAY_CLUSTERS, "ray", change)
    await another(world)


@attack(
    cases={
        "head": {"path": "/spec/headGroupSpec/template/spec/containers/0/resources/requests/cpu"},
        "worker": {"path": f"{GROUP}/template/spec/containers/0/resources/requests/cpu"},
    },
    needs=("kuberay",),
)
async def template_raised_while_it_runs(world: World, path: str) -> None:
    """1 CPU becomes 12; its pods are deleted by hand, so that new ones come."""
    await running(world, 3, cpu="4")
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", [put(path, "12")])
    for pod in await world.living(RAY):
        await world.attacker.delete(kinds.PODS, pod["metadata"]["name"], grace_s=0)
    await world.hold(10)


@attack(needs=("kuberay",))
async def autoscaler_made_larger(world: World) -> None:
    """The container that KubeRay adds to the head asks for 12 CPU more."""
    await running(world, 3, cpu="4", autoscaling=True)
    options = {"resources": {"requests": {"cpu": "12"}, "limits": {"cpu": "12"}}}
    change: Object = {"spec": {"autoscalerOptions": options}}
    await world.attacker.merge(kinds.RAY_CLUSTERS, "ray", change)
    for pod in await world.living(f"{RAY},{names.RAY_NODE_TYPE_LABEL}=head"):
        await world.attacker.delete(kinds.PODS, pod["metadata"]["name"], grace_s=0)
    await world.hold(10)


@attack(needs=("kuberay",))
async def autoscaling_switched_while_it_runs(world: World) -> None:
    """On, grown, off, grown."""
    await running(world, 2, cpu="4")
    for autoscaling, replicas in ((True, 20), (False, 20), (True, 40)):
        change: Object = {"spec": {"enableInTreeAutoscaling": autoscaling}}
        await world.attacker.merge(kinds.RAY_CLUSTERS, "ray", change)
        await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", [put(REPLICAS, replicas)])
        await world.hold(3)
    await world.hold(4)


@attack(needs=("kuberay",))
async def group_removed_while_it_runs(world: World) -> None:
    """KubeRay does not delete the pods of a group that is gone from the spec."""
    await running(world, 3, cpu="4", autoscaling=True)
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", [put("/spec/workerGroupSpecs", [])])
    await world.hold(3)
    await another(world)


@attack(needs=("kuberay",))
async def group_added_while_it_runs(world: World) -> None:
    """A second group of forty."""
    await running(world, 3, cpu="4", autoscaling=True)
    found = await world.attacker.find(kinds.RAY_CLUSTERS, "ray")
    assert found is not None
    group = dict(found["spec"]["workerGroupSpecs"][0], groupName="more", replicas=40)
    await world.attacker.json_patch(
        kinds.RAY_CLUSTERS, "ray", [put("/spec/workerGroupSpecs/-", group)]
    )
    await world.hold(10)


@attack(
    cases={
        "deleted": {"strip": ()},
        "stripped": {"strip": (names.RAY_CLUSTER_LABEL, names.RAY_NODE_TYPE_LABEL)},
        "of-no-group": {"strip": (names.RAY_GROUP_LABEL,)},
    },
    needs=("kuberay",),
    topology=None,
)
async def worker_pods_replaced_while_they_live(world: World, strip: tuple[str, ...]) -> None:
    """Deleted with hours of grace, or no longer known by their labels: KubeRay makes others."""
    await running(world, 3, cpu="4", terminate=HOURS)
    async for _ in world.rounds(3, 3.0):
        for pod in await world.living("ray.io/node-type=worker"):
            name = pod["metadata"]["name"]
            if strip:
                meta: Object = {"labels": dict.fromkeys(strip)}
                await world.attacker.merge(kinds.PODS, name, {"metadata": meta})
                meta["ownerReferences"] = None
                await world.attacker.merge(kinds.PODS, name, {"metadata": meta})
            else:
                await world.attacker.delete(kinds.PODS, name, grace_s=14400)
    await world.hold(5)


@attack(needs=("kuberay",))
async def group_suspended_and_resumed(world: World) -> None:
    """A group alone stops; its pods take hours to go; another cluster comes, and it resumes."""
    await running(world, 3, cpu="4", terminate=HOURS)
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", [put(f"{GROUP}/suspend", True)])
    await world.hold(2)
    await another(world)
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", [put(f"{GROUP}/suspend", False)])
    await world.hold(5)


@attack(needs=("kuberay",), words=("minReplicas", "maxReplicas", "Invalid value"))
async def minimum_above_replicas(world: World) -> None:
    """What counts is the larger number; it is raised while the cluster runs."""
    made = world.raycluster("ray", 1, cpu="4", group={"least": 3})
    await world.attacker.create(kinds.RAY_CLUSTERS, made)
    await world.bound(RAY, 4)
    await world.attacker.json_patch(kinds.RAY_CLUSTERS, "ray", [put(f"{GROUP}/minReplicas", 30)])
    await world.hold(8)


@attack(needs=("kuberay",))
async def given_to_another_controller(world: World) -> None:
    """`managedBy` somebody else: no pod comes, so none may be charged for ever."""
    made = world.raycluster("ray", 3, cpu="4", managedBy="kueue.x-k8s.io/multikueue")
    await world.attacker.create(kinds.RAY_CLUSTERS, made)
    await world.attacker.merge(kinds.RAY_CLUSTERS, "ray", {"spec": {"suspend": False}})
    world.note("a RayCluster of another controller")
    await world.hold(4)


@attack(needs=("kuberay",))
async def cleanup_label_on_workers(world: World) -> None:
    """Pods that clean up behind a cluster are never held: workers that say they are such."""
    made = world.raycluster("ray", 8, cpu="4")
    template = made["spec"]["workerGroupSpecs"][0]["template"]
    template.setdefault("metadata", {})["labels"] = {names.RAY_NODE_TYPE_LABEL: "redis-cleanup"}
    await world.attacker.create(kinds.RAY_CLUSTERS, made)
    job = world.job("cleans", 8)
    labels = {names.RAY_NODE_TYPE_LABEL: "redis-cleanup"}
    job["spec"]["template"].setdefault("metadata", {})["labels"] = labels
    await world.attacker.create(kinds.JOBS, job)
    await world.hold(5)


@attack(needs=("kuberay",))
async def status_written(world: World) -> None:
    """A cluster that says it is suspended, and runs on."""
    await running(world, 3, cpu="4")
    status = {"state": "suspended", "conditions": [], "desiredWorkerReplicas": 0}
    await world.attacker.merge(kinds.RAY_CLUSTERS, "ray", {"status": status}, "status")
    await world.attacker.merge(kinds.RAY_CLUSTERS, "ray", {"status": status})

    async def there() -> bool:
        return len(await world.living(RAY)) == 4

    await until("its pods are there", there)
    await another(world)
