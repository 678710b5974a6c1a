"""The next action for one job and its Workload; the same for all kinds. Pure.

`plan_job` reads the current state of both and returns one action. Every action changes an object,
the change arrives as a watch event, and the plan is computed again. So no state is kept between
actions, and a process may end after any of them.

In order of precedence: surplus Workloads are deleted; a missing Workload is created; a deleted or
finished one is released once the job has stopped; a pending one is updated from its job; an
admitted one is evicted, started, or kept up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rackgate.api import names
from rackgate.api.names import (
    EvictionReason,
    FinishedReason,
    UnderlyingCause,
    WorkloadCondition,
)
from rackgate.jobframework.generic_job import JobLike, StaleChildJob
from rackgate.jobframework.injection import StopAction, StopPhase
from rackgate.jobframework.jsonpatch import JsonPatchOp, value_test
from rackgate.jobframework.podsets import (
    admitted_podsets_differ,
    has_topology,
    podsets_differ,
    total_pods,
)
from rackgate.jobframework.registry import kind_of
from rackgate.wire.kueue import RequeueState, Workload
from rackgate_assigner.gangs.reactions import GangCheck
from rackgate_assigner.gangs.run_spec import NO_GANG, JobGang
from rackgate_assigner.jobs.patches import (
    done_pods_ops,
    finalizer_ops,
    priority_ops,
    remove_creation_injection_ops,
    reserved_spec_ops,
    spec_ops,
    unblock_deletion_ops,
)
from rackgate_assigner.jobs.state import (
    GangTimedOut,
    JobState,
    is_owned_by,
    nesting_differs,
    own_workload,
    workload_name_of,
)
from rackgate_assigner.workload import conditions
from rackgate_assigner.workload.execution_time import ExecutionTime
from rackgate_assigner.workload.pods_ready_timeout import TimedOut
from rackgate_assigner.workload.status import NO_REQUEUE

RETENTION_OVER: Final = "its retention time is over"


@dataclass(frozen=True, slots=True)
class NoAction:
    """Nothing to do, or another controller acts."""

    why: str


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create the job's Workload.

    Attributes:
        elastic: it may be resized while its job runs.
        again: the job had a Workload before.
    """

    name: str
    elastic: bool = False
    gang: JobGang = NO_GANG
    again: bool = False


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete a Workload that the job does not need (any more)."""

    workload: Workload
    why: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete a stopped job, unless its Workload changes meanwhile."""

    workload: Workload
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseFinalizer:
    """Remove the finalizer of a Workload: none of its pods run."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class FinishWorkload:
    """Write condition Finished."""

    workload: Workload
    reason: FinishedReason
    message: str


@dataclass(frozen=True, slots=True)
class UpdateWorkload:
    """Update the Workload."""

    workload: Workload
    ops: tuple[JsonPatchOp, ...]


@dataclass(frozen=True, slots=True)
class EvictWorkload:
    """Write condition Evicted.

    Attributes:
        requeue: time of the requeue; None: as soon as its job has stopped.
        underlying_cause: why, if the reason is more general; else "".
    """

    workload: Workload
    reason: str
    message: str
    requeue: RequeueState | None = None
    underlying_cause: str = ""


@dataclass(frozen=True, slots=True)
class DeactivateWorkload:
    """Set `spec.active` of a Workload with quota to false; the scheduling cycle then evicts it."""

    workload: Workload
    cause: str
    message: str


@dataclass(frozen=True, slots=True)
class RequeueWorkload:
    """Queue an evicted Workload again: its backoff is over, or does not apply any more."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class RemovePodsReady:
    """Remove PodsReady, which means that the job was started under the present admission."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class ReleaseQuota:
    """Clear the admission: the job has stopped.

    Attributes:
        past_execution_s: its execution time until now; None if it has no maximum.
    """

    workload: Workload
    past_execution_s: int | None = None


@dataclass(frozen=True, slots=True)
class UpdatePodsReady:
    """Write whether all pods are ready."""

    workload: Workload
    ready: bool


@dataclass(frozen=True, slots=True)
class UpdateReclaimablePods:
    """Write which pods are done and not created again, by PodSet: others may use their quota."""

    workload: Workload
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StopJob:
    """Execute the next write of a stop.

    Attributes:
        unless_admitted: the name of its Workload, which is read first: the job runs, so its
            admission may be newer than what the watch shows. "" if no admission would allow it.
    """

    action: StopAction
    why: str
    unless_admitted: str = ""


@dataclass(frozen=True, slots=True)
class CompleteStop:
    """Do what the controller of a suspended job has not done in time.

    Attributes:
        workload: of the job.
        children: to suspend.
        owners: whose pods are deleted: the job or its children.
        after_s: how long its controller had time.
    """

    workload: Workload
    children: Sequence[JobLike]
    owners: Sequence[JobLike]
    after_s: float


@dataclass(frozen=True, slots=True)
class RestoreChildJobs:
    """Remove injected fields of an earlier admission from children of a stopped job."""

    children: Sequence[StaleChildJob]
    why: str


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start the job under the Workload's admission."""

    workload: Workload
    gang: JobGang = NO_GANG


