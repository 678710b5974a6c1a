"""Workloads whose PodSets share domains: from the annotation to the assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.gang.nesting import Enclosing, NestedPodSet, encode_nesting
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire import kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.topology.model import (
    PodSetRequest,
    Replacement,
    SharedDomain,
    TopologyRequest,
)
from rackgate_assigner.topology.placement.replace import replace
from rackgate_assigner.workload.decisions import Requeue
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    flavor,
    local_queue,
    namespace,
    node,
    plan_cycle,
    pod,
    podset,
    workload,
)
from tests.unit.assigner.core.clusters import capacity

GATE = {"GangNestedPlacement": True}
NAMES = ("driver", "left", "right")


def in_one_block(podsets: Sequence[str] = NAMES) -> str:
    within = (Enclosing("gg", BLOCK, required=True),)
    return encode_nesting([NestedPodSet(name, within) for name in podsets])


def gang(annotation: str, name: str = "gang", version: str = "1") -> kueue.Workload:
    """Three PodSets of 2 pods with 1 cpu, each in one rack."""
    podsets = [podset(one, 2, topology={"required": RACK}) for one in NAMES]
    found = workload(name, podsets, version=version)
    meta = msgspec.structs.replace(
        found.metadata, annotations={names.GANG_NESTING_ANNOTATION: annotation}
    )
    return msgspec.structs.replace(found, metadata=meta)


def racks(**cpu: str) -> list[Any]:
    """One host in each rack: `b1r1="2"` has 2 cpu."""
    return [node(name, f"{name[:2]}/{name[2:]}", cpu=amount) for name, amount in cpu.items()]


def hosts(cache: Cache, name: str = "gang") -> dict[str, list[str]]:
    """Hosts by PodSet of what a cycle admits."""
    found = admissions(plan_cycle(cache))
    return {
        part.name: [values[-1] for values, _ in part.topology.domains]
        for part in (found[name].podsets if name in found else ())
        if part.topology is not None
    }


def pending(cache: Cache) -> str:
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Requeue)
    return decision.message


FULL_BLOCK = {"b1r1": "2", "b1r2": "2", "b2r1": "3", "b2r2": "3", "b2r3": "3"}


@pytest.mark.requirement("GNG-38")
def test_podsets_that_share_a_block_are_placed_in_one() -> None:
    cache = cache_with(racks(**FULL_BLOCK), features=GATE)
    cache.set_workload(gang(in_one_block()))
    assert hosts(cache) == {"driver": ["b2r1"], "left": ["b2r2"], "right": ["b2r3"]}


def test_without_the_annotation_each_goes_where_it_fits_best() -> None:
    cache = cache_with(racks(**FULL_BLOCK), features=GATE)
    cache.set_workload(gang(""))
    assert hosts(cache) == {"driver": ["b1r1"], "left": ["b1r2"], "right": ["b2r1"]}


@pytest.mark.requirement("GNG-38")
def test_without_the_gate_it_is_not_admitted() -> None:
    cache = cache_with(racks(**FULL_BLOCK))
    cache.set_workload(gang(in_one_block()))
    assert "needs the feature gate GangNestedPlacement" in pending(cache)


def test_an_annotation_that_cannot_be_read_keeps_it_pending() -> None:
    for text, problem in (("[]", "is not a list"), (in_one_block(["x"]), 'no PodSet "x"')):
        cache = cache_with(racks(**FULL_BLOCK), features=GATE)
        cache.set_workload(gang(text))
        assert problem in pending(cache)


def test_an_edited_annotation_counts_in_the_same_generation() -> None:
    cache = cache_with(racks(**FULL_BLOCK), features=GATE)
    cache.set_workload(gang("[]"))
    assert pending(cache)
    cache.set_workload(gang(in_one_block(), version="2"))
    assert hosts(cache)["driver"] == ["b2r1"]


@pytest.mark.requirement("GNG-38")
def test_the_message_names_group_level_and_podset() -> None:
    cache = cache_with(racks(b1r1="2", b1r2="2", b2r1="6"), features=GATE)
    cache.set_pod(pod("other", "b2r1"))
    cache.set_workload(gang(in_one_block()))
    message = pending(cache)
    assert f'group "gg" does not fit into one domain of level {BLOCK}' in message
    assert "for its 6 pods" in message


def test_podsets_that_share_a_domain_get_one_flavor() -> None:
    other = {"pool": "other"}
    nodes = [
        *racks(b1r1="9"),
        *(node(f"o{n}", f"b9/r{n}", labels=other, cpu="2") for n in range(3)),
    ]
    queue = cluster_queue("cq", {"tas": {"cpu": "4"}, "second": {"cpu": "9"}})
    cache = cache_with(nodes, queue=queue, features=GATE)
    cache.set_flavor(flavor("second", node_labels=other))
    cache.set_workload(gang(in_one_block()))
    # Each alone, two of them would get the first flavor.
    assert {host for found in hosts(cache).values() for host in found} == {"o0", "o1", "o2"}


def on_host(host: str, pods: int) -> TopologyAssignment:
    return TopologyAssignment((HOST,), (((host,), pods),))


@pytest.mark.requirement("GNG-38")
def test_pods_of_an_unhealthy_node_stay_in_the_domain_that_they_share() -> None:
    room = capacity({"b1/r1/a": 2, "b1/r2/b": 2, "b1/r3/c": 3, "b2/r1/d": 2})
    room.charge(0, {"cpu": 1}, 2)
    room.charge(1, {"cpu": 1}, 2)
    block = (SharedDomain("gg", BLOCK, required=True),)
    asked = TopologyRequest(required=RACK)
    found = replace(
        room.tree,
        room,
        [PodSetRequest("x", 2, {"cpu": 1}, asked, shared=block)],
        Replacement(("a",), {"x": on_host("a", 2)}, mates=((block, on_host("b", 2)),)),
        topology_name="t",
    )
    # Best fit would be the rack of `d`, in the other block.
    assert found.failure is None
    assert found.assignments["x"] == on_host("c", 2)


@pytest.mark.requirement("GNG-38")
def test_a_domain_whose_pods_are_all_lost_is_chosen_again_for_all_of_them() -> None:
    room = capacity({"b1/r1/a": 2, "b1/r2/c": 1, "b2/r1/d": 1, "b2/r2/e": 1})
    block = (SharedDomain("gg", BLOCK, required=True),)
    asked = TopologyRequest(required=RACK)
    podsets = [PodSetRequest(name, 1, {"cpu": 1}, asked, shared=block) for name in ("x", "y")]
    room.charge(0, {"cpu": 1}, 2)
    room.charge(1, {"cpu": 1}, 1)
    current = {"x": on_host("a", 1), "y": on_host("a", 1)}
    found = replace(room.tree, room, podsets, Replacement(("a",), current), topology_name="t")
    assert found.assignments == {"x": on_host("d", 1), "y": on_host("e", 1)}


# Gangs that are Workloads of their own, and share a domain.


def replica(
    name: str, *, of: str = "w", pods: int = 2, level: str = BLOCK, **fields: Any
) -> kueue.Workload:
    """One of the gangs of a Workload of gangs: pods of 1 cpu in a rack, all gangs in a block."""
    within = (Enclosing("spec", level, required=True, across=of),)
    annotation = encode_nesting([NestedPodSet("main", within)])
    found = workload(name, [podset("main", pods, topology={"required": RACK})], **fields)
    meta = msgspec.structs.replace(
        found.metadata, annotations={names.GANG_NESTING_ANNOTATION: annotation}
    )
    return msgspec.structs.replace(found, metadata=meta)


def blocks(cache: Cache) -> dict[str, str]:
    """Blocks by Workload of what a plan admits."""
    found = {}
    for name, assignment in admissions(plan_cycle(cache)).items():
        (part,) = assignment.podsets
        assert part.topology is not None
        (block,) = {values[-1][:2] for values, _ in part.topology.domains}
        found[name] = block
    return found


TWO_BLOCKS = {"b1r1": "2", "b2r1": "2", "b2r2": "2"}


@pytest.mark.requirement("GNG-38")
def test_the_first_gang_chooses_the_block_with_the_most_room_for_all() -> None:
    cache = cache_with(racks(**TWO_BLOCKS), features=GATE)
    for name in ("r0", "r1", "r2"):
        cache.set_workload(replica(name))
    decisions = plan_cycle(cache)
    assert set(admissions(decisions)) == {"r0", "r1"}
    assert blocks(cache) == {"r0": "b2", "r1": "b2"}
    (message,) = (one.message for one in decisions if isinstance(one, Requeue))
    assert 'in which other gangs of Workload "team/w" are' in message


@pytest.mark.requirement("GNG-38")
def test_a_gang_that_comes_later_goes_where_the_others_are() -> None:
    cache = cache_with(racks(**TWO_BLOCKS, b1r2="2"), features=GATE)
    cache.set_workload(replica("r0"))
    (admitted,) = admissions(plan_cycle(cache)).values()
    assert blocks(cache)["r0"] == "b2"
    cache.set_workload(replica("r0", assignment=admitted, version="2"))
    # The other block has as much room, and best fit alone would take it.
    cache.set_workload(replica("other", of="x", pods=2))
    cache.set_workload(replica("r1", pods=2))
    found = blocks(cache)
    assert found["r1"] == "b2"
    # It is no gang of the same Workload of gangs in another namespace.
    cache.set_namespace(namespace("else"))
    cache.set_local_queue(local_queue(namespace="else"))
    cache.set_workload(replica("far", namespace="else"))
    assert blocks(cache)["far"] == "b1"


@pytest.mark.requirement("GNG-38")
def test_the_domain_is_free_to_choose_when_none_of_them_is_left() -> None:
    cache = cache_with(racks(b1r1="2", b2r1="2"), features=GATE)
    cache.set_workload(replica("r0"))
    (admitted,) = admissions(plan_cycle(cache)).values()
    first = blocks(cache)["r0"]
    cache.set_workload(replica("r0", assignment=admitted, version="2"))
    cache.set_workload(replica("r1"))
    assert blocks(cache) == {}, "its block is full, and the other one is not theirs"
    cache.drop_workload("team/r0")
    cache.set_pod(pod("taken", f"{first}r1"))
    assert blocks(cache)["r1"] != first


@pytest.mark.requirement("GNG-38")
def test_two_queues_do_not_choose_two_domains_in_one_cycle() -> None:
    cache = cache_with(racks(b1r1="2", b2r1="2"), features=GATE)
    cache.set_cluster_queue(cluster_queue("second"))
    cache.set_local_queue(local_queue("lq2", "second"))
    cache.set_workload(replica("r0"))
    cache.set_workload(replica("r1", queue="lq2"))
    assert len(blocks(cache)) == 1


def test_all_of_them_are_in_one_flavor() -> None:
    other = {"pool": "other"}
    nodes = [*racks(b1r1="2"), node("o", "b1/r9", labels=other, cpu="4")]
    queue = cluster_queue("cq", {"tas": {"cpu": "9"}, "second": {"cpu": "9"}})
    cache = cache_with(nodes, queue=queue, features=GATE)
    cache.set_flavor(flavor("second", node_labels=other))
    cache.set_workload(replica("r0"))
    (admitted,) = admissions(plan_cycle(cache)).values()
    cache.set_workload(replica("r0", assignment=admitted, version="2"))
    cache.set_workload(replica("r1"))
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Requeue)
