"""Nodes come, go, are cordoned, break and are relabelled; waiting Jobs follow."""

from __future__ import annotations

import json

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object, node

pytestmark = pytest.mark.integration

HERE, THERE = ("block-1", "rack-1"), ("block-1", "rack-2")


async def two_racks(cluster: Cluster) -> None:
    """Two racks of two nodes, two pods of 4 CPU each."""
    await cluster.add_nodes(
        node(cluster.pool, *rack, f"{rack[1]}-{i}") for rack in (HERE, THERE) for i in (1, 2)
    )
    await cluster.add_queue()


async def racks_of(cluster: Cluster, job: str, count: int) -> set[tuple[str, str]]:
    return {(block, rack) for block, rack, _ in await cluster.places(job, count)}


def name(cluster: Cluster, host: str) -> str:
    return f"{cluster.pool}-{host}"


@pytest.mark.requirement("CAP-07")
@pytest.mark.field_note("C9")
async def test_a_cordoned_node_takes_no_job_until_it_is_uncordoned(cluster: Cluster) -> None:
    await two_racks(cluster)
    cordoned = name(cluster, "rack-1-1")
    await cluster.merge(kinds.NODES, cordoned, {"spec": {"unschedulable": True}})
    await cluster.wait_nodes_seen()
    await cluster.submit("first", 4, required=RACK)
    assert await racks_of(cluster, "first", 4) == {THERE}
    await cluster.submit("second", 4, required=RACK)
    await cluster.condition("second", "QuotaReserved", "False", "TopologyPlacementFailed")
    await cluster.merge(kinds.NODES, cordoned, {"spec": {"unschedulable": False}})
    assert await racks_of(cluster, "second", 4) == {HERE}


@pytest.mark.requirement("CAP-07", "TAS-23")
async def test_a_node_that_is_not_ready_takes_no_job_and_running_ones_stay(
    cluster: Cluster,
) -> None:
    await two_racks(cluster)
    await cluster.submit("first", 4, required=RACK)
    assert await racks_of(cluster, "first", 4) == {HERE}
    before = (await cluster.workload_of("first"))["status"]["admission"]
    broken = {"metadata": {"annotations": {"rackgate.dev/broken": "true"}}}
    for host in ("rack-1-1", "rack-2-1"):
        await cluster.merge(kinds.NODES, name(cluster, host), broken)

    async def not_ready() -> bool:
        found = await cluster.get(kinds.NODES, name(cluster, "rack-2-1"))
        return any(c["type"] == "Ready" and c["status"] != "True" for c in _conditions(found))

    await until("a node is not ready", not_ready)
    await cluster.wait_nodes_seen()
    await cluster.submit("second", 4, required=RACK)
    await cluster.condition("second", "QuotaReserved", "False", "TopologyPlacementFailed")
    assert (await cluster.workload_of("first"))["status"]["admission"] == before
    mended = {"metadata": {"annotations": {"rackgate.dev/broken": None}}}
    await cluster.merge(kinds.NODES, name(cluster, "rack-2-1"), mended)
    assert await racks_of(cluster, "second", 4) == {THERE}


def _conditions(found: Object) -> list[Object]:
    return list(found["status"]["conditions"])


@pytest.mark.requirement("CAP-07")
async def test_a_relabelled_node_joins_its_new_rack(cluster: Cluster) -> None:
    await two_racks(cluster)
    await cluster.submit("wide", 6, required=RACK)
    await cluster.condition("wide", "QuotaReserved", "False", "TopologyPlacementFailed")
    change = {"metadata": {"labels": {RACK: THERE[1]}}}
    await cluster.merge(kinds.NODES, name(cluster, "rack-1-1"), change)
    assert await racks_of(cluster, "wide", 6) == {THERE}


@pytest.mark.requirement("CAP-07")
async def test_a_node_made_again_under_its_name_counts_where_it_is_now(cluster: Cluster) -> None:
    await two_racks(cluster)
    await cluster.submit("wide", 6, required=RACK)
    await cluster.condition("wide", "QuotaReserved", "False", "TopologyPlacementFailed")
    moved = name(cluster, "rack-1-1")
    await cluster.delete(kinds.NODES, moved)

    async def gone() -> bool:
        return await cluster.find(kinds.NODES, moved) is None

    await until("the node is gone", gone)
    await cluster.add_node(*THERE, "rack-1-1")
    assert await racks_of(cluster, "wide", 6) == {THERE}


@pytest.mark.requirement("TAS-13")
async def test_a_job_without_annotation_is_placed_host_by_host(cluster: Cluster) -> None:
    await two_racks(cluster)
    await cluster.submit("plain", 5)
    assert len(await cluster.places("plain", 5)) == 5
    workload = await cluster.workload_of("plain")
    assert "topologyRequest" not in workload["spec"]["podSets"][0]
    grant = workload["status"]["admission"]["podSetAssignments"][0]
    assert grant["topologyAssignment"]["levels"] == [names.HOSTNAME_LABEL]


async def test_an_unconstrained_job_is_placed_host_by_host(cluster: Cluster) -> None:
    await two_racks(cluster)
    await cluster.submit("any", 5, annotations={names.UNCONSTRAINED_TOPOLOGY: "true"})
    assert len(await cluster.places("any", 5)) == 5
    workload = await cluster.workload_of("any")
    assert workload["spec"]["podSets"][0]["topologyRequest"]["unconstrained"] is True


@pytest.mark.requirement("TAS-25", "TAS-03")
async def test_a_queue_without_topology_starts_jobs_without_gates(cluster: Cluster) -> None:
    await cluster.add_nodes([node(cluster.pool, *HERE, "n1")])
    await cluster.add_queue(topology=False, quota={"cpu": "8"})
    await cluster.submit("plain", 2)
    for pod in await cluster.bound("plain", 2):
        assert names.PODSET_LABEL not in pod["metadata"]["labels"]
        assert names.TAS_LABEL not in pod["metadata"]["labels"]
        assert not pod["spec"].get("schedulingGates")
    workload = await cluster.workload_of("plain")
    grant = workload["status"]["admission"]["podSetAssignments"][0]
    assert "topologyAssignment" not in grant
    await cluster.submit("waits", 1)
    await cluster.condition("waits", "QuotaReserved", "False", "WaitingForQuota")


async def test_fields_without_effect_are_stored_whole_and_named_in_an_event(
    cluster: Cluster,
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(
        concurrentAdmissionPolicy={"migration": {"mode": "TryPreferredFlavors"}},
        flavorFungibility={"whenCanPreempt": "MayStopSearch"},
    )
    full = f"{cluster.pool}-queue"
    stored = await cluster.get(kinds.CLUSTER_QUEUES, full)
    assert stored["spec"]["concurrentAdmissionPolicy"] == {
        "migration": {"mode": "TryPreferredFlavors"}
    }

    async def told() -> str | None:
        path = kinds.EVENTS.path("default")
        async for page in cluster.client.list_pages(path):
            for event in _items(page):
                about = (event.get("regarding") or {}).get("name")
                if about == full and event["reason"] == "UnsupportedField":
                    return str(event["note"])
        return None

    note = await until("an event names what has no effect", told)
    assert note is not None
    assert "concurrentAdmissionPolicy" in note


def _items(page: bytes) -> list[Object]:
    return list(json.loads(page)["items"])
