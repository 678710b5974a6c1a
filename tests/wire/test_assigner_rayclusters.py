"""RayClusters from submission to end: docs/design/races/assigner.md, K10 to K16."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import ELASTIC_JOBS
from rackgate.jobframework.raycluster.raycluster import RayClusterJob
from rackgate.runtime.backoff import Backoff
from rackgate_assigner.assigner import Assigner
from rackgate_assigner.scheduler import controller
from rackgate_assigner.settings import AssignerSettings
from tests.support import composite_jobs as composite
from tests.support.apiserver import Object
from tests.support.apiserver_faults import Fault, Handler
from tests.support.objects import POOL_LABEL
from tests.wire.assigner_world import NAMESPACE, assigner, eventually, settings
from tests.wire.kinds_world import KindsWorld, furnish

CLUSTERS = kinds.RAY_CLUSTERS
CHANGED = ("True", "JobChanged")


def cluster(*, autoscaling: bool = False) -> Object:
    """A head and two workers."""
    groups = [composite.worker_group("small", 2)]
    return composite.raycluster("ray", groups, autoscaling=autoscaling)


def elastic() -> AssignerSettings:
    """With the gate of elastic jobs on."""
    return settings(featureGates={ELASTIC_JOBS: True})


def group(world: KindsWorld) -> Object:
    """The first worker group as stored."""
    found: Object = world.of(CLUSTERS, "ray")["spec"]["workerGroupSpecs"][0]
    return found


def workload(world: KindsWorld) -> Object:
    """The Workload of the cluster."""
    found = world.workload_of(world.of(CLUSTERS, "ray"))
    assert found is not None
    return found


def counts(world: KindsWorld) -> dict[str, int]:
    """Pods of each PodSet of the Workload."""
    return {podset["name"]: podset["count"] for podset in workload(world)["spec"]["podSets"]}


def edit(world: KindsWorld, change: Callable[[Object], object]) -> None:
    """Edit the first worker group as a user, or the autoscaler, would."""
    world.change(CLUSTERS, "ray", lambda o: change(o["spec"]["workerGroupSpecs"][0]))


def resized(replicas: int) -> Callable[[Object], object]:
    """An edit: the worker group is to have so many replicas."""
    return lambda found: found.update(replicas=replicas)


def ready(world: KindsWorld) -> Callable[[], bool]:
    """A question: does the cluster run, with all its pods?"""
    return lambda: (
        world.is_running(CLUSTERS, "ray") and world.state(CLUSTERS, "ray", "PodsReady")[0] == "True"
    )


def came_back(world: KindsWorld, **sizes: int) -> Callable[[], bool]:
    """A question: was it stopped for a change, and does it run at this size now?"""
    return lambda: (
        counts(world) == sizes
        and world.state(CLUSTERS, "ray", "Evicted")[0] == "False"
        and ready(world)()
    )


@pytest.mark.requirement("SLC-04", "HOOK-03")
async def test_a_cluster_is_admitted_with_head_and_workers_and_goes_when_deleted() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster())
        async with assigner(world):
            await eventually(ready(world))
            assert counts(world) == {"head": 1, "small": 2}
            assert names.ELASTIC_ANNOTATION not in workload(world)["metadata"].get(
                "annotations", {}
            )
            world.delete(CLUSTERS, "ray")
            await eventually(lambda: not world.workloads())
        assert world.broken_rules == []


async def test_a_cluster_that_comes_to_rest_is_admitted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pauses(**_: float) -> Backoff:
        return Backoff(base_s=3600, cap_s=3600)

    monkeypatch.setattr(controller, "Backoff", pauses)
    async with KindsWorld() as world:
        furnish(world, stopPolicy="Hold")
        world.frozen = True
        world.add(CLUSTERS, cluster())
        async with assigner(world) as replica:
            await eventually(world.workloads)
            status = {"conditions": [{"type": "RayClusterSuspending", "status": "True"}]}
            world.change(CLUSTERS, "ray", lambda o: o.update(status=status))
            await eventually(seen_by(replica, world))
            before = replica.scheduler.cycles
            world.change(kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="None"))
            await eventually(lambda: replica.scheduler.cycles > before)
            # A conflict with the words that say why it waits would be a pause.
            await eventually(words_seen_by(replica, world))
            assert not world.is_running(CLUSTERS, "ray")
            world.frozen = False
            await eventually(ready(world))


@pytest.mark.requirement("SLC-01", "SLC-28")
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("autoscaling", [False, True])
async def test_without_the_gate_another_size_is_queued_again(
    replicas: int, autoscaling: bool
) -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster(autoscaling=autoscaling))
        async with assigner(world):
            await eventually(ready(world))
            edit(world, lambda o: o.update(replicas=replicas))
            await eventually(came_back(world, head=1, small=replicas))
        assert world.broken_rules == []


def words_seen_by(replica: Assigner, world: KindsWorld) -> Callable[[], bool]:
    """A question: has the replica written why the cluster waits, and seen it?"""
    store = replica.watches.workloads.store

    def seen() -> bool:
        meta = workload(world)["metadata"]
        known = store.get(f"{NAMESPACE}/{meta['name']}")
        seen = known is not None and known.metadata.resource_version == meta["resourceVersion"]
        return seen and not replica.scheduler.counts()["requeues"]

    return seen


def seen_by(replica: Assigner, world: KindsWorld) -> Callable[[], bool]:
    """A question: has the replica seen the cluster as it is now, and done about it what it does?"""
    version = int(world.of(CLUSTERS, "ray")["metadata"]["resourceVersion"])
    store = replica.watches.kinds[CLUSTERS.kind].store
    return lambda: (
        int(store["team/ray"].metadata.resource_version) >= version and not len(replica.jobs.queue)
    )


@pytest.mark.requirement("SLC-12")
async def test_with_the_gate_another_size_stops_nothing() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster(autoscaling=True))
        async with assigner(world, configured=elastic()) as replica:
            await eventually(ready(world))
            assert workload(world)["metadata"]["annotations"] == {names.ELASTIC_ANNOTATION: "true"}
            gates = [gate["name"] for gate in group(world)["template"]["spec"]["schedulingGates"]]
            assert gates == [names.TOPOLOGY_GATE, names.ELASTIC_GATE]
            for replicas in (3, 1):
                edit(world, resized(replicas))
                await eventually(seen_by(replica, world))
                assert world.is_running(CLUSTERS, "ray")
                assert world.state(CLUSTERS, "ray", "Evicted") == ("", "")
        assert not world.events("ResizeNotSupported")
        assert world.broken_rules == []


@pytest.mark.requirement("SLC-03")
@pytest.mark.field_note("E13")
@pytest.mark.parametrize("gate", [False, True])
async def test_a_changed_template_or_group_queues_the_cluster_again(gate: bool) -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster(autoscaling=True))
        async with assigner(world, configured=elastic() if gate else None):
            await eventually(ready(world))
            resources = {"requests": {"cpu": "2"}}
            edit(
                world, lambda o: o["template"]["spec"]["containers"][0].update(resources=resources)
            )
            await eventually(lambda: world.state(CLUSTERS, "ray", "Evicted") == CHANGED)
            await eventually(came_back(world, head=1, small=2))
            held = workload(world)["spec"]["podSets"][1]["template"]["spec"]["containers"][0]
            assert held["resources"] == resources
            more = composite.worker_group("big", 1)
            world.change(CLUSTERS, "ray", lambda o: o["spec"]["workerGroupSpecs"].append(more))
            await eventually(came_back(world, head=1, small=2, big=1))
        assert world.broken_rules == []


async def test_a_waiting_workload_follows_the_gate() -> None:
    async with KindsWorld() as world:
        furnish(world, stopPolicy="Hold")
        world.add(CLUSTERS, cluster(autoscaling=True))
        async with assigner(world):
            await eventually(world.workloads)
        assert "annotations" not in workload(world)["metadata"]
        for configured, wanted in ((elastic(), {names.ELASTIC_ANNOTATION: "true"}), (None, {})):
            async with assigner(world, configured=configured):
                await eventually(annotated(world, wanted))


def annotated(world: KindsWorld, wanted: Object) -> Callable[[], bool]:
    """A question: has the Workload these annotations?"""
    return lambda: workload(world)["metadata"].get("annotations", {}) == wanted


def racing(world: KindsWorld, change: Callable[[Object], object]) -> Fault:
    """The autoscaler writes right before our next patch of the cluster."""

    async def answer(_: Any, handle: Handler) -> Any:
        edit(world, change)
        return await handle()

    return Fault(answer, method="PATCH", path="/rayclusters/")


@pytest.mark.requirement("SLC-28")
@pytest.mark.steady_clock
async def test_an_operator_that_lost_its_pods_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RayClusterJob, "reconcile_after_s", 1.0)
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster())
        with structlog.testing.capture_logs() as logged:
            async with assigner(world):
                await eventually(ready(world))
                for replicas in (3, 1):
                    world.waits_in_vain = True
                    edit(world, resized(replicas))
                    await eventually(came_back(world, head=1, small=replicas))
                    meta = world.of(CLUSTERS, "ray")["metadata"]
                    assert meta["annotations"][names.RECONCILE_REQUESTED_ANNOTATION] == str(
                        meta["generation"]
                    )
                    world.change(CLUSTERS, "ray", _forget_reminder)
                await eventually(lambda: world.events("OperatorReminded"))
        reminders = [r for r in world.accepted() if b"reminded-at-generation" in r.body]
        assert len(reminders) == 2
        assert world.broken_rules == []
        told = {
            line["workload"] for line in logged if line["event"] == "operator_reconcile_requested"
        }
        assert told == {f"{NAMESPACE}/{workload(world)['metadata']['name']}"}
        (event,) = world.events("OperatorReminded")  # equal ones within minutes are one
        assert event["regarding"]["kind"] == "RayCluster"
        assert event["note"] == (
            "not all pods are ready 1 s after the spec of the RayCluster last changed: "
            "requested a reconcile by its operator (ray.io/kuberay-operator)"
        )


def _forget_reminder(found: Object) -> None:
    del found["metadata"]["annotations"][names.RECONCILE_REQUESTED_ANNOTATION]


@pytest.mark.requirement("SLC-33")
async def test_a_replica_count_written_meanwhile_survives() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.faults.append(racing(world, lambda o: o.update(replicas=3)))
        world.add(CLUSTERS, cluster())
        async with assigner(world):
            await eventually(came_back_or_ready(world, small=3))
        assert group(world)["replicas"] == 3
        patches = [r for r in world.writes() if "/rayclusters/" in r.path]
        assert patches
        assert not any(b"replicas" in request.body for request in patches)


def came_back_or_ready(world: KindsWorld, small: int) -> Callable[[], bool]:
    """A question: does it run with so many workers, all of them admitted?"""
    return lambda: ready(world)() and counts(world) == {"head": 1, "small": small}


async def test_marks_that_were_overwritten_are_put_back() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster())
        async with assigner(world):
            await eventually(ready(world))
            marked = group(world)
            world.change(
                CLUSTERS, "ray", lambda o: o["spec"].update(cluster()["spec"], suspend=False)
            )
            assert group(world) != marked
            await eventually(lambda: group(world) == marked)
        assert world.state(CLUSTERS, "ray", "Evicted") == ("", "")


@pytest.mark.requirement("TAS-25")
async def test_what_a_flavor_restored_is_put_back_when_a_manifest_is_applied_again() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster())
        async with assigner(world):
            await eventually(ready(world))
            started = copy.deepcopy(group(world)["template"])
            assert started["spec"]["nodeSelector"] == {POOL_LABEL: "pool"}
            # The webhook keeps our marks, and knows nothing of flavors.
            edit(world, lambda o: o["template"]["spec"].pop("nodeSelector"))
            await eventually(lambda: group(world)["template"] == started)
            assert world.is_running(CLUSTERS, "ray")
        assert world.broken_rules == []


async def test_an_edited_flavor_stops_no_cluster_and_stays_in_no_template() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster())
        async with assigner(world):
            await eventually(ready(world))
            labels = {POOL_LABEL: "pool", "new": "label"}
            world.change(kinds.FLAVORS, "tas", lambda o: o["spec"].update(nodeLabels=labels))
            edit(world, lambda o: o["template"]["spec"]["nodeSelector"].update(zone="a"))
            world.change(
                kinds.CLUSTER_QUEUES, "cq", lambda o: o["spec"].update(stopPolicy="HoldAndDrain")
            )
            await eventually(lambda: not world.holds_quota(CLUSTERS, "ray"))
        assert world.state(CLUSTERS, "ray", "Evicted") == ("True", "ClusterQueueStopped")
        assert "nodeSelector" not in group(world)["template"]["spec"]


async def test_what_a_user_writes_while_it_runs_outlives_the_stop() -> None:
    async with KindsWorld() as world:
        furnish(world)
        world.add(CLUSTERS, cluster())
        async with assigner(world):
            await eventually(ready(world))
            edit(world, lambda o: o["template"]["spec"]["nodeSelector"].update(zone="a"))
            edit(world, lambda o: o["template"]["metadata"]["labels"].update(team="blue"))
            await eventually(lambda: world.state(CLUSTERS, "ray", "Evicted") == CHANGED)
            await eventually(came_back_or_waits(world))
        template = workload(world)["spec"]["podSets"][1]["template"]
        assert template["metadata"]["labels"] == {"team": "blue"}
        assert template["spec"]["nodeSelector"] == {"zone": "a"}


def came_back_or_waits(world: KindsWorld) -> Callable[[], bool]:
    """A question: does the Workload ask for the edited template?"""
    return lambda: "zone" in str(workload(world)["spec"]["podSets"][1])
