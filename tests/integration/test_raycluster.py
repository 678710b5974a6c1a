"""RayClusters under the real KubeRay operator: start, stop, eviction, what counts and what not."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import marks, raycluster, worker_group
from tests.support.composite_views import (
    bound_pods,
    gone,
    live_pods,
    racks_of,
    ray_selector,
    ray_state,
    reserved_keys,
    state,
    used,
)
from tests.support.objects import BLOCK, RACK, Object

pytestmark = pytest.mark.integration


async def prepare(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    # Memory, too: the autoscaler that KubeRay puts beside a head asks for it.
    await cluster.add_queue(quota={"cpu": "100", "memory": "100Gi"})


def templates(found: Object) -> list[Object]:
    spec = found["spec"]
    groups = [group["template"] for group in spec.get("workerGroupSpecs", [])]
    return [spec["headGroupSpec"]["template"], *groups]


async def test_a_raycluster_starts_with_each_group_in_a_rack_and_comes_back_after_a_stop(
    cluster: Cluster,
) -> None:
    """Story: suspended at creation, placed, ready; evicted, restored; placed again."""
    await prepare(cluster)
    in_a_rack = marks(required=RACK)
    groups = [
        worker_group("small", 3, cpu="4", annotations=in_a_rack),
        worker_group("Pairs", 1, hosts=2, cpu="4", annotations=in_a_rack),
    ]
    await cluster.create(
        kinds.RAY_CLUSTERS, raycluster("train", groups, head_cpu="2", head_annotations=in_a_rack)
    )
    await ray_state(cluster, "train", "ready")
    for group, count in (("small", 3), ("Pairs", 2), ("headgroup", 1)):
        pods = await bound_pods(cluster, ray_selector("train", group), count)
        assert len(set(await racks_of(cluster, pods))) == 1
    workload = await cluster.workload_of("train")
    counts = {it["name"]: it["count"] for it in workload["spec"]["podSets"]}
    assert counts == {"head": 1, "small": 3, "pairs": 2}
    await cluster.condition("train", "PodsReady", "True")
    await used(cluster, "22")

    name = workload["metadata"]["name"]
    await cluster.merge(kinds.WORKLOADS, name, {"spec": {"active": False}})
    await gone(cluster, ray_selector("train"))
    await used(cluster, "0")
    await state(
        cluster,
        kinds.RAY_CLUSTERS,
        "train",
        "is suspended and restored",
        lambda it: it["spec"]["suspend"] and not any(map(reserved_keys, templates(it))),
    )
    await cluster.merge(kinds.WORKLOADS, name, {"spec": {"active": True}})
    await ray_state(cluster, "train", "ready")
    await bound_pods(cluster, ray_selector("train"), 6)


async def test_a_raycluster_that_finds_no_place_has_no_pod_and_says_why(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    groups = [worker_group("large", 5, cpu="4", annotations=marks(required=RACK))]
    await cluster.create(kinds.RAY_CLUSTERS, raycluster("train", groups))
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    await ray_state(cluster, "train", "suspended")
    assert await live_pods(cluster, ray_selector("train")) == []
    await cluster.delete(kinds.RAY_CLUSTERS, "train")

    async def empty() -> bool:
        return not await cluster.list_all(kinds.WORKLOADS)

    await until("the Workload is gone", empty)


async def test_a_raycluster_that_its_user_suspends_gives_its_room_back(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.create(
        kinds.RAY_CLUSTERS, raycluster("train", [worker_group("small", 1)], head_cpu="2")
    )
    await ray_state(cluster, "train", "ready")
    await used(cluster, "3")
    before = {pod["metadata"]["uid"] for pod in await live_pods(cluster, ray_selector("train"))}
    await cluster.merge(kinds.RAY_CLUSTERS, "train", {"spec": {"suspend": True}})

    # The condition is gone again when it comes back, which is soon.
    workload = await cluster.workload_of("train")
    await cluster.event("EvictedDueToJobSuspended", workload["metadata"]["name"])

    async def renewed() -> bool:
        pods = await live_pods(cluster, ray_selector("train"))
        now = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}
        return len(now) == 2 and not now & before

    # Nobody asked for it to stay down: it is queued again, and starts.
    await until("it runs again with new pods", renewed)
    await ray_state(cluster, "train", "ready")


async def test_the_autoscaler_beside_the_head_counts(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.create(
        kinds.RAY_CLUSTERS,
        raycluster("auto", [worker_group("small", 1)], autoscaling=True, head_cpu="1"),
    )
    await ray_state(cluster, "auto", "ready")
    (head,) = await bound_pods(cluster, ray_selector("auto", "headgroup"), 1)
    assert [container["name"] for container in head["spec"]["containers"]] == ["main", "autoscaler"]
    await used(cluster, "2500m")
    (worker,) = await bound_pods(cluster, ray_selector("auto", "small"), 1)
    (waits,) = worker["spec"]["initContainers"]  # added by KubeRay, too
    assert waits["resources"]["requests"]["memory"] == "256Mi"
    await used(cluster, "768Mi", "memory")


async def test_a_change_of_size_without_the_autoscaler_queues_the_cluster_again(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    await cluster.create(kinds.RAY_CLUSTERS, raycluster("train", [worker_group("small", 1)]))
    await ray_state(cluster, "train", "ready")

    def grow(found: Object) -> None:
        found["spec"]["workerGroupSpecs"][0]["replicas"] = 3

    await cluster.replace(kinds.RAY_CLUSTERS, "train", grow)
    await bound_pods(cluster, ray_selector("train", "small"), 3)
    await ray_state(cluster, "train", "ready")
    workload = await cluster.workload_of("train")
    assert {it["name"]: it["count"] for it in workload["spec"]["podSets"]} == {
        "head": 1,
        "small": 3,
    }
    await used(cluster, "4")


async def test_the_cleanup_of_redis_runs_ungoverned(cluster: Cluster) -> None:
    await prepare(cluster)
    made = raycluster(
        "train",
        [],
        head_annotations=marks(required=BLOCK),
        gcsFaultToleranceOptions={"redisAddress": "redis.example:6379"},
    )
    await cluster.create(kinds.RAY_CLUSTERS, made)
    await ray_state(cluster, "train", "ready")
    await cluster.delete(kinds.RAY_CLUSTERS, "train")
    cleanup = f"{ray_selector('train')},{names.RAY_NODE_TYPE_LABEL}={names.RAY_CLEANUP_TYPE}"
    try:
        await bound_pods(cluster, cleanup, 1)
        workloads = await cluster.list_all(kinds.WORKLOADS)
        owners = [o["kind"] for it in workloads for o in it["metadata"]["ownerReferences"]]
        assert "Job" not in owners
    finally:
        # Nobody runs the command that would end the Job.
        await cluster.merge(kinds.RAY_CLUSTERS, "train", {"metadata": {"finalizers": None}})


async def test_a_raycluster_without_a_queue_is_none_of_our_business(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    made = raycluster("plain", [worker_group("small", 1)], queue=None, autoscaling=True)
    await cluster.create(kinds.RAY_CLUSTERS, made)
    await ray_state(cluster, "plain", "ready")
    pods = await bound_pods(cluster, ray_selector("plain"), 2)
    assert not any(reserved_keys(pod) for pod in pods)
    assert await cluster.list_all(kinds.WORKLOADS) == []
