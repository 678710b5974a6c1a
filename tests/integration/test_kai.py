"""Jobs for KAI on a real API server: handed over whole, and left alone by everybody of Rackgate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.jobframework.kai import KAI_QUEUE, KAI_REQUIRED, KAI_SCHEDULER, KAI_TOPOLOGY
from rackgate.kube.errors import UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object, job

pytestmark = pytest.mark.integration

NOTES = {KAI_TOPOLOGY: "racks", KAI_REQUIRED: RACK}


def kai_job(name: str, count: int = 1, **more: Any) -> Object:
    """A Job for KAI, of a queue that only KAI knows."""
    found = job(
        name, count, queue="theirs", required=RACK, pod={"schedulerName": KAI_SCHEDULER}, **more
    )
    found["metadata"]["annotations"] = {KAI_TOPOLOGY: NOTES[KAI_TOPOLOGY]}
    return found


@pytest.mark.requirement("HOOK-05", "HOOK-12")
async def test_a_job_for_kai_runs_ungoverned_with_kais_words_on_it(cluster: Cluster) -> None:
    path = kinds.JOBS.path(cluster.namespace)
    tried = json.loads(
        await cluster.client.create(
            path, json.dumps(kai_job("tried")).encode(), params={"dryRun": "All"}
        )
    )
    stored = await cluster.create(kinds.JOBS, kai_job("theirs"))
    for found in (tried, stored):
        assert found["metadata"]["labels"] == {KAI_QUEUE: "theirs"}
        assert found["metadata"]["annotations"].items() >= NOTES.items()
        assert not found["spec"].get("suspend")
    assert await cluster.find(kinds.JOBS, "tried") is None

    async def pods() -> list[Object]:
        return await cluster.list_all(kinds.PODS, labelSelector="job-name=theirs")

    (pod,) = await until("a pod of the Job", pods)
    assert not pod["spec"].get("schedulingGates")
    assert not pod["spec"].get("nodeSelector")
    assert names.PODSET_LABEL not in pod["metadata"]["labels"]
    # The assigner hears of Jobs in the order of their writes: it has passed over this one by then.
    await cluster.create(kinds.JOBS, job("ours", 1, queue="ours"))

    async def owners() -> set[str]:
        workloads = await cluster.list_all(kinds.WORKLOADS)
        return {
            owner["name"]
            for workload in workloads
            for owner in workload["metadata"].get("ownerReferences", [])
        }

    assert await until("the Workload of another Job", owners) == {"ours"}


@pytest.mark.requirement("HOOK-06")
async def test_the_same_manifest_again_is_taken_while_the_job_runs_and_another_queue_is_not(
    cluster: Cluster,
) -> None:
    stored = await cluster.create(kinds.JOBS, kai_job("again"))
    asked = kai_job("again")
    merged = await cluster.merge(kinds.JOBS, "again", {"metadata": asked["metadata"]})
    assert merged["metadata"]["labels"] == stored["metadata"]["labels"]

    def written_whole(found: Object) -> None:
        found["metadata"] |= {key: asked["metadata"][key] for key in ("labels", "annotations")}

    replaced = await cluster.replace(kinds.JOBS, "again", written_whole)
    assert replaced["metadata"]["labels"] == stored["metadata"]["labels"]
    assert replaced["metadata"]["annotations"].items() >= NOTES.items()
    other = {"metadata": {"labels": {names.QUEUE_LABEL: "other"}}}
    with pytest.raises(UnprocessableError, match=r'labels\[kai.scheduler/queue\]: "theirs" is not'):
        await cluster.merge(kinds.JOBS, "again", other)
    # Suspending and resuming is between its user and KAI: no policy of ours stands in the way.
    for suspend in (True, False):
        await cluster.merge(kinds.JOBS, "again", {"spec": {"suspend": suspend}})


async def test_what_kai_would_not_keep_is_rejected_with_its_path(cluster: Cluster) -> None:
    with pytest.raises(UnprocessableError, match="each of the 2 pods separately"):
        await cluster.create(kinds.JOBS, kai_job("two", 2))
    sliced = kai_job("sliced", annotations={names.POD_INDEX_OFFSET: "1"})
    words = rf"spec\.template\.metadata\.annotations\[{names.POD_INDEX_OFFSET}\]"
    with pytest.raises(UnprocessableError, match=words):
        await cluster.create(kinds.JOBS, sliced)
