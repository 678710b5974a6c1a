"""Quantities in every spelling: exact amounts in admissions, clamps as stated, garbage refused."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.kube.errors import BadRequestError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.objects import BLOCK, Object, cluster_queue, job, node
from tests.support.playground import SERVICES, Playground

pytestmark = pytest.mark.integration

INT64 = "9223372036854775807"
GARBAGE = ("garbage", "1.2.3", "1KiB", "--1", "1e", "")


@pytest.fixture(scope="module", autouse=True)
def said_before(playground: Playground) -> dict[str, int]:
    """How much each service had logged before this file: what stands there is not its doing."""
    return {service: len(playground.log(f"{service}-0")) for service in SERVICES}


def asking(name: str, count: int, requests: Object, **more: Any) -> Object:
    """A Job whose pods ask for `requests` and nothing else."""
    made = job(name, count, required=BLOCK, **more)
    made["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": requests}
    return made


def odd_node(pool: str, name: str, **allocatable: str) -> Object:
    made = node(pool, "block-1", "rack-1", name)
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "1000", **allocatable}
    made["status"] = {"allocatable": amounts, "capacity": amounts}
    return made


async def usage_of(cluster: Cluster, job_name: str) -> dict[str, str]:
    """The amounts that a Job's admission states."""
    workload = await cluster.condition(job_name, "Admitted")
    (given,) = workload["status"]["admission"]["podSetAssignments"]
    return dict(given["resourceUsage"])


async def waits(cluster: Cluster, job_name: str, reason: str, words: str) -> None:
    """Wait until the Job's Workload waits for that reason, and says so in these words."""
    await cluster.condition(job_name, "QuotaReserved", "False", reason, words)


async def test_every_spelling_of_a_request_is_charged_exactly(cluster: Cluster) -> None:
    vast = odd_node(cluster.pool, "vast", cpu="1e30", memory="1e30")
    await cluster.add_nodes([vast])
    await cluster.add_queue(quota={"cpu": "1e30", "memory": INT64})
    cases: list[tuple[int, Object, Object]] = [
        (2, {"cpu": "1e3"}, {"cpu": "2k"}),
        (3, {"cpu": "0.5"}, {"cpu": "1500m"}),
        (3, {"cpu": "100m"}, {"cpu": "300m"}),
        (1, {"cpu": "0.1m"}, {"cpu": "1m"}),
        (3, {"cpu": "0", "memory": "1Ki"}, {"cpu": "0", "memory": "3Ki"}),
        (2, {"memory": "1.5Gi"}, {"memory": "3Gi"}),
        (3, {"memory": "1.5Gi"}, {"memory": "4608Mi"}),
        (2, {"memory": "1e3"}, {"memory": "2000"}),
        (4, {"memory": "0.5"}, {"memory": "4"}),
    ]
    for index, (count, requests, _) in enumerate(cases):
        await cluster.create(kinds.JOBS, asking(f"job-{index}", count, requests))
    for index, (_, requests, wanted) in enumerate(cases):
        found = await usage_of(cluster, f"job-{index}")
        assert found == {key: _canonical(value) for key, value in wanted.items()}, requests


def _canonical(value: str) -> str:
    """Whole thousands of cpu are written out."""
    return f"{value[:-1]}000" if value.endswith("k") else value


async def test_requests_beyond_the_clamp_count_as_the_clamp(cluster: Cluster) -> None:
    vast = [odd_node(cluster.pool, f"v{i}", cpu="1e30", memory=INT64) for i in (1, 2)]
    await cluster.add_nodes(vast)
    await cluster.add_queue(quota={"cpu": "1e30", "memory": "1e30"})
    asked = {"cpu": "1e30", "memory": INT64}
    await cluster.create(kinds.JOBS, asking("two", 2, asked))
    # 2^45 each: thousandths of cpu, bytes of memory.
    assert await usage_of(cluster, "two") == {"cpu": f"{2**46}m", "memory": "64Ti"}
    await cluster.create(kinds.JOBS, asking("more", 2**31 - 1, asked, indexed=False))
    # 2^60 bytes, the clamp of quotas
    await waits(cluster, "more", "ExceedsMaxQuota", "maximum capacity (1Ei)")
    await cluster.create(kinds.JOBS, asking("small", 1, {"memory": "1"}))
    await waits(cluster, "small", "TopologyPlacementFailed", 'excluded: resource "memory": 2')

    async def counted() -> bool:
        queue = await cluster.get(kinds.CLUSTER_QUEUES, f"{cluster.pool}-queue")
        flavors = queue.get("status", {}).get("flavorsUsage", [])
        totals = [entry["total"] for flavor in flavors for entry in flavor["resources"]]
        return totals == [f"{2**46}m", "64Ti"]

    await until("the ClusterQueue states the same amounts", counted)


