"""Pools of OSMO and their Topologies: docs/design/races/osmo.md, section reconciler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import structlog

from rackgate.api.names import OSMO_POOL_LABEL
from rackgate.api.resources import KAI_TOPOLOGIES, OSMO_POOLS
from rackgate_assigner import metrics
from rackgate_assigner.osmo_pools.plan import pool_name
from tests.support.apiserver_faults import Fault
from tests.wire.assigner_world import assigner, eventually
from tests.wire.pools_world import (
    IN_STEP,
    NO_KEYS,
    RACK,
    SPINE,
    TOPOLOGY,
    ZONE,
    PoolsWorld,
    gated,
    labels,
    pool_keeper,
    pools_world,
    settled,
)

world = pools_world  # the fixture


@pytest.mark.requirement("OSM-08")
async def test_a_pool_gets_one_topology_with_its_levels_in_its_order(world: PoolsWorld) -> None:
    pool = world.pool(ZONE, SPINE, RACK)
    async with assigner(world, configured=gated()) as replica:
        assert replica.missing() == []
        await settled(world, IN_STEP, labels(ZONE, SPINE, RACK))
        made = world.topologies()[TOPOLOGY]["metadata"]
        assert made["labels"] == {OSMO_POOL_LABEL: "my-pool"}
        (owner,) = made["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pool", pool["metadata"]["uid"])
        assert world.status()["topology"] == TOPOLOGY
        assert len(world.topologies()) == 1
        await eventually(lambda: world.events("TopologyCreated"))
        assert metrics.OSMO_POOLS.labels(synced="true")._value.get() == 1


@pytest.mark.requirement("OSM-08")
async def test_other_keys_replace_the_topology(world: PoolsWorld) -> None:
    world.pool(ZONE, RACK)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE, RACK))
        before = world.topologies()[TOPOLOGY]["metadata"]["uid"]
        world.pool(ZONE, SPINE, RACK)
        await settled(world, IN_STEP, labels(ZONE, SPINE, RACK))
        assert world.topologies()[TOPOLOGY]["metadata"]["uid"] != before
        await eventually(lambda: world.events("TopologyReplaced"))


async def test_a_removal_is_bound_to_the_object_that_was_looked_at(world: PoolsWorld) -> None:
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
        seen = world.topologies()[TOPOLOGY]["metadata"]
        world.pool(RACK)
        await settled(world, IN_STEP, labels(RACK))
    (removal,) = (request for request in world.osmo_writes() if request.method == "DELETE")
    assert json.loads(removal.body)["preconditions"] == {
        "uid": seen["uid"],
        "resourceVersion": seen["resourceVersion"],
    }


async def test_a_topology_that_is_another_one_by_now_is_not_removed(world: PoolsWorld) -> None:
    world.pool(ZONE)
    async with pool_keeper(world) as replica:
        await settled(world, IN_STEP, labels(ZONE))
        stream = next(s for s in world.streams if s.target.full_name == KAI_TOPOLOGIES.full_name)
        stream.queue = asyncio.Queue()  # from here on its events are lost
        world.remove(KAI_TOPOLOGIES, TOPOLOGY)
        world.topology(SPINE)
        world.pool(RACK)
        await eventually(lambda: any(r.method == "DELETE" for r in world.osmo_writes()))
        assert world.levels() == labels(SPINE), "somebody else's, which was not seen yet"
        assert len(replica.watches.topologies.store) == 1
        world.compact()
        stream.cut()
        await settled(world, ("False", "ForeignTopology"), labels(SPINE))


@pytest.mark.requirement("OSM-08")
async def test_emptied_keys_remove_the_topology_and_new_ones_add_it_back(
    world: PoolsWorld,
) -> None:
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
        world.pool()
        await settled(world, NO_KEYS, None)
        assert "topology" not in world.status()
        world.pool(RACK)
        await settled(world, IN_STEP, labels(RACK))


@pytest.mark.requirement("OSM-19")
async def test_pools_without_keys_have_no_topology(world: PoolsWorld) -> None:
    world.pool()
    world.pool(name="other", scheduler="default-scheduler")
    async with pool_keeper(world):
        await eventually(lambda: world.said() == world.said("other") == NO_KEYS)
    assert world.topologies() == {}


@pytest.mark.requirement("OSM-02")
async def test_a_pool_that_slipped_past_the_webhook_is_reported_and_changes_nothing(
    world: PoolsWorld,
) -> None:
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
        world.pool(ZONE, RACK, scheduler="default-scheduler")
        await settled(world, ("False", "InvalidPool"), labels(ZONE))
        assert "default-scheduler" in world.message()
        await eventually(lambda: world.events("InvalidPool"))


@pytest.mark.parametrize("collects", [True, False], ids=["collector", "alone"])
@pytest.mark.requirement("OSM-08")
async def test_a_deleted_pool_takes_its_topology_along(world: PoolsWorld, collects: bool) -> None:
    world.collects = collects
    world.pool(ZONE)
    world.pool(RACK, name="other")
    async with pool_keeper(world):
        await eventually(lambda: world.said() == world.said("other") == IN_STEP)
        world.remove(OSMO_POOLS, "my-pool")
        await eventually(lambda: list(world.topologies()) == ["osmo-pool-other-topology"])


async def test_a_pool_that_went_while_no_one_looked_takes_its_topology_along(
    world: PoolsWorld,
) -> None:
    world.collects = False
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
    world.remove(OSMO_POOLS, "my-pool")
    with structlog.testing.capture_logs() as logged:
        async with pool_keeper(world):
            await eventually(lambda: world.topologies() == {})
            await eventually(lambda: _written(logged))
    assert _written(logged) == [("my-pool", "TopologyRemoved")], "no Event tells of this one"


def _written(logged: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Pool and reason of each write that was logged."""
    lines = [line for line in logged if line["event"] == "topology_written"]
    return [(line["pool"], line["reason"]) for line in lines]


