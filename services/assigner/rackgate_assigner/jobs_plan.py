"""What to do next about one Job and its Workload: one table, no I/O.

`plan_job` looks at both as they are now and names one step. Every step changes an object, the
change comes back as a watch event, and the table is asked again; so nothing is remembered between
steps and a process may die after any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rackgate.api import names
from rackgate.api.names import EvictionReason, FinishedReason, WorkloadCondition
from rackgate.govern.job import NextStep, StopPhase
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate_assigner import conditions
from rackgate_assigner.job_facts import (
    Facts,
    creation_marks,
    has_topology,
    name_of,
    pods_given,
    podsets_differ,
    priority_ops,
    spec_ops,
)
from rackgate_assigner.job_steps import (
    CreateWorkload,
    DeleteWorkload,
    EvictWorkload,
    FinishWorkload,
    ForgetPods,
    MarkPods,
    Nothing,
    ReleaseFinalizer,
    ReleaseQuota,
    StartJob,
    Step,
    StopJob,
    UpdateWorkload,
    WarnResize,
)


def plan_job(job: Job, workloads: Sequence[Workload], facts: Facts) -> Step:
    """The next step for a governed Job.

    Args:
        job: as stored now; `governs(job)` holds.
        workloads: all Workloads whose controller is this Job, by uid.
        facts: see `Facts`.
    """
    name = name_of(job)
    workload = next((w for w in workloads if w.metadata.name == name), None)
    extra = next((w for w in workloads if w.metadata.name != name), None)
    if extra is not None and extra.metadata.deletion_timestamp is None:
        return DeleteWorkload(extra, f"the Workload of this Job is {name}")
    if extra is not None and names.IN_USE_FINALIZER in extra.metadata.finalizers:
        return ReleaseFinalizer(extra)
    if workload is None:
        return _without_workload(job, name, facts)
    if workload.metadata.deletion_timestamp is not None:
        return _with_deleted(job, workload, facts)
    if job.finished is not None:
        return _with_finished_job(job, workload)
    if job.metadata.deletion_timestamp is not None:
        return Nothing("the Job is being deleted")
    if workload.is_true(WorkloadCondition.FINISHED):
        return _with_finished_workload(job, workload, facts)
    return _with_live(job, workload, facts)


def plan_unlabelled(job: Job, workload: Workload, facts: Facts) -> Step:
    """The next step for a Job that lost its queue label: it stays suspended, as its user wrote."""
    if job.finished is not None:
        if not workload.is_true(WorkloadCondition.FINISHED):
            return _with_finished_job(job, workload)
        return _dropped(workload, "the Job is finished and has no queue label")
    if facts.started and not facts.stopped:
        return _stop(facts, "the queue label was removed")
    marks = creation_marks(job)
    if marks:
        return StopJob(NextStep(StopPhase.RESTORE, marks), "the queue label was removed")
    return _dropped(workload, "the queue label was removed")


def plan_orphan(workload: Workload) -> Step:
    """The next step for a Workload whose Job does not exist any more."""
    return _dropped(workload, "its Job does not exist")


def plan_alone(workload: Workload) -> Step:
    """The next step for a Workload without a controller: there is no job to wait for."""
    if names.JOB_UID_LABEL in workload.metadata.labels:
        # Made for a Job that was deleted with its dependents left behind. Its pods, if any, are
        # now pods like others, and count as such on their nodes.
        return _dropped(workload, "its Job does not exist")
    if workload.metadata.deletion_timestamp is not None:
        return _dropped(workload, "")
    evicted = workload.is_true(WorkloadCondition.EVICTED)
    if evicted and workload.status.admission is not None:
        return ReleaseQuota(workload)
    return Nothing("nobody's Workload")


def _stop(facts: Facts, why: str) -> Step:
    if facts.stop.phase in (StopPhase.WAIT, StopPhase.DONE):
        return Nothing(f"{why}: the Job is stopping")
    return StopJob(facts.stop, why)


def _dropped(workload: Workload, why: str) -> Step:
    if workload.metadata.deletion_timestamp is None:
        return DeleteWorkload(workload, why)
    if names.IN_USE_FINALIZER in workload.metadata.finalizers:
        return ReleaseFinalizer(workload)
    return Nothing("the Workload is going away")


def _without_workload(job: Job, name: str, facts: Facts) -> Step:
    if job.finished is not None or job.metadata.deletion_timestamp is not None:
        return Nothing("the Job is over")
    if facts.started or (not job.spec.suspend and job.pod_count > 0):
        return _stop(facts, "it is not admitted")
    if not facts.at_rest:
        return Nothing("the Job is still stopping")
    if job.pod_count == 0:
        return Nothing("the Job asks for no pods")
    if facts.priority.missing is not None:
        return Nothing(facts.priority.missing)
    return CreateWorkload(name)


def _with_deleted(job: Job, workload: Workload, facts: Facts) -> Step:
    if names.IN_USE_FINALIZER not in workload.metadata.finalizers:
        return Nothing("the Workload is going away")
    over = job.finished is not None or job.metadata.deletion_timestamp is not None
    if over or facts.stopped:
        return ReleaseFinalizer(workload)
    return _stop(facts, "its Workload was deleted")


def _with_finished_job(job: Job, workload: Workload) -> Step:
    if not workload.is_true(WorkloadCondition.FINISHED):
        end = job.finished
        failed = end is not None and end.type == "Failed"
        reason = FinishedReason.FAILED if failed else FinishedReason.SUCCEEDED
        message = (end.message if end is not None else "") or f"job {reason.lower()}"
        return FinishWorkload(workload, reason, message)
    if names.IN_USE_FINALIZER in workload.metadata.finalizers:
        return ReleaseFinalizer(workload)
    return Nothing("finished")


def _with_finished_workload(job: Job, workload: Workload, facts: Facts) -> Step:
    if facts.started or not job.spec.suspend:
        return _stop(facts, "its Workload is finished")
    moved = job.metadata.labels.get(names.QUEUE_LABEL, "") != workload.spec.queue_name
    if facts.at_rest and (moved or podsets_differ(workload, facts.podsets)):
        return DeleteWorkload(workload, "the Job was changed after its Workload finished")
    return Nothing("the Workload is finished")


def _with_live(job: Job, workload: Workload, facts: Facts) -> Step:
    if workload.status.admission is None:
        return _with_pending(job, workload, facts)
    if workload.is_true(WorkloadCondition.EVICTED):
        return _with_evicted(workload, facts)
    return _with_admitted(job, workload, facts)


def _with_evicted(workload: Workload, facts: Facts) -> Step:
    if not facts.stopped:
        evicted = workload.condition(WorkloadCondition.EVICTED)
        return _stop(facts, evicted.message if evicted is not None else "evicted")
    return ReleaseQuota(workload)


def _with_pending(job: Job, workload: Workload, facts: Facts) -> Step:
    if facts.started or (not job.spec.suspend and job.pod_count > 0):
        return _stop(facts, "it is not admitted")
    if workload.condition(WorkloadCondition.PODS_READY) is not None:
        return ForgetPods(workload)
    if job.pod_count == 0:
        return DeleteWorkload(workload, "the Job asks for no pods")
    ops = spec_ops(job, workload, facts)
    return UpdateWorkload(workload, ops) if ops else Nothing("waiting for admission")


def _with_admitted(job: Job, workload: Workload, facts: Facts) -> Step:
    if not workload.spec.active:
        return Nothing("deactivated: the scheduling cycle evicts it")
    eviction = _eviction(job, workload, facts)
    if eviction is not None:
        return eviction
    if job.spec.suspend:
        return StartJob(workload) if facts.at_rest else Nothing("the Job is still stopping")
    if not facts.started and has_topology(workload):
        return _stop(facts, "it was not started by Rackgate, so its pods carry no gate")
    ready = _pods_ready_change(job, workload)
    if ready is not None:
        return MarkPods(workload, ready)
    ops = priority_ops(workload, facts.priority)
    if ops:
        return UpdateWorkload(workload, ops)
    given = pods_given(workload)
    if job.pod_count > given:
        return WarnResize(workload, job.pod_count, given)
    return Nothing("running")


def _eviction(job: Job, workload: Workload, facts: Facts) -> EvictWorkload | None:
    """Why an admission has to be taken back from here, if it has to."""
    queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
    if queue != workload.spec.queue_name:
        message = f'the Job moved to queue "{queue}"'
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    if job.spec.suspend and facts.started:
        message = "the running Job was suspended by its owner"
        return EvictWorkload(workload, EvictionReason.JOB_SUSPENDED, message)
    if job.spec.suspend and podsets_differ(workload, facts.podsets):
        message = "the Job was changed before it started"
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    given = pods_given(workload)
    if not job.spec.suspend and job.pod_count > given and not has_topology(workload):
        message = f"the Job asks for {job.pod_count} pods, {given} were admitted"
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    return None


def _pods_ready_change(job: Job, workload: Workload) -> bool | None:
    """The new value of PodsReady, None when nothing changes."""
    wanted = min(pods_given(workload), job.pod_count)
    ready = job.status.ready + job.status.succeeded >= wanted
    wanted_state = conditions.pods_ready(workload, ready=ready)[0]
    present = workload.condition(WorkloadCondition.PODS_READY)
    if present is not None and (present.status, present.reason) == (
        wanted_state.status,
        wanted_state.reason,
    ):
        return None
    return ready
