"""A job gives way to a more important one of its queue, on the real Job controller."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.kube import resources as kinds
from tests.support.cluster import Cluster, until

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
