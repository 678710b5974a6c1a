"""Kinds whose CRDs are not there, come later, or go: docs/design/races/assigner.md, K17 and K18."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from rackgate.api import resources as kinds
from rackgate_assigner import watches
from rackgate_assigner.assigner import Assigner
from rackgate_assigner.watches import Watches
from tests.support import composite_jobs as composite
from tests.support.apiserver_faults import Fault
from tests.wire.assigner_world import assigner, eventually
from tests.wire.kinds_world import KindsWorld, furnish

CLUSTERS = kinds.RAY_CLUSTERS


@pytest.fixture(autouse=True)
def _ask_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVED_POLL_S", "UNKNOWN_POLL_S"):
        monkeypatch.setattr(watches, name, 0.02)


@pytest.fixture
async def world() -> AsyncIterator[KindsWorld]:
    async with KindsWorld() as found:
        furnish(found)
        yield found


def cluster() -> dict[str, Any]:
    return composite.raycluster("ray", [composite.worker_group("small", 2)])


@asynccontextmanager
async def without_clusters(world: KindsWorld) -> AsyncIterator[Assigner]:
    """A replica that acts while RayClusters are not served."""
    world.unserved.add(CLUSTERS.full_name)
    async with assigner(world) as replica:
        yield replica


async def test_a_kind_that_is_not_installed_keeps_no_one_waiting(world: KindsWorld) -> None:
    world.unserved.add(kinds.JOBSETS.full_name)
    with structlog.testing.capture_logs() as logged:
        async with without_clusters(world) as replica:
            assert replica.missing() == []
            world.submit("train")
            await eventually(world.started("train"))
            asked = [r for r in world.requests if CLUSTERS.plural in r.path]
            await eventually(
                lambda: len([r for r in world.requests if CLUSTERS.plural in r.path]) > len(asked)
            )
    warned = [line for line in logged if line["log_level"] in ("warning", "error")]
    assert [line for line in warned if "jobset" in str(line) or "ray" in str(line)] == []


async def test_a_kind_that_comes_later_is_followed(world: KindsWorld) -> None:
    async with without_clusters(world):
        world.unserved.clear()
        world.add(CLUSTERS, cluster())
        await eventually(lambda: world.is_running(CLUSTERS, "ray"))
    assert world.broken_rules == []


async def test_a_kind_that_goes_takes_its_workloads_along(world: KindsWorld) -> None:
    world.add(CLUSTERS, cluster())
    async with assigner(world) as replica:
        await eventually(lambda: world.is_running(CLUSTERS, "ray"))
        # Its watch breaks before the deletions are seen.
        for stream in [s for s in world.streams if s.target.full_name == CLUSTERS.full_name]:
            stream.cut()
        world.uninstall(CLUSTERS)
        await eventually(lambda: not replica.watches.kinds[CLUSTERS.kind].store)
        await eventually(lambda: not world.workloads())
        assert replica.missing() == []
        world.unserved.clear()
        world.add(CLUSTERS, cluster())
        await eventually(lambda: world.is_running(CLUSTERS, "ray"))


async def test_a_kind_that_may_not_be_read_keeps_the_replica_from_ready(world: KindsWorld) -> None:
    told = "rayclusters.ray.io is forbidden"
    fault = Fault.status(403, "Forbidden", told, path=f"/{CLUSTERS.plural}", times=10**6)
    world.faults.append(fault)
    client = world.client()
    watch = Watches(client).kinds[CLUSTERS.kind]
    assert watch.missing() == [f"{CLUSTERS.full_name}: not checked yet"]
    following = asyncio.create_task(watch.run())
    try:
        await eventually(lambda: told in " ".join(watch.missing()))
        world.faults.clear()
        await asyncio.wait_for(watch.synced(), 60)
        assert watch.missing() == []
    finally:
        following.cancel()
        await asyncio.wait([following])
        await client.close()


@pytest.mark.steady_clock  # a stall between break and answer would be a reason to ask again
@pytest.mark.requirement("OPS-07")
async def test_a_kind_whose_stream_broke_is_asked_for_once_and_not_until_something_happens(
    world: KindsWorld,
) -> None:
    def asked() -> int:
        return sum(request.query.get("limit") == "1" for request in world.requests)

    client = world.client()
    watch = Watches(client).kinds[CLUSTERS.kind]
    following = asyncio.create_task(watch.run())
    try:
        await eventually(lambda: world.streams)
        world.streams[0].cut()
        await eventually(lambda: asked() > 2)  # the informer asks for the version of the store
        await eventually(lambda: world.streams and not watch.informer.problem)
        assert asked() == 3
    finally:
        following.cancel()
        await asyncio.wait([following])
        await client.close()
