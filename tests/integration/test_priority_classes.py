"""WorkloadPriorityClasses that change, and jobs that get another one, at any time of their life."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK

pytestmark = pytest.mark.integration


async def has_priority(cluster: Cluster, job: str, value: int, name: str | None) -> None:
    """Wait until the Workload of a Job has this priority, and this class."""

    async def holds() -> bool:
        spec = (await cluster.workload_of(job))["spec"]
        found = spec.get("priorityClassRef", {}).get("name")
        return (spec["priority"], found) == (value, name)

    await until(f"{job} has priority {value} of {name}", holds)


async def test_a_priority_follows_its_class_and_its_label(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})
    low, high = (f"{cluster.pool}-{name}" for name in ("low", "high"))
    for name, value in ((low, 1), (high, 100)):
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
        await cluster.create(kinds.WORKLOAD_PRIORITY_CLASSES, body)
    label = {names.PRIORITY_CLASS_LABEL: low}
    await cluster.submit("runs", 2, required=RACK, labels=label)
    await cluster.bound("runs", 2)
    await cluster.submit("bare", 2, required=RACK)
    await cluster.bound("bare", 2)
    await cluster.submit("waits", 2, required=RACK, labels=label)
    await cluster.condition("waits", "QuotaReserved", "False", "WaitingForQuota")
    for job in ("runs", "waits"):
        await has_priority(cluster, job, 1, low)

    await cluster.merge(kinds.WORKLOAD_PRIORITY_CLASSES, low, {"value": 7})
    for job in ("runs", "waits"):
        await has_priority(cluster, job, 7, low)
    change = {"metadata": {"labels": {names.PRIORITY_CLASS_LABEL: high}}}
    for job in ("runs", "waits", "bare"):
        await cluster.merge(kinds.JOBS, job, change)
    for job in ("runs", "waits"):
        await has_priority(cluster, job, 100, high)
    # The API does not let a Workload with quota get a class that had none.
    await has_priority(cluster, "bare", 100, None)
    assert len(await cluster.pods_of("runs")) == 2
    assert len(await cluster.pods_of("bare")) == 2
