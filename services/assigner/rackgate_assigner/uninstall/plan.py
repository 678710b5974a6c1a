"""What an uninstall does with one job. Pure.

The templates of a suspended job are restored, and it stays suspended. A running job keeps
running, or is suspended and restored, as the operator chooses: a Job's template cannot be written
while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rackgate.jobframework.generic_job import JobLike, StaleChildJob
from rackgate.jobframework.injection import StopPhase, remove_injection_ops
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.registry import kind_of
from rackgate.jobframework.templates import RESERVED_GATES, gates_of
from rackgate_assigner.jobs.patches import remove_creation_injection_ops
from rackgate_assigner.jobs.state import JobState


class RunningJobsPolicy(StrEnum):
    """What to do with jobs that run."""

    LEAVE = "leave"
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True)
class LeaveRunning:
    """It keeps running.

    Attributes:
        gated: pods created for it from now on have a gate that no one removes.
    """

    gated: bool


@dataclass(frozen=True, slots=True)
class WaitForStop:
    """Its pods are not gone yet."""


@dataclass(frozen=True, slots=True)
class PatchJob:
    """Its next write; operations are never empty."""

    operations: list[JsonPatchOp]


@dataclass(frozen=True, slots=True)
class PatchChildJobs:
    """Writes on its children."""

    children: tuple[StaleChildJob, ...]


RestoreAction = LeaveRunning | WaitForStop | PatchJob | PatchChildJobs


def plan_restore(
    job: JobLike, job_state: JobState, jobs: RunningJobsPolicy
) -> RestoreAction | None:
    """The next action for one managed job; None if it has no fields of Rackgate.

    It follows from what is stored, so it can be repeated.

    Args:
        job: as stored.
        job_state: of the job and its Workload.
        jobs: what to do with jobs that run.
    """
    if job_state.finished is not None or job.metadata.deletion_timestamp is not None:
        return None
    if not job_state.suspended and jobs is RunningJobsPolicy.LEAVE:
        return LeaveRunning(_is_gated(job))
    if job_state.stop.phase is StopPhase.WAIT:
        return WaitForStop()
    if job_state.stop.operations:
        return PatchJob(list(job_state.stop.operations))
    if job_state.stale_child_jobs:
        return PatchChildJobs(tuple(job_state.stale_child_jobs))
    marks = remove_creation_injection_ops(job)
    return PatchJob(marks) if marks else None


def is_untouched(job: JobLike, job_state: JobState, *, queued: bool) -> bool:
    """Whether a job runs and has no fields of Rackgate: no Workload, no label, no gate.

    It is not managed: its namespace is not selected (`managedJobsNamespaceSelector`, a setting that
    the uninstall command cannot read), or it existed before the installation acted.

    Args:
        job: as stored.
        job_state: of the job.
        queued: it has a Workload.
    """
    if queued or job_state.suspended or job_state.started:
        return False
    kind = kind_of(job)
    return not remove_injection_ops(kind.templates(kind.manifest(job)))


def _is_gated(job: JobLike) -> bool:
    kind = kind_of(job)
    return any(
        gate in RESERVED_GATES
        for pod_template in kind.templates(kind.manifest(job))
        for gate in gates_of(pod_template.template)
    )
