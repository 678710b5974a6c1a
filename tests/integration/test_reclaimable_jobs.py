"""A Job's pods that are done: others run in their place while the rest of the Job runs on."""

from __future__ import annotations

import pytest

from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.composite_views import used
from tests.support.objects import RACK

pytestmark = pytest.mark.integration

DONE = {"metadata": {"annotations": {"rackgate.dev/run-seconds": "0"}}}


async def test_another_job_runs_in_the_place_of_a_pod_that_is_done(cluster: Cluster) -> None:
    """There is room for four pods of 1 CPU, by quota and on the one node."""
    await cluster.add_node("b1", "r1", "h1", cpu="4")
    await cluster.add_queue(quota={"cpu": "4"})
    await cluster.submit("large", 4, cpu="1", required=RACK)
    pods = await cluster.bound("large", 4)
    await cluster.submit("next", 1, cpu="1", required=RACK)
    await cluster.condition("next", "QuotaReserved", "False", "WaitingForQuota")

    await cluster.merge(kinds.PODS, pods[0]["metadata"]["name"], DONE)
    await cluster.bound("next", 1)
    await cluster.bound("large", 3)
    large = await cluster.workload_of("large")
    assert large["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]
    conditions = {entry["type"]: entry["status"] for entry in large["status"]["conditions"]}
    assert conditions.get("Evicted", "False") == "False"
    assert conditions["PodsReady"] == "True"
    await used(cluster, "4")

    # The rest ends, and everything is given back.
    await cluster.finish("large")
    await cluster.condition("large", "Finished", "True", "Succeeded")
    await cluster.finish("next")
    await cluster.condition("next", "Finished", "True", "Succeeded")
    await used(cluster, "0")

    async def complete() -> bool:
        found = (await cluster.get(kinds.JOBS, "large"))["status"]
        return bool(found.get("succeeded") == 4)

    await until("all four pods have succeeded", complete)
