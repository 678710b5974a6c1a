"""JobSets from submission to end: docs/design/races/assigner.md, rows K2 to K9."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.topology.assignment import decode
from tests.support import composite_jobs as composite
from tests.support.apiserver import Object
from tests.support.apiserver_faults import Fault, Handler
from tests.support.objects import POOL_LABEL
from tests.wire.assigner_world import NAMESPACE, assigner, eventually
from tests.wire.kinds_world import KindsWorld, furnish

JOBSETS = kinds.JOBSETS


def train(**spec: Any) -> Object:
    """Two Jobs of two workers and one leader."""
    parts = [
        composite.replicated_job("leader", 1),
        composite.replicated_job("workers", 2, replicas=2),
    ]
    return composite.jobset("train", parts, **spec)


def selectors(world: KindsWorld) -> list[dict[str, str]]:
    """The nodeSelector of each child's template."""
    return [
        child["spec"]["template"]["spec"].get("nodeSelector", {})
        for child in world.children("train")
    ]


def runs(world: KindsWorld) -> Callable[[], bool]:
    """A question: was the JobSet started?"""
    return lambda: world.is_running(JOBSETS, "train")


def end(world: KindsWorld, type_: str) -> None:
    """The JobSet controller says that it is over."""
    condition = {"type": type_, "status": "True", "message": "so it ended"}
    world.change(JOBSETS, "train", lambda o: o["status"].update(conditions=[condition]))


@pytest.mark.requirement("TAS-28", "HOOK-03")
@pytest.mark.parametrize(("type_", "reason"), [("Completed", "Succeeded"), ("Failed", "Failed")])
async def test_a_jobset_has_one_workload_from_start_to_end(type_: str, reason: str) -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train())
        async with assigner(world):
            await eventually(runs(world))
            workload = world.workload_of(world.of(JOBSETS, "train"))
            assert workload is not None
            counts = {p["name"]: p["count"] for p in workload["spec"]["podSets"]}
            assert counts == {"leader": 1, "workers": 4}
            assert names.ELASTIC_ANNOTATION not in workload["metadata"].get("annotations", {})
            await eventually(lambda: world.state(JOBSETS, "train", "PodsReady")[0] == "True")
            end(world, type_)
            await eventually(lambda: world.state(JOBSETS, "train", "Finished") == ("True", reason))
        assert world.broken_rules == []
        assert len(world.workloads()) == 1  # none for the child Jobs


async def test_another_flavor_leaves_no_key_of_the_one_before_in_child_jobs() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train())
        async with assigner(world):
            await eventually(lambda: selectors(world) == [{POOL_LABEL: "pool"}] * 3)
            before = world.child("train", "workers", 0)
            assert before is not None
            assert before["spec"]["template"]["spec"]["schedulingGates"]
            world.change(
                JOBSETS,
                "train",
                lambda o: o["metadata"]["labels"].update({names.QUEUE_LABEL: "plain"}),
            )
            await eventually(lambda: selectors(world) == [{POOL_LABEL: "other"}] * 3)
        for child in world.children("train"):
            template = child["spec"]["template"]
            assert not template["spec"].get("schedulingGates")
            assert names.WORKLOAD_ANNOTATION in template["metadata"]["annotations"]
            assert names.PODSET_LABEL not in template["metadata"]["labels"]
        assert world.broken_rules == []


async def test_stale_children_are_cleaned_before_a_start() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train())
        await eventually(lambda: len(world.children("train")) == 3)

        def stain(job: Object) -> None:
            job["spec"]["template"]["spec"].update(
                nodeSelector={"gone": "flavor", "alpha.jobset.sigs.k8s.io/namespaced-job": "x"},
                tolerations=[{"key": "gone", "operator": "Exists"}],
            )

        world.change(kinds.JOBS, "train-workers-0", stain)
        async with assigner(world):
            await eventually(runs(world))
            await eventually(lambda: all(POOL_LABEL in found for found in selectors(world)))
        child = world.child("train", "workers", 0)
        assert child is not None
        spec = child["spec"]["template"]["spec"]
        assert set(spec["nodeSelector"]) == {"alpha.jobset.sigs.k8s.io/namespaced-job", POOL_LABEL}
        assert not spec.get("tolerations")


async def test_a_child_that_changed_meanwhile_is_looked_at_again() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train())
        async with assigner(world):
            await eventually(lambda: selectors(world) == [{POOL_LABEL: "pool"}] * 3)
            world.faults.append(Fault.status(409, "Conflict", method="PATCH", path="/jobs/"))
            world.change(
                kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="HoldAndDrain")
            )
            await eventually(lambda: not world.holds_quota(JOBSETS, "train"))
        assert selectors(world) == [{}] * 3
        assert world.broken_rules == []


async def test_a_restart_is_no_eviction() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train(failurePolicy={"maxRestarts": 3}))
        async with assigner(world) as replica:
            await eventually(lambda: world.state(JOBSETS, "train", "PodsReady")[0] == "True")
            used = replica.cache.totals.used()
            for child in world.children("train"):
                world.remove(kinds.JOBS, child["metadata"]["name"], NAMESPACE)
            world.change(JOBSETS, "train", lambda o: o["status"].update(restarts=1))
            await eventually(lambda: len(world.children("train")) == 3)
            await eventually(lambda: world.state(JOBSETS, "train", "PodsReady")[0] == "True")
            assert replica.cache.totals.used() == used
        assert selectors(world) == [{POOL_LABEL: "pool"}] * 3
        assert world.state(JOBSETS, "train", "Evicted") == ("", "")
        assert world.broken_rules == []