@dataclass(frozen=True, slots=True)
class ReapplyInjection:
    """Inject again what templates of a running job lost."""

    workload: Workload
    gang: JobGang = NO_GANG


@dataclass(frozen=True, slots=True)
class RequestReconcile:
    """Make the operator of a running job reconcile, if its pods take longer than `after_s`."""

    workload: Workload
    after_s: float


@dataclass(frozen=True, slots=True)
class CheckGangs:
    """Read the pods of the gangs, and plan again with what they show."""

    workload: Workload
    check: GangCheck


@dataclass(frozen=True, slots=True)
class WarnResize:
    """Warn the user that a running job requests more pods than were admitted."""

    workload: Workload
    requested: int
    admitted: int


Action: TypeAlias = (
    NoAction
    | CreateWorkload
    | DeleteWorkload
    | DeleteJob
    | ReleaseFinalizer
    | FinishWorkload
    | UpdateWorkload
    | EvictWorkload
    | DeactivateWorkload
    | RequeueWorkload
    | RemovePodsReady
    | ReleaseQuota
    | UpdatePodsReady
    | UpdateReclaimablePods
    | StopJob
    | CompleteStop
    | RestoreChildJobs
    | StartJob
    | ReapplyInjection
    | RequestReconcile
    | CheckGangs
    | WarnResize
)


def plan_job(job: JobLike, workloads: Sequence[Workload], job_state: JobState) -> Action:
    """The next action for a managed job.

    Args:
        job: as stored now; `is_managed(job)` is true.
        workloads: all Workloads whose controller is this job, by uid.
        job_state: see `JobState`.
    """
    workload = own_workload(job, workloads)
    name = workload_name_of(job) if workload is None else workload.metadata.name
    others = [found for found in workloads if found is not workload]
    surplus = (_plan_surplus(job, found, name, job_state) for found in others)
    action = next((found for found in surplus if found is not None), None)
    if action is not None:
        return action
    if workload is None:
        return _plan_without_workload(job, name, job_state)
    if workload.metadata.deletion_timestamp is not None:
        return _plan_deleted_workload(job, workload, job_state)
    if job_state.finished is not None:
        return _plan_finished_job(workload, job_state)
    if job.metadata.deletion_timestamp is not None:
        return NoAction(f"the {job_state.kind} is being deleted")
    if workload.is_true(WorkloadCondition.FINISHED):
        return _plan_finished_workload(job, workload, job_state)
    return _plan_active_workload(job, workload, job_state)


def _plan_surplus(
    job: JobLike, workload: Workload, name: str, job_state: JobState
) -> Action | None:
    """What happens to a Workload that the job does not need; None if nothing.

    Slices of Kueue that were replaced are Finished: they stay until their job is deleted.
    """
    finished = workload.is_true(WorkloadCondition.FINISHED)
    if not finished and workload.metadata.deletion_timestamp is None:
        return DeleteWorkload(workload, f"the Workload of this {job_state.kind} is {name}")
    if names.IN_USE_FINALIZER not in workload.metadata.finalizers:
        return None
    if not finished and job_state.live_pods and workload.status.admission is not None:
        return _keep_until_pods_are_gone(job, workload, job_state.live_pods)
    return ReleaseFinalizer(workload)


