"""The ungater while nodes of a running Workload are replaced, over real HTTP."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import pytest

from rackgate.api import names
from rackgate.api.resources import PODS, WORKLOADS
from rackgate.topology.assignment import TopologyAssignment, encode
from rackgate_ungater.state_machine.records import Timeouts
from tests.support.waiting import until
from tests.wire.ungater_world import Object, Replica, World

Start = Callable[..., Replica]

HOST = names.HOSTNAME_LABEL


def assign(world: World, counts: Mapping[str, int], unhealthy: Sequence[str] = ()) -> None:
    """The Workload `train` holds these hosts, and names those."""
    known = world.server.get(WORKLOADS, "train", "team")
    item: Object = copy.deepcopy(known or world.workload({("b", "r"): sum(counts.values())}))
    domains = tuple(((host,), count) for host, count in counts.items())
    given = item["status"]["admission"]["podSetAssignments"][0]
    given["topologyAssignment"] = encode(TopologyAssignment((HOST,), domains))
    item["status"]["unhealthyNodes"] = [{"name": name} for name in unhealthy]
    world.server.put(WORKLOADS, item)


def places(world: World) -> dict[str, str]:
    """Host by name of every released pod."""
    found = {}
    for pod in world.server._objects[PODS.full_name].values():
        gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]
        if names.TOPOLOGY_GATE not in gates:
            found[pod["metadata"]["name"]] = pod["spec"]["nodeSelector"][HOST]
    return found


@pytest.mark.field_note("U2", "U3")
async def test_pods_wait_while_their_host_is_replaced_and_then_go_to_the_new_one(
    world: World, start: Start
) -> None:
    assign(world, {"h1": 1, "h2": 1}, unhealthy=["h1"])
    for number in (0, 1):
        world.pod(number)
    start()
    await until(lambda: len(places(world)) == 1)
    assert set(places(world).values()) == {"h2"}
    assign(world, {"h2": 1, "h3": 1})
    await until(lambda: len(places(world)) == 2)
    assert sorted(places(world).values()) == ["h2", "h3"]


@pytest.mark.field_note("N7")
async def test_a_pod_that_a_lost_node_cannot_end_holds_up_no_one_after_its_host_is_replaced(
    world: World, start: Start
) -> None:
    assign(world, {"h1": 1, "h2": 1})
    for number in (0, 1):
        world.pod(number)
    replica = start()
    # As if the seconds that a deletion may take had passed already.
    replica.ungater.machine.timeouts = dataclasses.replace(Timeouts(), deletion_overdue_s=0.05)
    await until(lambda: len(places(world)) == 2)
    lost = next(name for name, host in places(world).items() if host == "h1")
    dead = copy.deepcopy(world.server.get(PODS, lost, "team"))
    assert dead is not None
    dead["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.server.put(PODS, dead)
    world.pod(2)
    assign(world, {"h2": 1, "h3": 1})
    await until(lambda: "h3" in places(world).values())
    assert places(world)[lost] == "h1", "nobody touched it"
