"""JobSets under the real JobSet controller: leaders and workers, ranks, restarts, stops."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import PatchType
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, marks, replicated_job
from tests.support.composite_views import (
    bound_pods,
    gone,
    jobset_selector,
    live_pods,
    racks_of,
    rank_of,
    reserved_keys,
    state,
    used,
)
from tests.support.objects import BLOCK, POOL_LABEL, RACK, Object, flavor, node
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

SEEDS = Path(__file__).parents[1] / "seeds"
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"


async def prepare(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()


def template_of(found: Object, index: int = 0) -> Object:
    """The pod template of a JobSet's replicatedJob."""
    job = found["spec"]["replicatedJobs"][index]["template"]["spec"]
    return dict(job["template"])


@pytest.mark.requirement("USR-05", "HOOK-03", "HOOK-10")
@pytest.mark.parametrize(("cpu", "racks", "blocks"), [("4", 1, 1), ("8", 2, 1), ("8.5", 0, 0)])
async def test_the_sources_jobset_places_its_leader_and_lets_workers_widen(
    cluster: Cluster, cpu: str, racks: int, blocks: int
) -> None:
    """The example of KEP-2724, with a size for the workers: a rack, a block, or no room at all."""
    await prepare(cluster)
    leader = replicated_job("leader", 1, cpu="0", annotations=marks(required=RACK))
    workers = replicated_job("workers", 2, replicas=2, cpu=cpu, annotations=marks(preferred=RACK))
    await cluster.create(kinds.JOBSETS, jobset("sample", [leader, workers]))
    if not racks:
        await cluster.condition("sample", "QuotaReserved", "False", "TopologyPlacementFailed")
        assert await live_pods(cluster, jobset_selector("sample")) == []
        return
    await bound_pods(cluster, jobset_selector("sample", "leader"), 1)
    pods = await bound_pods(cluster, jobset_selector("sample", "workers"), 4)
    places = await racks_of(cluster, pods)
    assert len(set(places)) == racks
    assert len({block for block, _ in places}) == blocks


async def test_a_running_jobset_takes_its_own_manifest_applied_again(cluster: Cluster) -> None:
    await prepare(cluster)
    workers = replicated_job("workers", 2, annotations=marks(required=RACK))
    asked = jobset("train", [workers])
    await cluster.create(kinds.JOBSETS, asked)
    pods = await bound_pods(cluster, jobset_selector("train"), 2)
    path = kinds.JOBSETS.path(cluster.namespace, "train")
    before = template_of(json.loads(await cluster.client.get(path)))
    assert before["spec"]["nodeSelector"][POOL_LABEL] == cluster.pool
    # As a client that applies a manifest sends it: the list as a whole, as its user wrote it.
    body = json.dumps({"spec": {"replicatedJobs": asked["spec"]["replicatedJobs"]}}).encode()
    answer = json.loads(await cluster.client.patch(path, body, PatchType.MERGE))
    assert template_of(answer) == before
    assert answer["spec"]["suspend"] is False
    now = await bound_pods(cluster, jobset_selector("train"), 2)
    assert {pod["metadata"]["uid"] for pod in now} == {pod["metadata"]["uid"] for pod in pods}


@pytest.mark.requirement("USR-05")
@pytest.mark.parametrize(("free", "racks", "blocks"), [("2", 1, 1), ("1", 2, 1)])
async def test_the_sources_jobset_manifest_runs_unchanged(
    cluster: Cluster, playground: Playground, free: str, racks: int, blocks: int
) -> None:
    """Its containers ask for nothing: nodes with room for one or two pods are what counts."""
    await cluster.add_nodes(
        node(cluster.pool, f"block-{b}", f"rack-{r}", f"b{b}r{r}-{number}", pods=free)
        for b, r in ((1, 1), (1, 2), (2, 1), (2, 2))
        for number in (1, 2)
    )
    await cluster.add_queue("user-queue", quota={"cpu": "100", "pods": "100"})
    file = str(SEEDS / "jobset.yaml")
    playground.run("kubectl", "apply", "--namespace", cluster.namespace, "-f", file)
    cluster.created.append((kinds.JOBSETS, cluster.namespace, "tas-example-jobset"))
    await bound_pods(cluster, jobset_selector("tas-example-jobset", "leader"), 1)
    pods = await bound_pods(cluster, jobset_selector("tas-example-jobset", "workers"), 4)
    places = await racks_of(cluster, pods)
    assert len(set(places)) == racks
    assert len({block for block, _ in places}) == blocks