def plan_unmanaged_job(job: JobLike, workload: Workload, job_state: JobState) -> Action:
    """The next action for a job that lost its queue label: it is stopped and restored."""
    if job_state.finished is not None:
        if not workload.is_true(WorkloadCondition.FINISHED):
            return _plan_finished_job(workload, job_state)
        why = f"the {job_state.kind} is finished and is not managed any more"
        return _delete_workload(workload, why, job_state.live_pods, job)
    why = "the queue label was removed"
    deletions = (job.metadata.deletion_timestamp, workload.metadata.deletion_timestamp)
    if None not in deletions:
        return _delete_workload(workload, why, job_state.live_pods, job)
    if names.QUEUE_LABEL in job.metadata.labels:
        why = f"the {job_state.kind} belongs to another owner"
    if job_state.pods_gone and workload.status.admission is not None:
        if not workload.is_true(WorkloadCondition.EVICTED):
            return EvictWorkload(workload, EvictionReason.JOB_CHANGED, why)
        return _release_quota(workload, job_state.execution)
    if job_state.started and not job_state.stopped:
        return _stop_job(job_state, why)
    operations = remove_creation_injection_ops(job)
    if operations:
        # The change that gives it a queue again also injects them again, into its spec.
        same_spec = value_test("/metadata/generation", job.metadata.generation)
        return StopJob(StopAction(StopPhase.RESTORE, [same_spec, *operations]), why)
    return (
        RestoreChildJobs(job_state.stale_child_jobs, why)
        if job_state.stale_child_jobs
        else _delete_workload(workload, why, job_state.live_pods, job)
    )


def plan_late_stop(
    job: JobLike, workload: Workload, children: Sequence[JobLike], after_s: float
) -> Action:
    """The next action for a suspended job that its controller has not stopped in time.

    Pods of Jobs are left to the Job controller, which deletes them before it writes anything.

    Args:
        job: as stored now.
        workload: of the job.
        children: of all kinds.
        after_s: how long its controller had time.
    """
    running = [child for child in children if may_run(child)]
    kinds = ((one, kind_of(one)) for one in (job, *children))
    owners = [one for one, kind in kinds if not (kind.built_in or kind.child_job_label)]
    if not (running or owners):
        return NoAction(f"the {kind_of(job).name} is stopping")
    return CompleteStop(workload, running, owners, after_s)


def may_run(child: JobLike) -> bool:
    """Whether the child of a job may create pods."""
    kind = kind_of(child)
    return not kind.is_suspended(child) and kind.finished(child) is None


def plan_orphaned_workload(
    workload: Workload, live_pods: int = 0, why: str = "its Job does not exist"
) -> Action:
    """The next action for a Workload whose job no longer exists, or is not its owner any more.

    Args:
        workload: as stored.
        live_pods: live pods of that job; the Workload keeps its quota until they are gone.
        why: for logs.
    """
    return _delete_workload(workload, why, live_pods)


def plan_ownerless_workload(
    workload: Workload,
    live_pods: int = 0,
    execution: ExecutionTime | None = None,
    requeue_in_s: float | None = None,
    *,
    retention_over: bool = False,
) -> Action:
    """The next action for a Workload without a controller: no job can change it.

    Args:
        workload: as stored.
        live_pods: live pods of the job that it was made for.
        execution: its execution time, if it has a maximum.
        requeue_in_s: seconds until it is queued again, None without such a delay.
        retention_over: it has finished, and was kept long enough.
    """
    if names.JOB_UID_LABEL in workload.metadata.labels:
        # Created for a job that was deleted without its dependents, or whose owner reference was
        # removed. It keeps its quota until the pods of that job are gone.
        return _delete_workload(workload, "it has no owner any more", live_pods)
    if workload.metadata.deletion_timestamp is not None:
        return _delete_workload(workload, "")
    if retention_over and workload.is_true(WorkloadCondition.FINISHED):
        return DeleteWorkload(workload, RETENTION_OVER)
    if workload.status.admission is None:
        if _is_backoff_over(workload, requeue_in_s):
            return RequeueWorkload(workload)
        return NoAction("the Workload belongs to no job")
    deactivation = _complete_deactivation(workload)
    if deactivation is not None:
        return deactivation
    if workload.is_true(WorkloadCondition.EVICTED):
        return _release_quota(workload, execution)
    if workload.spec.active and execution is not None and execution.remaining_s <= 0:
        return _exceed_execution_time(workload)
    return NoAction("the Workload belongs to no job")


