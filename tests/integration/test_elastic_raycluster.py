"""RayClusters that Ray's autoscaler resizes while they run, replica by replica."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import marks, raycluster, worker_group
from tests.support.composite_views import (
    bound_pods,
    conditions,
    gone,
    live_pods,
    racks_of,
    ray_selector,
    ray_state,
    used,
)
from tests.support.objects import BLOCK, RACK, Object
from tests.support.ray_autoscaler import RayAutoscaler

pytestmark = pytest.mark.integration

NAME = "auto"
WORKERS = ray_selector(NAME, "small")


async def start(
    cluster: Cluster,
    replicas: int,
    *,
    cpu: str = "4",
    quota: str = "1000",
    required: str | None = None,
) -> RayAutoscaler:
    """A ready elastic cluster with one worker group `small`."""
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": quota, "memory": "100Gi"})
    groups = [worker_group("small", replicas, cpu=cpu, annotations=marks(required=required))]
    made = raycluster(NAME, groups, autoscaling=True, head_cpu="2")
    await cluster.create(kinds.RAY_CLUSTERS, made)
    await ray_state(cluster, NAME, "ready")
    await bound_pods(cluster, WORKERS, replicas)
    return RayAutoscaler(cluster.client, cluster.namespace, NAME)


async def parent(cluster: Cluster) -> Object:
    return await cluster.workload_of(NAME)


async def slices(cluster: Cluster) -> list[Object]:
    """Workloads owned by a Workload."""
    return [
        it
        for it in await cluster.list_all(kinds.WORKLOADS)
        if any(o["kind"] == "Workload" for o in it["metadata"].get("ownerReferences", []))
    ]


async def settled(cluster: Cluster, replicas: int) -> Object:
    """Wait until the parent counts so many workers in spec and status and has no slice."""

    async def counted() -> Object | None:
        found = await parent(cluster)
        asked = {it["name"]: it["count"] for it in found["spec"]["podSets"]}
        admission = found.get("status", {}).get("admission", {})
        given = {it["name"]: it["count"] for it in admission.get("podSetAssignments", [])}
        if asked.get("small") == given.get("small") == replicas and not await slices(cluster):
            return found
        return None

    found = await until(f"the parent counts {replicas} workers and has no slice", counted)
    assert found is not None
    return found


@pytest.mark.requirement("USR-09", "TST-12", "TST-13", "TST-14", "TST-15", "SLC-24", "SLC-33")
async def test_a_cluster_grows_and_shrinks_and_never_stops(cluster: Cluster) -> None:
    """Two workers, then five, then one: usage follows, the first pods run on."""
    ray = await start(cluster, 2)
    first = {pod["metadata"]["uid"] for pod in await live_pods(cluster, ray_selector(NAME))}
    await used(cluster, "10500m")
    before = await parent(cluster)

    assert await ray.launch(small=3)
    await bound_pods(cluster, WORKERS, 5)
    grown = await settled(cluster, 5)
    await used(cluster, "22500m")
    assert grown["metadata"]["uid"] == before["metadata"]["uid"]
    now = {pod["metadata"]["uid"] for pod in await live_pods(cluster, ray_selector(NAME))}
    assert first <= now

    workers = await ray.workers("small")
    assert await ray.terminate(*workers[:4])
    await settled(cluster, 1)
    await bound_pods(cluster, WORKERS, 1)
    await used(cluster, "6500m")
    left = {pod["metadata"]["uid"] for pod in await live_pods(cluster, ray_selector(NAME))}
    assert len(left) == 2, "the head and one worker"
    assert left <= now, "both run on"
    events = [it["reason"] for it in await cluster.list_all(kinds.EVENTS)]
    assert not [reason for reason in events if reason.startswith("Evicted")]
    assert (await cluster.get(kinds.RAY_CLUSTERS, NAME))["spec"].get("suspend") in (False, None)


@pytest.mark.requirement("TST-12", "TST-13", "SLC-30", "SLC-10", "SLC-27")
async def test_what_the_quota_allows_of_a_growth_runs_and_the_rest_waits_gated(
    cluster: Cluster,
) -> None:
    ray = await start(cluster, 1, quota="14.5")  # the head and three workers
    assert await ray.launch(small=4)
    await bound_pods(cluster, WORKERS, 3)

    async def two_wait() -> bool:
        pods = await live_pods(cluster, WORKERS)
        gated = [pod for pod in pods if pod["spec"].get("schedulingGates")]
        waiting = [it for it in await slices(cluster) if "admission" not in it.get("status", {})]
        resize = conditions(await parent(cluster)).get("ResizeRequested", {})
        return len(gated) == 2 and len(waiting) == 2 and resize.get("status") == "True"

    await until("two workers wait, gated, and the parent says so", two_wait)
    await ray_state(cluster, NAME, "ready")
    gated = [p for p in await live_pods(cluster, WORKERS) if p["spec"].get("schedulingGates")]
    assert await ray.terminate(*(pod["metadata"]["name"] for pod in gated))
    await settled(cluster, 3)
    await used(cluster, "14500m")

    async def resized() -> bool:
        return bool(conditions(await parent(cluster))["ResizeRequested"]["status"] == "False")

    await until("the parent says that nothing is asked for any more", resized)


@pytest.mark.requirement("SLC-36", "SLC-13")
async def test_new_workers_stay_in_the_clusters_rack_and_wait_when_it_is_full(
    cluster: Cluster,
) -> None:
    ray = await start(cluster, 2, required=RACK)
    (rack,) = set(await racks_of(cluster, await bound_pods(cluster, WORKERS, 2)))
    head = await bound_pods(cluster, ray_selector(NAME, "headgroup"), 1)
    # Four workers fill a rack; the head, which asked for no place, may have taken that of one.
    room = 3 if await racks_of(cluster, head) == [rack] else 4
    assert await ray.launch(small=3)
    pods = await bound_pods(cluster, WORKERS, room)
    assert set(await racks_of(cluster, pods)) == {rack}

    async def others_wait() -> bool:
        pods = await live_pods(cluster, WORKERS)
        return len([pod for pod in pods if pod["spec"].get("schedulingGates")]) == 5 - room

    await until("workers beyond the rack's room stay gated", others_wait)


@pytest.mark.requirement("SLC-16")
async def test_a_lost_worker_comes_back_through_the_gate(cluster: Cluster) -> None:
    ray = await start(cluster, 2)
    assert await ray.launch(small=1)
    await settled(cluster, 3)
    lost = (await ray.workers("small"))[0]
    await cluster.delete(kinds.PODS, lost, grace_s=0)
    pods = await bound_pods(cluster, WORKERS, 3)
    assert lost not in {pod["metadata"]["name"] for pod in pods}
    await settled(cluster, 3)
    await used(cluster, "14500m")


@pytest.mark.requirement("TST-16", "SLC-31")
async def test_a_resized_cluster_is_preempted_as_a_whole_and_comes_back(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    preemption = {"withinClusterQueue": "LowerPriority"}
    await cluster.add_queue(
        quota={"cpu": "20", "memory": "100Gi"}, topology=False, preemption=preemption
    )
    await priorities(cluster)
    made = raycluster(NAME, [worker_group("small", 1, cpu="4")], autoscaling=True, head_cpu="2")
    await cluster.create(kinds.RAY_CLUSTERS, made)
    await bound_pods(cluster, WORKERS, 1)
    ray = RayAutoscaler(cluster.client, cluster.namespace, NAME)
    assert await ray.launch(small=2)
    await settled(cluster, 3)
    await used(cluster, "14500m")

    urgent = {"labels": {names.PRIORITY_CLASS_LABEL: f"{cluster.pool}-high"}}
    await cluster.submit("urgent", 4, cpu="4", **urgent)
    await gone(cluster, ray_selector(NAME))
    await cluster.bound("urgent", 4)
    assert await slices(cluster) == []
    await cluster.finish("urgent")
    await cluster.condition("urgent", "Finished")
    await bound_pods(cluster, WORKERS, 3)
    await settled(cluster, 3)
    await used(cluster, "14500m")


async def priorities(cluster: Cluster) -> None:
    await cluster.create(
        kinds.WORKLOAD_PRIORITY_CLASSES,
        {
            "apiVersion": names.API_VERSION,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": f"{cluster.pool}-high"},
            "value": 1000,
        },
    )


@pytest.mark.requirement("SLC-32")
async def test_a_cluster_deleted_while_it_grows_leaves_nothing(cluster: Cluster) -> None:
    ray = await start(cluster, 1, quota="10.5")
    assert await ray.launch(small=4)
    await bound_pods(cluster, WORKERS, 2)
    await cluster.delete(kinds.RAY_CLUSTERS, NAME)

    async def empty() -> bool:
        return not await cluster.list_all(kinds.WORKLOADS)

    await until("parent and slices are gone", empty)
    await used(cluster, "0")


async def ask(cluster: Cluster, delete: Collection[str] = (), **replicas: int) -> None:
    """What the autoscaler writes for groups of several hosts: replicas, and pods that go."""
    found = await cluster.get(kinds.RAY_CLUSTERS, NAME)
    operations = []
    for index, group in enumerate(found["spec"]["workerGroupSpecs"]):
        path, name = f"/spec/workerGroupSpecs/{index}", group["groupName"]
        if name in replicas:
            operations.append(
                {"op": "replace", "path": f"{path}/replicas", "value": replicas[name]}
            )
            strategy = {"workersToDelete": list(delete)}
            operations.append({"op": "add", "path": f"{path}/scaleStrategy", "value": strategy})
    path = kinds.RAY_CLUSTERS.path(cluster.namespace, NAME)
    await cluster.client.patch(path, json.dumps(operations).encode(), PatchType.JSON)


async def counted(cluster: Cluster, **pods: int) -> None:
    """Wait until the parent was granted so many pods of each group, and has no slice."""

    async def granted() -> bool:
        admission = (await parent(cluster)).get("status", {}).get("admission", {})
        given = {it["name"]: it["count"] for it in admission.get("podSetAssignments", [])}
        return given == {"head": 1, **pods} and not await slices(cluster)

    await until(f"the parent was granted {pods}", granted)


@pytest.mark.requirement("SLC-24", "SLC-34", "SLC-36")
async def test_groups_of_several_hosts_grow_by_replicas_within_a_block_beside_a_head_that_stays(
    cluster: Cluster,
) -> None:
    """Each replica of two hosts in one rack, all of them in one block; another group beside it."""
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "100", "memory": "100Gi"})
    in_a_rack = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "2"}
    wide = marks(in_a_rack, required=BLOCK)
    groups = [
        worker_group("wide", 1, hosts=2, cpu="8", annotations=wide),
        worker_group("small", 1, cpu="1"),
    ]
    made = raycluster(NAME, groups, autoscaling=True, head_cpu="1")
    await cluster.create(kinds.RAY_CLUSTERS, made)
    (head,) = await bound_pods(cluster, ray_selector(NAME, "headgroup"), 1)
    first = await bound_pods(cluster, ray_selector(NAME, "wide"), 2)
    small = await bound_pods(cluster, ray_selector(NAME, "small"), 1)
    ((block, rack),) = set(await racks_of(cluster, first))
    await counted(cluster, wide=2, small=1)

    # The other rack of the block is free for one more replica, if head and small left it alone.
    others = [place for place in await racks_of(cluster, [head, *small]) if place[0] == block]
    await ask(cluster, wide=3, small=3)
    await bound_pods(cluster, ray_selector(NAME, "small"), 3)
    fitting = 2 if others else 4
    pods = await bound_pods(cluster, ray_selector(NAME, "wide"), fitting)
    places = Counter(await racks_of(cluster, pods))
    assert {place[0] for place in places} == {block}
    assert set(places.values()) == {2}

    async def rest_waits() -> bool:
        pods = await live_pods(cluster, ray_selector(NAME, "wide"))
        gated = [pod for pod in pods if pod["spec"].get("schedulingGates")]
        waiting = [it for it in await slices(cluster) if "admission" not in it.get("status", {})]
        told = conditions(await parent(cluster)).get("ResizeRequested", {}).get("reason")
        wait = len(gated) == 6 - fitting and len(waiting) == (6 - fitting) // 2
        return wait and told == "WaitingForSlices"

    await until("replicas that the block has no room for wait, gated", rest_waits)
    assert await racks_of(cluster, first) == [(block, rack)] * 2
    assert "Evicted" not in conditions(await parent(cluster))

    # Back to one replica: those that wait, and the pods of the other one.
    keep = {pod["metadata"]["name"] for pod in first}
    there = {
        pod["metadata"]["name"] for pod in await live_pods(cluster, ray_selector(NAME, "wide"))
    }
    await ask(cluster, wide=1, delete=sorted(there - keep))
    await counted(cluster, wide=2, small=3)
    now = await bound_pods(cluster, ray_selector(NAME, "wide"), 2)
    assert {pod["metadata"]["name"] for pod in now} == keep
    (chief,) = await bound_pods(cluster, ray_selector(NAME, "headgroup"), 1)
    assert chief["metadata"]["uid"] == head["metadata"]["uid"]
    assert chief["spec"]["nodeName"] == head["spec"]["nodeName"]
    await used(cluster, "20500m")
