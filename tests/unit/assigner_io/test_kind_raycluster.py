from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS
from rackgate.jobframework.generic_job import RequestedCount
from rackgate.jobframework.injection import StopPhase
from rackgate.jobframework.raycluster.wire import RayCluster
from rackgate.jobframework.registry import JOBSET, RAYCLUSTER, RAYJOB
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.patches import stop_tests
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.jobs.state import is_managed
from tests.support import composite_jobs as composite
from tests.unit.assigner_io.builders import facts as job_facts
from tests.unit.assigner_io.builders import job, workload
from tests.unit.assigner_io.kind_builders import cluster, facts, own_workload, ray_status
from tests.unit.govern.patching import PatchError, apply_patch

GATE: Mapping[str, bool] = {ELASTIC_JOBS: True}
UP = {"PodsReady": "Started"}
READY = ray_status(2, HeadPodReady=True)


def running(
    groups: list[dict[str, Any]] | None = None, *, autoscaling: bool = False, **spec: Any
) -> RayCluster:
    """A started cluster whose pods are ready."""
    return cluster(
        groups or (), suspend=False, started=True, autoscaling=autoscaling, status=READY, **spec
    )


def step(
    of: RayCluster,
    was: RayCluster,
    *,
    elastic: bool = False,
    gates: Mapping[str, bool] | None = None,
) -> actions.Action:
    """The next step for a cluster whose Workload was made of what it `was`."""
    own = own_workload(was, elastic=elastic, conditions=UP)
    return plan_job(of, [own], facts(of, own, gates=gates))


def test_a_cluster_that_runs_elsewhere_is_not_managed() -> None:
    assert is_managed(cluster(managedBy="ray.io/kuberay-operator"))
    assert not is_managed(cluster(managedBy="kueue.x-k8s.io/multikueue"))


@pytest.mark.requirement("TAS-26")
@pytest.mark.parametrize(
    ("status", "settled"),
    [
        ({}, True),
        ({"state": "suspended"}, True),
        ({"state": "ready"}, False),
        (ray_status(RayClusterSuspending=True, RayClusterSuspended=False), False),
        (ray_status(RayClusterSuspending=False, RayClusterSuspended=True), True),
        ({**ray_status(RayClusterSuspended=False), "state": "suspended"}, False),
        ({**ray_status(RayClusterSuspended=True), "observedGeneration": 1}, True),
    ],
    ids=["new", "old operator", "runs", "suspending", "suspended", "starting", "edited since"],
)
def test_a_cluster_is_at_rest_by_its_condition(status: dict[str, Any], settled: bool) -> None:
    found = facts(cluster(started=True, status=status))
    assert (found.stop.phase is not StopPhase.WAIT) is settled


def test_pods_of_a_cluster_that_its_operator_does_not_stop_are_deleted() -> None:
    own = own_workload(running())
    found = actions.plan_late_stop(running(), own, (), 10.0)
    assert found == actions.CompleteStop(own, [], [running()], 10.0)


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        (ray_status(2, HeadPodReady=True), True),
        (ray_status(1, HeadPodReady=True), False),
        (ray_status(2, HeadPodReady=False), False),
        ({"state": "ready"}, True),
        ({"state": ""}, False),
    ],
)
def test_pods_are_ready_when_head_and_admitted_workers_are(
    status: dict[str, Any], ready: bool
) -> None:
    of = cluster(suspend=False, started=True, status=status)
    assert facts(of, own_workload(of)).ready is ready


def test_workers_beyond_the_admitted_ones_are_not_waited_for() -> None:
    more = running([composite.worker_group("small", 5)])
    assert facts(more, own_workload(cluster())).ready


@pytest.mark.requirement("SLC-12", "SLC-24")
@pytest.mark.parametrize("replicas", [0, 1, 3])
def test_another_count_of_an_elastic_cluster_is_no_change(replicas: int) -> None:
    was = running(autoscaling=True)
    now = running([composite.worker_group("small", replicas)], autoscaling=True)
    found = step(now, was, elastic=True, gates=GATE)
    assert isinstance(found, actions.NoAction | actions.ReapplyInjection | actions.UpdatePodsReady)