def _stop_job(job_state: JobState, why: str, unless_admitted: str = "") -> Action:
    if job_state.stop.phase is StopPhase.DONE and job_state.stale_child_jobs:
        return RestoreChildJobs(job_state.stale_child_jobs, why)
    if job_state.stop.phase in (StopPhase.WAIT, StopPhase.DONE):
        return NoAction(f"{why}: the {job_state.kind} is stopping")
    if job_state.stop.phase is not StopPhase.SUSPEND:
        unless_admitted = ""  # it does not run
    return StopJob(job_state.stop, why, unless_admitted)


def _delete_workload(
    workload: Workload, why: str, live_pods: int = 0, job: JobLike | None = None
) -> Action:
    if workload.metadata.deletion_timestamp is None:
        return DeleteWorkload(workload, why)
    if live_pods:
        return _keep_until_pods_are_gone(job, workload, live_pods)
    if names.IN_USE_FINALIZER in workload.metadata.finalizers:
        return ReleaseFinalizer(workload)
    return NoAction("the Workload is being deleted")


def _keep_until_pods_are_gone(job: JobLike | None, workload: Workload, live_pods: int) -> Action:
    """A deleted Workload keeps its quota, and does not block the deletion of its job."""
    if job is None or job.metadata.deletion_timestamp is None:
        return _wait_for_pods(live_pods)
    ops = unblock_deletion_ops(job, workload)
    return UpdateWorkload(workload, ops) if ops else _wait_for_pods(live_pods)


def _wait_for_pods(live_pods: int) -> NoAction:
    return NoAction(f"it keeps its quota until {live_pods} more pods are gone")


def is_admitted(job: JobLike, workload: Workload | None) -> bool:
    """Whether a Workload, read now, allows that the job runs."""
    return (
        workload is not None
        and is_owned_by(workload, job.metadata.uid)
        and workload.metadata.deletion_timestamp is None
        and workload.spec.active
        and workload.status.admission is not None
        and workload.is_true(WorkloadCondition.ADMITTED)
        and not workload.is_true(WorkloadCondition.EVICTED)
        and not workload.is_true(WorkloadCondition.FINISHED)
    )


def _runs_unadmitted(job_state: JobState) -> bool:
    return job_state.started or (not job_state.suspended and job_state.pod_count > 0)


def _plan_without_workload(job: JobLike, name: str, job_state: JobState) -> Action:
    if job_state.finished is not None or job.metadata.deletion_timestamp is not None:
        return NoAction(f"the {job_state.kind} has finished")
    if _runs_unadmitted(job_state):
        return _stop_job(job_state, "it is not admitted", name)
    if not job_state.inactive:
        return NoAction(f"the {job_state.kind} is still stopping")
    if job_state.pod_count == 0:
        return NoAction(f"the {job_state.kind} requests no pods")
    if job_state.priority.missing is not None:
        return NoAction(job_state.priority.missing)
    if job_state.gang.is_own and job_state.gang.missing:
        return NoAction(f"it waits for its Workload of gangs {job_state.gang.missing}")
    return CreateWorkload(name, job_state.elastic, job_state.gang)


def _plan_deleted_workload(job: JobLike, workload: Workload, job_state: JobState) -> Action:
    if names.IN_USE_FINALIZER not in workload.metadata.finalizers:
        return NoAction("the Workload is being deleted")
    # The pods of a Job that is being deleted keep running as long as a finalizer keeps it.
    over = job_state.finished is not None or job.metadata.deletion_timestamp is not None
    if over and job_state.live_pods:
        return _keep_until_pods_are_gone(job, workload, job_state.live_pods)
    if over or not job_state.holds_quota:
        return ReleaseFinalizer(workload)
    return _stop_job(job_state, "its Workload was deleted")


