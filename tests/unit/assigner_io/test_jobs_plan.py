from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import convert, structs

from rackgate.api import names
from rackgate.jobframework.injection import StopPhase
from rackgate.wire.batch import Job, UncountedPods
from rackgate.wire.kueue import PriorityClassRef, RequeueState, Workload
from rackgate_assigner.gangs.reactions import GangCheck, GangEviction
from rackgate_assigner.gangs.run_spec import NO_GANG, JobGang
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.plan import (
    is_admitted,
    plan_job,
    plan_orphaned_workload,
    plan_ownerless_workload,
    plan_unmanaged_job,
)
from rackgate_assigner.jobs.state import (
    GangTimedOut,
    Priority,
    has_foreign_owner,
    is_managed,
    unmanaged_namespaces,
    workload_name_of,
)
from tests.unit.assigner_io.builders import facts, job, template, workload

EVICTED = {"Evicted": ("True", "ClusterQueueStopped")}
READY = {"PodsReady": ("True", "Started")}
FAILED_TO_START = {"Finished": ("True", "FailedToStart")}


def step(of: Job, own: Workload | None = None, priority: Priority | None = None) -> actions.Action:
    return plan_job(of, [own] if own is not None else [], facts(of, own, priority))


def replace_status(of: Job, *, succeeded: int, uncounted: tuple[str, ...]) -> Job:
    status = structs.replace(
        of.status, succeeded=succeeded, uncounted_terminated_pods=UncountedPods(uncounted)
    )
    return structs.replace(of, status=status)


def phase(found: actions.Action) -> StopPhase:
    assert isinstance(found, actions.StopJob)
    return found.action.phase


def test_a_suspended_job_without_a_workload_gets_one() -> None:
    waiting = job()
    assert step(waiting) == actions.CreateWorkload(workload_name_of(waiting))


@pytest.mark.parametrize(
    "waiting",
    [job(count=0), job(finished="Complete"), job(meta={"deletionTimestamp": "2026-08-01"})],
    ids=["no pods", "finished", "deleted"],
)
def test_a_job_that_needs_none_gets_no_workload(waiting: Job) -> None:
    assert isinstance(step(waiting), actions.NoAction)


def test_a_missing_class_delays_the_workload() -> None:
    missing = Priority(missing="WorkloadPriorityClass/high")
    assert isinstance(step(job(), priority=missing), actions.NoAction)


@pytest.mark.requirement("TAS-09")
def test_only_jobs_with_a_queue_label_and_no_foreign_controller_are_managed() -> None:
    assert is_managed(job())
    assert is_managed(job(managedBy="kubernetes.io/job-controller"))
    assert not is_managed(job(queue=None))
    assert not is_managed(job(managedBy="kueue.x-k8s.io/multikueue"))


@pytest.mark.parametrize("namespace", ["kube-system", "rackgate-system"])
def test_labelled_jobs_of_system_namespaces_are_left_alone(namespace: str) -> None:
    assert not is_managed(job(meta={"namespace": namespace}))


@pytest.mark.field_note("W6")
def test_the_namespace_of_the_services_is_left_alone_wherever_they_are() -> None:
    unmanaged = unmanaged_namespaces("team-infra")
    assert not is_managed(job(meta={"namespace": "team-infra"}), unmanaged)
    assert not is_managed(job(meta={"namespace": "kube-system"}), unmanaged)
    assert is_managed(job(meta={"namespace": "rackgate-system"}), unmanaged)


@pytest.mark.requirement("TAS-27")
@pytest.mark.parametrize("own", [None, workload(job())], ids=["no workload", "pending"])
def test_a_job_that_runs_without_admission_is_stopped(own: Workload | None) -> None:
    assert phase(step(job(suspend=False), own)) is StopPhase.SUSPEND


RESERVED = {"Admitted": ("False", "UnsatisfiedAdmissionChecks")}


