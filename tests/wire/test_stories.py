"""User stories, from manifest to assignment: a whole assigner on a fake cluster.

Manifests of the sources (`tests/seeds`) are submitted as they are printed. Each cluster is one in
which a placement that misses the point of its story looks different.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.topology.assignment import decode
from tests.support import objects
from tests.support.apiserver import Object
from tests.support.composite_jobs import jobset, marks, replicated_job
from tests.support.objects import BLOCK, RACK
from tests.wire.assigner_world import NAMESPACE, assigner, eventually
from tests.wire.kinds_world import KindsWorld

SEEDS = Path(__file__).parents[1] / "seeds"
# Block and rack of each pod of a PodSet, by rank.
Places = dict[str, list[tuple[str, str]]]
FX_A = {"1/1": 2, "1/2": 2, "2/1": 2, "2/3": 2}


def seed(name: str) -> Object:
    """A manifest of the sources."""
    found: Object = yaml.safe_load((SEEDS / name).read_text())
    return found


def furnish(world: KindsWorld, racks: Mapping[str, int], **node: Any) -> dict[str, tuple[str, str]]:
    """Nodes of 8 cpu by block and rack, and a queue with the name that the sources use.

    Returns:
        Block and rack of each node.
    """
    world.put(kinds.NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {}}})
    world.put(kinds.TOPOLOGIES, objects.topology_object("dc"))
    world.put(kinds.FLAVORS, objects.flavor("tas", "pool", "dc"))
    quota = {"cpu": "1000", "pods": "1000"}
    world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("cq", "tas", quota))
    local = objects.local_queue("user-queue", "cq")
    local["metadata"]["namespace"] = NAMESPACE
    world.put(kinds.LOCAL_QUEUES, local)
    found = {}
    for path, count in racks.items():
        block, _, rack = path.partition("/")
        for number in range(count):
            made = objects.node("pool", block, rack, f"{block}{rack}-{number}", **node)
            made["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            world.put(kinds.NODES, made)
            found[made["metadata"]["name"]] = (block, rack)
    return found


async def placed(
    kind: Resource, manifest: Object, racks: Mapping[str, int], **node: Any
) -> Places | None:
    """Where the pods of each PodSet are assigned; None where the job stays pending."""
    name = manifest["metadata"].setdefault("name", "sample")
    manifest["metadata"].pop("namespace", None)  # that of the test
    async with KindsWorld() as world:
        hosts = furnish(world, racks, **node)
        world.add(kind, manifest)
        async with assigner(world):
            await eventually(lambda: world.state(kind, name, "QuotaReserved")[0] != "")
            status, reason = world.state(kind, name, "QuotaReserved")
            workload = world.workload_of(world.of(kind, name))
        assert world.broken_rules == []
        assert workload is not None
        if status != "True":
            assert reason == "TopologyPlacementFailed"
            return None
    return {
        part["name"]: [
            hosts[domain[-1]]
            for domain, count in decode(part["topologyAssignment"]).domains
            for _ in range(count)
        ]
        for part in workload["status"]["admission"]["podSetAssignments"]
    }


@pytest.mark.requirement("USR-04")
async def test_the_sources_job_is_placed_inside_one_rack_or_waits() -> None:
    places = await placed(kinds.JOBS, seed("job.yaml"), {"1/1": 4, "1/2": 4, "2/1": 5})
    assert places == {"main": [("2", "1")] * 10}
    assert await placed(kinds.JOBS, seed("job.yaml"), FX_A) is None


@pytest.mark.requirement("USR-05")
@pytest.mark.parametrize(
    ("room", "racks", "blocks"),
    [
        ({"1/1": 2, "1/2": 2, "2/1": 4}, 1, 1),
        ({"1/1": 2, "1/2": 1, "2/1": 2, "2/2": 2}, 2, 1),
        ({"1/1": 2, "1/2": 1, "2/1": 2, "2/2": 1}, 2, 2),
        ({"1/1": 1, "1/2": 1, "2/1": 1, "2/2": 1}, 0, 0),
    ],
    ids=["a rack", "a block", "everywhere", "no room"],
)
async def test_the_sources_jobset_places_its_leader_and_widens_for_its_workers(
    room: dict[str, int], racks: int, blocks: int
) -> None:
    """Its pods ask for nothing, so each node is given room for a single pod."""
    places = await placed(kinds.JOBSETS, seed("jobset.yaml"), room, pods="1")
    if not racks:
        assert places is None
        return
    assert places is not None
    assert len(places["leader"]) == 1
    assert len(places["workers"]) == 4
    assert len(set(places["workers"])) == racks
    assert len({block for block, _ in places["workers"]}) == blocks


@pytest.mark.requirement("USR-06")
async def test_each_instance_is_inside_a_rack_though_a_rack_has_room_for_one_and_a_half() -> None:
    """Six pods fit into a rack: twelve in a row would part the second instance of four."""
    annotations = marks({names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "4"})
    workers = replicated_job("workers", 4, replicas=3, cpu="4", annotations=annotations)
    made = jobset("train", [workers], queue="user-queue")
    places = await placed(kinds.JOBSETS, made, {"1/1": 3, "1/2": 3, "2/1": 3})
    assert places is not None
    ranks = places["workers"]
    instances = [set(ranks[first : first + 4]) for first in (0, 4, 8)]
    assert [len(instance) for instance in instances] == [1, 1, 1]
    two = await placed(
        kinds.JOBSETS, jobset("train", [workers], queue="user-queue"), {"1/1": 3, "1/2": 3}
    )
    assert two is None, "room for twelve pods, but for two instances"


@pytest.mark.requirement("USR-07")
async def test_workers_share_a_rack_and_all_a_block_that_is_not_the_tightest() -> None:
    """The workers alone would fill block 1, where the leader finds no room."""
    together = {names.PODSET_GROUP: "all"}
    leader = replicated_job("leader", 1, cpu="8", annotations=marks(together, required=BLOCK))
    in_a_rack = {names.SLICE_REQUIRED_TOPOLOGY: RACK, names.SLICE_SIZE: "4", **together}
    workers = replicated_job("workers", 4, cpu="4", annotations=marks(in_a_rack, required=BLOCK))
    made = jobset("train", [leader, workers], queue="user-queue")
    places = await placed(kinds.JOBSETS, made, {"1/1": 2, "2/1": 1, "2/2": 2, "2/3": 1})
    assert places is not None
    assert set(places["workers"]) == {("2", "2")}
    assert {block for block, _ in places["leader"]} == {"2"}


@pytest.mark.requirement("USR-08")
async def test_consecutive_ranks_are_assigned_to_one_rack_before_the_next() -> None:
    made = objects.job("train", 8, queue="user-queue", preferred=BLOCK)
    places = await placed(kinds.JOBS, made, FX_A)
    assert places is not None
    ranks = places["main"]
    assert len(set(ranks[:4])) == len(set(ranks[4:])) == 1
    assert ranks[0] != ranks[4]
    assert ranks[0][0] == ranks[4][0]
