"""Pod counts that are negative, zero or huge, or that change while a Job runs."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import BadRequestError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import BLOCK, RACK, Object, job

pytestmark = pytest.mark.integration

MAX_INT32 = 2**31 - 1


async def prepare(cluster: Cluster, **queue: str) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": queue.get("cpu", "1000")})


async def waits(cluster: Cluster, job_name: str, reason: str, words: str) -> None:
    """Wait until the Job's Workload waits for that reason, and says so in these words."""
    await cluster.condition(job_name, "QuotaReserved", "False", reason, words)


async def reserved(cluster: Cluster, amount: str) -> None:
    """Wait until the ClusterQueue says that exactly this much is reserved."""

    async def reached() -> bool:
        queue = await cluster.get(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue")
        flavors = queue.get("status", {}).get("flavorsReservation", [])
        totals = [entry["total"] for flavor in flavors for entry in flavor["resources"]]
        return totals == [amount]

    await until(f"{amount} CPU are reserved", reached)


async def test_counts_that_are_no_counts_are_rejected_with_their_path(cluster: Cluster) -> None:
    for spec, path in (
        ({"parallelism": -1}, "spec.parallelism"),
        ({"completions": -1}, "spec.completions"),
        ({"parallelism": -(2**31)}, "spec.parallelism"),
    ):
        with pytest.raises(UnprocessableError, match=path):
            await cluster.create(kinds.JOBS, job("train", 2, required=RACK, spec=spec))
    for count in (MAX_INT32 + 1, 1.5, "two"):
        wish = job("train", 2, required=RACK, spec={"parallelism": count})
        with pytest.raises((UnprocessableError, BadRequestError), match="parallelism"):
            await cluster.create(kinds.JOBS, wish)


async def test_a_job_without_pods_waits_quietly_until_it_asks_for_some(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("none", 0, required=RACK, indexed=False, completions=4)
    # Another Job's whole start is time enough for a loop to show.
    await cluster.submit("other", 1, required=RACK)
    await cluster.bound("other", 1)
    stored = await cluster.get(kinds.JOBS, "none")
    assert stored["spec"]["suspend"] is True
    assert stored["metadata"]["generation"] == 1
    assert len(await cluster.list_all(kinds.WORKLOADS)) == 1
    await cluster.merge(kinds.JOBS, "none", {"spec": {"parallelism": 2}})
    await cluster.bound("none", 2)


async def test_a_waiting_job_that_asks_for_no_pods_any_more_loses_its_workload(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    await cluster.submit("train", 5, required=RACK, indexed=False)
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 0}})

    async def gone() -> bool:
        return not await cluster.list_all(kinds.WORKLOADS)

    await until("its Workload is gone", gone)


@pytest.mark.requirement("TAS-17")
async def test_huge_counts_wait_with_a_message(cluster: Cluster) -> None:
    await prepare(cluster, cpu="1M")
    await cluster.submit("indexed", 100_000, required=BLOCK)
    words = "allows to fit only 8 out of 100000 pod(s)"
    await waits(cluster, "indexed", "TopologyPlacementFailed", words)
    await cluster.submit("most", MAX_INT32, preferred=RACK, indexed=False)
    await waits(cluster, "most", "ExceedsMaxQuota", "8589934588")  # 4 times 2147483647
    await cluster.submit("fits", 2, required=RACK)
    await cluster.bound("fits", 2)


async def test_fewer_completions_than_parallelism_count(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 100, completions=3, required=RACK, indexed=False)
    await cluster.bound("train", 3)
    workload = await cluster.workload_of("train")
    assert workload["spec"]["podSets"][0]["count"] == 3
    await reserved(cluster, "12")


@pytest.mark.requirement("TAS-23", "CAP-02")
async def test_a_running_job_keeps_its_admission_when_its_parallelism_is_lowered(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    await cluster.submit("train", 4, required=RACK, indexed=False, completions=40)
    await cluster.bound("train", 4)
    given = (await cluster.workload_of("train"))["status"]["admission"]
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 1}})
    await cluster.bound("train", 1)

    async def down() -> bool:
        return len(await cluster.pods_of("train")) == 1

    await until("one pod is left", down)
    workload = await cluster.workload_of("train")
    assert workload["status"]["admission"] == given
    await reserved(cluster, "16")
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 4}})
    await cluster.bound("train", 4)
    assert (await cluster.workload_of("train"))["status"]["admission"] == given


@pytest.mark.requirement("CAP-02")
async def test_a_running_job_that_is_lowered_to_no_pods_releases_its_quota(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    await cluster.submit("train", 4, required=RACK, indexed=False, completions=40)
    await cluster.bound("train", 4)
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 0}})

    async def gone() -> bool:
        return not await cluster.list_all(kinds.WORKLOADS)

    await until("its Workload is gone", gone)
    assert (await cluster.get(kinds.JOBS, "train"))["spec"]["suspend"] is True
    await reserved(cluster, "0")
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 2}})
    await cluster.bound("train", 2)


async def test_a_running_job_may_be_labelled_and_annotated_but_not_moved_or_rebuilt(
    cluster: Cluster,
) -> None:
    await prepare(cluster)
    await cluster.submit("train", 2, required=RACK)
    pods = await cluster.bound("train", 2)
    mine = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    await cluster.merge(kinds.JOBS, "train", {"metadata": mine})
    for change, words in (
        ({"metadata": {"labels": {names.QUEUE_LABEL: "other"}}}, "suspend the job first"),
        ({"metadata": {"labels": {names.QUEUE_LABEL: None}}}, "suspend the job first"),
        ({"spec": {"completions": 9, "completionMode": "NonIndexed"}}, "immutable"),
    ):
        with pytest.raises(UnprocessableError, match=words):
            await cluster.merge(kinds.JOBS, "train", change)

    def other_image(stored: Object) -> None:
        stored["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example/other:2"

    with pytest.raises(UnprocessableError, match="immutable"):
        await cluster.replace(kinds.JOBS, "train", other_image)
    still = await cluster.bound("train", 2)
    assert {p["metadata"]["uid"] for p in still} == {p["metadata"]["uid"] for p in pods}
