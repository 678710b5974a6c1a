"""The controller of a suspended job cannot write what it writes before it stops pods (ADR 75).

A user who keeps changing the job keeps it from being written, as each write meets a newer version.
"""

from __future__ import annotations

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
    """From `starved` on, controllers write no status of a suspended job, and suspend no child.

    The pod `POD` is deleted when its controller may delete it.
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

    def _is_stuck(self, resource: Resource, name: str) -> Object | None:
        item = self.get(resource, name, NAMESPACE)
        return item if self.starved and item and item["spec"].get("suspend") else None

    def _jobset_step(self, name: str) -> None:
        if self._is_stuck(kinds.JOBSETS, name) is None:
            super()._jobset_step(name)

    def _cluster_step(self, name: str) -> None:
        stuck = self._is_stuck(kinds.RAY_CLUSTERS, name)
        if stuck is None:
            super()._cluster_step(name)
        elif is_suspending(stuck):
            self.pods[name] = 0
            self._delete_pod()

    def _ray_job_step(self, name: str) -> None:
        stuck = self._is_stuck(kinds.RAY_JOBS, name)
        if stuck is None:
            super()._ray_job_step(name)
        elif is_suspending(stuck):
            self._drop_ray_cluster(name)
            self._delete_pod()


def pod_of(world: KindsWorld, kind: str) -> tuple[Resource, Object, dict[str, str]]:
    """The controller of a pod, and the labels that it gives it."""
    if kind == "jobset":
        return kinds.JOBS, world.children("train")[0], {names.JOBSET_NAME_LABEL: "train"}
    name = "train" if kind == "raycluster" else "train-cluster"
    labels = {names.RAY_CLUSTER_LABEL: name}
    return kinds.RAY_CLUSTERS, world.of(kinds.RAY_CLUSTERS, name), labels


def is_suspending(item: Object) -> bool:
    """Whether the status says that the controller is to delete the pods."""
    status = item["status"]
    flags = {one["type"]: one["status"] for one in status.get("conditions", [])}
    return (
        flags.get("RayClusterSuspending") == "True"
        or status.get("jobDeploymentStatus") == "Suspending"
    )


@pytest.mark.parametrize("kind", STORIES)
async def test_a_suspended_job_gives_its_quota_back_though_its_controller_cannot_write(
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
        await eventually(lambda: world.events("SuspensionLate"))
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


def drain(world: KindsWorld, policy: str) -> None:
    """Set the stopPolicy of the ClusterQueue."""
    world.change(kinds.CLUSTER_QUEUES, "cq", lambda one: one["spec"].update(stopPolicy=policy))
