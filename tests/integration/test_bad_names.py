"""Names as long as the API allows, and one character longer."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import (
    BLOCK,
    HOST,
    RACK,
    cluster_queue,
    flavor,
    job,
    local_queue,
    node,
    topology_object,
)

pytestmark = pytest.mark.integration


def long(prefix: str, length: int, *, dots: bool = False) -> str:
    """A name of exactly that many characters."""
    part = "x" * 60 + ("." if dots else "x")
    text = f"{prefix}-{part * 5}"[:length]
    return f"{text[:-1]}z"


async def prepare(cluster: Cluster) -> str:
    """Nodes, Topology, flavor and ClusterQueue with names of 253 characters."""
    full = long(cluster.pool, 253, dots=True)
    made = []
    for index in (1, 2):
        entry = node(cluster.pool, "block-1", "rack-1", "n")
        entry["metadata"]["name"] = long(f"{cluster.pool}-{index}", 253, dots=True)
        entry["metadata"]["labels"][HOST] = long(f"{cluster.pool}-{index}", 63)
        made.append(entry)
    await cluster.add_nodes(made)
    await cluster.create(kinds.TOPOLOGIES, topology_object(full))
    await cluster.create(kinds.FLAVORS, flavor(full, cluster.pool, full))
    await cluster.create(kinds.CLUSTER_QUEUES, cluster_queue(full, full, {"cpu": "8"}))
    return full


async def test_the_longest_names_work(cluster: Cluster) -> None:
    full = await prepare(cluster)
    queue = long("queue", 63)
    await cluster.create(kinds.LOCAL_QUEUES, local_queue(queue, full))
    namespace = {"metadata": {"name": long(cluster.pool, 63)}}
    await cluster.create(kinds.NAMESPACES, namespace)
    there = dataclasses.replace(cluster, namespace=namespace["metadata"]["name"], created=[])
    await there.create(kinds.LOCAL_QUEUES, local_queue(queue, full))
    plain, indexed = long("job", 63), long("job", 61)
    await cluster.submit(plain, 1, required=BLOCK, indexed=False, queue=queue)
    await there.submit(indexed, 1, required=RACK, queue=queue)
    (pod,) = await cluster.bound(plain, 1)
    (other,) = await there.bound(indexed, 1)
    for found in (pod, other):
        assert found["spec"]["nodeSelector"][HOST].endswith("z")
        assert len(found["spec"]["nodeName"]) == 253
    await cluster.submit("third", 1, required=RACK, queue=queue)
    await cluster.condition("third", "QuotaReserved", "False", "WaitingForQuota", full)
    # Names of Workloads and Events are cut where they would be too long.
    workload = await cluster.workload_of(plain)
    await cluster.event("Admitted", workload["metadata"]["name"])
    await cluster.event("Started", plain)

    async def counted() -> bool:
        status = (await cluster.get(kinds.CLUSTER_QUEUES, full)).get("status", {})
        return (status.get("admittedWorkloads"), status.get("pendingWorkloads")) == (2, 1)

    await until("the ClusterQueue counts them", counted)
    await there.clean()


async def test_a_name_beyond_the_limit_is_rejected_with_its_length(cluster: Cluster) -> None:
    for kind, name in ((kinds.TOPOLOGIES, "t"), (kinds.FLAVORS, "f"), (kinds.CLUSTER_QUEUES, "c")):
        body = topology_object(long(name, 254))
        if kind is kinds.FLAVORS:
            body = flavor(long(name, 254), cluster.pool, None)
        if kind is kinds.CLUSTER_QUEUES:
            body = cluster_queue(long(name, 254), "f", {"cpu": "1"})
        with pytest.raises(UnprocessableError, match="no more than 253"):
            await cluster.create(kind, body)
    with pytest.raises(UnprocessableError, match="no more than 63"):
        await cluster.create(kinds.JOBS, job(long("job", 64), 1, queue="queue", indexed=False))
    # The index of an Indexed Job's pod is part of its host name.
    with pytest.raises(UnprocessableError, match="invalid DNS label"):
        await cluster.create(kinds.JOBS, job(long("job", 62), 1, queue="queue"))


async def test_no_job_can_name_a_queue_of_more_than_63_characters(cluster: Cluster) -> None:
    name = long("queue", 64)
    await cluster.create(kinds.LOCAL_QUEUES, local_queue(name, "nowhere"))
    with pytest.raises(UnprocessableError, match=r"metadata.labels.*no more than 63"):
        await cluster.create(kinds.JOBS, job("train", 1, queue=name))


@pytest.mark.parametrize("queue", ["UPPER", "a_b", "-"])
async def test_a_label_that_names_no_queue_is_rejected_with_its_path(
    cluster: Cluster, queue: str
) -> None:
    path = r"metadata\.labels.*queue-name|metadata\.labels: Invalid value"
    with pytest.raises((UnprocessableError, ForbiddenError), match=path):
        await cluster.create(kinds.JOBS, job("train", 1, queue=queue))


async def test_an_empty_queue_label_is_answered(cluster: Cluster) -> None:
    wish = job("train", 1)
    wish["metadata"]["labels"][names.QUEUE_LABEL] = ""
    path = kinds.JOBS.path(cluster.namespace)
    with pytest.raises((UnprocessableError, ForbiddenError), match="queue-name"):
        await cluster.client.create(path, json.dumps(wish).encode())


@pytest.mark.requirement("VAL-12")
async def test_a_requested_level_may_have_63_characters(cluster: Cluster) -> None:
    """The request's schema allows no more, though a Topology's level may be longer."""
    prefix = "example.com/"
    level = prefix + "l" * (63 - len(prefix))
    labels = {level: long("value", 63)}
    await cluster.add_node("block-1", "rack-1", "n", labels=labels)
    await cluster.add_queue(levels=(level, HOST))
    await cluster.submit("train", 1, required=level)
    await cluster.bound("train", 1)
    with pytest.raises((UnprocessableError, ForbiddenError), match="has 64 characters"):
        await cluster.create(kinds.JOBS, job("more", 1, required=f"{level}l"))
