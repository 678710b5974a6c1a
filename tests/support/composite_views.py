"""What integration tests see of JobSets and RayClusters: pods, places, states, usage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from tests.support.cluster import Cluster, exactly_bound, until
from tests.support.objects import BLOCK, POOL_LABEL, RACK, Object

INDEX = names.COMPLETION_INDEX_LABEL
ENDED = ("Succeeded", "Failed")


def jobset_selector(name: str, part: str | None = None) -> str:
    """Selects the pods of a JobSet, or of one of its replicatedJobs."""
    selector = f"{names.JOBSET_NAME_LABEL}={name}"
    return selector if part is None else f"{selector},{names.REPLICATED_JOB_LABEL}={part}"


def ray_selector(name: str, group: str | None = None) -> str:
    """Selects the pods of a RayCluster, or of one of its groups (the head's is headgroup)."""
    selector = f"{names.RAY_CLUSTER_LABEL}={name}"
    return selector if group is None else f"{selector},{names.RAY_GROUP_LABEL}={group}"


async def live_pods(cluster: Cluster, selector: str) -> list[Object]:
    """Pods that have not ended and that nobody deletes."""
    return [
        pod
        for pod in await cluster.list_all(kinds.PODS, labelSelector=selector)
        if pod["status"]["phase"] not in ENDED and "deletionTimestamp" not in pod["metadata"]
    ]


async def bound_pods(cluster: Cluster, selector: str, count: int) -> list[Object]:
    """Wait until exactly `count` live pods are bound; return them."""
    return await exactly_bound(
        f"{count} pods of {selector} are bound", lambda: live_pods(cluster, selector), count
    )


async def gone(cluster: Cluster, selector: str) -> None:
    """Wait until there is no pod any more that has not ended."""

    async def none_left() -> bool:
        pods = await cluster.list_all(kinds.PODS, labelSelector=selector)
        return not [pod for pod in pods if pod["status"]["phase"] not in ENDED]

    await until(f"no pod of {selector} is left", none_left)


async def racks_of(cluster: Cluster, pods: Iterable[Object]) -> list[tuple[str, str]]:
    """Block and rack of each pod, in the pods' order."""
    nodes = await cluster.list_all(kinds.NODES, labelSelector=f"{POOL_LABEL}={cluster.pool}")
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    hosts = (pod["spec"]["nodeName"] for pod in pods)
    return [(labels[host][BLOCK], labels[host][RACK]) for host in hosts]


def rank_of(pod: Object) -> tuple[int, int]:
    """(job index, completion index) of a JobSet's pod."""
    labels = pod["metadata"]["labels"]
    return int(labels[names.JOB_INDEX_LABEL]), int(labels[INDEX])


async def state(
    cluster: Cluster, kind: Resource, name: str, what: str, holds: Callable[[Object], Any]
) -> Object:
    """Wait until an object is as `holds` says, and return it."""

    async def reached() -> Object | None:
        found = await cluster.find(kind, name)
        return found if found is not None and holds(found) else None

    found = await until(f"{kind.kind} {name} {what}", reached)
    assert found is not None
    return found


async def ray_state(cluster: Cluster, name: str, wanted: str) -> Object:
    """Wait until KubeRay says that a RayCluster is in a state."""
    return await state(
        cluster,
        kinds.RAY_CLUSTERS,
        name,
        f"is {wanted}",
        lambda found: found.get("status", {}).get("state") == wanted,
    )


def conditions(obj: Object) -> dict[str, Object]:
    """An object's conditions, by type."""
    return {entry["type"]: entry for entry in obj.get("status", {}).get("conditions", [])}


def reserved_keys(template: Object) -> list[str]:
    """Keys, gates and selectors in a pod template that an admission left there."""
    meta, spec = template.get("metadata", {}), template.get("spec", {})
    reserved = (names.WORKLOAD_ANNOTATION, names.PODSET_LABEL, names.TAS_LABEL)
    keys = [
        key for part in ("labels", "annotations") for key in meta.get(part) or {} if key in reserved
    ]
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    return keys + gates + [key for key in spec.get("nodeSelector") or {} if key == POOL_LABEL]


async def usage(cluster: Cluster, resource: str = "cpu", queue: str = "queue") -> str:
    """What the ClusterQueue of a queue says is used of a resource, over all flavors' first."""
    found = await cluster.get(kinds.CLUSTER_QUEUES, f"{cluster.pool}-{queue}")
    flavors = found.get("status", {}).get("flavorsUsage", [])
    for flavor in flavors:
        for entry in flavor["resources"]:
            if entry["name"] == resource:
                return str(entry["total"])
    return "0"


async def used(cluster: Cluster, amount: str, resource: str = "cpu", queue: str = "queue") -> None:
    """Wait until the ClusterQueue of a queue says that exactly this much is used."""

    async def reached() -> bool:
        return await usage(cluster, resource, queue) == amount

    await until(f"{amount} {resource} are used", reached)