@pytest.mark.requirement("OPS-06")
@pytest.mark.parametrize(
    "own",
    [
        None,
        workload(job()),
        workload(job(), admitted=True, conditions=RESERVED),
        workload(job(), admitted=True, conditions=EVICTED),
    ],
    ids=["no workload", "pending", "reserved", "evicted"],
)
def test_a_stop_is_unless_the_workload_that_is_seen_late_was_admitted(own: Workload | None) -> None:
    running = job(suspend=False, started=True)
    found = step(running, own)
    assert isinstance(found, actions.StopJob)
    assert found.unless_admitted == workload_name_of(running)


def test_the_restoring_of_a_job_that_does_not_run_needs_no_read() -> None:
    resting = job(started=True)
    found = step(resting, workload(resting, admitted=True, conditions=EVICTED))
    assert phase(found) is StopPhase.RESTORE
    assert isinstance(found, actions.StopJob)
    assert found.unless_admitted == ""


def test_no_admission_allows_a_job_to_run_without_its_gates() -> None:
    running = job(suspend=False)
    found = step(running, workload(running, admitted=True, topology=True))
    assert isinstance(found, actions.StopJob)
    assert found.unless_admitted == ""


@pytest.mark.requirement("OPS-06")
def test_only_a_workload_that_is_admitted_now_allows_that_its_job_runs() -> None:
    running = job(suspend=False)
    own = workload(running, admitted=True)
    assert is_admitted(running, own)
    gone = structs.replace(own.metadata, deletion_timestamp="2026-08-01")
    others = [
        None,
        workload(running),
        workload(running, admitted=True, conditions=RESERVED),
        workload(running, admitted=True, conditions=EVICTED),
        workload(running, admitted=True, conditions=FAILED_TO_START),
        workload(None, admitted=True),
        structs.replace(own, metadata=gone),
        structs.replace(own, spec=structs.replace(own.spec, active=False)),
        structs.replace(own, status=structs.replace(own.status, admission=None)),
    ]
    assert [is_admitted(running, one) for one in others] == [False] * len(others)


@pytest.mark.requirement("TAS-27")
def test_a_topology_job_that_somebody_else_started_is_stopped() -> None:
    running = job(suspend=False)
    assert phase(step(running, workload(running, admitted=True, topology=True))) is (
        StopPhase.SUSPEND
    )


def test_an_admitted_job_is_started_once_it_is_at_rest() -> None:
    waiting = job()
    own = workload(waiting, admitted=True)
    assert step(waiting, own) == actions.StartJob(own)
    assert isinstance(step(job(rest=False, active=2), own), actions.NoAction)


def test_a_started_job_that_its_user_suspends_is_evicted() -> None:
    suspended = job(started=True)
    found = step(suspended, workload(suspended, admitted=True, conditions=READY))
    assert isinstance(found, actions.EvictWorkload)
    assert found.reason == "JobSuspended"


@pytest.mark.requirement("TAS-24", "TAS-26")
def test_an_evicted_job_is_suspended_then_restored_then_released() -> None:
    running = job(suspend=False, started=True, pod=template(nodeSelector={"pool": "tas"}))
    own = workload(running, admitted=True, conditions={**EVICTED, **READY})
    assert phase(step(running, own)) is StopPhase.SUSPEND
    going = job(started=True, rest=False, active=3, pod=template(nodeSelector={"pool": "tas"}))
    assert isinstance(step(going, own), actions.NoAction)
    resting = job(started=True, pod=template(nodeSelector={"pool": "tas"}))
    restore = step(resting, own)
    assert phase(restore) is StopPhase.RESTORE
    assert isinstance(restore, actions.StopJob)
    paths = [op["path"] for op in restore.action.operations]
    assert paths[-1] == "/metadata/annotations/kueue.x-k8s.io~1workload"
    assert any(path.endswith("nodeSelector") for path in paths)
    assert step(job(), own) == actions.ReleaseQuota(own)


def test_pods_ready_is_forgotten_after_the_release() -> None:
    stopped = job()
    own = workload(stopped, conditions={**EVICTED, **READY})
    assert step(stopped, own) == actions.RemovePodsReady(own)


