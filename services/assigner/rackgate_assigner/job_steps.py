"""Steps that bring a Job and its Workload together: `jobs_plan` names one, `jobs` takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rackgate.api.names import FinishedReason
from rackgate.govern.job import NextStep
from rackgate.govern.jsonpatch import JsonPatchOp
from rackgate.wire.kueue import Workload


@dataclass(frozen=True, slots=True)
class Nothing:
    """All is as it should be, or somebody else is to act."""

    why: str


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Make the Job's Workload."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete a Workload that the Job does not need (any more)."""

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
    """Announce that the admission is taken back."""

    workload: Workload
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ForgetPods:
    """Remove PodsReady, which says that the job was started under the present admission."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class ReleaseQuota:
    """Clear the admission: the job has stopped."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class MarkPods:
    """Write whether all pods are ready."""

    workload: Workload
    ready: bool


@dataclass(frozen=True, slots=True)
class StopJob:
    """Take the next write of a stop."""

    next: NextStep
    why: str


@dataclass(frozen=True, slots=True)
class StartJob:
    """Let the Job run under the Workload's admission."""

    workload: Workload


@dataclass(frozen=True, slots=True)
class WarnResize:
    """Tell the user that a running Job asks for more pods than its Workload was given."""

    workload: Workload
    asked: int
    given: int


Step: TypeAlias = (
    Nothing
    | CreateWorkload
    | DeleteWorkload
    | ReleaseFinalizer
    | FinishWorkload
    | UpdateWorkload
    | EvictWorkload
    | ForgetPods
    | ReleaseQuota
    | MarkPods
    | StopJob
    | StartJob
    | WarnResize
)