def _plan_finished_job(workload: Workload, job_state: JobState) -> Action:
    if not workload.is_true(WorkloadCondition.FINISHED):
        outcome = job_state.finished
        failed = outcome is not None and outcome.failed
        reason = FinishedReason.FAILED if failed else FinishedReason.SUCCEEDED
        message = (outcome.message if outcome is not None else "") or f"job {reason.lower()}"
        return FinishWorkload(workload, reason, message)
    if job_state.live_pods:
        return _wait_for_pods(job_state.live_pods)
    if names.IN_USE_FINALIZER in workload.metadata.finalizers:
        return ReleaseFinalizer(workload)
    if job_state.retention_over:
        return DeleteWorkload(workload, RETENTION_OVER)
    return NoAction("finished")


def _plan_finished_workload(job: JobLike, workload: Workload, job_state: JobState) -> Action:
    if job_state.started or not job_state.suspended:
        return _stop_job(job_state, "its Workload is finished")
    queue_changed = job.metadata.labels.get(names.QUEUE_LABEL, "") != workload.spec.queue_name
    if job_state.inactive and (
        queue_changed or job_state.runs_again or podsets_differ(workload, job_state.podsets)
    ):
        return DeleteWorkload(
            workload, f"the {job_state.kind} was changed after its Workload finished"
        )
    return NoAction("the Workload is finished")


def _plan_active_workload(job: JobLike, workload: Workload, job_state: JobState) -> Action:
    operations = (*finalizer_ops(workload), *job_state.workload_ops)
    if operations:
        return UpdateWorkload(workload, operations)
    if workload.status.admission is None:
        return _plan_pending(job, workload, job_state)
    deactivation = _complete_deactivation(workload)
    if deactivation is not None:
        return deactivation
    if workload.is_true(WorkloadCondition.EVICTED):
        return _plan_evicted(workload, job_state)
    if not workload.is_true(WorkloadCondition.ADMITTED):
        return _plan_reserved(job, workload, job_state)
    return _plan_admitted(job, workload, job_state)


def _complete_deactivation(workload: Workload) -> DeactivateWorkload | None:
    """The deactivation of a Workload with quota, if the first of its two writes was made."""
    target = workload.condition(WorkloadCondition.DEACTIVATION_TARGET)
    if not workload.spec.active or target is None or target.status != conditions.TRUE:
        return None
    return DeactivateWorkload(workload, target.reason, target.message)


def _is_backoff_over(workload: Workload, requeue_in_s: float | None) -> bool:
    """Whether a Workload without quota is queued again, or was deactivated and starts over."""
    if not workload.spec.active:
        return workload.status.requeue_state not in (None, NO_REQUEUE)
    return requeue_in_s is not None and requeue_in_s <= 0


def _plan_evicted(workload: Workload, job_state: JobState) -> Action:
    if job_state.holds_quota:
        evicted = workload.condition(WorkloadCondition.EVICTED)
        why = evicted.message if evicted is not None else "evicted"
        return _stop_job(job_state, why, workload.metadata.name)
    return _release_quota(workload, job_state.execution)


def _plan_pending(job: JobLike, workload: Workload, job_state: JobState) -> Action:
    if _runs_unadmitted(job_state):
        return _stop_job(job_state, "it is not admitted", workload.metadata.name)
    if workload.condition(WorkloadCondition.PODS_READY) is not None:
        return RemovePodsReady(workload)
    if job_state.pod_count == 0:
        return DeleteWorkload(workload, f"the {job_state.kind} requests no pods")
    if _is_backoff_over(workload, job_state.requeue_in_s):
        return RequeueWorkload(workload)
    ops = spec_ops(job, workload, job_state)
    if ops:
        return UpdateWorkload(workload, ops)
    if reclaimed_pods(workload) != dict(job_state.reclaimable_pods):
        return UpdateReclaimablePods(
            workload, job_state.reclaimable_pods
        )  # there is no quota to release
    if not job_state.stopped:
        return _stop_job(job_state, "it is pending")
    if job_state.retention_over and not workload.spec.active:
        return DeleteJob(workload, f"the Workload was deactivated, and {RETENTION_OVER}")
    return NoAction("pending")


