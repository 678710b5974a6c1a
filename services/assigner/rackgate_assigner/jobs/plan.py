"""What to do next about one job and its Workload: one table for all kinds, no I/O.

`plan_job` looks at both as they are now and names one step. Every step changes an object, the
change comes back as a watch event, and the table is asked again; so nothing is remembered between
steps and a process may die after any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rackgate.api import names
from rackgate.api.names import EvictionReason, FinishedReason, WorkloadCondition
from rackgate.jobframework.injection import NextStep, StopPhase
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.actions import (
    CleanParts,
    CreateWorkload,
    DeleteWorkload,
    EvictWorkload,
    FinishWorkload,
    ForgetPods,
    MarkAgain,
    MarkPods,
    Nothing,
    QueueAgain,
    Reclaim,
    ReleaseFinalizer,
    ReleaseQuota,
    Remind,
    StartJob,
    Step,
    StopJob,
    UpdateWorkload,
    WarnResize,
)
from rackgate_assigner.jobs.facts import (
    Facts,
    creation_marks,
    finalizer_ops,
    name_of,
    priority_ops,
    spec_ops,
)
from rackgate_assigner.jobs.kinds import JobLike
from rackgate_assigner.jobs.kinds.podsets import has_topology, pods_given, podsets_differ
from rackgate_assigner.workload import conditions


def plan_job(job: JobLike, workloads: Sequence[Workload], facts: Facts) -> Step:
    """The next step for a governed job.

    Args:
        job: as stored now; `governs(job)` holds.
        workloads: all Workloads whose controller is this job, by uid.
        facts: see `Facts`.
    """
    name = name_of(job)
    workload = next((w for w in workloads if w.metadata.name == name), None)
    extra = next((w for w in workloads if w.metadata.name != name), None)
    if extra is not None and extra.metadata.deletion_timestamp is None:
        return DeleteWorkload(extra, f"the Workload of this {facts.kind} is {name}")
    if extra is not None and names.IN_USE_FINALIZER in extra.metadata.finalizers:
        if facts.living and extra.status.admission is not None:
            return _until_gone(facts.living)
        return ReleaseFinalizer(extra)
    if workload is None:
        return _without_workload(job, name, facts)
    if workload.metadata.deletion_timestamp is not None:
        return _with_deleted(job, workload, facts)
    if facts.end is not None:
        return _with_finished_job(workload, facts)
    if job.metadata.deletion_timestamp is not None:
        return Nothing(f"the {facts.kind} is being deleted")
    if workload.is_true(WorkloadCondition.FINISHED):
        return _with_finished_workload(job, workload, facts)
    return _with_live(job, workload, facts)


def plan_unlabelled(job: JobLike, workload: Workload, facts: Facts) -> Step:
    """The next step for a job that lost its queue label: it stays suspended, as its user wrote."""
    if facts.end is not None:
        if not workload.is_true(WorkloadCondition.FINISHED):
            return _with_finished_job(workload, facts)
        why = f"the {facts.kind} is finished and is not managed any more"
        return _dropped(workload, why, facts.living)
    why = "the queue label was removed"
    if names.QUEUE_LABEL in job.metadata.labels:
        why = f"the {facts.kind} belongs to another owner"
    if facts.started and not facts.stopped:
        return _stop(facts, why)
    marks = creation_marks(job)
    if marks:
        return StopJob(NextStep(StopPhase.RESTORE, marks), why)
    return CleanParts(facts.stale, why) if facts.stale else _dropped(workload, why, facts.living)


def plan_orphan(workload: Workload, living: int = 0, why: str = "its Job does not exist") -> Step:
    """The next step for a Workload whose job does not exist any more, or is not its owner.

    Args:
        workload: as stored.
        living: pods of that job that live; it holds its quota until they are gone.
        why: for logs.
    """
    return _dropped(workload, why, living)


def plan_alone(workload: Workload, living: int = 0) -> Step:
    """The next step for a Workload without a controller: there is no job to wait for."""
    if names.JOB_UID_LABEL in workload.metadata.labels:
        # Made for a job that was deleted with its dependents left behind, or stripped of its
        # owner. It holds its quota until the pods of that job are gone.
        return _dropped(workload, "it has no owner any more", living)
    if workload.metadata.deletion_timestamp is not None:
        return _dropped(workload, "")
    evicted = workload.is_true(WorkloadCondition.EVICTED)
    if evicted and workload.status.admission is not None:
        return ReleaseQuota(workload)
    return Nothing("nobody's Workload")


def _stop(facts: Facts, why: str) -> Step:
    if facts.stop.phase is StopPhase.DONE and facts.stale:
        return CleanParts(facts.stale, why)
    if facts.stop.phase in (StopPhase.WAIT, StopPhase.DONE):
        return Nothing(f"{why}: the {facts.kind} is stopping")
    return StopJob(facts.stop, why)


def _dropped(workload: Workload, why: str, living: int = 0) -> Step:
    if workload.metadata.deletion_timestamp is None:
        return DeleteWorkload(workload, why)
    if living:
        return _until_gone(living)
    if names.IN_USE_FINALIZER in workload.metadata.finalizers:
        return ReleaseFinalizer(workload)
    return Nothing("the Workload is going away")


def _until_gone(living: int) -> Nothing:
    return Nothing(f"it holds its quota until {living} more pods are gone")


def _runs_unadmitted(facts: Facts) -> bool:
    return facts.started or (not facts.suspended and facts.pod_count > 0)


def _without_workload(job: JobLike, name: str, facts: Facts) -> Step:
    if facts.end is not None or job.metadata.deletion_timestamp is not None:
        return Nothing(f"the {facts.kind} is over")
    if _runs_unadmitted(facts):
        return _stop(facts, "it is not admitted")
    if not facts.at_rest:
        return Nothing(f"the {facts.kind} is still stopping")
    if facts.pod_count == 0:
        return Nothing(f"the {facts.kind} asks for no pods")
    if facts.priority.missing is not None:
        return Nothing(facts.priority.missing)
    return CreateWorkload(name, facts.elastic)


def _with_deleted(job: JobLike, workload: Workload, facts: Facts) -> Step:
    if names.IN_USE_FINALIZER not in workload.metadata.finalizers:
        return Nothing("the Workload is going away")
    # The pods of a Job that is being deleted run on for as long as a finalizer keeps it.
    over = facts.end is not None or job.metadata.deletion_timestamp is not None
    if over and facts.living:
        return _until_gone(facts.living)
    if over or facts.stopped:
        return ReleaseFinalizer(workload)
    return _stop(facts, "its Workload was deleted")


def _with_finished_job(workload: Workload, facts: Facts) -> Step:
    if not workload.is_true(WorkloadCondition.FINISHED):
        end = facts.end
        failed = end is not None and end.failed
        reason = FinishedReason.FAILED if failed else FinishedReason.SUCCEEDED
        message = (end.message if end is not None else "") or f"job {reason.lower()}"
        return FinishWorkload(workload, reason, message)
    if facts.living:
        return _until_gone(facts.living)
    if names.IN_USE_FINALIZER in workload.metadata.finalizers:
        return ReleaseFinalizer(workload)
    return Nothing("finished")


def _with_finished_workload(job: JobLike, workload: Workload, facts: Facts) -> Step:
    if facts.started or not facts.suspended:
        return _stop(facts, "its Workload is finished")
    moved = job.metadata.labels.get(names.QUEUE_LABEL, "") != workload.spec.queue_name
    if facts.at_rest and (moved or podsets_differ(workload, facts.podsets)):
        return DeleteWorkload(workload, f"the {facts.kind} was changed after its Workload finished")
    return Nothing("the Workload is finished")


def _with_live(job: JobLike, workload: Workload, facts: Facts) -> Step:
    held = finalizer_ops(workload)
    if held:
        return UpdateWorkload(workload, held)
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


def _with_pending(job: JobLike, workload: Workload, facts: Facts) -> Step:
    if _runs_unadmitted(facts):
        return _stop(facts, "it is not admitted")
    if workload.condition(WorkloadCondition.PODS_READY) is not None:
        return ForgetPods(workload)
    if facts.pod_count == 0:
        return DeleteWorkload(workload, f"the {facts.kind} asks for no pods")
    if facts.paused is not None and (facts.paused <= 0 or not workload.spec.active):
        return QueueAgain(workload)
    ops = spec_ops(job, workload, facts)
    if ops:
        return UpdateWorkload(workload, ops)
    if _done(workload) != dict(facts.reclaimable):
        return Reclaim(workload, facts.reclaimable)  # nothing is held, so nothing is given back
    return Nothing("waiting for admission") if facts.stopped else _stop(facts, "it waits")


def _with_admitted(job: JobLike, workload: Workload, facts: Facts) -> Step:
    if not workload.spec.active:
        return Nothing("deactivated: the scheduling cycle evicts it")
    eviction = _eviction(job, workload, facts)
    if eviction is not None:
        return eviction
    if facts.suspended:
        return StartJob(workload) if facts.stopped else _stop(facts, "it is about to start")
    if not facts.started and (has_topology(workload) or workload.elastic):
        return _stop(facts, "it was not started by Rackgate, so its pods carry no gate")
    return _with_running(workload, facts)


def _with_running(workload: Workload, facts: Facts) -> Step:
    if facts.unmarked:
        return MarkAgain(workload)
    if _pods_ready_changes(workload, facts):
        return MarkPods(workload, facts.ready)
    done = _newly_done(workload, facts)
    if done is not None:
        return Reclaim(workload, done)
    ops = priority_ops(workload, facts.priority)
    if ops:
        return UpdateWorkload(workload, ops)
    given = pods_given(workload)
    if facts.pod_count > given and not workload.elastic:
        return WarnResize(workload, facts.pod_count, given)
    if facts.overdue_s is not None:
        return Remind(workload, facts.overdue_s)
    return Nothing("running")


def _eviction(job: JobLike, workload: Workload, facts: Facts) -> EvictWorkload | None:
    """Why an admission has to be taken back from here, if it has to."""
    queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
    if queue != workload.spec.queue_name:
        message = f'the {facts.kind} moved to queue "{queue}"'
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    if facts.suspended and facts.started:
        message = f"the running {facts.kind} was suspended by its owner"
        return EvictWorkload(workload, EvictionReason.JOB_SUSPENDED, message)
    resizable = facts.elastic and workload.elastic
    if facts.suspended and podsets_differ(workload, facts.podsets, resizable=resizable):
        message = f"the {facts.kind} was changed before it started"
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    if facts.changed is not None:
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, facts.changed)
    if facts.beyond:
        message = (
            f"{facts.beyond} pods of the {facts.kind} run beyond the {pods_given(workload)} that "
            "were admitted"
        )
        return EvictWorkload(workload, EvictionReason.PODS_BEYOND_ADMISSION, message)
    if facts.late is not None:
        key = workload.metadata.key
        message = f"Exceeded the PodsReady timeout {key}: not all pods were ready again in time"
        return EvictWorkload(workload, EvictionReason.PODS_READY_TIMEOUT, message, facts.late)
    came_back = _came_back(workload, facts)
    if came_back and not facts.suspended:
        message = f"pods that were done, and whose quota others may use, came back: {came_back}"
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    return None


def _done(workload: Workload) -> dict[str, int]:
    """Pods that are done, as the Workload says, by PodSet."""
    return {found.name: found.count for found in workload.status.reclaimable_pods if found.count}


def _came_back(workload: Workload, facts: Facts) -> str:
    """PodSets in which fewer pods are done than were given back, each with both numbers."""
    return ", ".join(
        f"pod set {name}: {facts.reclaimable.get(name, 0)} of {count} are done"
        for name, count in sorted(_done(workload).items())
        if facts.reclaimable.get(name, 0) < count
    )


def _pods_ready_changes(workload: Workload, facts: Facts) -> bool:
    """Whether PodsReady has to be written.

    Not before the pods are ready for the first time: a Workload without it says the same.
    """
    wanted = conditions.pods_ready(workload, ready=facts.ready)[0]
    present = workload.condition(WorkloadCondition.PODS_READY)
    if present is None:
        return facts.ready
    return (present.status, present.reason) != (wanted.status, wanted.reason)


def _newly_done(workload: Workload, facts: Facts) -> dict[str, int] | None:
    """What is to be written of pods that are done; None when nothing changes.

    While quota is held the numbers only grow: what was given back may belong to others by now.
    """
    present = {found.name: found.count for found in workload.status.reclaimable_pods}
    wanted = dict(present)
    for name, count in facts.reclaimable.items():
        wanted[name] = max(count, wanted.get(name, 0))
    return wanted if wanted != present else None
