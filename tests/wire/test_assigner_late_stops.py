"""The controller of a suspended job does not stop its pods (ADR 75).

It cannot write the status that it writes before, as its user keeps changing the job, or it ignores
the job, because its user wrote something that it rejects.
"""

from __future__ import annotations

import asyncio

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate_assigner.jobs import controller as jobs_controller
from tests.support.apiserver import Object
from tests.wire.assigner_world import NAMESPACE, assigner, eventually
from tests.wire.kinds_world import KindsWorld, furnish
from tests.wire.test_assigner_kinds_crashes import STORIES

pytestmark = pytest.mark.requirement("OPS-07")


POD = "train-pod"


class StarvedKindsWorld(KindsWorld):
    """From `starved` on, controllers of JobSets, RayClusters and RayJobs do nothing.

    The Job controller still deletes the pod `POD` when its Job is suspended.
    """

    starved = False

    def run_pod(self, resource: Resource, owner: Object, labels: dict[str, str]) -> None:
        """A pod of a job, on a node."""
        known = {key: owner["metadata"][key] for key in ("name", "uid")}
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        references = [{**kind, **known, "controller": True}]
        meta = {"name": POD, "namespace": NAMESPACE, "labels": labels}
        node = next(iter(self._objects[kinds.NODES.full_name].values()))["metadata"]["name"]
        spec = {"containers": [], "nodeName": node}
        pod = {"metadata": {**meta, "ownerReferences": references}, "spec": spec}
        self.put(kinds.PODS, {**pod, "status": {"phase": "Running"}})

    def _delete_pod(self) -> None:
        if self.get(kinds.PODS, POD, NAMESPACE) is not None:
            self.remove(kinds.PODS, POD, NAMESPACE)

    def _job_changes(self, item: Object, known: Object | None) -> None:
        super()._job_changes(item, known)
        if self.starved and item["spec"].get("suspend"):
            self._later(self._delete_pod)

    def _drop(self, full_name: str, key: str) -> None:
        super()._drop(full_name, key)
        if full_name == kinds.PODS.full_name:
            self.pods.clear()

    def _jobset_step(self, name: str) -> None:
        if not self.starved:
            super()._jobset_step(name)

    def _cluster_step(self, name: str) -> None:
        if not self.starved:
            super()._cluster_step(name)

    def _ray_job_step(self, name: str) -> None:
        if not self.starved:
            super()._ray_job_step(name)


def pod_of(world: KindsWorld, kind: str) -> tuple[Resource, Object, dict[str, str]]:
    """The controller of a pod, and the labels that it gives it."""
    if kind == "jobset":
        return kinds.JOBS, world.children("train")[0], {names.JOBSET_NAME_LABEL: "train"}
    name = "train" if kind == "raycluster" else "train-cluster"
    labels = {names.RAY_CLUSTER_LABEL: name}
    return kinds.RAY_CLUSTERS, world.of(kinds.RAY_CLUSTERS, name), labels


@pytest.mark.parametrize("kind", STORIES)
async def test_a_suspended_job_releases_its_quota_though_its_controller_does_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_controller, "STATUS_LATE_S", 0.2)
    story = STORIES[kind]
    async with StarvedKindsWorld() as world, assigner(world):
        furnish(world)
        world.add(story.resource, story.manifest())
        await eventually(lambda: world.state(story.resource, "train", "PodsReady")[0] == "True")
        world.run_pod(*pod_of(world, kind))
        world.starved = True
        drain(world, "HoldAndDrain")
        await eventually(lambda: world.events("StopLate"))
        await eventually(lambda: not world.holds_quota(story.resource, "train"))
        assert world.get(kinds.PODS, POD, NAMESPACE) is None
        assert all(child["spec"]["suspend"] for child in world.children("train"))
        assert world.broken_rules == []
        world.starved = False
        item = world.of(story.resource, "train")
        item["metadata"].setdefault("annotations", {})["example.com/changed"] = "again"
        world.put(story.resource, item)
        drain(world, "None")
        await eventually(lambda: world.is_running(story.resource, "train"))
        assert world.broken_rules == []


@pytest.mark.parametrize("kind", STORIES)
async def test_a_job_that_leaves_its_queue_is_stopped_though_its_controller_does_nothing(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_controller, "STATUS_LATE_S", 0.2)
    story = STORIES[kind]
    async with StarvedKindsWorld() as world, assigner(world):
        furnish(world)
        world.add(story.resource, story.manifest())
        await eventually(lambda: world.state(story.resource, "train", "PodsReady")[0] == "True")
        world.run_pod(*pod_of(world, kind))
        world.starved = True
        world.change(
            story.resource, "train", lambda one: one["metadata"]["labels"].pop(names.QUEUE_LABEL)
        )
        await eventually(lambda: world.events("StopLate"))
        await eventually(lambda: world.get(kinds.PODS, POD, NAMESPACE) is None)
        await eventually(lambda: not world.holds_quota(story.resource, "train"))
        assert world.broken_rules == []


async def test_a_user_who_resumes_a_job_that_must_stop_wins_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs_controller, "STATUS_LATE_S", 0.5)
    story = STORIES["raycluster"]
    async with StarvedKindsWorld() as world, assigner(world):
        furnish(world)
        world.add(story.resource, story.manifest())
        await eventually(lambda: world.state(story.resource, "train", "PodsReady")[0] == "True")
        world.run_pod(*pod_of(world, "raycluster"))
        world.starved = True
        world.change(
            story.resource, "train", lambda one: one["metadata"]["labels"].pop(names.QUEUE_LABEL)
        )

        async def resume() -> None:
            while True:
                await asyncio.sleep(0.2)
                spec = world.of(story.resource, "train")["spec"]
                if spec["suspend"]:
                    world.change(story.resource, "train", resumed)

        resuming = asyncio.create_task(resume())
        await eventually(lambda: world.get(kinds.PODS, POD, NAMESPACE) is None)
        resuming.cancel()


def resumed(item: Object) -> None:
    """Its user lets it run."""
    item["spec"]["suspend"] = False


def drain(world: KindsWorld, policy: str) -> None:
    """Set the stopPolicy of the ClusterQueue."""
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda one: one["spec"].update(stopPolicy=policy))
