"""A job gives way to a more important or an older one, on the real Job controller."""

from __future__ import annotations

import pytest

from rackgate.api import resources as kinds
from rackgate.api.timestamps import rfc3339
from rackgate.runtime import clock
from tests.support.cluster import Cluster, until
from tests.support.composite_views import conditions, used
from tests.support.objects import RACK, Object, local_queue

pytestmark = pytest.mark.integration

DONE = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}


@pytest.mark.requirement("SLC-31")
async def test_a_job_gives_way_with_all_its_pods_and_comes_back_at_its_size(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    preemption = {"withinClusterQueue": "LowerPriority"}
    await cluster.add_queue(topology=False, quota={"cpu": "16"}, preemption=preemption)
    urgent = await cluster.add_priority(1000)
    await cluster.submit("small", 1)
    await cluster.bound("small", 1)
    await cluster.submit("large", 3)
    before = {pod["metadata"]["uid"] for pod in await cluster.bound("large", 3)}
    await cluster.submit("urgent", 2, labels=urgent)
    await cluster.bound("urgent", 2)

    async def no_large_pod() -> bool:
        return not await cluster.pods_of("large")

    # The large one reserved last, and without it the small one need not go.
    workload = await cluster.condition("large", "Preempted", "True", "InClusterQueue")
    told = {entry["type"]: entry for entry in workload["status"]["conditions"]}
    assert (told["Evicted"]["reason"], told["Requeued"]["status"]) == ("Preempted", "True")
    await cluster.condition("large", "QuotaReserved", "False", "WaitingForQuota")
    # Quota is free once no pod is active; pods on their way out may be there a little longer.
    await until("no pod of large is left", no_large_pod)
    assert len(await cluster.bound("small", 1)) == 1
    await cluster.delete(kinds.JOBS, "urgent")
    after = {pod["metadata"]["uid"] for pod in await cluster.bound("large", 3)}
    assert not before & after
    assert (await cluster.condition("large", "Preempted", "False"))["status"]["admission"]


@pytest.mark.requirement("UNG-10")
async def test_a_preempted_job_goes_on_with_the_pods_that_are_not_done(cluster: Cluster) -> None:
    """It is admitted again with fewer pods, and each of them is released."""
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"}, preemption={"withinClusterQueue": "LowerPriority"})
    await cluster.submit("train", 4, required=RACK)
    for pod in (await cluster.bound("train", 4))[:3]:
        await cluster.merge(kinds.PODS, pod["metadata"]["name"], DONE)

    async def three_done() -> bool:
        status = (await cluster.workload_of("train"))["status"]
        return bool(status.get("reclaimablePods") == [{"name": "main", "count": 3}])

    await until("the quota of three pods is released", three_done)
    await cluster.submit("urgent", 4, labels=await cluster.add_priority(1000))
    await cluster.bound("urgent", 4)
    await cluster.condition("train", "QuotaReserved", "False", "WaitingForQuota")
    await cluster.delete(kinds.JOBS, "urgent")
    await cluster.bound("train", 1)
    await cluster.finish("train")
    await cluster.condition("train", "Finished", "True", "Succeeded")


async def test_of_equal_priorities_the_older_job_comes_first_and_a_younger_one_waits(
    cluster: Cluster,
) -> None:
    """The oldest was submitted to a queue that was stopped, and comes late."""
    await cluster.add_fx_a()
    preemption = {"withinClusterQueue": "LowerOrNewerEqualPriority"}
    await cluster.add_queue(topology=False, quota={"cpu": "16"}, preemption=preemption)
    stopped = local_queue("stopped", f"{cluster.pool}-queue")
    stopped["spec"]["stopPolicy"] = "Hold"
    await cluster.create(kinds.LOCAL_QUEUES, stopped)
    await cluster.submit("oldest", 3, queue="stopped")
    oldest = await cluster.condition("oldest", "QuotaReserved", "False", "Suspended")
    await a_second_after(oldest["metadata"]["creationTimestamp"])
    await cluster.submit("young", 3)
    before = {pod["metadata"]["uid"] for pod in await cluster.bound("young", 3)}
    young = await cluster.workload_of("young")
    await a_second_after(young["metadata"]["creationTimestamp"])
    await cluster.submit("youngest", 3)
    await cluster.condition("youngest", "QuotaReserved", "False", "WaitingForQuota")
    assert "Evicted" not in conditions(await cluster.workload_of("young"))

    await cluster.merge(kinds.LOCAL_QUEUES, "stopped", {"spec": {"stopPolicy": "None"}})
    await cluster.bound("oldest", 3)
    workload = await cluster.condition("young", "Preempted", "True", "InClusterQueue")
    assert conditions(workload)["Requeued"]["reason"] == "Preempted"
    await cluster.condition("youngest", "QuotaReserved", "False", "WaitingForQuota")
    await cluster.delete(kinds.JOBS, "oldest")
    after = {pod["metadata"]["uid"] for pod in await cluster.bound("young", 3)}
    assert not before & after
    await cluster.condition("youngest", "QuotaReserved", "False", "WaitingForQuota")
    for name in ("oldest", "youngest"):
        assert not await cluster.pods_of(name)


async def test_room_is_held_until_the_last_pod_of_a_victim_has_ended(cluster: Cluster) -> None:
    """An urgent job needs the room of two others. One is gone at once, the other ends slowly."""
    for host in ("h1", "h2"):
        await cluster.add_node("b1", "r1", host)
    org, preemption = f"{cluster.pool}-org", {"withinClusterQueue": "LowerPriority"}
    await cluster.add_queue("a", cohortName=org, preemption=preemption)
    await cluster.add_queue("b", flavor_of="a", cohortName=org)
    middle, urgent = [await cluster.add_priority(value) for value in (1, 2)]
    grace: Object = {"terminationGracePeriodSeconds": 3600}
    slow = {"rackgate.dev/terminate-seconds": "3600"}
    await cluster.submit("slow", 2, queue="a", required=RACK, pod=grace, annotations=slow)
    ending = await cluster.bound("slow", 2)
    await cluster.submit("quick", 2, queue="a", required=RACK)
    await cluster.bound("quick", 2)

    await cluster.submit("urgent", 4, queue="a", required=RACK, labels=urgent)
    for victim in ("slow", "quick"):
        await cluster.condition(victim, "Preempted", "True", "InClusterQueue")
    await used(cluster, "8", queue="a")  # the quota of `quick` is free
    await cluster.condition("urgent", "QuotaReserved", "False", "WaitingForPreemptedWorkloads")
    await cluster.submit("middle", 1, queue="a", required=RACK, labels=middle)
    await cluster.submit("other", 1, queue="b", required=RACK)
    for name in ("middle", "other", "quick"):
        await cluster.condition(name, "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.delete(kinds.PODS, ending[0]["metadata"]["name"], grace_s=0)
    await cluster.wait_pods_seen()
    await cluster.submit("late", 1, queue="b", required=RACK)
    await cluster.condition("late", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.condition("urgent", "QuotaReserved", "False", "WaitingForPreemptedWorkloads")

    await cluster.delete(kinds.PODS, ending[1]["metadata"]["name"], grace_s=0)
    await cluster.bound("urgent", 4)
    for name in ("middle", "other", "quick", "late"):
        await cluster.condition(name, "QuotaReserved", "False")
        assert not await cluster.pods_of(name)
    for name in ("slow", "quick", "urgent"):
        await cluster.delete(kinds.JOBS, name)
    for name in ("middle", "other", "late"):
        await cluster.bound(name, 1)


async def a_second_after(moment: str) -> None:
    """Ages are told in whole seconds, and of two that are equal neither comes first."""

    async def later() -> bool:
        return rfc3339(clock.now()) > moment

    await until(f"it is later than {moment}", later)
