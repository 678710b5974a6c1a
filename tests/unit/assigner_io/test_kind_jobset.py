from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS, Features
from rackgate.jobframework.injection import PodSetInfo, StopPhase
from rackgate.jobframework.registry import JOBSET, owner_of
from rackgate.wire.batch import Job
from rackgate.wire.core import PriorityClass
from rackgate.wire.kueue import FlavorSpec, ResourceFlavor, Workload
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.jobs.state import (
    Priority,
    is_managed,
    read_job_state,
    resolve_priority,
)
from tests.support import composite_jobs as composite
from tests.unit.assigner_io.builders import workload
from tests.unit.assigner_io.kind_builders import child, facts, jobset, own_workload

GATED = [{"name": names.TOPOLOGY_GATE}, {"name": "somebody/elses"}]


def dirty() -> dict[str, Any]:
    """A child's template that carries what an admission brought, and what others put there."""
    template = composite.pod_template("1")
    template["metadata"] = {
        "labels": {names.PODSET_LABEL: "workers", names.TAS_LABEL: "true", "injected": "x"},
        "annotations": {names.WORKLOAD_ANNOTATION: "w", "jobset.sigs.k8s.io/job-index": "0"},
    }
    template["spec"] |= {
        "nodeSelector": {"pool": "tas", "alpha.jobset.sigs.k8s.io/namespaced-job": "j"},
        "tolerations": [
            {"key": "pool", "operator": "Exists"},
            {"key": "alpha.jobset.sigs.k8s.io/no-schedule", "operator": "Exists"},
        ],
        "schedulingGates": GATED,
    }
    return template


def test_children_are_never_managed_by_themselves() -> None:
    assert not is_managed(child())
    assert is_managed(jobset())
    assert not is_managed(jobset(managedBy="kueue.x-k8s.io/multikueue"))
    assert is_managed(jobset(managedBy="jobset.sigs.k8s.io/jobset-controller"))


def test_a_workload_is_traced_to_its_owner_by_kind_and_group() -> None:
    own = own_workload(jobset())
    assert owner_of(own) == (JOBSET, "ns/train")
    assert owner_of(workload()) is None
    foreign = msgspec.structs.replace(
        own.metadata,
        owner_references=(
            msgspec.structs.replace(own.metadata.owner_references[0], api_version="example.com/v1"),
        ),
    )
    assert owner_of(msgspec.structs.replace(own, metadata=foreign)) is None


def test_the_first_template_names_the_priority_class() -> None:
    first = composite.replicated_job("a", 1)
    first["template"]["spec"]["template"]["spec"]["priorityClassName"] = "urgent"
    of = jobset([first, composite.replicated_job("b", 1)])
    body = {"metadata": {"name": "urgent"}, "value": 7}
    found = resolve_priority(of, {}, {"urgent": msgspec.convert(body, PriorityClass)})
    assert found == Priority(
        7, {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "urgent"}
    )


@pytest.mark.parametrize(
    ("part", "settled"),
    [
        (child(), True),
        (child(finished=True, suspend=False, rest=False), True),
        (child(suspend=False), False),
        (child(rest=False), False),
        (child(deleted=True), False),
    ],
    ids=["at rest", "finished", "not suspended", "still active", "on its way out"],
)
def test_a_jobset_is_at_rest_when_every_child_is(part: Job, settled: bool) -> None:
    found = facts(jobset(started=True), None, [child(1), part])
    assert found.inactive is settled
    assert (found.stop.phase is StopPhase.WAIT) is not settled


@pytest.mark.requirement("TAS-26")
def test_quota_is_released_only_when_children_are_clean_too() -> None:
    of = jobset()
    own = own_workload(of, conditions={"Evicted": "ClusterQueueStopped"})
    parts = [child(0, template=dirty()), child(1)]
    found = plan_job(of, [own], facts(of, own, parts))
    assert isinstance(found, actions.RestoreChildJobs)
    assert [part.job.metadata.name for part in found.children] == ["train-workers-0"]
    assert plan_job(of, [own], facts(of, own, [child(1)])) == actions.ReleaseQuota(own)