def test_an_evicted_job_that_never_started_keeps_what_its_user_edited() -> None:
    edited = job(pod=template(nodeSelector={"zone": "a"}))
    own = workload(edited, admitted=True, conditions=EVICTED)
    assert step(edited, own) == actions.ReleaseQuota(own)


@pytest.mark.parametrize(
    ("edited", "path"),
    [
        (job(count=6), "/spec/podSets"),
        (job(pod=template(nodeSelector={"zone": "a"})), "/spec/podSets"),
        (job(queue="other"), "/spec/queueName"),
    ],
    ids=["parallelism", "template", "queue"],
)
def test_an_edited_job_updates_its_pending_workload(edited: Job, path: str) -> None:
    found = step(edited, workload(edited))
    assert isinstance(found, actions.UpdateWorkload)
    assert [op["path"] for op in found.ops] == [path]
    admitted = step(edited, workload(edited, admitted=True))
    assert isinstance(admitted, actions.EvictWorkload)
    assert admitted.reason == "JobChanged"


HIGH = {"group": names.GROUP, "kind": "WorkloadPriorityClass", "name": "high"}
LOW = {**HIGH, "name": "low"}
POD_CLASS = {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "low"}
RESERVED = {"Admitted": ("False", "UnsatisfiedAdmissionChecks")}


@pytest.mark.parametrize(
    ("before", "after", "pending", "held"),
    [
        (None, HIGH, [7, HIGH], [7]),
        (LOW, HIGH, [7, HIGH], [7, HIGH]),
        (POD_CLASS, HIGH, [7, HIGH], [7]),
        (LOW, POD_CLASS, [7, POD_CLASS], [7]),
        (LOW, None, [7, None], [7]),
        (HIGH, HIGH, [7], [7]),
    ],
)
def test_a_priority_that_changes_is_taken_over_at_any_time_and_its_class_where_it_may(
    before: Any, after: Any, pending: list[Any], held: list[Any]
) -> None:
    """The API rejects most changes of the class while quota is reserved."""
    runs = job(suspend=False, started=True, ready=4)
    for of, own, wanted in (
        (job(), workload(job()), pending),
        (job(), workload(job(), admitted=True, conditions=RESERVED), held),
        (runs, workload(job(), admitted=True, conditions=READY), held),
    ):
        ref = convert(before, PriorityClassRef | None)
        spec = structs.replace(own.spec, priority_class_ref=ref)
        before_change = structs.replace(own, spec=spec)
        found = step(of, before_change, Priority(7, after))
        assert isinstance(found, actions.UpdateWorkload)
        assert [op.get("value") for op in found.ops] == wanted
        spec = structs.replace(spec, priority=7)
        again = step(of, structs.replace(own, spec=spec), Priority(7, after))
        if own.status.admission is not None and wanted == [7]:
            assert not isinstance(again, actions.UpdateWorkload), "it would be repeated for ever"


def test_raising_a_plain_job_evicts_and_raising_a_topology_job_warns() -> None:
    raised = job(suspend=False, started=True, count=6, ready=4)
    plain = step(raised, workload(raised, admitted=True, conditions=READY))
    assert isinstance(plain, actions.EvictWorkload)
    own = workload(raised, admitted=True, topology=True, conditions=READY)
    assert step(raised, own) == actions.WarnResize(own, 6, 4)


def test_lowering_a_running_job_changes_nothing() -> None:
    lowered = job(suspend=False, started=True, count=2, ready=2)
    own = workload(lowered, admitted=True, conditions=READY)
    assert isinstance(step(lowered, own), actions.NoAction)


def test_a_job_without_pods_has_no_pending_workload() -> None:
    empty = job(count=0)
    assert isinstance(step(empty, workload(empty)), actions.DeleteWorkload)


def test_readiness_is_written_when_it_changes() -> None:
    running = job(suspend=False, started=True, ready=4)
    own = workload(running, admitted=True)
    assert step(running, own) == actions.UpdatePodsReady(own, True)
    ready = workload(running, admitted=True, conditions=READY)
    assert step(job(suspend=False, started=True, ready=3), ready) == actions.UpdatePodsReady(
        ready, False
    )


