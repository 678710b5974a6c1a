"""An Indexed Job that is resized while it runs, on the real Job controller."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.composite_views import used
from tests.support.objects import RACK, job

pytestmark = pytest.mark.integration


async def settled(cluster: Cluster, pods: int) -> None:
    """Wait until the Workload counts so many pods, and as many are bound."""

    async def counted() -> bool:
        found = await cluster.workload_of("train")
        parts = found.get("status", {}).get("admission", {}).get("podSetAssignments", [])
        counts = [podset["count"] for podset in found["spec"]["podSets"]]
        left = [
            w for w in await cluster.list_all(kinds.WORKLOADS) if "-main-" in w["metadata"]["name"]
        ]
        return counts == [part["count"] for part in parts] == [pods] and not left

    await until(f"the Workload counts {pods} pods and has no slice", counted)
    await cluster.bound("train", pods)


@pytest.mark.requirement("STR-11")
async def test_an_indexed_job_grows_and_shrinks_in_its_rack(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    elastic = job("train", 1, required=RACK, completions=50)
    elastic["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    await cluster.create(kinds.JOBS, elastic)
    await settled(cluster, 1)
    started = (await cluster.get(kinds.JOBS, "train"))["status"]["startTime"]
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 3}})
    await settled(cluster, 3)
    assert len({place[:2] for place in await cluster.places("train", 3)}) == 1
    await used(cluster, "12")
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 2}})
    await settled(cluster, 2)
    await used(cluster, "8")
    assert (await cluster.get(kinds.JOBS, "train"))["status"]["startTime"] == started
