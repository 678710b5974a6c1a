"""Pools of OSMO where the API server refuses: told, counted, and nobody else's trouble."""

from __future__ import annotations

import pytest
import structlog

from rackgate.api.resources import KAI_TOPOLOGIES, OSMO_POOLS, Resource
from rackgate_assigner import metrics
from tests.support.apiserver_faults import Fault
from tests.wire.assigner_world import assigner, eventually
from tests.wire.pools_world import (
    IN_STEP,
    RACK,
    ZONE,
    PoolsWorld,
    gated,
    labels,
    pools_world,
    settled,
)

world = pools_world  # the fixture


def refusal(method: str, path: str) -> Fault:
    return Fault.status(403, "Forbidden", "no role", method=method, path=path, times=10**6)


def counted(synced: bool) -> float:
    value: float = metrics.OSMO_POOLS.labels(synced=str(synced).lower())._value.get()
    return value


@pytest.mark.requirement("OSM-08", "OSM-19")
@pytest.mark.parametrize("kind", [OSMO_POOLS, KAI_TOPOLOGIES], ids=lambda kind: kind.plural)
async def test_without_rights_for_pools_all_the_rest_goes_on(
    world: PoolsWorld, kind: Resource
) -> None:
    world.faults.append(refusal("GET", kind.path()))
    world.pool(ZONE)
    with structlog.testing.capture_logs() as logged:
        async with assigner(world, configured=gated()) as replica:
            assert replica.missing() == []
            world.submit("train", 1)
            await eventually(world.workloads)
            await eventually(
                lambda: any(line["event"] == "kind_availability_unknown" for line in logged)
            )
            assert world.osmo_writes() == [], "nothing is decided by half of what there is"
            world.faults.clear()
            await settled(world, IN_STEP, labels(ZONE))
    doubts = [line["resource"] for line in logged if line["event"] == "kind_availability_unknown"]
    assert doubts == [kind.full_name], "told once, however often it is asked"


@pytest.mark.requirement("OSM-08")
async def test_levels_that_are_rejected_leave_the_topology_as_it_was(world: PoolsWorld) -> None:
    world.pool(ZONE)
    async with assigner(world, configured=gated()):
        await settled(world, IN_STEP, labels(ZONE))
        before = world.topologies()
        world.faults.append(refusal("POST", KAI_TOPOLOGIES.path()))
        world.pool(RACK)
        await settled(world, ("False", "TopologyRefused"), labels(ZONE))
        assert world.topologies() == before
        world.faults.clear()
        await settled(world, IN_STEP, labels(RACK))
        assert list(world.topologies()) == list(before), "what was tried is not stored"


@pytest.mark.requirement("OSM-08")
async def test_a_pool_whose_topology_is_rejected_counts_as_not_in_step(world: PoolsWorld) -> None:
    world.pool(ZONE)
    async with assigner(world, configured=gated()):
        await settled(world, IN_STEP, labels(ZONE))
        await eventually(lambda: (counted(True), counted(False)) == (1, 0))
        world.faults.append(refusal("DELETE", KAI_TOPOLOGIES.path()))
        world.pool(RACK)
        await settled(world, ("False", "TopologyRefused"), labels(ZONE))
        assert (counted(True), counted(False)) == (0, 1)
        world.faults.clear()
        await settled(world, IN_STEP, labels(RACK))
        await eventually(lambda: (counted(True), counted(False)) == (1, 0))
