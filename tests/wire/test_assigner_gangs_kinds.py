"""Workloads of gangs of JobSets and RayClusters."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.jobframework.templates import annotations_of, gates_of
from tests.support import composite_jobs as composite
from tests.support.apiserver import Object
from tests.wire.assigner_world import eventually
from tests.wire.gangs_world import GangWorld, gang_assigner
from tests.wire.kinds_world import KindsWorld, furnish

JOBSETS = kinds.JOBSETS


class GangKindsWorld(GangWorld, KindsWorld):
    """A world of JobSets and RayClusters with gangs."""


def train(**metadata: Any) -> Object:
    """One leader and two Jobs of two workers, in a queue without topology."""
    parts = [
        composite.replicated_job("leader", 1),
        composite.replicated_job("workers", 2, replicas=2),
    ]
    jobset: Object = composite.jobset("train", parts, queue="plain")
    jobset["metadata"].update(metadata)
    return jobset


def templates(jobset: Object) -> list[Object]:
    return [part["template"]["spec"]["template"] for part in jobset["spec"]["replicatedJobs"]]


def links(world: GangKindsWorld) -> set[str]:
    """What the templates of the child Jobs name."""
    return {
        annotations_of(child["spec"]["template"]).get(names.GANG_LINK_ANNOTATION, "")
        for child in world.children("train")
    }


@pytest.mark.requirement("GNG-28", "GNG-24")
@pytest.mark.parametrize("per", ["", "ReplicatedJob"])
async def test_a_jobset_has_one_workload_of_gangs_and_its_jobs_have_none(per: str) -> None:
    async with GangKindsWorld() as world:
        furnish(world)
        annotations = {names.GANG_PER_ANNOTATION: per} if per else {}
        world.add(JOBSETS, train(annotations=annotations))
        async with gang_assigner(world):
            await eventually(lambda: world.is_running(JOBSETS, "train"))
            (gang,) = world.gangs()
            name = gang["metadata"]["name"]
            found = {one["name"]: one["minCount"] for one in gang["spec"]["gangGroups"]}
            assert found == ({"leader": 1, "workers": 4} if per else {"gg": 5})
            running = world.of(JOBSETS, "train")
            for template in templates(running):
                assert names.GANG_GATE in gates_of(template)
                assert annotations_of(template)[names.GANG_LINK_ANNOTATION] == name
            await eventually(lambda: links(world) == {name})
            workload = world.workload_of(running)
            assert workload is not None
            # It stops: the JobSet and its child Jobs are as their user wrote them.
            key = workload["metadata"]["name"]
            world.change(kinds.WORKLOADS, key, lambda own: own["spec"].update(active=False))
            await eventually(lambda: links(world) == {""})
            await eventually(
                lambda: (
                    names.GANG_GATE not in str(world.of(JOBSETS, "train")["spec"])
                    and names.GANG_RUN_SPEC_ANNOTATION
                    not in str(world.of(JOBSETS, "train")["metadata"])
                )
            )
            for template in templates(world.of(JOBSETS, "train")):
                assert names.GANG_LINK_ANNOTATION not in annotations_of(template)
            assert [one["metadata"]["name"] for one in world.gangs()] == [name]
        assert world.broken_rules == []
