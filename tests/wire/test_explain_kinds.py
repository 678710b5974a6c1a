"""`rackgate explain` on JobSets, RayClusters and clusters that are being resized."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rackgate.api import resources as kinds
from rackgate.features import Features
from rackgate_assigner.explain.explanation import Explanation
from rackgate_cli.errors import CommandError
from rackgate_cli.explain.explainer import WorkloadExplainer
from rackgate_cli.explain.view import blocks
from rackgate_cli.tables import plain
from rackgate_invariants.judge import breaches, judge
from rackgate_invariants.reading import read_cluster
from rackgate_invariants.rules.catalog import Breach
from tests.support import composite_jobs as composite
from tests.support.apiserver import Fault
from tests.wire.assigner_world import NAMESPACE, eventually
from tests.wire.elastic_world import ElasticWorld, furnish, replica


@pytest_asyncio.fixture
async def world() -> AsyncIterator[ElasticWorld]:
    async with ElasticWorld() as found:
        furnish(found)
        yield found


async def explained(world: ElasticWorld, name: str) -> Explanation:
    client = world.client()
    try:
        return await WorkloadExplainer(client, Features(elastic_jobs=True), (), 3).named(
            NAMESPACE, name
        )
    finally:
        await client.close()


def put(world: ElasticWorld, resource: kinds.Resource, document: dict[str, Any]) -> None:
    document["metadata"]["namespace"] = NAMESPACE
    world.put(resource, document)


def text(found: Explanation) -> str:
    return " ".join(plain(blocks(found)).split())


async def test_a_jobset_is_explained_by_its_name(world: ElasticWorld) -> None:
    parts = [composite.replicated_job("workers", 4, replicas=2, cpu="40")]
    document = composite.jobset("train", parts, queue="plain", suspend=True)
    put(world, kinds.JOBSETS, document)
    early = await explained(world, "train")
    assert (early.state, early.job_kind) == ("noWorkload", "JobSet")
    assert "No Workload exists yet for this JobSet" in early.warnings[0]
    async with replica(world):
        await eventually(lambda: bool(world.workloads()))
    found = await explained(world, "train")
    assert (found.state, found.job_kind) == ("waiting", "JobSet")
    assert "pending, of JobSet team/train" in text(found)
    assert "more than the nominal quota of 64 in flavor plain" in found.summary


async def test_kinds_that_may_not_be_read_are_reported_by_their_names(world: ElasticWorld) -> None:
    world.faults += [
        Fault.status(403, "Forbidden", path=path, times=9)
        for path in ("/jobsets/", "/rayclusters/")
    ]
    with pytest.raises(CommandError, match="and JobSets and RayClusters without one cannot be"):
        await explained(world, "train")


@pytest.mark.requirement("SLC-30")
async def test_a_cluster_that_grows_tells_what_its_slices_wait_for(world: ElasticWorld) -> None:
    async with replica(world):
        world.elastic("ray", {"small": 2}, cpu="10")
        await eventually(lambda: world.is_running(kinds.RAY_CLUSTERS, "ray"))
        settled = await explained(world, "ray")
        world.scale("ray", 8)
        await eventually(lambda: "6 admitted, 2 pending" in world.resize("ray")[2])
        await eventually(lambda: world.granted("ray")["small"] == 6 and len(world.slices()) == 2)
    assert {(one.asked, one.granted, one.waiting) for one in settled.resizes} == {
        (1, 1, 0),
        (2, 2, 0),
    }
    assert "RESIZE" not in text(settled)
    found = await explained(world, "ray")
    assert (found.state, found.job_kind) == ("admitted", "RayCluster")
    head, small = found.resizes
    assert (head.asked, head.granted, head.waiting, head.because) == (1, 1, 0, "")
    assert (small.asked, small.granted, small.waiting, len(small.slices)) == (8, 6, 2, 2)
    assert found.summary.startswith(
        "It is admitted, and scales up: small requested 8, admitted 6, pending 2 because "
    )
    assert "cpu of the quota of flavor plain are missing" in found.summary
    assert found.quota
    (change,) = found.changes
    assert change.text == "8 more cpu of quota in flavor plain: this job itself uses the rest"
    assert "RESIZE PODSET REQUESTED ADMITTED PENDING REASON SLICES" in text(found)
    piece = await explained(world, small.slices[0].partition("/")[2])
    assert (piece.state, piece.job_kind) == ("waiting", "Workload")
    assert "pending, of Workload team/" in text(piece)


async def test_what_the_job_asks_may_be_unreadable(world: ElasticWorld) -> None:
    async with replica(world):
        world.elastic("ray", {"small": 2}, cpu="10")
        await eventually(lambda: world.is_running(kinds.RAY_CLUSTERS, "ray"))
        world.scale("ray", 8)
        await eventually(lambda: world.granted("ray")["small"] == 6 and len(world.slices()) == 2)
    world.faults.append(Fault.status(403, "Forbidden", path="/rayclusters/ray", times=9))
    found = await explained(world, "ray")
    assert [(one.asked, one.granted) for one in found.resizes] == [(1, 1), (8, 6)]


async def _seen(world: ElasticWorld, *, patient: bool) -> list[Breach]:
    client = world.client()
    try:
        cluster = await read_cluster(client)
    finally:
        await client.close()
    return judge(cluster) if patient else breaches(cluster)


@pytest.mark.requirement("SLC-21", "SLC-35")
async def test_the_checker_accuses_no_resize_that_the_assigner_makes(world: ElasticWorld) -> None:
    async with replica(world):
        world.elastic("ray", {"small": 2, "large": 1}, cpu="4")
        await eventually(lambda: world.is_running(kinds.RAY_CLUSTERS, "ray"))
        for size in (6, 3, 9, 0, 5):
            world.scale("ray", size)
            shown: list[Breach] = []

            async def at(size: int = size, shown: list[Breach] = shown) -> bool:
                shown += await _seen(world, patient=False)
                return world.is_at("ray", small=size, large=1)

            for _ in range(3000):
                if await at():
                    break
            assert world.is_at("ray", small=size, large=1)
            assert shown == []
        queues = ("queue-counts", "local-queue-counts")
        left = [one for one in await _seen(world, patient=True) if one.rule not in queues]
        assert left == []
