"""A job gives way to a more important or an older one, on the real Job controller."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.timestamps import rfc3339
from rackgate.runtime import clock
from tests.support.cluster import Cluster, until
from tests.support.composite_views import conditions
from tests.support.objects import local_queue

pytestmark = pytest.mark.integration


@pytest.mark.requirement("SLC-31")
async def test_a_job_gives_way_with_all_its_pods_and_comes_back_at_its_size(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    preemption = {"withinClusterQueue": "LowerPriority"}
    await cluster.add_queue(topology=False, quota={"cpu": "16"}, preemption=preemption)
    urgent = f"{cluster.pool}-urgent"
    priority = {
        "apiVersion": names.API_VERSION,
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": urgent},
        "value": 1000,
    }
    await cluster.create(kinds.WORKLOAD_PRIORITY_CLASSES, priority)
    await cluster.submit("small", 1)
    await cluster.bound("small", 1)
    await cluster.submit("large", 3)
    before = {pod["metadata"]["uid"] for pod in await cluster.bound("large", 3)}
    await cluster.submit("urgent", 2, labels={names.PRIORITY_CLASS_LABEL: urgent})
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


async def a_second_after(moment: str) -> None:
    """Ages are told in whole seconds, and of two that are equal neither comes first."""

    async def later() -> bool:
        return rfc3339(clock.now()) > moment

    await until(f"it is later than {moment}", later)