async def test_a_pool_made_again_under_its_name_keeps_a_topology(world: PoolsWorld) -> None:
    world.collects = False
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
    world.remove(OSMO_POOLS, "my-pool")
    now = world.pool(ZONE)["metadata"]["uid"]
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
        (owner,) = world.topologies()[TOPOLOGY]["metadata"]["ownerReferences"]
        assert owner["uid"] == now, "else the garbage collector would take it"


@pytest.mark.requirement("OSM-08")
@pytest.mark.parametrize("by_hand", ["deleted", "other levels", "unmarked", "disowned"])
async def test_what_was_done_to_a_topology_by_hand_is_undone(
    world: PoolsWorld, by_hand: str
) -> None:
    world.pool(ZONE, RACK)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE, RACK))
        whole = world.topologies()[TOPOLOGY]["metadata"]
        if by_hand in ("deleted", "other levels"):
            world.remove(KAI_TOPOLOGIES, TOPOLOGY)
        if by_hand == "other levels":
            world.topology(RACK, labels={OSMO_POOL_LABEL: "my-pool"})
        if by_hand == "unmarked":
            world.change(KAI_TOPOLOGIES, TOPOLOGY, lambda o: o["metadata"].pop("labels"))
        if by_hand == "disowned":
            world.change(KAI_TOPOLOGIES, TOPOLOGY, lambda o: o["metadata"].pop("ownerReferences"))

        def restored() -> bool:
            found = world.topologies().get(TOPOLOGY, {"metadata": {}})["metadata"]
            same = ("labels", "ownerReferences")
            return all(found.get(field) == whole[field] for field in same)

        await eventually(restored)
        await settled(world, IN_STEP, labels(ZONE, RACK))


async def test_other_labels_and_owners_of_a_topology_stay(world: PoolsWorld) -> None:
    world.pool(ZONE)
    keeper = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u"}
    world.topology(ZONE, labels={OSMO_POOL_LABEL: "my-pool", "team": "a"}, ownerReferences=[keeper])
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
        found = world.topologies()[TOPOLOGY]["metadata"]
        assert found["labels"]["team"] == "a"
        assert [owner["kind"] for owner in found["ownerReferences"]] == ["ConfigMap", "Pool"]


@pytest.mark.parametrize(
    "foreign",
    [
        {},
        {"labels": {OSMO_POOL_LABEL: "another"}},
        {
            "labels": {OSMO_POOL_LABEL: "my-pool"},
            "ownerReferences": [
                {"apiVersion": "x/v1", "kind": "Pool", "name": "my-pool", "uid": "u"}
                | {"controller": True}
            ],
        },
    ],
    ids=["nobody's", "of another pool", "of another controller"],
)
@pytest.mark.requirement("OSM-08")
async def test_a_topology_of_somebody_else_is_left_alone_and_reported(
    world: PoolsWorld, foreign: dict[str, Any]
) -> None:
    before = world.topology(RACK, **foreign)
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, ("False", "ForeignTopology"), labels(RACK))
        owned = "ownerReferences" in foreign
        advice = 'Pool "my-pool" controls it' if owned else f"{OSMO_POOL_LABEL}=my-pool"
        assert advice in world.message()
        await eventually(lambda: world.events("ForeignTopology"))
        world.pool()
        await settled(world, NO_KEYS, labels(RACK))
        world.remove(OSMO_POOLS, "my-pool")
        world.pool(name="probe")
        await eventually(lambda: world.said("probe") == NO_KEYS)
    assert world.topologies()[TOPOLOGY] == before


async def test_a_topology_handed_over_by_its_label_is_taken(world: PoolsWorld) -> None:
    world.topology(RACK)
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, ("False", "ForeignTopology"), labels(RACK))
        world.topology(RACK, labels={OSMO_POOL_LABEL: "my-pool"})
        await settled(world, IN_STEP, labels(ZONE))


async def test_a_topology_that_somebody_holds_is_waited_for(world: PoolsWorld) -> None:
    world.topology(RACK, labels={OSMO_POOL_LABEL: "my-pool"}, finalizers=["example.com/hold"])
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, ("False", "WaitingForDeletion"), labels(RACK))
        assert "example.com/hold" in world.message()
        world.change(KAI_TOPOLOGIES, TOPOLOGY, lambda o: o["metadata"].pop("finalizers"))
        await settled(world, IN_STEP, labels(ZONE))