@pytest.mark.requirement("SLC-01", "SLC-02", "SLC-28")
@pytest.mark.field_note("E16")
@pytest.mark.parametrize(
    ("autoscaling", "elastic", "gates"),
    [(True, False, None), (True, True, None), (True, False, GATE), (False, False, GATE)],
    ids=["gate off", "gate switched off", "made before the gate", "does not scale itself"],
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_another_count_of_any_other_cluster_is_a_change(
    autoscaling: bool, elastic: bool, gates: Mapping[str, bool] | None, replicas: int
) -> None:
    was = running(autoscaling=autoscaling)
    now = running([composite.worker_group("small", replicas)], autoscaling=autoscaling)
    found = step(now, was, elastic=elastic, gates=gates)
    assert isinstance(found, actions.EvictWorkload)
    assert found.message == f'podset "small" requests {replicas} pods, 2 were admitted'


@pytest.mark.requirement("SLC-03")
@pytest.mark.field_note("E13")
@pytest.mark.parametrize(
    "groups",
    [
        [composite.worker_group("small", 2, cpu="2")],
        [composite.worker_group("small", 2), composite.worker_group("big", 1)],
        [composite.worker_group("other", 2)],
        [composite.worker_group("small", 2, annotations={"a": "b"})],
    ],
    ids=["resources", "group added", "group renamed", "annotation"],
)
@pytest.mark.parametrize("gates", [None, GATE])
def test_another_template_or_group_is_a_change_whatever_the_gate(
    groups: list[dict[str, Any]], gates: Mapping[str, bool] | None
) -> None:
    found = step(
        running(groups, autoscaling=True), running(autoscaling=True), elastic=True, gates=gates
    )
    assert isinstance(found, actions.EvictWorkload)
    assert found.reason == "JobChanged"


def test_a_cluster_that_stops_scaling_itself_is_changed() -> None:
    found = step(running(), running(autoscaling=True), elastic=True, gates=GATE)
    assert isinstance(found, actions.EvictWorkload)


def test_what_a_flavor_adds_is_no_change() -> None:
    group = composite.worker_group("small", 2)
    group["template"]["spec"]["nodeSelector"] = {"zone": "a"}
    brought = composite.worker_group("small", 2)
    brought["template"]["spec"] |= {
        "nodeSelector": {"zone": "a", "pool": "tas"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
    }
    was = running([group])
    assert isinstance(step(running([brought]), was), actions.NoAction)
    lost = composite.worker_group("small", 2)
    assert isinstance(step(running([lost]), was), actions.EvictWorkload)


def test_lost_marks_of_a_running_cluster_are_put_back() -> None:
    of = running()
    own = own_workload(of, topology=True, conditions=UP)
    assert plan_job(of, [own], facts(of, own)) == actions.ReapplyInjection(own)
    marked = composite.worker_group("small", 2)
    marks = {
        "labels": {names.PODSET_LABEL: "small"},
        "annotations": {names.WORKLOAD_ANNOTATION: own.metadata.name},
    }
    marked["template"]["metadata"] = marks
    marked["template"]["spec"]["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    plain = own_workload(of, conditions=UP)
    assert isinstance(plan_job(of, [plain], facts(of, plain)), actions.NoAction)
    elastic = own_workload(of, elastic=True, conditions=UP)
    assert plan_job(of, [elastic], facts(of, elastic)) == actions.ReapplyInjection(elastic)


@pytest.mark.parametrize(
    ("ready", "reminded", "wanted"),
    [
        (1, {}, actions.RequestReconcile),
        (1, {names.RECONCILE_REQUESTED_ANNOTATION: "6"}, actions.RequestReconcile),
        (1, {names.RECONCILE_REQUESTED_ANNOTATION: "7"}, actions.NoAction),
        (2, {}, actions.NoAction),
    ],
    ids=["overdue", "reminded before the last change", "reminded", "ready"],
)
def test_an_operator_whose_pods_are_overdue_is_reminded_once_for_each_generation(
    ready: int, reminded: dict[str, str], wanted: type[actions.Action]
) -> None:
    of = cluster(suspend=False, started=True, status=ray_status(ready, HeadPodReady=True))
    meta = of.metadata
    meta = msgspec.structs.replace(meta, generation=7, annotations=meta.annotations | reminded)
    of = msgspec.structs.replace(of, metadata=meta)
    conditions = {"PodsReady": "Started" if ready == 2 else "WaitForStart"}
    own = own_workload(of, conditions=conditions)
    if ready < 2:  # what the builder writes is True
        own = _not_ready(own)
    assert isinstance(plan_job(of, [own], facts(of, own)), wanted)


def _not_ready(own: Workload) -> Workload:
    false = tuple(
        msgspec.structs.replace(c, status="False") if c.type == "PodsReady" else c
        for c in own.status.conditions
    )
    return msgspec.structs.replace(
        own, status=msgspec.structs.replace(own.status, conditions=false)
    )


@pytest.mark.requirement("SLC-02")
def test_an_elastic_cluster_gets_a_marked_workload() -> None:
    of = cluster(autoscaling=True)
    made = plan_job(of, [], facts(of, gates=GATE))
    assert isinstance(made, actions.CreateWorkload)
    assert made.elastic
    for plain in (
        plan_job(of, [], facts(of)),
        plan_job(cluster(), [], facts(cluster(), gates=GATE)),
    ):
        assert isinstance(plain, actions.CreateWorkload)
        assert not plain.elastic


def test_before_it_starts_an_elastic_cluster_may_have_any_count() -> None:
    was, now = (
        cluster(autoscaling=True),
        cluster([composite.worker_group("small", 4)], autoscaling=True),
    )
    assert isinstance(step(now, was, elastic=True, gates=GATE), actions.StartJob)
    assert isinstance(step(now, was), actions.EvictWorkload)


def test_an_elastic_cluster_that_somebody_else_started_is_stopped() -> None:
    of = cluster(suspend=False, autoscaling=True, status=READY)
    found = step(of, of, elastic=True, gates=GATE)
    assert isinstance(found, actions.StopJob)


def test_a_cluster_tells_what_it_asks_for_and_which_pods_leave() -> None:
    small = composite.worker_group(
        "Small", 9, most=4, hosts=2, scaleStrategy={"workersToDelete": ["a", "b"]}
    )
    of = cluster([small, composite.worker_group("big", 0, least=1)])
    manifest = RAYCLUSTER.manifest(of)
    assert RAYCLUSTER.requested_counts(manifest) == {
        "head": RequestedCount(1),
        "small": RequestedCount(8, 2),
        "big": RequestedCount(1),
    }
    assert RAYCLUSTER.pods_to_delete(manifest) == {"a", "b"}
    assert facts(of).pod_count == 10


@pytest.mark.requirement("STR-11")
@pytest.mark.parametrize(
    ("gates", "elastic"),
    [({}, False), (GATE, False), ({**GATE, ELASTIC_INDEXED_JOBS: True}, True)],
)
def test_an_indexed_job_that_asks_for_it_is_resized_behind_its_own_gate(
    gates: Mapping[str, bool], elastic: bool
) -> None:
    meta = {"annotations": {names.ELASTIC_ANNOTATION: "true"}}
    of = job(completionMode="Indexed", meta=meta)
    assert facts(of, gates=gates).elastic is elastic
    assert not facts(job(completionMode="Indexed"), gates=gates).elastic
    assert not facts(job(meta=meta), gates=gates).elastic


def test_a_plain_job_is_raised_as_ever() -> None:
    raised = job(suspend=False, started=True, count=6, ready=4)
    own = workload(raised, admitted=True, conditions={"PodsReady": ("True", "Started")})
    assert isinstance(plan_job(raised, [own], job_facts(raised, own)), actions.EvictWorkload)


@pytest.mark.requirement("OPS-07")
def test_templates_of_worker_groups_are_restored_under_their_names_alone() -> None:
    """A user may give the groups another order at any time."""
    groups = [composite.worker_group(name, 1) for name in ("small", "large")]
    body = composite.raycluster("ray", groups, suspend=True)
    tests = stop_tests(RAYCLUSTER.decode(json.dumps(body).encode()), StopPhase.RESTORE)
    apply_patch(body, tests)
    body["spec"]["workerGroupSpecs"].reverse()
    with pytest.raises(PatchError):
        apply_patch(body, tests)
    job = {"spec": {"suspend": True, "rayClusterSpec": body["spec"]}, "metadata": {"name": "j"}}
    tests = stop_tests(RAYJOB.decode(json.dumps(job).encode()), StopPhase.RESTORE)
    apply_patch(job, tests)
    assert len(tests) == 3
    body["spec"]["workerGroupSpecs"].reverse()
    with pytest.raises(PatchError):
        apply_patch(job, tests)


def test_a_stop_restores_nothing_of_a_job_that_runs_again() -> None:
    body = composite.jobset("train", [composite.replicated_job("workers", 1)], suspend=True)
    tests = stop_tests(JOBSET.decode(json.dumps(body).encode()), StopPhase.RESTORE)
    apply_patch(body, tests)
    body["spec"]["suspend"] = False
    with pytest.raises(PatchError):
        apply_patch(body, tests)
    assert stop_tests(JOBSET.decode(json.dumps(body).encode()), StopPhase.SUSPEND) == []
