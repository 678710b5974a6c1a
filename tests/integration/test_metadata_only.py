"""What the API server sends of Jobs when only their metadata is asked for."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate_ungater.state_machine.child_jobs import CHILD_JOB_SELECTOR, ChildJob, decode_job
from tests.support.cluster import Cluster

pytestmark = pytest.mark.integration


def child_job(name: str, owner_uid: str) -> dict[str, Any]:
    """A Job as JobSet makes it, at rest; a ConfigMap plays its owner."""
    container = {"name": "main", "image": "registry.example/train:1"}
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "train"}
    return {
        "metadata": {
            "name": name,
            "labels": {names.JOBSET_NAME_LABEL: "train"},
            "ownerReferences": [{**owner, "uid": owner_uid, "controller": True}],
        },
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


@pytest.mark.requirement("TAS-28")
async def test_lists_and_watches_of_child_jobs_show_whose_they_are_and_nothing_else(
    cluster: Cluster,
) -> None:
    played = await cluster.create(kinds.CONFIG_MAPS, {"metadata": {"name": "train"}})
    owner = played["metadata"]["uid"]
    made = await cluster.create(kinds.JOBS, child_job("train-main-0", owner))
    client, path = cluster.client.metadata_only(), kinds.JOBS.path(cluster.namespace)
    pages = [json.loads(page) async for page in client.list_pages(path, CHILD_JOB_SELECTOR)]
    ((item,),) = [page["items"] for page in pages]
    assert item["kind"] == "PartialObjectMetadata"
    assert item.keys() <= {"kind", "apiVersion", "metadata"}
    wanted = ChildJob(
        cluster.namespace,
        "train-main-0",
        made["metadata"]["uid"],
        item["metadata"]["resourceVersion"],
        owner,
    )
    assert decode_job(json.dumps(item).encode()) == wanted
    version = str(int(made["metadata"]["resourceVersion"]) - 1)
    async with aclosing(
        client.watch(path, {**CHILD_JOB_SELECTOR, "resourceVersion": version})
    ) as lines:
        async for line in lines:
            event = json.loads(line)
            assert event["type"] == "ADDED"
            assert "spec" not in event["object"]
            assert decode_job(json.dumps(event["object"]).encode()).owner_uid == owner
            break
