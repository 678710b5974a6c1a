"""Deletions at every moment: Jobs leave nothing behind, what is in use stays until it is not."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.errors import ForbiddenError
from tests.support.cluster import Cluster, until
from tests.support.objects import (
    BLOCK,
    HOST,
    RACK,
    Object,
    flavor,
    topology_object,
)
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", True, "ResourceQuota")


async def prepare(cluster: Cluster, **queue: tuple[str, ...]) -> str:
    """Nodes and one queue; the name of its Topology, flavor and ClusterQueue."""
    await cluster.add_fx_a()
    await cluster.add_queue(levels=queue.get("levels", ()))
    return f"{cluster.pool}-queue"


async def delete_job(cluster: Cluster, name: str, propagation: str) -> None:
    options = json.dumps({"propagationPolicy": propagation}).encode()
    await cluster.client.delete(kinds.JOBS.path(cluster.namespace, name), options)


async def delete_above_its_pods(cluster: Cluster, name: str) -> None:
    """Leave the pods of a running Job behind, in a namespace that the policy does not hold in."""
    binding = kinds.ADMISSION_POLICY_BINDINGS
    other = {"key": "kubernetes.io/metadata.name", "operator": "NotIn"}
    selector = {"matchExpressions": [{**other, "values": [cluster.namespace]}]}
    here: Object = {"spec": {"matchResources": {"namespaceSelector": selector}}}

    async def deleted() -> bool:
        try:
            await delete_job(cluster, name, "Orphan")
        except ForbiddenError:
            return False
        return True

    assert not await deleted(), "refused where the policy holds"
    await cluster.merge(binding, "rackgate-orphans.rackgate-system", here)
    try:
        await until("the policy does not hold here", deleted)
    finally:
        await cluster.merge(
            binding, "rackgate-orphans.rackgate-system", {"spec": {"matchResources": None}}
        )


async def nothing_left(cluster: Cluster, *, pods: int = 0) -> None:
    """Wait until no Job and Workload is left, and both queues count nothing."""

    async def empty() -> bool:
        for kind in (kinds.JOBS, kinds.WORKLOADS):
            if await cluster.list_all(kind):
                return False
        for kind, name in (
            (kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue"),
            (kinds.LOCAL_QUEUES, "queue"),
        ):
            status = (await cluster.get(kind, name)).get("status", {})
            totals = [
                entry["total"]
                for field in ("flavorsReservation", "flavorsUsage")
                for usage in status.get(field, [])
                for entry in usage["resources"]
            ]
            counts = ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")
            if set(totals) != {"0"} or any(status.get(field) for field in counts):
                return False
        return len(await cluster.list_all(kinds.PODS)) == pods

    await until("nothing is left and the queues count nothing", empty)


@pytest.mark.requirement("CAP-02")
@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_job_deleted_at_any_moment_leaves_nothing(
    cluster: Cluster, propagation: str
) -> None:
    await prepare(cluster)
    await cluster.submit("unseen", 2, required=RACK)
    await delete_job(cluster, "unseen", propagation)
    await cluster.submit("pending", 5, required=RACK)
    await cluster.condition("pending", "QuotaReserved", "False", "TopologyPlacementFailed")
    await delete_job(cluster, "pending", propagation)
    await cluster.submit("queued", 2, required=RACK)
    await cluster.workload_of("queued")
    await delete_job(cluster, "queued", propagation)
    await cluster.submit("starting", 2, required=RACK)
    await cluster.condition("starting", "Admitted")
    await delete_job(cluster, "starting", propagation)
    await cluster.submit("running", 4, required=RACK)
    await cluster.bound("running", 4)
    await delete_job(cluster, "running", propagation)
    await nothing_left(cluster)


async def without_pods(cluster: Cluster, name: str) -> Object:
    """Start a Job that cannot create pods yet; returns it as it runs."""
    limit = {"hard": {"pods": "0"}}
    kind, about = RESOURCE_QUOTAS, {"metadata": {"name": "no-pods"}, "spec": limit}
    await cluster.create(kind, {"apiVersion": "v1", "kind": kind.kind, **about})

    async def applies() -> bool:
        return bool((await cluster.get(kind, "no-pods"))["status"]["hard"] == limit["hard"])

    await until("the namespace may have no pods", applies)
    await cluster.submit(name, 1)

    async def runs() -> Object | None:
        found = await cluster.get(kinds.JOBS, name)
        return None if found["spec"]["suspend"] else found

    found = await until(f"{name} is started", runs)
    assert found is not None
    return found


async def collector_knows_workloads(cluster: Cluster) -> None:
    """Wait until the garbage collector deletes Workloads, which it learns a while after the CRD."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": str(uuid.uuid4())}
    await cluster.create(
        kinds.WORKLOADS,
        {
            "apiVersion": kinds.WORKLOADS.api_version,
            "kind": kinds.WORKLOADS.kind,
            "metadata": {"name": "without-owner", "ownerReferences": [owner]},
            "spec": {"queueName": "none", "podSets": [podset()]},
        },
    )

    async def collected() -> bool:
        return await cluster.find(kinds.WORKLOADS, "without-owner") is None

    await until("a Workload without its owner is deleted", collected)


