"""What happens to a governed Job that is edited, relabelled, suspended or deleted."""

from __future__ import annotations

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, KubeError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import BLOCK, RACK, job

pytestmark = pytest.mark.integration


async def prepare(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()


@pytest.mark.requirement("UNG-12")
async def test_raised_parallelism_leaves_the_surplus_gated(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 3, required=RACK, completions=9, indexed=False)
    await cluster.bound("train", 3)
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 4}})

    async def one_gated() -> bool:
        pods = await cluster.pods_of("train")
        gated = [pod for pod in pods if pod["spec"].get("schedulingGates")]
        return len(pods) == 4 and len(gated) == 1

    await until("the fourth pod exists and is gated", one_gated)
    await cluster.event("SurplusPods", (await cluster.workload_of("train"))["metadata"]["name"])
    assert len([p for p in await cluster.pods_of("train") if p["spec"].get("nodeName")]) == 3


@pytest.mark.requirement("HOOK-10")
async def test_a_queue_label_cannot_be_added_to_a_running_job(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("plain", 1, queue=None)
    await cluster.bound("plain", 1)
    change = {"metadata": {"labels": {names.QUEUE_LABEL: "queue"}}}
    with pytest.raises(KubeError, match="suspend"):
        await cluster.merge(kinds.JOBS, "plain", change)


async def test_a_removed_queue_label_frees_a_suspended_job(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 5, required=RACK)
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    name = (await cluster.workload_of("train"))["metadata"]["name"]
    await cluster.merge(kinds.JOBS, "train", {"metadata": {"labels": {names.QUEUE_LABEL: None}}})

    async def gone() -> bool:
        return await cluster.find(kinds.WORKLOADS, name) is None

    await until("its Workload is gone", gone)

    async def restored() -> bool:
        found = await cluster.get(kinds.JOBS, "train")
        return not found["spec"]["template"]["spec"].get("schedulingGates")

    await until("its template is the user's again", restored)
    assert (await cluster.get(kinds.JOBS, "train"))["spec"]["suspend"] is True
    await cluster.merge(kinds.JOBS, "train", {"spec": {"suspend": False}})
    await cluster.bound("train", 5)


@pytest.mark.requirement("CAP-02")
async def test_a_deleted_job_gives_its_room_back(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("first", 16, preferred=RACK)
    await cluster.bound("first", 16)
    await cluster.submit("second", 8, required=BLOCK)
    await cluster.condition("second", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.delete(kinds.JOBS, "first")
    await cluster.bound("second", 8)


async def test_a_job_deleted_while_pending_leaves_nothing_behind(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 5, required=RACK)
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.delete(kinds.JOBS, "train")

    async def empty() -> bool:
        return not await cluster.list_all(kinds.WORKLOADS) and not await cluster.list_all(
            kinds.JOBS
        )

    await until("Job and Workload are gone", empty)


async def test_a_job_edited_while_it_waits_is_asked_for_again(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 5, required=RACK, indexed=False)
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.merge(kinds.JOBS, "train", {"spec": {"parallelism": 4}})
    await cluster.bound("train", 4)


async def test_a_job_waits_for_a_queue_that_comes_later(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.submit("train", 4, required=RACK)
    await cluster.condition("train", "QuotaReserved", "False", words="queue")
    assert await cluster.pods_of("train") == []
    await cluster.add_queue()
    await cluster.bound("train", 4)


@pytest.mark.requirement("VAL-02", "VAL-13")
async def test_an_unknown_level_deactivates_until_it_is_fixed(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 2, required="example.com/shelf")

    async def inactive() -> bool:
        workload = await cluster.workload_of("train")
        return workload["spec"].get("active") is False

    await until("its Workload is deactivated", inactive)
    workload = await cluster.workload_of("train")
    text = " ".join(c["message"] for c in workload["status"]["conditions"])
    assert "example.com/shelf" in text
    assert RACK in text
    assert await cluster.pods_of("train") == []
    mended = {"metadata": {"annotations": {names.REQUIRED_TOPOLOGY: RACK}}}
    await cluster.merge(kinds.JOBS, "train", {"spec": {"template": mended}})

    async def asked_anew() -> bool:
        workload = await cluster.workload_of("train")
        return bool(workload["spec"]["podSets"][0]["topologyRequest"]["required"] == RACK)

    await until("its Workload asks for the rack", asked_anew)
    name = workload["metadata"]["name"]
    await cluster.merge(kinds.WORKLOADS, name, {"spec": {"active": True}})
    await cluster.bound("train", 2)


@pytest.mark.requirement("VAL-03")
async def test_an_unknown_preferred_level_deactivates(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 2, preferred="example.com/shelf")

    async def inactive() -> bool:
        return (await cluster.workload_of("train"))["spec"].get("active") is False

    await until("its Workload is deactivated", inactive)


@pytest.mark.requirement("VAL-12")
async def test_both_annotations_at_once_are_rejected(cluster: Cluster) -> None:
    with pytest.raises((UnprocessableError, ForbiddenError), match=r"annotations"):
        await cluster.create(kinds.JOBS, job("train", 2, required=RACK, preferred=RACK))


@pytest.mark.requirement("VAL-12")
async def test_a_malformed_level_key_is_rejected(cluster: Cluster) -> None:
    with pytest.raises((UnprocessableError, ForbiddenError), match="a//b"):
        await cluster.create(kinds.JOBS, job("train", 2, required="a//b"))


async def test_a_user_suspending_a_running_job_frees_its_room_first(cluster: Cluster) -> None:
    await prepare(cluster)
    await cluster.submit("train", 4, required=RACK)
    await cluster.bound("train", 4)
    before = {pod["metadata"]["uid"] for pod in await cluster.pods_of("train")}
    await cluster.merge(kinds.JOBS, "train", {"spec": {"suspend": True}})

    async def renewed() -> bool:
        pods = await cluster.pods_of("train")
        now = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}
        return len(now) == 4 and not now & before

    await until("the Job runs again with new pods", renewed)


@pytest.mark.requirement("HOOK-05", "TAS-09")
async def test_a_job_without_the_label_is_left_alone(cluster: Cluster) -> None:
    await prepare(cluster)
    made = await cluster.submit("plain", 2, queue=None, required=RACK)
    assert made["spec"].get("suspend", False) is False
    assert "schedulingGates" not in made["spec"]["template"]["spec"]
    await cluster.bound("plain", 2)
    assert await cluster.list_all(kinds.WORKLOADS) == []
