"""What the assigner has to know of one kind of job; everything else is the same for all kinds.

A kind answers questions about one object as it is stored now. It decides nothing: the table of
`jobs_plan` does, and knows no kind by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from rackgate.api.resources import Resource
from rackgate.features import Features
from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    StopAction,
    StopPhase,
    restore_ops,
)
from rackgate.jobframework.job.podsets import SUSPEND
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.managed import is_parent_kind
from rackgate.jobframework.templates import Template
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Workload
from rackgate_assigner.workload_slices.model import RequestedCount


class JobLike(Protocol):
    """A job of any kind, as the watches decode it."""

    @property
    def metadata(self) -> Meta:
        """Its metadata."""


V = TypeVar("V", bound=JobLike)


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    failed: bool
    message: str


@dataclass(frozen=True, slots=True)
class StaleChildJob:
    """A child of a stopped job that still carries what an admission brought.

    Attributes:
        job: the child.
        operations: JSON patch operations that take it out; never empty.
    """

    job: Job
    operations: list[JsonPatchOp]


class GenericJob(ABC, Generic[V]):
    """One kind of job: a small adaptor.

    Attributes:
        resource: how the API server serves it.
        controller: the value of `spec.managedBy` that stands for the kind's own controller.
        object_type: the class of its objects.
        needs_reinjection: the marks of a start may get lost while the job runs, because its
            templates may be written then.
        mutable_while_running: its users may write its templates before it has come to rest.
        built_in: every API server serves it.
        reconcile_after_s: its operator may wait in vain for pods of its own that were deleted
            before it saw them. After that many seconds it gives up, but looks only when something
        changes.
    """

    resource: ClassVar[Resource]
    controller: ClassVar[str]
    object_type: ClassVar[type]
    needs_reinjection: ClassVar[bool] = False
    mutable_while_running: ClassVar[bool] = False
    built_in: ClassVar[bool] = False
    reconcile_after_s: ClassVar[float | None] = None

    @property
    def name(self) -> str:
        """The kind as on the wire."""
        return self.resource.kind

    @abstractmethod
    def decode(self, raw: bytes | msgspec.Raw) -> V:
        """One object from JSON, holding memory of its own.

        Raises:
            msgspec.DecodeError: it is none of this kind.
        """

    @abstractmethod
    def managed_by(self, job: V) -> str | None:
        """`spec.managedBy`."""

    @abstractmethod
    def is_suspended(self, job: V) -> bool:
        """Whether `spec.suspend` is true."""

    @abstractmethod
    def templates(self, job: V, *, elastic: bool = False) -> list[PodTemplate]:
        """Its pod templates as stored; `elastic`: their pods wait for grants of their own."""

    @abstractmethod
    def podsets(self, job: V) -> list[dict[str, Any]]:
        """What it asks for now, as a Workload stores it."""

    @abstractmethod
    def is_inactive(self, job: V, children: Sequence[Job]) -> bool:
        """Whether a suspended job runs nothing, so that its templates may be written.

        Args:
            job: as stored, suspended.
            children: its child Jobs, for the kinds that have any.
        """

    def remaining_pods(self, job: V, children: Sequence[Job]) -> int:
        """Pods of a suspended or leaving job that its status tells of, as far as it does.

        Args:
            job: as stored.
            children: its child Jobs, for the kinds that have any.
        """
        del job, children
        return 0

    @abstractmethod
    def pods_ready(self, job: V, admitted: Mapping[str, int]) -> bool:
        """Whether all pods that should run by now are ready, or have succeeded.

        Args:
            job: as stored, not suspended.
            admitted: pods admitted, by PodSet.
        """

    def starts_in_stages(self, job: V) -> bool:
        """Whether pods may come to be due after others were ready: missing ones need not be lost.

        Args:
            job: as stored.
        """
        del job
        return False

    def wait_for_termination_ops(self, job: V) -> list[JsonPatchOp]:
        """Operations after which a pod of the job is made only when the one before it has ended.

        Written at the start of a job whose pods no gate holds; none where a kind cannot say so.
        """
        del job
        return []

    def finished(self, job: V) -> JobOutcome | None:
        """How it ended; None while it has not. Some kinds only end by being deleted."""
        del job
        return None

    def pod_count(self, job: V) -> int:
        """Pods that it asks for now."""
        return sum(podset["count"] for podset in self.podsets(job))

    def requested_counts(self, job: V) -> dict[str, RequestedCount]:
        """What it asks for now, by PodSet: pods, and how many of them come together."""
        return {podset["name"]: RequestedCount(podset["count"]) for podset in self.podsets(job)}

    def pods_to_delete(self, job: V) -> frozenset[str]:
        """Names of pods that are to be deleted first when it shrinks, for kinds that say so."""
        del job
        return frozenset()

    def is_elastic(self, job: V, features: Features) -> bool:
        """Whether it may be resized while it runs."""
        del job, features
        return False

    def find_change(
        self, job: V, workload: Workload, podsets: Sequence[Mapping[str, Any]], *, elastic: bool
    ) -> str | None:
        """Why a running job has to be stopped and queued again; None when it has not.

        Args:
            job: as stored, not suspended, started.
            workload: under which it was started.
            podsets: see `podsets`.
            elastic: other counts than those admitted are a resize and no change.
        """
        del job, workload, podsets, elastic
        return None

    def reclaimable_pods(self, job: V) -> Mapping[str, int]:
        """Pods that are done and come no more, by PodSet; PodSets without any are left out."""
        del job
        return {}

    def stale_child_jobs(self, job: V, children: Sequence[Job]) -> list[StaleChildJob]:
        """Children of a suspended, inactive job that carry more than its templates now say."""
        del job, children
        return []

    def next_stop_action(
        self,
        job: V,
        originals: Mapping[str, Template],
        children: Sequence[Job],
        podset_infos: Mapping[str, PodSetInfo],
    ) -> StopAction:
        """What a stop must do next, judged from what is stored, so that a crash can be resumed.

        Args:
            job: as stored.
            originals: its user's templates by PodSet, as the Workload keeps them.
            children: its child Jobs.
            podset_infos: what the start brought into templates, where that is certain; by PodSet.
        """
        if not self.is_suspended(job):
            return StopAction(StopPhase.SUSPEND, [dict(SUSPEND)])
        if not self.is_inactive(job, children):
            return StopAction(StopPhase.WAIT, [])
        operations = restore_ops(self.templates(job), originals, podset_infos)
        return StopAction(StopPhase.RESTORE if operations else StopPhase.DONE, operations)


def stopping_pods(job: Job) -> int:
    """Pods that a Job which is suspended, or being deleted, still has; 0 for all others."""
    if not (job.spec.suspend or job.metadata.deletion_timestamp) or job.finished is not None:
        return 0
    return job.status.active + job.status.terminating


def is_child_of_job(meta: Meta) -> bool:
    """Whether a JobSet or a RayCluster controls the object: it starts and stops with that."""
    owner = meta.controller
    return owner is not None and is_parent_kind(owner.api_version, owner.kind)


def copy_raw(raw: msgspec.Raw) -> msgspec.Raw:
    """The same JSON in memory of its own, so that it keeps no event of a watch alive."""
    return msgspec.Raw(bytes(raw))