@pytest.mark.requirement("TAS-20")
async def test_quotas_hold_to_the_last_unit(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "0.5", "memory": "1.5Gi"})
    await cluster.create(kinds.JOBS, asking("byte", 1, {"memory": "1610612737"}))
    await cluster.create(kinds.JOBS, asking("milli", 1, {"cpu": "501m"}))
    words = "(1610612737) > maximum capacity (1536Mi)"
    await waits(cluster, "byte", "ExceedsMaxQuota", words)
    await waits(cluster, "milli", "ExceedsMaxQuota", "(501m) > maximum capacity (500m)")
    # A fifth of the quota is no whole number of bytes: five pods are four bytes too many.
    await cluster.create(kinds.JOBS, asking("fifths", 5, {"memory": "307.2Mi"}))
    await waits(cluster, "fifths", "ExceedsMaxQuota", "(1610612740)")
    await cluster.create(kinds.JOBS, asking("all", 4, {"cpu": "125m", "memory": "0.375Gi"}))
    assert await usage_of(cluster, "all") == {"cpu": "500m", "memory": "1536Mi"}


@pytest.mark.requirement("CAP-01", "CAP-05")
async def test_every_spelling_of_a_nodes_allocatable_counts_exactly(cluster: Cluster) -> None:
    await cluster.add_nodes(
        odd_node(cluster.pool, f"n{index}", cpu=cpu)
        for index, cpu in enumerate(("0.5", "1e0", "100m", "99m", "0"))
    )
    await cluster.add_queue()
    await cluster.create(kinds.JOBS, asking("over", 17, {"cpu": "100m"}))
    words = "allows to fit only 16 out of 17 pod(s)"
    await waits(cluster, "over", "TopologyPlacementFailed", words)
    await cluster.create(kinds.JOBS, asking("full", 16, {"cpu": "100m"}))
    await cluster.bound("full", 16)


async def test_garbage_is_rejected_by_the_api_server(cluster: Cluster) -> None:
    refused = pytest.raises((UnprocessableError, BadRequestError))
    for value in (*GARBAGE, "-1", "-0.5Gi"):
        with refused:
            await cluster.create(kinds.JOBS, asking("bad", 1, {"cpu": value}))
        queue = cluster_queue(f"{cluster.pool}-bad", "f", {"cpu": value})
        with refused:
            await cluster.create(kinds.CLUSTER_QUEUES, queue)
        with refused:
            await cluster.create(kinds.NODES, odd_node(cluster.pool, "bad", cpu=value))


async def test_a_negative_request_is_rejected_with_its_path(cluster: Cluster) -> None:
    with pytest.raises(UnprocessableError, match=r"containers\[0\].resources.requests\[cpu\]"):
        await cluster.create(kinds.JOBS, asking("bad", 1, {"cpu": "-1"}))
    queue = cluster_queue(f"{cluster.pool}-bad", "f", {"cpu": "-1"})
    with pytest.raises(UnprocessableError, match="nominalQuota"):
        await cluster.create(kinds.CLUSTER_QUEUES, queue)


async def test_a_node_may_offer_resources_that_no_one_has_heard_of(cluster: Cluster) -> None:
    await cluster.add_nodes(
        [odd_node(cluster.pool, "gpu", **{"example.com/chip-of-2.x": "3"})],
    )
    await cluster.add_queue(quota={"example.com/chip-of-2.x": "1e2"})
    chips = {"example.com/chip-of-2.x": "1"}
    made = asking("chips", 3, chips)
    made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = chips
    await cluster.create(kinds.JOBS, made)
    assert await usage_of(cluster, "chips") == {"example.com/chip-of-2.x": "3"}
    await cluster.bound("chips", 3)


def test_nothing_above_made_a_service_stumble(
    playground: Playground, said_before: dict[str, int]
) -> None:
    """Unforeseen failures are logged with their trace; nothing in a log may be one."""
    for service in SERVICES:
        lines = playground.log(f"{service}-0")[said_before[service] :].splitlines()
        assert [line for line in lines if '"exception":' in line] == []