async def test_without_kais_kind_pools_say_so_and_go_on_when_it_comes(world: PoolsWorld) -> None:
    world.unserved.add(KAI_TOPOLOGIES.full_name)
    world.pool(ZONE)
    world.pool(name="other")
    with structlog.testing.capture_logs() as logged:
        async with pool_keeper(world) as replica:
            await settled(world, ("False", "TopologyKindMissing"), None)
            await eventually(lambda: world.said("other") == NO_KEYS)
            assert replica.watches.topologies.missing() == []
            world.unserved.clear()
            await settled(world, IN_STEP, labels(ZONE))
            world.uninstall(KAI_TOPOLOGIES)
            await settled(world, ("False", "TopologyKindMissing"), None)
    said = [line["event"] for line in logged if line["log_level"] == "error"]
    assert said == []


async def test_a_kind_of_pools_that_goes_leaves_topologies_to_the_collector(
    world: PoolsWorld,
) -> None:
    world.collects = False
    world.pool(ZONE)
    async with pool_keeper(world) as replica:
        await settled(world, IN_STEP, labels(ZONE))
        world.uninstall(OSMO_POOLS)
        pools = replica.watches.pools
        await eventually(lambda: not pools.served and not pools.store)
        before = len(world.osmo_writes())
        world.topology(RACK, name="osmo-pool-probe-topology")
        world.change(
            KAI_TOPOLOGIES, TOPOLOGY, lambda o: o["metadata"].update(annotations={"a": "b"})
        )
        await asyncio.sleep(0)
        world.unserved.clear()
        world.pool(ZONE)
        await settled(world, IN_STEP, labels(ZONE))
    assert not any(r.method == "DELETE" for r in world.osmo_writes()[before:])


async def test_a_rejection_by_the_api_server_is_reported_and_tried_again(world: PoolsWorld) -> None:
    told = "topologies.kai.scheduler is forbidden"
    fault = Fault.status(403, "Forbidden", told, method="POST", path="/topologies", times=10**6)
    world.faults.append(fault)
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, ("False", "TopologyRefused"), None)
        assert told in world.message()
        world.faults.clear()
        await settled(world, IN_STEP, labels(ZONE))


async def test_a_topology_seen_before_its_pool_is_no_orphan(world: PoolsWorld) -> None:
    """Two watches have no common order: another holder made both a moment ago."""
    hidden = Fault.body(
        b'{"metadata":{"resourceVersion":"1"},"items":[]}', path="/pools", watch=False, times=2
    )
    world.pool(ZONE)
    world.topology(ZONE, labels={OSMO_POOL_LABEL: "my-pool"})
    world.faults.append(hidden)  # the probe for the kind, and the list
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
    assert not any(r.method == "DELETE" for r in world.osmo_writes())


async def test_a_pool_changed_between_look_and_write_is_looked_at_again(
    world: PoolsWorld,
) -> None:
    world.pool(ZONE)
    conflict = Fault.status(409, "Conflict", "modified", method="PATCH", path="/status", times=2)
    world.faults.append(conflict)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))


async def test_a_topology_that_came_meanwhile_is_looked_at_again(world: PoolsWorld) -> None:
    taken = Fault.status(409, "AlreadyExists", "exists", method="POST", path="/topologies", times=2)
    world.faults.append(taken)
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
    assert not world.events("TopologyRefused")


async def test_a_standby_writes_nothing_and_takes_over_without_new_events(
    world: PoolsWorld,
) -> None:
    world.pool(ZONE)
    async with assigner(world, acts=False, configured=gated()) as replica:
        world.pool(RACK)
        pools = replica.watches.osmo
        assert pools is not None
        await eventually(lambda: pools.pools.store["my-pool"].spec["topology_keys"] == [RACK])
        assert world.osmo_writes() == []
        acting = asyncio.create_task(replica.act())
        try:
            await settled(world, IN_STEP, labels(RACK))
        finally:
            acting.cancel()
            await asyncio.wait([acting])


async def test_what_is_in_step_is_written_no_more(world: PoolsWorld) -> None:
    world.pool(ZONE)
    async with pool_keeper(world):
        await settled(world, IN_STEP, labels(ZONE))
    before = len(world.osmo_writes())
    async with pool_keeper(world):
        world.pool(RACK, name="other")
        await eventually(lambda: world.said("other") == IN_STEP)
    after = [r for r in world.osmo_writes()[before:] if "my-pool" in r.path or b"my-pool" in r.body]
    assert after == []


@pytest.mark.requirement("OSM-19")
async def test_without_the_gate_nothing_is_asked_or_written(world: PoolsWorld) -> None:
    world.pool(ZONE)
    async with assigner(world):
        pass
    assert [r.path for r in world.requests if "osmo" in r.path or "kai" in r.path] == []


def test_pools_and_topologies_find_each_other_by_name() -> None:
    assert pool_name(TOPOLOGY) == "my-pool"
    for odd in ("osmo-pool--topology", "my-pool", "osmo-pool-my-pool", "my-pool-topology"):
        assert pool_name(odd) is None
