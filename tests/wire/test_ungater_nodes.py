"""Released pods name their node beside its label, wherever it is certain which node is meant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from rackgate.api import names
from rackgate.api.resources import NODES, PODS
from rackgate.features import NODES_BY_NAME
from rackgate_ungater import informers as sources
from tests.support.apiserver import Fault
from tests.support.waiting import until
from tests.wire.ungater_world import FOREIGN, STREAMS, Object, Replica, World

HOSTS = ("rack", names.HOSTNAME_LABEL)
A, B = ("r1", "host-a"), ("r1", "host-b")
ARM = {"key": "arch", "operator": "In", "values": ["arm64"]}
X86 = {"key": "arch", "operator": "In", "values": ["amd64"]}

Start = Callable[..., Replica]


def named(node: str) -> Object:
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def pod_of(world: World, number: int) -> Object:
    pod = world.server.get(PODS, f"train-{number}", "team")
    assert pod is not None
    return pod


def terms(world: World, number: int) -> list[Object] | None:
    """The required node affinity of a pod, None without any."""
    nodes = pod_of(world, number)["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    found: list[Object] | None = required.get("nodeSelectorTerms")
    return found


def free(world: World, count: int) -> bool:
    pods = [pod_of(world, number) for number in range(count)]
    return all({"name": names.TOPOLOGY_GATE} not in pod["spec"]["schedulingGates"] for pod in pods)


async def watching(world: World, replica: Replica) -> None:
    """The replica has listed nodes and everything else, and follows all of it."""
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)


async def hosts(world: World, replica: Replica, **of: str) -> None:
    """The replica knows these hosts, by the names of their nodes."""
    known = replica.ungater.informers.nodes
    await until(lambda: {host: known.only_node_of(HOSTS, ("r1", host)) for host in of} == of)


@pytest.mark.requirement("UNG-08", "TAS-27")
async def test_one_write_names_the_host_by_label_and_by_node(world: World, start: Start) -> None:
    world.node("node-17", "host-a")
    world.node("host-b")
    replica = start()
    await watching(world, replica)
    world.workload({A: 1, B: 1}, levels=HOSTS)
    world.pods(0, 1)
    await until(lambda: free(world, 2))
    assert [terms(world, number) for number in (0, 1)] == [
        [{"matchFields": [named("node-17")]}],
        [{"matchFields": [named("host-b")]}],
    ]
    for number, (rack, host) in enumerate((A, B)):
        spec = pod_of(world, number)["spec"]
        assert spec["nodeSelector"] == {"disk": "ssd", "rack": rack, names.HOSTNAME_LABEL: host}
        assert spec["schedulingGates"] == [{"name": FOREIGN}]
    assert len(world.asked("PATCH")) == 2


@pytest.mark.requirement("UNG-08")
async def test_what_a_pod_demands_of_nodes_itself_stays_in_each_alternative(
    world: World, start: Start
) -> None:
    world.node("host-a")
    replica = start()
    await watching(world, replica)
    own = [{"matchExpressions": [ARM]}, {"matchExpressions": [X86], "matchFields": []}, {}]
    preferred = [{"weight": 1, "preference": {"matchExpressions": [ARM]}}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own},
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
        "podAntiAffinity": {"x": []},
    }
    world.workload({A: 1}, levels=HOSTS)
    world.pod(0, affinity=affinity)
    await until(lambda: free(world, 1))
    assert terms(world, 0) == [
        {"matchExpressions": [ARM], "matchFields": [named("host-a")]},
        {"matchExpressions": [X86], "matchFields": [named("host-a")]},
        {},
    ]
    kept = pod_of(world, 0)["spec"]["affinity"]
    assert kept["podAntiAffinity"] == affinity["podAntiAffinity"]
    assert kept["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == preferred, (
        "the scheduler's own order is nobody else's business"
    )


@pytest.mark.parametrize(
    "nodes", [(), ("host-b",), ("n1=host-a", "n2=host-a")], ids=["none", "another", "two"]
)
@pytest.mark.requirement("UNG-08")
async def test_without_certainty_which_node_is_meant_the_label_alone_is_written(
    world: World, start: Start, nodes: tuple[str, ...]
) -> None:
    for node in nodes:
        world.node(*node.split("="))
    replica = start()
    await watching(world, replica)
    world.workload({A: 1}, levels=HOSTS)
    world.pod(0)
    await until(lambda: free(world, 1))
    assert terms(world, 0) is None
    assert pod_of(world, 0)["spec"]["nodeSelector"][names.HOSTNAME_LABEL] == "host-a"


async def test_nodes_that_come_go_and_change_their_label_are_followed(
    world: World, start: Start
) -> None:
    world.node("n1", "host-a")
    replica = start()
    await watching(world, replica)
    await hosts(world, replica, **{"host-a": "n1"})
    world.node("n2", "host-a")
    await hosts(world, replica, **{"host-a": ""})
    world.node("n1", "host-b")
    await hosts(world, replica, **{"host-a": "n2", "host-b": "n1"})
    world.server.remove(NODES, "n2")
    world.server.put(NODES, {"metadata": {"name": "n1", "labels": {}}})
    await hosts(world, replica, **{"host-a": "", "host-b": ""})


async def test_who_may_not_list_nodes_still_releases_pods(world: World, start: Start) -> None:
    world.node("host-a")
    world.server.faults.append(Fault.status(403, path="/nodes", times=1000))
    replica = start()
    world.workload({A: 1}, levels=HOSTS)
    world.pod(0)
    await replica.synced()
    await until(lambda: free(world, 1))
    assert terms(world, 0) is None


@pytest.mark.requirement("UNG-06", "UNG-17")
async def test_a_rejected_name_is_left_out_at_once(world: World, start: Start) -> None:
    """A policy of the cluster may forbid changes of affinity; the selector still gets through."""
    world.node("host-a")
    replica = start()
    await watching(world, replica)
    world.server.faults.append(Fault.status(422, method="PATCH", times=1))
    world.workload({A: 1}, levels=HOSTS)
    world.pod(0)
    await until(lambda: free(world, 1))
    await replica.has_no_open_requests()
    assert terms(world, 0) is None
    bodies = [json.loads(request.body) for request in world.asked("PATCH")]
    assert ["affinity" in body["spec"] for body in bodies] == [True, False]
    assert bodies[0]["metadata"] == bodies[1]["metadata"], "bound to the same pod and version"
    world.workload({A: 2}, levels=HOSTS)
    world.pod(1)
    await until(lambda: free(world, 2))
    assert len(world.asked("PATCH")) == 3, "it is not tried with every pod"


async def test_names_are_not_trusted_while_the_watch_of_nodes_is_lost(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node("host-a")
    replica = start()
    await watching(world, replica)
    await hosts(world, replica, **{"host-a": "host-a"})
    monkeypatch.setattr(sources, "NODES_STALE_AFTER_S", 0.0)
    world.workload({A: 1}, levels=HOSTS)
    world.pod(0)
    await until(lambda: free(world, 1))
    assert terms(world, 0) is None


async def test_without_the_gate_nodes_are_not_even_listed(world: World, start: Start) -> None:
    world.node("host-a")
    replica = start(feature_gates={NODES_BY_NAME: False})
    await replica.synced()
    world.workload({A: 1}, levels=HOSTS)
    world.pod(0)
    await until(lambda: free(world, 1))
    assert terms(world, 0) is None
    assert world.asked("GET", "/nodes") == []


@pytest.mark.requirement("UNG-13", "UNG-14")
async def test_a_lost_answer_of_a_naming_write_is_found_applied(world: World, start: Start) -> None:
    world.node("host-a")
    replica = start(expectation_timeout=0.1)
    await watching(world, replica)
    world.server.faults.append(Fault.cut(applied=True, method="PATCH"))
    world.workload({A: 1}, levels=HOSTS)
    world.pods(0, 1)
    await until(lambda: sum(terms(world, number) is not None for number in (0, 1)) == 1)
    await replica.has_no_open_requests()
    await asyncio.wait_for(replica.idle(), 20)
    released = [terms(world, number) for number in (0, 1)]
    assert sorted(released, key=str) == [None, [{"matchFields": [named("host-a")]}]]
