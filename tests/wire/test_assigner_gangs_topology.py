"""Topology requests of the groups of a JobSet: from its Workload of gangs to the assignment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import GANG_NESTED_PLACEMENT
from rackgate.gang.nesting import decode_nesting
from rackgate.topology.assignment import decode
from tests.support import composite_jobs as composite
from tests.support import objects
from tests.support.apiserver import Object
from tests.support.objects import BLOCK, RACK
from tests.wire.assigner_world import eventually
from tests.wire.gangs_world import GANGS, GATES, GangWorld, gang_assigner
from tests.wire.kinds_world import KindsWorld, furnish

JOBSETS = kinds.JOBSETS
NESTED = {**GATES, GANG_NESTED_PLACEMENT: True}
LINK = {names.GANG_LINK_ANNOTATION: "mine"}
RACKS_IN_ONE_BLOCK: Object = {
    "gangGroups": [
        {
            "name": "gg",
            "minCount": 4,
            "topologyRequest": {"required": BLOCK},
            "rankedGroups": [
                {"name": name, "topologyRequest": {"required": RACK}} for name in ("right", "left")
            ],
        }
    ]
}


class TopologyWorld(GangWorld, KindsWorld):
    """A world of JobSets with gangs."""

    def own(self) -> Object:
        """The Workload of the JobSet."""
        return self.workload_of(self.of(JOBSETS, "train")) or {"metadata": {}, "spec": {}}

    def nesting(self) -> str:
        """The shared domains that it says."""
        annotations = self.own()["metadata"].get("annotations", {})
        return str(annotations.get(names.GANG_NESTING_ANNOTATION, ""))

    def shown(self, type_: str) -> tuple[str, str]:
        """Status and reason of a condition of the Workload of gangs."""
        status = (self.gang("mine") or {}).get("status", {})
        found = [one for one in status.get("conditions", []) if one["type"] == type_]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")

    def why_pending(self) -> str:
        """Why the JobSet is not admitted."""
        conditions = self.own().get("status", {}).get("conditions", [])
        found = [one["message"] for one in conditions if one["type"] == "QuotaReserved"]
        return str(found[0]) if found else ""

    def racks(self) -> dict[str, set[str]]:
        """By PodSet, block and rack of its hosts, as in their names: 11, 12, 21, 23."""
        admission = self.own()["status"]["admission"]
        return {
            given["name"]: {
                path[-1].split("-")[1] for path, _ in decode(given["topologyAssignment"]).domains
            }
            for given in admission["podSetAssignments"]
        }


@asynccontextmanager
async def one_node_short() -> AsyncIterator[TopologyWorld]:
    """Two racks for two pods in block 2, one in block 1."""
    async with TopologyWorld() as world:
        furnish(world)
        world.remove(kinds.NODES, "pool-12-1")
        yield world
        assert world.broken_rules == []


def submit(world: TopologyWorld, *, queue: str = "queue", replicas: int = 1) -> None:
    """Two replicated Jobs, each as large as a rack."""
    parts = [
        composite.replicated_job(name, 2 // replicas, replicas=replicas, cpu="8", annotations=LINK)
        for name in ("left", "right")
    ]
    jobset: Object = composite.jobset("train", parts, queue=queue)
    world.add(JOBSETS, jobset)


@pytest.mark.requirement("GNG-38")
@pytest.mark.parametrize("replicas", [1, 2])
async def test_each_replicated_job_is_in_one_rack_and_all_of_them_in_one_block(
    replicas: int,
) -> None:
    async with one_node_short() as world, gang_assigner(world, featureGates=NESTED):
        world.describe("mine", RACKS_IN_ONE_BLOCK)
        submit(world, replicas=replicas)
        await eventually(lambda: world.is_running(JOBSETS, "train"))
        assert world.racks() == {"left": {"23"}, "right": {"21"}}, "placed in the listed order"
        for podset in world.own()["spec"]["podSets"]:
            assert podset["topologyRequest"] == {
                "required": RACK,
                "podIndexLabel": names.COMPLETION_INDEX_LABEL,
                "subGroupIndexLabel": names.JOB_INDEX_LABEL,
                "subGroupCount": replicas,
            }
        assert [one.podset for one in decode_nesting(world.nesting())] == ["right", "left"]
        await eventually(lambda: world.shown("TopologyEnforced") == ("True", "Enforced"))
        # What the running job has stays, whatever is edited.
        before = world.own()["spec"], world.nesting()

        def drop(gang: Any) -> None:
            del gang["spec"]["gangGroups"][0]["topologyRequest"]

        world.change(GANGS, "mine", drop)
        world.ready = True
        await eventually(lambda: world.state(JOBSETS, "train", "PodsReady")[0] == "True")
        assert (world.own()["spec"], world.nesting()) == before
        # It stops, and what was edited counts.
        key = world.own()["metadata"]["name"]
        world.change(kinds.WORKLOADS, key, lambda own: own["spec"].update(active=False))
        await eventually(lambda: world.nesting() == "")


@pytest.mark.requirement("GNG-38")
async def test_without_its_gate_a_jobset_that_needs_nesting_is_held() -> None:
    async with one_node_short() as world, gang_assigner(world):
        world.describe("mine", RACKS_IN_ONE_BLOCK)
        submit(world)
        await eventually(lambda: GANG_NESTED_PLACEMENT in world.why_pending())
        assert "spec.gangGroups[0].topologyRequest" in world.why_pending()
        await eventually(lambda: world.shown("TopologyRequestValid") == ("False", "NotSupported"))
        assert world.nesting() == ""
        assert not world.is_running(JOBSETS, "train")

        def drop(gang: Any) -> None:
            del gang["spec"]["gangGroups"][0]["topologyRequest"]

        world.change(GANGS, "mine", drop)
        await eventually(lambda: world.is_running(JOBSETS, "train"))
        await eventually(lambda: world.shown("TopologyRequestValid") == ("True", "Valid"))
        assert all(len(racks) == 1 for racks in world.racks().values())


async def test_a_pending_workload_follows_the_requests_of_its_workload_of_gangs() -> None:
    async with one_node_short() as world, gang_assigner(world, featureGates=NESTED):
        world.describe("mine", RACKS_IN_ONE_BLOCK)
        submit(world, queue="missing")
        await eventually(world.nesting)

        def turn(gang: Any) -> None:
            gang["spec"]["gangGroups"][0]["rankedGroups"].reverse()

        world.change(GANGS, "mine", turn)
        await eventually(
            lambda: [one.podset for one in decode_nesting(world.nesting())] == ["left", "right"]
        )
        world.change(GANGS, "mine", lambda gang: gang.update(spec={"gangGroups": [{"name": "gg"}]}))
        await eventually(lambda: world.nesting() == "")
        assert "topologyRequest" not in str(world.own()["spec"])


@pytest.mark.requirement("GNG-08")
async def test_a_level_that_no_flavor_of_the_queue_has_is_shown_on_the_workload_of_gangs() -> None:
    """The cluster has it, but only in the Topology of another queue."""
    async with one_node_short() as world, gang_assigner(world, featureGates=NESTED):
        spec = {
            "gangGroups": [{"name": "gg", "minCount": 4, "topologyRequest": {"required": BLOCK}}]
        }
        world.describe("mine", spec)
        submit(world, queue="plain")
        await eventually(lambda: world.shown("TopologyRequestValid") == ("False", "UnknownLevel"))
        await eventually(lambda: f'level "{BLOCK}" is not in a Topology' in world.why_pending())
        quota = {"cpu": "64", "memory": "64Gi"}
        world.put(kinds.CLUSTER_QUEUES, objects.cluster_queue("plain", "tas", quota))
        await eventually(lambda: world.shown("TopologyRequestValid") == ("True", "Valid"))
        await eventually(lambda: world.is_running(JOBSETS, "train"))