def pod_of(world: KindsWorld, workload: Object, child: Object) -> Object:
    """A pod of a child Job, bound to the first host that its PodSet was given."""
    given = workload["status"]["admission"]["podSetAssignments"][0]
    (host,), _ = decode(given["topologyAssignment"]).domains[0]
    owner = {"kind": "Job", "name": "x", "uid": child["metadata"]["uid"], "controller": True}
    return {
        "metadata": {
            "name": "pod",
            "namespace": NAMESPACE,
            "labels": {names.PODSET_LABEL: given["name"]},
            "annotations": {names.WORKLOAD_ANNOTATION: workload["metadata"]["name"]},
            "ownerReferences": [{"apiVersion": "batch/v1", **owner}],
        },
        "spec": {"nodeName": host, "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"},
    }


async def test_pods_of_child_jobs_are_charged_once() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train())
        async with assigner(world) as replica:
            await eventually(lambda: world.state(JOBSETS, "train", "PodsReady")[0] == "True")
            workload = world.workload_of(world.of(JOBSETS, "train"))
            child = world.child("train", "leader", 0)
            assert workload is not None
            assert child is not None
            # The event of the pod may come before that of the Job.
            world.put(kinds.PODS, pod_of(world, workload, child))
            await eventually(lambda: "team/pod" in replica.cache.pods.rows)
            replica.cache.pods.update_coverage()
            assert replica.cache.pods.charged == {}
            stranger = pod_of(world, workload, {"metadata": {"uid": "somebody"}})
            stranger["metadata"]["name"] = "other"
            world.put(kinds.PODS, stranger)
            await eventually(lambda: "team/other" in replica.cache.pods.rows)
            replica.cache.pods.update_coverage()
            assert len(replica.cache.pods.charged) == 1


def reclaimable(world: KindsWorld) -> list[Object]:
    """`status.reclaimablePods` of the Workload."""
    found = world.workload_of(world.of(JOBSETS, "train")) or {}
    return list(found.get("status", {}).get("reclaimablePods", []))


async def test_quota_of_jobs_that_succeeded_is_given_back() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train())
        async with assigner(world) as replica:
            await eventually(lambda: world.state(JOBSETS, "train", "PodsReady")[0] == "True")
            used = replica.cache.totals.used()
            assert used["cq"]["tas", "cpu"] == 5000
            world.succeed("train", "workers", 1)
            await eventually(lambda: reclaimable(world) == [{"name": "workers", "count": 2}])
            await eventually(lambda: replica.cache.totals.used()["cq"]["tas", "cpu"] == 3000)
            assert world.state(JOBSETS, "train", "PodsReady")[0] == "True"


async def test_nothing_is_given_back_while_a_restart_may_come() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train(failurePolicy={"maxRestarts": 1}))
        async with assigner(world):
            await eventually(lambda: world.state(JOBSETS, "train", "PodsReady")[0] == "True")
            world.succeed("train", "workers", 1)
            end(world, "Completed")
            await eventually(lambda: world.state(JOBSETS, "train", "Finished")[0] == "True")
        assert reclaimable(world) == []


async def test_a_removed_queue_label_leaves_a_jobset_as_its_user_wrote_it() -> None:
    async with KindsWorld() as world:
        furnish(world)
        before = copy.deepcopy(world.add(JOBSETS, train())["spec"]["replicatedJobs"])
        async with assigner(world):
            await eventually(lambda: selectors(world) == [{POOL_LABEL: "pool"}] * 3)
            world.change(JOBSETS, "train", lambda o: o["metadata"].update(labels={}))
            await eventually(lambda: not world.workloads())
        assert world.of(JOBSETS, "train")["spec"]["replicatedJobs"] == before
        assert not world.is_running(JOBSETS, "train")
        assert selectors(world) == [{}] * 3


@pytest.mark.requirement("TAS-29")
async def test_a_rejection_of_the_kinds_own_webhook_is_reported() -> None:
    async with KindsWorld() as world:
        furnish(world)
        refusal = "spec.replicatedJobs: schedulingGates: field is immutable"
        world.faults.append(
            Fault.status(403, "Forbidden", refusal, method="PATCH", path="/jobsets/", times=2)
        )
        world.add(JOBSETS, train())
        async with assigner(world):
            await eventually(lambda: world.events("JobSetUpdateRefused"))
            await eventually(runs(world))
        assert refusal in world.events("JobSetUpdateRefused")[0]["note"]


@pytest.mark.requirement("OPS-07")
async def test_children_that_their_user_keeps_changing_lose_what_a_start_added() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(JOBSETS, train())
        async with assigner(world):
            await eventually(lambda: selectors(world) == [{POOL_LABEL: "pool"}] * 3)
            changed = 0

            async def overtake(request: web.Request, handle: Handler) -> web.StreamResponse:
                nonlocal changed
                changed += 1
                note = {"example.com/changed": str(changed)}
                name = request.path.rpartition("/")[2]
                world.change(
                    kinds.JOBS,
                    name,
                    lambda job: job["metadata"].setdefault("annotations", {}).update(note),
                )
                return await handle()

            world.faults.append(Fault(overtake, method="PATCH", path="/jobs/", times=10**6))
            world.change(
                kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="HoldAndDrain")
            )
            await eventually(lambda: not world.holds_quota(JOBSETS, "train"))
        assert selectors(world) == [{}] * 3
        assert changed == 3
        assert world.broken_rules == []