@pytest.mark.requirement("USR-06")
async def test_each_instance_of_a_replicated_job_has_a_rack_of_its_own(cluster: Cluster) -> None:
    """Six pods fit into a rack: twelve in a row would part the second instance of four."""
    await cluster.add_nodes(
        node(cluster.pool, block, rack, f"{block}-{rack}-{number}")
        for block, rack in (("block-1", "rack-1"), ("block-1", "rack-2"), ("block-2", "rack-1"))
        for number in range(3)
    )
    await cluster.add_queue()
    annotations = marks({names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "4"})
    workers = replicated_job("workers", 4, replicas=3, cpu="4", annotations=annotations)
    await cluster.create(kinds.JOBSETS, jobset("train", [workers]))
    pods = await bound_pods(cluster, jobset_selector("train"), 12)
    places = dict(zip((rank_of(pod) for pod in pods), await racks_of(cluster, pods), strict=True))
    for job in range(3):
        assert len({place for (index, _), place in places.items() if index == job}) == 1


@pytest.mark.requirement("USR-07")
async def test_workers_share_a_rack_and_the_whole_jobset_a_block(cluster: Cluster) -> None:
    """The leader finds no room in the workers' rack; the other rack of their block takes it."""
    await prepare(cluster)
    together = {names.PODSET_GROUP: "all"}
    leader = replicated_job("leader", 1, cpu="8", annotations=marks(together, required=BLOCK))
    in_a_rack = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "4", **together}
    workers = replicated_job("workers", 4, cpu="4", annotations=marks(in_a_rack, required=BLOCK))
    await cluster.create(kinds.JOBSETS, jobset("train", [leader, workers]))
    pods = await bound_pods(cluster, jobset_selector("train", "workers"), 4)
    chief = await bound_pods(cluster, jobset_selector("train", "leader"), 1)
    ((block, rack),) = set(await racks_of(cluster, pods))
    ((chiefs_block, chiefs_rack),) = await racks_of(cluster, chief)
    assert chiefs_block == block
    assert chiefs_rack != rack


@pytest.mark.requirement("USR-08", "RNK-02", "RNK-03")
async def test_consecutive_ranks_of_a_jobset_share_racks(cluster: Cluster) -> None:
    await prepare(cluster)
    workers = replicated_job("workers", 4, replicas=2, cpu="4", annotations=marks(required=BLOCK))
    await cluster.create(kinds.JOBSETS, jobset("train", [workers]))
    pods = await bound_pods(cluster, jobset_selector("train"), 8)
    pods.sort(key=rank_of)
    places = await racks_of(cluster, pods)
    assert [rank_of(pod) for pod in pods] == [(job, pod) for job in (0, 1) for pod in range(4)]
    assert len(set(places[:4])) == 1
    assert len(set(places[4:])) == 1
    assert places[0] != places[4]
    assert places[0][0] == places[4][0]


async def fail(cluster: Cluster, pod: Object) -> None:
    """Let a pod fail as soon as it runs."""
    change = {"metadata": {"annotations": {"rackgate.dev/fail-after-seconds": "0"}}}
    await cluster.merge(kinds.PODS, pod["metadata"]["name"], change)