def test_readiness_is_not_written_before_the_pods_are_ready_for_the_first_time() -> None:
    starting = job(suspend=False, started=True, ready=3)
    assert step(starting, workload(starting, admitted=True)) == actions.NoAction("running")


def test_pods_that_have_ended_and_are_not_counted_yet_are_ready() -> None:
    """Else a Job that is about to complete would be said to have lost its pods."""
    running = job(suspend=False, started=True, ready=1)
    own = workload(running, admitted=True, conditions=READY)
    status = replace_status(running, succeeded=1, uncounted=("u1", "u2"))
    assert step(status, own) == actions.UpdateReclaimablePods(own, {"main": 1})
    assert step(
        replace_status(running, succeeded=1, uncounted=("u1",)), own
    ) == actions.UpdatePodsReady(own, False)


@pytest.mark.parametrize(("end", "reason"), [("Complete", "Succeeded"), ("Failed", "Failed")])
def test_a_finished_job_finishes_its_workload_and_lets_it_go(end: str, reason: str) -> None:
    over = job(suspend=False, started=True, finished=end)
    own = workload(over, admitted=True)
    found = step(over, own)
    assert isinstance(found, actions.FinishWorkload)
    assert (found.reason, found.message) == (reason, "so it ended")
    done = workload(over, admitted=True, conditions={"Finished": ("True", reason)})
    assert step(over, done) == actions.ReleaseFinalizer(done)


def test_a_deleted_workload_is_let_go_only_when_its_job_has_stopped() -> None:
    running = job(suspend=False, started=True)
    own = workload(running, admitted=True, deleted=True)
    assert phase(step(running, own)) is StopPhase.SUSPEND
    assert phase(step(job(started=True), own)) is StopPhase.RESTORE
    assert step(job(), own) == actions.ReleaseFinalizer(own)
    leaving = job(suspend=False, started=True, meta={"deletionTimestamp": "2026-08-01T12:00:00Z"})
    assert step(leaving, own) == actions.ReleaseFinalizer(own)


def test_a_second_workload_of_one_job_is_deleted() -> None:
    waiting = job()
    own, extra = workload(waiting), workload(waiting, name="another")
    assert isinstance(plan_job(waiting, [own, extra], facts(waiting, own)), actions.DeleteWorkload)
    gone = workload(waiting, name="another", deleted=True)
    assert plan_job(waiting, [own, gone], facts(waiting, own)) == actions.ReleaseFinalizer(gone)


def test_a_job_that_failed_to_start_waits_for_an_edit() -> None:
    waiting = job()
    failed = workload(waiting, admitted=True, conditions=FAILED_TO_START)
    assert isinstance(step(waiting, failed), actions.NoAction)
    edited = job(pod=template(nodeSelector={"zone": "a"}))
    assert isinstance(step(edited, failed), actions.DeleteWorkload)
    going = workload(edited, admitted=True, conditions=FAILED_TO_START, deleted=True)
    assert step(edited, going) == actions.ReleaseFinalizer(going)


def test_an_inactive_workload_is_not_started() -> None:
    waiting = job()
    assert isinstance(
        step(waiting, workload(waiting, admitted=True, active=False)), actions.NoAction
    )


def test_a_job_without_label_is_stopped_cleaned_and_then_let_go() -> None:
    marked = job(queue=None, pod=template(schedulingGates=[{"name": names.TOPOLOGY_GATE}]))
    own = workload(marked)
    found = plan_unmanaged_job(marked, own, facts(marked, own))
    assert phase(found) is StopPhase.RESTORE
    clean = job(queue=None)
    assert isinstance(plan_unmanaged_job(clean, own, facts(clean, own)), actions.DeleteWorkload)
    running = job(queue=None, suspend=False, started=True)
    assert phase(plan_unmanaged_job(running, own, facts(running, own))) is StopPhase.SUSPEND