def test_a_start_waits_for_clean_children() -> None:
    of, parts = jobset(), [child(template=dirty())]
    own = own_workload(of)
    assert isinstance(plan_job(of, [own], facts(of, own, parts)), actions.RestoreChildJobs)
    assert plan_job(of, [own], facts(of, own)) == actions.StartJob(own)
    pending = own_workload(of, admitted=False)
    assert isinstance(plan_job(of, [pending], facts(of, pending, parts)), actions.RestoreChildJobs)


@pytest.mark.requirement("TAS-26")
def test_what_a_user_writes_while_his_jobset_stops_outlives_the_stop() -> None:
    part = composite.replicated_job("workers", 3)
    spec = part["template"]["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"disk": "hdd"}
    own = own_workload(jobset([part]))
    flavors = {"tas": ResourceFlavor(spec=FlavorSpec(node_labels={"pool": "tas"}))}
    for written, left in (
        ({"pool": "tas", "disk": "ssd", "zone": "b"}, {"disk": "ssd", "zone": "b"}),
        ({"disk": "ssd"}, {"disk": "ssd"}),
    ):
        spec["nodeSelector"] = written
        of = jobset([part], started=True)
        stop = read_job_state(of, own, Priority(), flavors=flavors).stop
        assert stop.phase is StopPhase.RESTORE
        kept = dict(written)
        for op in stop.operations:
            key = op["path"].rpartition("/nodeSelector/")[2]
            assert op["op"] == "remove"
            kept.pop(key, None)
        assert kept == left


@pytest.mark.requirement("TAS-26")
def test_a_child_loses_what_a_start_adds_and_nothing_else() -> None:
    (stale,) = JOBSET.stale_child_jobs(jobset(), [child(template=dirty())], {})
    written = {op["path"]: op.get("value") for op in stale.operations}
    assert written == {
        "/spec/template/metadata/labels/kueue.x-k8s.io~1podset": None,
        "/spec/template/metadata/labels/kueue.x-k8s.io~1tas": None,
        "/spec/template/metadata/annotations/kueue.x-k8s.io~1workload": None,
        "/spec/template/spec/nodeSelector/pool": None,
        "/spec/template/spec/tolerations": [
            {"key": "alpha.jobset.sigs.k8s.io/no-schedule", "operator": "Exists"}
        ],
        "/spec/template/spec/schedulingGates": [{"name": "somebody/elses"}],
    }


def test_what_the_jobset_itself_has_stays_in_its_children() -> None:
    part = composite.replicated_job("workers", 3, replicas=2)
    part["template"]["spec"]["template"] = dirty()
    assert JOBSET.stale_child_jobs(jobset([part]), [child(template=dirty())], {}) == []


def test_children_that_run_or_are_over_are_left_alone() -> None:
    parts = [child(template=dirty(), rest=False), child(1, template=dirty(), finished=True)]
    assert JOBSET.stale_child_jobs(jobset(), parts, {}) == []
    assert JOBSET.stale_child_jobs(jobset(), [child(template=dirty(), part="unknown")], {}) == []


def test_children_that_run_are_suspended_if_their_controller_does_not_do_it() -> None:
    parts = [child(0, suspend=False), child(1), child(2, suspend=False, finished=True)]
    own = own_workload(jobset())
    found = actions.plan_late_stop(jobset(), own, parts, 10.0)
    assert found == actions.CompleteStop(own, [parts[0]], [], 10.0)
    assert isinstance(actions.plan_late_stop(jobset(), own, parts[1:], 10.0), actions.NoAction)


def test_another_flavor_count_or_template_is_seen_before_the_start() -> None:
    of = jobset()
    other = jobset([composite.replicated_job("workers", 3, replicas=2, cpu="9")])
    own = own_workload(of)
    found = plan_job(other, [own], facts(other, own))
    assert isinstance(found, actions.EvictWorkload)
    assert found.message == "the JobSet was changed before it started"


READY = {"leader": {"ready": 1}, "workers": {"ready": 2}}
PARTS = [composite.replicated_job("leader", 1), composite.replicated_job("workers", 3, replicas=2)]


def depending(on: str) -> list[dict[str, Any]]:
    """The workers wait for the leader."""
    return [PARTS[0], {**PARTS[1], "dependsOn": [{"name": "leader", "status": on}]}]


@pytest.mark.parametrize(
    ("parts", "states", "ready"),
    [
        (PARTS, {}, False),
        (PARTS, {"leader": {"ready": 1}}, False),
        (PARTS, READY, True),
        (PARTS, {"leader": {"succeeded": 1}, "workers": {"ready": 1, "succeeded": 1}}, True),
        (depending("Complete"), {"leader": {"ready": 0}}, False),
        (depending("Complete"), {"leader": {"ready": 1}}, True),
        (depending("Complete"), {"leader": {"succeeded": 1}}, False),
        (depending("Ready"), {"leader": {"ready": 1}}, False),
        (depending("Complete"), {"leader": {"succeeded": 1}, "workers": {"ready": 2}}, True),
    ],
)
def test_pods_are_ready_when_all_jobs_that_are_due_are(
    parts: list[dict[str, Any]], states: dict[str, dict[str, int]], ready: bool
) -> None:
    of = jobset(parts, suspend=False, started=True, states=states)
    assert facts(of, own_workload(of)).ready is ready


@pytest.mark.requirement("TAS-32")
@pytest.mark.parametrize(
    ("parts", "staged"),
    [(PARTS, False), (depending("Ready"), False), (depending("Complete"), True)],
)
def test_jobs_that_follow_others_that_completed_come_to_be_due_later(
    parts: list[dict[str, Any]], staged: bool
) -> None:
    assert JOBSET.starts_in_stages(jobset(parts)) is staged


@pytest.mark.parametrize(
    ("options", "done"),
    [
        ({}, {"workers": 3}),
        ({"failurePolicy": {"maxRestarts": 1}}, {}),
        ({"failurePolicy": {"maxRestarts": 1}, "restarts": 1}, {"workers": 3}),
        ({"failurePolicy": {"rules": [{"action": "RestartJobSetAndIgnoreMaxRestarts"}]}}, {}),
        ({"failurePolicy": {"rules": [{"action": "FailJobSet"}]}}, {"workers": 3}),
    ],
)
def test_pods_that_are_done_are_reported_unless_they_may_come_back(
    options: dict[str, Any], done: dict[str, int]
) -> None:
    states = {"workers": {"ready": 1, "succeeded": 1}}
    of = jobset(suspend=False, started=True, states=states, **options)
    assert facts(of).reclaimable_pods == done


def worked(index: int, succeeded: int, **options: Any) -> Job:
    """A child Job of four pods of which some have succeeded."""
    found = child(index, **options)
    spec = msgspec.structs.replace(found.spec, parallelism=4, completions=4)
    status = msgspec.structs.replace(found.status, succeeded=succeeded)
    return msgspec.structs.replace(found, spec=spec, status=status)


@pytest.mark.requirement("GNG-10")
def test_pods_that_child_jobs_do_not_create_again_are_counted_if_the_jobset_has_gangs() -> None:
    of = jobset(failurePolicy={"maxRestarts": 1})
    parts = [worked(0, 1), worked(1, 0), worked(2, 4, part="Leader"), worked(3, 2, deleted=True)]
    assert facts(of, None, parts).done_pods == {}
    gang = JobGang({"workers": "w"}, "{}")
    found = read_job_state(of, None, Priority(), children=parts, gang=gang)
    assert found.done_pods == {"workers": {"child-0": 1}}, "the leader is in no gang"
    both = JobGang({"workers": "w", "leader": "w"}, "{}")
    found = read_job_state(of, None, Priority(), children=parts, gang=both)
    assert found.done_pods == {"workers": {"child-0": 1}, "leader": {"child-2": 4}}
    found = read_job_state(of, None, Priority(), children=[worked(0, 1, finished=True)], gang=gang)
    assert found.done_pods == {"workers": {"child-0": 4}}, "by its success policy"
    more = msgspec.structs.replace(worked(0, 5).spec, completions=8)
    many = msgspec.structs.replace(worked(0, 5), spec=more)
    found = read_job_state(of, None, Priority(), children=[many], gang=gang)
    assert found.done_pods == {"workers": {"child-0": 1}}, "three of four are needed"


@pytest.mark.requirement("GNG-10")
def test_a_run_starts_when_its_workload_says_which_pods_are_done() -> None:
    of, gang = jobset(), JobGang({"workers": "w"}, "{}")

    def step(own: Workload, *parts: Job) -> actions.Action:
        return plan_job(of, [own], read_job_state(of, own, Priority(), children=parts, gang=gang))

    def told(text: str) -> Workload:
        own = own_workload(of)
        annotations = {names.GANG_DONE_PODS_ANNOTATION: text} if text else {}
        meta = msgspec.structs.replace(own.metadata, annotations=annotations)
        return msgspec.structs.replace(own, metadata=meta)

    text = '{"workers":{"child-0":1}}'
    start = actions.StartJob(told(text), gang)
    assert step(told(text), worked(0, 1)) == start
    assert isinstance(step(told("")), actions.StartJob)
    key = names.GANG_DONE_PODS_ANNOTATION
    path = "/metadata/annotations/scheduling.rackgate.dev~1done-pods"
    of_former = told('{"workers":{"former":4}}')
    found = step(of_former, worked(0, 1))
    assert found == actions.UpdateWorkload(of_former, ({"op": "add", "path": path, "value": text},))
    plain = told("")
    first = {"op": "add", "path": "/metadata/annotations", "value": {key: text}}
    assert step(plain, worked(0, 1)) == actions.UpdateWorkload(plain, (first,))
    found = step(told(text), worked(0, 0))
    assert found == actions.UpdateWorkload(told(text), ({"op": "remove", "path": path},))


@pytest.mark.requirement("GNG-10")
@pytest.mark.parametrize("ready", [True, False])
def test_done_pods_are_written_while_pods_are_missing(*, ready: bool) -> None:
    """No gang waits while all others run, and each pod that ends would be a write."""
    of = jobset(suspend=False, started=True)
    own = own_workload(of, conditions={"PodsReady": "Started"} if ready else None)
    parts, gang = [worked(0, 1)], JobGang({"workers": "w"}, "{}", started=True)
    state = read_job_state(of, own, Priority(), children=parts, gang=gang)
    found = plan_job(of, [own], replace(state, ready=ready))
    assert isinstance(found, actions.UpdateWorkload) is not ready


def test_a_jobset_whose_reclaimed_pods_come_back_queues_again() -> None:
    of = jobset(suspend=False, started=True, states={"workers": {"ready": 1, "succeeded": 1}})
    conditions = {"PodsReady": "Started"}
    own = own_workload(of, conditions=conditions)
    assert plan_job(of, [own], facts(of, own)) == actions.UpdateReclaimablePods(own, {"workers": 3})
    told = own_workload(of, conditions=conditions, reclaimable={"workers": 3})
    assert isinstance(plan_job(of, [told], facts(of, told)), actions.NoAction)
    # What was given back may be others' by now: it never simply grows again.
    told = own_workload(of, conditions=conditions, reclaimable={"workers": 6})
    step = plan_job(of, [told], facts(of, told))
    assert isinstance(step, actions.EvictWorkload)
    assert step.reason == "JobChanged"
    assert step.message.endswith("came back: pod set workers: 3 of 6 are done")


@pytest.mark.requirement("SLC-11", "SLC-02")
def test_a_jobset_is_never_resized_whatever_it_asks_for_and_gates_allow() -> None:
    gates = dict.fromkeys((ELASTIC_JOBS, ELASTIC_INDEXED_JOBS), True)
    for of in (jobset(), jobset(enableInTreeAutoscaling=True)):
        assert not facts(of, gates=gates).elastic
        assert not JOBSET.is_elastic(JOBSET.manifest(of))
        assert not JOBSET.elastic_enabled(Features.of(gates))


def test_labels_of_checks_are_removed_from_children_and_others_stay() -> None:
    left = dirty()
    left.setdefault("metadata", {}).setdefault("labels", {}).update(paid="yes", mine="yes")
    info = PodSetInfo("workers", tas=False, labels={"paid": "yes"}, complete=False)
    (stale,) = JOBSET.stale_child_jobs(jobset(), [child(template=left)], {"workers": info})
    paths = [op["path"] for op in stale.operations]
    assert "/spec/template/metadata/labels/paid" in paths
    assert "/spec/template/metadata/labels/mine" not in paths