def podset() -> Object:
    """A PodSet of one pod."""
    containers = [{"name": "main", "image": "train"}]
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    return {"name": "main", "count": 1, "template": template}


@pytest.mark.requirement("CAP-02")
async def test_foreground_deletion_finds_pods_that_came_after_it_began(
    playground: Playground, cluster: Cluster, job_controller: Cluster
) -> None:
    """When it begins, the garbage collector knows the Workload alone, and deletes that."""
    await cluster.add_fx_a()
    await cluster.add_queue(topology=False, quota={"cpu": "8"})  # so pods have no gates
    await collector_knows_workloads(cluster)
    train = await without_pods(cluster, "train")
    await asyncio.to_thread(playground.run, "stop", "assigner")
    try:
        await delete_job(cluster, "train", "Foreground")

        async def held() -> bool:
            meta = (await cluster.workload_of("train"))["metadata"]
            return "deletionTimestamp" in meta

        await until("the Workload is to be deleted", held)
        await cluster.delete(RESOURCE_QUOTAS, "no-pods")
        meta = train["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": meta["uid"]}
        template = train["spec"]["template"]
        late = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **template["metadata"],
                "name": "train-0-late",
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }
        late["metadata"].pop("creationTimestamp", None)
        late["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = "0"

        async def made() -> bool:
            try:
                await job_controller.create(kinds.PODS, late)
            except ForbiddenError as error:
                if "exceeded quota: no-pods" not in error.message:
                    raise
                return False
            return True

        await until("the API server has seen that the namespace may have pods again", made)
        await cluster.bound("train", 1)
    finally:
        await asyncio.to_thread(playground.run, "start", "assigner")
    await nothing_left(cluster)


@pytest.mark.requirement("CAP-02", "CAP-03")
async def test_pods_left_behind_by_their_job_hold_room_and_quota(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 4, required=RACK)
    await cluster.bound("train", 4)
    workload = (await cluster.workload_of("train"))["metadata"]["name"]
    await delete_above_its_pods(cluster, "train")

    async def freed() -> bool:
        pods = await cluster.list_all(kinds.PODS)
        return not any(pod["metadata"].get("ownerReferences") for pod in pods)

    await until("the pods have no controller", freed)
    await cluster.wait_pods_seen()

    async def leaving() -> bool:
        held = await cluster.get(kinds.WORKLOADS, workload)
        assert held["status"]["admission"]
        return "deletionTimestamp" in held["metadata"]

    await until("the Workload is to be deleted, too", leaving)
    await cluster.submit("next", 16, preferred=RACK)
    words = "allows to fit only 12 out of 16 pod(s)"
    await cluster.condition("next", "QuotaReserved", "False", "TopologyPlacementFailed", words)
    for pod in await cluster.list_all(kinds.PODS):
        await cluster.delete(kinds.PODS, pod["metadata"]["name"])
    await cluster.bound("next", 16)
    await delete_job(cluster, "next", "Background")
    await nothing_left(cluster)


async def leaving(cluster: Cluster, kind: Resource, name: str) -> None:
    """Delete what is in use, once it carries its finalizer, and see that it stays."""

    async def held() -> bool:
        found = await cluster.get(kind, name)
        return names.IN_USE_FINALIZER in found["metadata"].get("finalizers", [])

    await until(f"{kind.kind} {name} is kept by a finalizer", held)
    await cluster.delete(kind, name)
    found = await cluster.get(kind, name)
    assert found["metadata"]["deletionTimestamp"]


async def renewed(cluster: Cluster, pods: list[Object]) -> list[Object]:
    """Have all pods of Job `train` replaced; the new ones, once they are bound.

    They succeed, and the Job has more to do. Deleted pods would count as failures, after which the
    Job controller pauses.
    """
    old = {pod["metadata"]["uid"] for pod in pods}

    async def replaced() -> list[Object]:
        now = [pod for pod in await cluster.pods_of("train") if pod["spec"].get("nodeName")]
        fresh = len(now) == len(pods) and not old & {pod["metadata"]["uid"] for pod in now}
        return now if fresh else []

    await cluster.finish("train")
    return await until("all pods of train are new", replaced)


async def gone(cluster: Cluster, *kinds_: Resource) -> None:
    async def all_gone() -> bool:
        name = f"{cluster.pool}-queue"
        return not any([await cluster.find(kind, name) for kind in kinds_])

    await until(f"{', '.join(kind.kind for kind in kinds_)} are gone", all_gone)


async def active(cluster: Cluster, status: str) -> Object:
    """The ClusterQueue's Active condition, once it has that status."""

    async def holds() -> Object | None:
        queue = await cluster.get(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue")
        for entry in queue.get("status", {}).get("conditions", []):
            if entry["type"] == "Active" and entry["status"] == status:
                return dict(entry)
        return None

    found = await until(f"ClusterQueue is Active={status}", holds)
    assert found is not None
    return found


@pytest.mark.requirement("TAS-23")
async def test_what_is_in_use_stays_until_its_last_user_is_gone(cluster: Cluster) -> None:
    name = await prepare(cluster)
    await cluster.submit("train", 4, required=RACK, indexed=False, completions=40)
    pods = await cluster.bound("train", 4)
    given = (await cluster.workload_of("train"))["status"]["admission"]
    for kind in (kinds.TOPOLOGIES, kinds.FLAVORS, kinds.CLUSTER_QUEUES):
        await leaving(cluster, kind, name)
    entry = await active(cluster, "False")
    assert entry["reason"] == "Terminating"
    # The Job goes on, and new pods of it find their place.
    await renewed(cluster, pods)
    assert (await cluster.workload_of("train"))["status"]["admission"] == given
    # Nobody else comes in.
    await cluster.submit("late", 1, required=RACK)
    await cluster.condition("late", "QuotaReserved", "False")
    for kind in (kinds.TOPOLOGIES, kinds.FLAVORS, kinds.CLUSTER_QUEUES):
        assert await cluster.find(kind, name) is not None
    await cluster.delete(kinds.JOBS, "late")
    await cluster.delete(kinds.JOBS, "train")
    await gone(cluster, kinds.TOPOLOGIES, kinds.FLAVORS, kinds.CLUSTER_QUEUES)


async def test_a_flavor_and_its_topology_go_when_no_queue_offers_them(cluster: Cluster) -> None:
    name = await prepare(cluster)
    await cluster.wait_queues_seen()  # else nobody is known to offer the flavor
    await leaving(cluster, kinds.FLAVORS, name)
    await leaving(cluster, kinds.TOPOLOGIES, name)
    await cluster.submit("train", 1, required=RACK)
    await cluster.bound("train", 1)  # on its way out, but still there
    await cluster.create(kinds.FLAVORS, flavor(f"{name}-other", cluster.pool, None))
    await offer(cluster, f"{name}-other")
    await gone(cluster, kinds.FLAVORS, kinds.TOPOLOGIES)
    assert len(await cluster.bound("train", 1)) == 1


async def offer(cluster: Cluster, flavor_name: str) -> None:
    """Make the ClusterQueue offer this flavor and no other."""
    flavors = [{"name": flavor_name, "resources": [{"name": "cpu", "nominalQuota": "1000"}]}]
    groups = [{"coveredResources": ["cpu"], "flavors": flavors}]
    change = {"spec": {"resourceGroups": groups}}
    await cluster.merge(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue", change)


@pytest.mark.requirement("TAS-15", "TAS-23")
async def test_a_running_job_keeps_the_levels_it_was_given(cluster: Cluster) -> None:
    name = await prepare(cluster, levels=(BLOCK, RACK))
    await cluster.submit("train", 4, required=RACK, indexed=False, completions=40)
    pods = await cluster.bound("train", 4)
    before = {key: pods[0]["spec"]["nodeSelector"][key] for key in (BLOCK, RACK)}
    # The Topology is made anew with other levels, under the feet of the Job.
    await cluster.create(kinds.FLAVORS, flavor(f"{name}-other", cluster.pool, None))
    await offer(cluster, f"{name}-other")
    await cluster.delete(kinds.FLAVORS, name)
    await cluster.delete(kinds.TOPOLOGIES, name)
    await gone(cluster, kinds.FLAVORS, kinds.TOPOLOGIES)
    await cluster.create(kinds.TOPOLOGIES, topology_object(name, (HOST,)))
    await cluster.create(kinds.FLAVORS, flavor(name, cluster.pool, name))
    await offer(cluster, name)
    await cluster.wait_queues_seen()
    await active(cluster, "True")
    await cluster.submit("new", 1, required=HOST)
    (other,) = await cluster.bound("new", 1)
    assert BLOCK not in other["spec"]["nodeSelector"]
    for pod in await renewed(cluster, pods):
        selector = pod["spec"]["nodeSelector"]
        assert {key: selector.get(key) for key in (BLOCK, RACK)} == before
        assert HOST not in selector


@pytest.mark.requirement("TAS-23", "VAL-02")
async def test_edited_levels_count_for_those_who_wait_only(cluster: Cluster) -> None:
    name = await prepare(cluster)
    await cluster.submit("train", 4, required=RACK)
    await cluster.bound("train", 4)
    given = (await cluster.workload_of("train"))["status"]["admission"]
    await cluster.submit("waiting", 9, required=BLOCK)
    await cluster.condition("waiting", "QuotaReserved", "False", "TopologyPlacementFailed")
    levels = [{"nodeLabel": RACK}, {"nodeLabel": HOST}]
    await cluster.merge(kinds.TOPOLOGIES, name, {"spec": {"levels": levels}})

    async def inactive() -> bool:
        return (await cluster.workload_of("waiting"))["spec"].get("active") is False

    await until("the request for a level that went is deactivated", inactive)
    await cluster.submit("new", 4, required=RACK)
    await cluster.bound("new", 4)
    assert (await cluster.workload_of("train"))["status"]["admission"] == given
    assert len(await cluster.bound("train", 4)) == 4