def test_a_workload_that_its_job_left_behind_is_deleted() -> None:
    left = workload(admitted=True, labels={names.JOB_UID_LABEL: "gone"})
    assert isinstance(plan_ownerless_workload(left), actions.DeleteWorkload)
    going = workload(admitted=True, deleted=True, labels={names.JOB_UID_LABEL: "gone"})
    assert plan_ownerless_workload(going) == actions.ReleaseFinalizer(going)


def test_orphans_are_deleted_and_nobodys_workloads_released() -> None:
    own = workload(job())
    assert isinstance(plan_orphaned_workload(own), actions.DeleteWorkload)
    gone = workload(job(), deleted=True)
    assert plan_orphaned_workload(gone) == actions.ReleaseFinalizer(gone)
    evicted = workload(admitted=True, conditions=EVICTED)
    assert plan_ownerless_workload(evicted) == actions.ReleaseQuota(evicted)
    assert isinstance(plan_ownerless_workload(workload(admitted=True)), actions.NoAction)
    leaving = workload(deleted=True)
    assert plan_ownerless_workload(leaving) == actions.ReleaseFinalizer(leaving)


DELETED = {"deletionTimestamp": "2026-08-01T00:00:00Z"}


def living(of: Job, own: Workload, count: int) -> actions.Action:
    return plan_job(of, [own], replace(facts(of, own), live_pods=count))


@pytest.mark.requirement("CAP-02")
def test_quota_and_finalizer_are_held_while_pods_live() -> None:
    stopped = job()
    evicted = workload(stopped, admitted=True, conditions={**EVICTED})
    assert isinstance(living(stopped, evicted, 1), actions.NoAction)
    assert living(stopped, evicted, 0) == actions.ReleaseQuota(evicted)
    for of in (job(meta=DELETED), job(finished="Failed"), stopped):
        going = workload(of, admitted=True, meta=DELETED)
        assert isinstance(living(of, going, 1), actions.NoAction)
        assert living(of, going, 0) == actions.ReleaseFinalizer(going)


@pytest.mark.requirement("CAP-02")
@pytest.mark.parametrize("queue", ["queue", None])
def test_a_deleted_workload_that_waits_for_pods_does_not_block_the_deletion_of_its_job(
    queue: str | None,
) -> None:
    others = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    blocks = {"blockOwnerDeletion": True}

    def step(of: Job, owner: dict[str, Any]) -> actions.Action:
        job_ = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": of.metadata.uid}
        owners = [{**others, **blocks}, {**job_, "controller": True, **owner}]
        own = workload(of, admitted=True, meta={**DELETED, "ownerReferences": owners})
        state = replace(facts(of, own), live_pods=1)
        return plan_job(of, [own], state) if queue else plan_unmanaged_job(of, own, state)

    path = "/metadata/ownerReferences/1/blockOwnerDeletion"
    going = job(queue=queue, meta=DELETED)
    for of in (going, job(queue=queue, suspend=False, started=True, meta=DELETED)):
        found = step(of, blocks)
        assert isinstance(found, actions.UpdateWorkload)
        assert found.ops == ({"op": "replace", "path": path, "value": False},)
    assert isinstance(step(going, {}), actions.NoAction)
    assert not isinstance(step(job(queue=queue), blocks), actions.UpdateWorkload)


def test_a_finished_job_whose_pods_live_keeps_its_workload() -> None:
    over = job(finished="Complete")
    own = workload(over, admitted=True, conditions={"Finished": ("True", "Succeeded")})
    assert isinstance(living(over, own, 1), actions.NoAction)
    assert living(over, own, 0) == actions.ReleaseFinalizer(own)


@pytest.mark.parametrize("plan", [plan_orphaned_workload, plan_ownerless_workload])
def test_a_workload_whose_job_is_gone_is_deleted_and_kept_until_the_pods_are_gone(
    plan: Callable[[Workload, int], actions.Action],
) -> None:
    label = {names.JOB_UID_LABEL: "job"}
    left = workload(job(), admitted=True, labels=label)
    assert isinstance(plan(left, 3), actions.DeleteWorkload)
    going = workload(job(), admitted=True, labels=label, meta=DELETED)
    assert isinstance(plan(going, 3), actions.NoAction)
    assert plan(going, 0) == actions.ReleaseFinalizer(going)