def _plan_reserved(job: JobLike, workload: Workload, job_state: JobState) -> Action:
    """A Workload that has quota and waits for its admission checks: its job must not run."""
    if not workload.spec.active:
        return NoAction("deactivated: the scheduling cycle evicts it")
    eviction = _find_eviction(job, workload, job_state)
    if eviction is not None:
        return eviction
    if _runs_unadmitted(job_state) or not job_state.stopped:
        why = "its admission checks are not Ready"
        return _stop_job(job_state, why, workload.metadata.name)
    if workload.condition(WorkloadCondition.PODS_READY) is not None:
        return RemovePodsReady(workload)  # of an earlier admission
    ops = reserved_spec_ops(job, workload, job_state)
    return UpdateWorkload(workload, ops) if ops else NoAction("it waits for its admission checks")


def _plan_admitted(job: JobLike, workload: Workload, job_state: JobState) -> Action:
    if not workload.spec.active:
        return NoAction("deactivated: the scheduling cycle evicts it")
    eviction = _find_eviction(job, workload, job_state)
    if eviction is not None:
        return eviction
    gang = job_state.gang
    if job_state.suspended:
        if not job_state.stopped:
            return _stop_job(job_state, "it is about to start")
        if gang.missing:  # its own: it is made again
            return NoAction(f"it waits for its Workload of gangs {gang.missing}")
        ops = done_pods_ops(workload, job_state.done_pods)
        return UpdateWorkload(workload, ops) if ops else StartJob(workload, gang)
    has_gates = has_topology(workload) or workload.elastic or bool(gang.links)
    if not job_state.started and has_gates:
        return _stop_job(job_state, "it was not started by Rackgate, so its pods have no gate")
    return _plan_running(workload, job_state)


def _plan_running(workload: Workload, job_state: JobState) -> Action:
    if job_state.injection_lost:
        return ReapplyInjection(workload, job_state.gang)
    if _pods_ready_changed(workload, job_state):
        return UpdatePodsReady(workload, job_state.ready)
    counts = _updated_reclaimable_pods(workload, job_state)
    if counts is not None:
        return UpdateReclaimablePods(workload, counts)
    # Not while all pods run or are done: no gang waits then, and each pod that ends is a write.
    if not job_state.ready and (ops := done_pods_ops(workload, job_state.done_pods)):
        return UpdateWorkload(workload, ops)
    ops = priority_ops(workload, job_state.priority)
    if ops:
        return UpdateWorkload(workload, ops)
    admitted = total_pods(workload)
    if job_state.pod_count > admitted and not workload.elastic:
        return WarnResize(workload, job_state.pod_count, admitted)
    if job_state.reconcile_after_s is not None:
        return RequestReconcile(workload, job_state.reconcile_after_s)
    return NoAction("running")


def _find_eviction(
    job: JobLike, workload: Workload, job_state: JobState
) -> EvictWorkload | DeactivateWorkload | CheckGangs | None:
    """The eviction that the job or its pods require; None if there is no reason."""
    queue = job.metadata.labels.get(names.QUEUE_LABEL, "")
    if queue != workload.spec.queue_name:
        message = f'the {job_state.kind} moved to queue "{queue}"'
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    if job_state.suspended and job_state.started:
        message = f"the running {job_state.kind} was suspended by its owner"
        return EvictWorkload(workload, EvictionReason.JOB_SUSPENDED, message)
    resizable = job_state.elastic and workload.elastic
    gang = job_state.gang
    if job_state.suspended and (
        admitted_podsets_differ(
            workload,
            kind_of(job).as_stored(job_state.podsets, workload),
            resizable=resizable,
        )
        or nesting_differs(workload, gang)
    ):
        message = f"the {job_state.kind} was changed before it started"
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    if job_state.suspended and gang.missing and not gang.is_own:
        message = (
            f'the Workload of gangs "{gang.missing}" was deleted before the start, or has another '
            "owner now"
        )
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    if job_state.change is not None:
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, job_state.change)
    if job_state.beyond_admission:
        message = (
            f"{job_state.beyond_admission} pods of the {job_state.kind} run beyond the "
            f"{total_pods(workload)} that "
            "were admitted"
        )
        return EvictWorkload(workload, EvictionReason.PODS_BEYOND_ADMISSION, message)
    if job_state.execution is not None and job_state.execution.remaining_s <= 0:
        return _exceed_execution_time(workload)
    if job_state.timed_out is not None:
        return _time_out(workload, job_state.timed_out)
    if job_state.gang_eviction is not None:
        return _evict_gang(workload, job_state.gang_eviction)
    if job_state.gang_check is not None:
        return CheckGangs(workload, job_state.gang_check)
    restarted = _describe_restarted_pods(workload, job_state)
    if restarted and not job_state.suspended:
        message = f"pods that were done, and whose quota others may use, came back: {restarted}"
        return EvictWorkload(workload, EvictionReason.JOB_CHANGED, message)
    return None


