"""Backfill in a StrictFIFO queue, on the real Job controller and kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rackgate.api import resources as kinds
from rackgate.api.names import MAX_EXECUTION_TIME_LABEL
from tests.support.cluster import Cluster
from tests.support.composite_views import conditions
from tests.support.objects import RACK
from tests.support.playground import Playground

pytestmark = pytest.mark.integration


@pytest.fixture
def backfilling(playground: Playground) -> Iterator[None]:
    """An assigner with the feature gate. To be asked for before `cluster`, with `usefixtures`."""
    with playground.assigner_with({"FEATURE_GATES": {"RackgateBackfill": True}}):
        yield


async def submit(cluster: Cluster, name: str, count: int, seconds: int | None = None) -> None:
    """A Job that may run for so many seconds, or for any time."""
    labels = {} if seconds is None else {MAX_EXECUTION_TIME_LABEL: str(seconds)}
    await cluster.submit(name, count, required=RACK, labels=labels)


@pytest.mark.usefixtures("backfilling")
async def test_a_job_that_ends_in_time_runs_before_the_head_and_delays_it_not(
    cluster: Cluster,
) -> None:
    """Names are in the order of the queue, because two Jobs may be created in the same second."""
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"}, queueingStrategy="StrictFIFO")
    await submit(cluster, "a-long", 3, 3600)
    await cluster.bound("a-long", 3)
    await submit(cluster, "b-head", 4)
    words = "Expected to start by"
    await cluster.condition("b-head", "QuotaReserved", "False", "WaitingForQuota", words)
    for name, seconds, why in (
        ("c-endless", None, "no maximum execution time"),
        ("d-late", 3600, "after the expected start"),
    ):
        await submit(cluster, name, 1, seconds)
        await cluster.condition(name, "QuotaReserved", "False", words=why)
    await submit(cluster, "e-short", 1, 600)
    await cluster.bound("e-short", 1)
    await cluster.condition("e-short", "QuotaReserved", "True", words="ahead of the first workload")
    await submit(cluster, "f-next", 1, 600)
    await cluster.condition("f-next", "QuotaReserved", "False", words="does not fit now")

    await cluster.finish("e-short")
    await cluster.bound("f-next", 1)
    await cluster.finish("a-long")
    # What has become free is for the head, although others behind it fit.
    await submit(cluster, "g-last", 1)
    await cluster.condition("g-last", "QuotaReserved", "False", words="no maximum execution time")
    await cluster.condition("b-head", "QuotaReserved", "False", "WaitingForQuota", words)
    await cluster.finish("f-next")
    await cluster.bound("b-head", 4)
    for name in ("c-endless", "d-late", "g-last"):
        assert "Admitted" not in conditions(await cluster.workload_of(name))
        assert not await cluster.pods_of(name)
    await cluster.delete(kinds.JOBS, "b-head")
    for name in ("c-endless", "d-late", "g-last"):
        await cluster.bound(name, 1)