def test_a_job_with_pods_beyond_those_admitted_is_evicted() -> None:
    running = job(suspend=False, started=True)
    own = workload(running, admitted=True, conditions=READY)
    found = plan_job(running, [own], replace(facts(running, own), beyond_admission=36))
    assert isinstance(found, actions.EvictWorkload)
    assert found.reason == "PodsBeyondAdmission"
    assert found.message == "36 pods of the Job run beyond the 4 that were admitted"


def owned(owner: dict[str, Any], labels: dict[str, str]) -> Workload:
    reference = {"apiVersion": names.API_VERSION, "kind": "Workload", "name": "x", **owner}
    meta = {"ownerReferences": [{**reference, "controller": True}], "labels": labels, "uid": "own"}
    return workload(job(), meta=meta)


def test_a_workload_of_a_job_that_names_another_controller_is_found() -> None:
    label = {names.JOB_UID_LABEL: "job"}
    assert not has_foreign_owner(workload(job()))
    assert has_foreign_owner(owned({"uid": "own"}, {}))
    assert has_foreign_owner(owned({"uid": "other", "kind": "ConfigMap"}, label))
    assert not has_foreign_owner(owned({"uid": "job", "kind": "Job"}, label))
    assert not has_foreign_owner(owned({"uid": "other", "kind": "ConfigMap"}, {}))


LINK = {"main": "gangs"}
RUN = JobGang(LINK, "{}")


def planned(of: Job, own: Workload | None, gang: JobGang, **fields: Any) -> actions.Action:
    state = replace(facts(of, own), gang=gang, **fields)
    return plan_job(of, [own] if own is not None else [], state)


@pytest.mark.requirement("GNG-26")
def test_a_job_waits_for_the_workload_of_gangs_that_rackgate_makes() -> None:
    waiting = job()
    own = planned(waiting, None, JobGang(LINK, is_own=True))
    assert own == actions.NoAction("it waits for its Workload of gangs gangs")
    # That of a user may come later: the Workload says so.
    assert isinstance(planned(waiting, None, JobGang(LINK)), actions.CreateWorkload)
    assert isinstance(planned(waiting, None, RUN), actions.CreateWorkload)


@pytest.mark.requirement("GNG-26")
def test_an_admitted_job_does_not_start_without_its_workload_of_gangs() -> None:
    waiting, own = job(), workload(job(), admitted=True)
    assert isinstance(planned(waiting, own, JobGang(LINK, is_own=True)), actions.NoAction)
    gone = planned(waiting, own, JobGang(LINK))
    assert isinstance(gone, actions.EvictWorkload)
    assert gone.reason == "JobChanged"
    assert '"gangs" was deleted before the start' in gone.message
    assert planned(waiting, own, RUN) == actions.StartJob(own, RUN)


def test_gangs_are_read_before_a_job_is_evicted_for_them() -> None:
    running, own = job(suspend=False), workload(job(), admitted=True)
    check = GangCheck("run", {}, "gangs", 60.0)
    assert planned(running, own, NO_GANG, gang_check=check) == actions.CheckGangs(own, check)
    eviction = GangEviction(names.EvictionReason.GANG_TIMEOUT, "why")
    again = RequeueState(1, "2026-08-01T12:00:00Z")
    found = planned(running, own, NO_GANG, gang_eviction=GangTimedOut(eviction, again))
    assert found == actions.EvictWorkload(own, "GangTimeout", "why", again)
    found = planned(running, own, NO_GANG, gang_eviction=GangTimedOut(eviction, None))
    assert isinstance(found, actions.DeactivateWorkload)
    assert found.cause == "RequeuingLimitExceeded"


def test_a_job_that_runs_without_the_gate_of_its_gang_is_stopped() -> None:
    running, own = job(suspend=False), workload(job(), admitted=True)
    assert phase(planned(running, own, RUN)) is StopPhase.SUSPEND