def _exceed_execution_time(workload: Workload) -> DeactivateWorkload:
    cause = UnderlyingCause.MAXIMUM_EXECUTION_TIME_EXCEEDED
    return DeactivateWorkload(workload, cause, "exceeding the maximum execution time")


def _release_quota(workload: Workload, execution: ExecutionTime | None) -> ReleaseQuota:
    return ReleaseQuota(workload, execution.past_s if execution is not None else None)


def _exceed_requeuing_limit(workload: Workload) -> DeactivateWorkload:
    cause = UnderlyingCause.REQUEUING_LIMIT_EXCEEDED
    return DeactivateWorkload(workload, cause, "exceeding the maximum number of re-queuing retries")


def _evict_gang(workload: Workload, found: GangTimedOut) -> EvictWorkload | DeactivateWorkload:
    if found.requeue is None:
        return _exceed_requeuing_limit(workload)
    eviction = found.eviction
    return EvictWorkload(workload, eviction.reason, eviction.message, found.requeue)


def _time_out(workload: Workload, found: TimedOut) -> EvictWorkload | DeactivateWorkload:
    if found.requeue is None:
        return _exceed_requeuing_limit(workload)
    again = " again" if found.cause is UnderlyingCause.WAIT_FOR_RECOVERY else ""
    message = (
        f"Exceeded the PodsReady timeout {workload.metadata.key}: "
        f"not all pods were ready{again} in time"
    )
    return EvictWorkload(
        workload, EvictionReason.PODS_READY_TIMEOUT, message, found.requeue, found.cause
    )


def reclaimed_pods(workload: Workload) -> dict[str, int]:
    """Done pods according to the Workload, by PodSet."""
    return {found.name: found.count for found in workload.status.reclaimable_pods if found.count}


def _describe_restarted_pods(workload: Workload, job_state: JobState) -> str:
    """PodSets in which fewer pods are done than were reclaimed, each with both numbers."""
    return ", ".join(
        f"pod set {name}: {job_state.reclaimable_pods.get(name, 0)} of {count} are done"
        for name, count in sorted(reclaimed_pods(workload).items())
        if job_state.reclaimable_pods.get(name, 0) < count
    )


def _pods_ready_changed(workload: Workload, job_state: JobState) -> bool:
    """Whether PodsReady must be written.

    It is not written before the pods are ready for the first time: its absence means the same.
    """
    expected = conditions.pods_ready_conditions(workload, ready=job_state.ready)[0]
    current = workload.condition(WorkloadCondition.PODS_READY)
    if current is None:
        return job_state.ready
    return (current.status, current.reason) != (expected.status, expected.reason)


def _updated_reclaimable_pods(workload: Workload, job_state: JobState) -> dict[str, int] | None:
    """The new `reclaimablePods`; None when nothing changes.

    While quota is reserved the numbers only increase: others may already use what was reclaimed.
    If all pods are done, the job is about to finish, and that releases everything.
    """
    if sum(job_state.reclaimable_pods.values()) >= total_pods(workload):
        return None
    current = {found.name: found.count for found in workload.status.reclaimable_pods}
    expected = dict(current)
    for name, count in job_state.reclaimable_pods.items():
        expected[name] = max(count, expected.get(name, 0))
    return expected if expected != current else None
