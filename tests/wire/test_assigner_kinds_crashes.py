"""The assigner dies at every write of a JobSet, a RayCluster and a RayJob: row K1 and K2.

docs/design/races/assigner.md lists what may happen. Each life is admitted, drained, and admitted
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from tests.support import composite_jobs as composite
from tests.support.apiserver import Object
from tests.support.objects import POOL_LABEL, RACK
from tests.wire.assigner_world import eventually
from tests.wire.killing import WATCHED, Killer, keep_running, while_running
from tests.wire.kinds_world import KindsWorld, furnish


@dataclass(frozen=True)
class Story:
    """A job, and how many writes its life takes; some may be left out or joined.

    The slower the API server, the more are joined: the least is what no slowness takes away.
    """

    resource: Resource
    manifest: Callable[[], Object]
    most: int
    least: int


def jobset() -> Object:
    rack = composite.marks(required=RACK)
    parts = [
        composite.replicated_job("leader", 1),
        composite.replicated_job("workers", 2, replicas=2, annotations=rack),
    ]
    return composite.jobset("train", parts)


def raycluster() -> Object:
    rack = composite.marks(required=RACK)
    groups = [
        composite.worker_group("small", 2),
        composite.worker_group("big", 2, annotations=rack),
    ]
    return composite.raycluster("train", groups)


def rayjob() -> Object:
    spec = raycluster()["spec"]
    requests = {"cpu": "500m", "memory": "200Mi"}
    container = {"name": "submit", "resources": {"requests": requests}}
    submitter = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return composite.rayjob("train", [], rayClusterSpec=spec, submitterPodTemplate=submitter)


STORIES = {
    "jobset": Story(kinds.JOBSETS, jobset, 22, 11),
    "raycluster": Story(kinds.RAY_CLUSTERS, raycluster, 18, 8),
    "rayjob": Story(kinds.RAY_JOBS, rayjob, 18, 8),
}


def templates(item: Object) -> Iterator[Object]:
    """The pod templates of a job."""
    spec = item["spec"].get("rayClusterSpec", item["spec"])
    for replicated in spec.get("replicatedJobs", []):
        yield replicated["template"]["spec"]["template"]
    if "headGroupSpec" in spec:
        yield spec["headGroupSpec"]["template"]
    for group in spec.get("workerGroupSpecs", []):
        yield group["template"]
    if "submitterPodTemplate" in item["spec"]:
        yield item["spec"]["submitterPodTemplate"]


async def life(world: KindsWorld, resource: Resource) -> None:
    """Started, drained, started again; judged on the world alone."""

    def now() -> Object:
        return world.of(resource, "train")

    def runs() -> bool:
        return world.is_running(resource, "train")

    def is_ready() -> bool:
        return world.state(resource, "train", "PodsReady")[0] == "True"

    before = list(templates(now()))
    await eventually(runs)
    await eventually(is_ready)  # else it depends on the speed whether this is written
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="HoldAndDrain"))
    await eventually(
        lambda: (
            world.state(resource, "train", "Evicted") == ("True", "ClusterQueueStopped")
            and not world.holds_quota(resource, "train")
        )
    )
    assert not runs()
    assert list(templates(now())) == before
    assert names.WORKLOAD_ANNOTATION not in now()["metadata"].get("annotations", {})
    for child in world.children("train"):
        spec = child["spec"]["template"]["spec"]
        assert POOL_LABEL not in spec.get("nodeSelector", {})
        assert not spec.get("schedulingGates")
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="None"))
    await eventually(runs)
    assert list(templates(now())) != before
    await eventually(is_ready)


@pytest.mark.requirement("TAS-26", "TAS-28", "OPS-12", "OPS-07")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize(
    ("kind", "number"), [(k, n) for k, story in STORIES.items() for n in range(story.most)]
)
async def test_a_death_at_any_write_loses_nothing(kind: str, number: int, applied: bool) -> None:
    story = STORIES[kind]
    async with KindsWorld() as world:
        furnish(world)
        killer = Killer(number, applied=applied)
        world.faults.append(killer.fault())
        world.add(story.resource, story.manifest())
        await while_running(keep_running(world, killer.struck), life(world, story.resource))
        assert world.broken_rules == []
        assert killer.struck.is_set() or number >= story.least


@pytest.mark.parametrize("kind", STORIES)
async def test_a_life_has_no_more_writes_than_are_killed(kind: str) -> None:
    story = STORIES[kind]
    async with KindsWorld() as world:
        furnish(world)
        world.add(story.resource, story.manifest())
        await while_running(keep_running(world, asyncio.Event()), life(world, story.resource))
        count = world.taken(WATCHED)
        assert story.least <= count <= story.most