async def test_a_restart_keeps_the_placement_and_the_last_failure_gives_all_back(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    workers = replicated_job(
        "workers", 2, cpu="4", annotations=marks(required=RACK), spec={"backoffLimit": 0}
    )
    made = jobset("train", [workers], failurePolicy={"maxRestarts": 1})
    await cluster.create(kinds.JOBSETS, made)
    first = await bound_pods(cluster, f"{jobset_selector('train')},{ATTEMPT}=0", 2)
    await fail(cluster, first[0])
    second = await bound_pods(cluster, f"{jobset_selector('train')},{ATTEMPT}=1", 2)
    assert set(await racks_of(cluster, second)) == set(await racks_of(cluster, first))
    await fail(cluster, second[0])
    await cluster.condition("train", "Finished", reason="Failed")
    await used(cluster, "0")


async def test_a_jobset_that_ends_gives_its_room_to_the_next(cluster: Cluster) -> None:
    await prepare(cluster)
    short = replicated_job(
        "workers", 4, replicas=2, cpu="4", annotations=marks(required=BLOCK, run_seconds=1)
    )
    await cluster.create(kinds.JOBSETS, jobset("first", [short]))
    await cluster.create(kinds.JOBSETS, jobset("second", [short]))
    await cluster.create(kinds.JOBSETS, jobset("third", [short]))
    for name in ("first", "second", "third"):
        await cluster.condition(name, "Finished", reason="Succeeded")
    await used(cluster, "0")


async def test_jobs_that_depend_on_others_find_their_place_kept(cluster: Cluster) -> None:
    await prepare(cluster)
    leader = replicated_job("leader", 1, cpu="4", annotations=marks(required=RACK))
    workers = replicated_job(
        "workers",
        3,
        cpu="4",
        annotations=marks(required=RACK),
        dependsOn=[{"name": "leader", "status": "Ready"}],
    )
    await cluster.create(kinds.JOBSETS, jobset("train", [leader, workers]))
    await bound_pods(cluster, jobset_selector("train", "leader"), 1)
    pods = await bound_pods(cluster, jobset_selector("train", "workers"), 3)
    assert len(set(await racks_of(cluster, pods))) == 1
    await used(cluster, "16")


@pytest.mark.requirement("TAS-24", "TAS-26")
async def test_a_stopped_jobset_comes_back_without_keys_of_its_earlier_admission(
    cluster: Cluster,
) -> None:
    """JobSet merges templates into child Jobs and never takes a key out of them."""
    await prepare_two_flavors(cluster)
    workers = replicated_job("workers", 2, cpu="4", annotations=marks(required=RACK))
    made = await cluster.create(kinds.JOBSETS, jobset("train", [workers]))
    before = template_of(made)
    await bound_pods(cluster, jobset_selector("train"), 2)
    child = await cluster.get(kinds.JOBS, "train-workers-0")
    assert child["spec"]["template"]["spec"]["nodeSelector"]["test.rackgate.dev/first"] == "yes"
    name = (await cluster.workload_of("train"))["metadata"]["name"]
    await cluster.merge(kinds.WORKLOADS, name, {"spec": {"active": False}})
    await gone(cluster, jobset_selector("train"))
    await used(cluster, "0")
    stopped = await state(
        cluster,
        kinds.JOBSETS,
        "train",
        "is stopped and restored",
        lambda found: found["spec"]["suspend"] and not reserved_keys(template_of(found)),
    )
    assert template_of(stopped)["spec"].get("nodeSelector") is None
    assert template_of(stopped)["spec"]["containers"] == before["spec"]["containers"]

    await close_first_flavor(cluster)
    await cluster.merge(kinds.WORKLOADS, name, {"spec": {"active": True}})
    pods = await bound_pods(cluster, jobset_selector("train"), 2)
    assert not any("test.rackgate.dev/first" in pod["spec"]["nodeSelector"] for pod in pods)
    child = await cluster.get(kinds.JOBS, "train-workers-0")
    assert child["spec"]["template"]["spec"]["nodeSelector"] == {POOL_LABEL: cluster.pool}


async def prepare_two_flavors(cluster: Cluster) -> None:
    """Two flavors over the same eight nodes; the first asks for one label more."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    name = f"{cluster.pool}-first"
    first = flavor(name, cluster.pool, f"{cluster.pool}-queue")
    first["spec"]["nodeLabels"]["test.rackgate.dev/first"] = "yes"
    await cluster.create(kinds.FLAVORS, first)
    for host in await cluster.list_all(kinds.NODES, labelSelector=f"{POOL_LABEL}={cluster.pool}"):
        labels = {"metadata": {"labels": {"test.rackgate.dev/first": "yes"}}}
        await cluster.merge(kinds.NODES, host["metadata"]["name"], labels)
    await set_quota(cluster, {name: "100", f"{cluster.pool}-queue": "100"})


async def close_first_flavor(cluster: Cluster) -> None:
    await set_quota(cluster, {f"{cluster.pool}-first": "0", f"{cluster.pool}-queue": "100"})


async def set_quota(cluster: Cluster, cpu: dict[str, str]) -> None:
    def edit(queue: Object) -> None:
        queue["spec"]["resourceGroups"][0]["flavors"] = [
            {"name": name, "resources": [{"name": "cpu", "nominalQuota": quota}]}
            for name, quota in cpu.items()
        ]

    await cluster.replace(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue", edit)
    await cluster.wait_queues_seen()


async def test_a_child_job_of_a_managed_jobset_has_no_workload_of_its_own(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    parts = [replicated_job("a", 1), replicated_job("b", 1, replicas=2)]
    await cluster.create(kinds.JOBSETS, jobset("train", parts))
    await bound_pods(cluster, jobset_selector("train"), 3)
    workloads = await cluster.list_all(kinds.WORKLOADS)
    owners = [owner["kind"] for it in workloads for owner in it["metadata"]["ownerReferences"]]
    assert owners == ["JobSet"]
    (workload,) = workloads
    counts = Counter({it["name"]: it["count"] for it in workload["spec"]["podSets"]})
    assert counts == {"a": 1, "b": 2}


async def test_a_jobset_without_a_queue_is_none_of_our_business(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.create(kinds.JOBSETS, jobset("plain", [replicated_job("workers", 2)], queue=None))
    pods = await bound_pods(cluster, jobset_selector("plain"), 2)
    assert not any(reserved_keys(pod) for pod in pods)
    assert await cluster.list_all(kinds.WORKLOADS) == []


async def test_pods_ready_of_a_jobset_follows_its_jobs(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.create(kinds.JOBSETS, jobset("train", [replicated_job("workers", 2)]))
    await cluster.condition("train", "PodsReady", "True")


async def test_a_deleted_jobset_leaves_neither_workload_nor_usage(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.create(kinds.JOBSETS, jobset("train", [replicated_job("workers", 2, cpu="4")]))
    await bound_pods(cluster, jobset_selector("train"), 2)
    await used(cluster, "8")
    await cluster.delete(kinds.JOBSETS, "train")
    await used(cluster, "0")

    async def empty() -> bool:
        return not await cluster.list_all(kinds.WORKLOADS)

    await until("the Workload is gone", empty)
