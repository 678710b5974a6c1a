"""Steps that bring a job and its Workload together: `jobs_plan` names one, `jobs` takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rackgate.api.names import FinishedReason
from rackgate.jobframework.injection import StopAction
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.wire.kueue import RequeueState, Workload
from rackgate_assigner.jobs.kinds import StaleChildJob


@dataclass(frozen=True, slots=True)
class NoAction:
    """All is as it should be, or somebody else is to act."""

    why: str


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Make the job's Workload.

    Attributes:
        elastic: it is to be marked as one that may be resized while its job runs.
    """

    name: str
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete a Workload that the job does not need (any more)."""

    workload: Workload
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseFinalizer:
    """Let a Workload go: no job of it runs."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class FinishWorkload:
    """Write that the Workload is over."""

    workload: Workload
    reason: FinishedReason
    message: str


@dataclass(frozen=True, slots=True)
class UpdateWorkload:
    """Bring the Workload's spec up to date: JSON patch operations."""

    workload: Workload
    ops: tuple[JsonPatchOp, ...]


@dataclass(frozen=True, slots=True)
class EvictWorkload:
    """Announce that the admission is taken back.

    Attributes:
        requeue: when it is queued again, where that is not as soon as its job has stopped.
    """

    workload: Workload
    reason: str
    message: str
    requeue: RequeueState | None = None


@dataclass(frozen=True, slots=True)
class RequeueWorkload:
    """Look at an evicted Workload again: its pause is over, or counts no more."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class RemovePodsReady:
    """Remove PodsReady, which says that the job was started under the present admission."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class ReleaseQuota:
    """Clear the admission: the job has stopped."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class UpdatePodsReady:
    """Write whether all pods are ready."""

    workload: Workload
    ready: bool


@dataclass(frozen=True, slots=True)
class UpdateReclaimablePods:
    """Write which pods are done and come no more, by PodSet: what they held is for others."""

    workload: Workload
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StopJob:
    """Take the next write of a stop."""

    action: StopAction
    why: str


@dataclass(frozen=True, slots=True)
class RestoreChildJobs:
    """Take out of children of a stopped job what an earlier admission brought."""

    children: Sequence[StaleChildJob]
    why: str


@dataclass(frozen=True, slots=True)
class StartJob:
    """Let the job run under the Workload's admission."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class ReapplyInjection:
    """Give templates of a running job back the marks of its start."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class RequestReconcile:
    """Have the operator of a running job look again, once its pods are overdue.

    Attributes:
        after_s: how long they may take.
    """

    workload: Workload
    after_s: float


@dataclass(frozen=True, slots=True)
class WarnResize:
    """Tell the user that a running job asks for more pods than its Workload was given."""

    workload: Workload
    requested: int
    admitted: int


Action: TypeAlias = (
    NoAction
    | CreateWorkload
    | DeleteWorkload
    | ReleaseFinalizer
    | FinishWorkload
    | UpdateWorkload
    | EvictWorkload
    | RequeueWorkload
    | RemovePodsReady
    | ReleaseQuota
    | UpdatePodsReady
    | UpdateReclaimablePods
    | StopJob
    | RestoreChildJobs
    | StartJob
    | ReapplyInjection
    | RequestReconcile
    | WarnResize
)
