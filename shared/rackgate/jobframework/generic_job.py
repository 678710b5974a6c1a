"""What Rackgate has to know of one kind of job; everything else is the same for all kinds.

A kind of job is one folder beside this file, with one subclass of `GenericJob`, and one line in
`registry`. Webhook, assigner, ungater and `rackgate explain` ask it, and name no kind themselves.
It decides nothing: it answers questions about one job, as written or as stored now.

A kind reads a job in two forms:

- the *manifest*: plain JSON, as users write it and webhooks receive it. What becomes a PodSet is
  read from there alone: templates, counts, requests, errors;
- the *job*: what the watches decode, with metadata, `spec.suspend` and status. Its templates stay
  undecoded. `manifest` makes of it the part of the manifest that the first group reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from rackgate.api.resources import Resource
from rackgate.features import Features
from rackgate.jobframework import injection
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.injection import PodSetInfo, PodTemplate, StopAction, StopPhase
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.templates import Template
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Workload

Manifest = Mapping[str, Any]

SUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": True}
UNSUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": False}


class JobSpecLike(Protocol):
    """What the specs of all kinds have."""

    @property
    def suspend(self) -> bool | None:
        """`spec.suspend`."""

    @property
    def managed_by(self) -> str | None:
        """`spec.managedBy`."""


class JobLike(Protocol):
    """A job of any kind, as the watches decode it."""

    @property
    def metadata(self) -> Meta:
        """Its metadata."""

    @property
    def spec(self) -> JobSpecLike:
        """Its spec."""


V = TypeVar("V", bound=JobLike)


class TemplateEdits(IntEnum):
    """When the users of a managed job may write its pod templates.

    Whoever applies a whole manifest then drops what was injected, without meaning to.
    """

    AT_REST = 0
    """Only once its suspension has taken effect."""
    SUSPENDED = 1
    """As soon as `spec.suspend` is true. A manifest applied anew must not look like a change."""
    ANY_TIME = 2
    """Also while it runs, so that what a start injected may get lost."""


@dataclass(frozen=True, slots=True)
class RequestedCount:
    """What a job requests in one PodSet now.

    Attributes:
        pods: in all, never negative.
        slice_size: pods that come and go together, and so share one slice; at least 1.
    """

    pods: int
    slice_size: int = 1


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    failed: bool
    message: str


@dataclass(frozen=True, slots=True)
class StaleChildJob:
    """A child of a stopped job that still carries what an admission injected.

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
        object_type: the class of its decoded objects, with `metadata`, `spec` and `status`.
        controller: the value of `spec.managedBy` that stands for the kind's own controller.
        built_in: every API server serves it.
        template_edits: when users may write the pod templates of a managed job.
        templates_path: of its pod templates, for messages.
        controls_jobs: Jobs that one of these controls start and stop with it, and are never queued
            themselves.
        child_job_label: of the child Jobs that its pods belong to; "" where the job itself controls
            its pods.
        cleanup_labels: of pods that clean up behind a job that is being deleted: one of them
            says so. They are made from its templates, belong to no PodSet, and must run.
        elastic_path: the field by which a job asks to be resized while it runs.
        elastic_advice: how to ask for that, for messages.
        reconcile_after_s: its operator may wait in vain for pods of its own that were deleted
            before it saw them. After that many seconds it gives up, but looks only when something
            changes.
    """

    resource: ClassVar[Resource]
    object_type: ClassVar[type]
    controller: ClassVar[str]
    built_in: ClassVar[bool] = False
    template_edits: ClassVar[TemplateEdits] = TemplateEdits.SUSPENDED
    templates_path: ClassVar[str]
    controls_jobs: ClassVar[bool] = True
    child_job_label: ClassVar[str] = ""
    cleanup_labels: ClassVar[Mapping[str, str]] = {}
    elastic_path: ClassVar[str] = ""
    elastic_advice: ClassVar[str] = ""
    reconcile_after_s: ClassVar[float | None] = None

    def __init__(self) -> None:
        self._decode: Callable[[bytes | msgspec.Raw], Any] = msgspec.json.Decoder(
            self.object_type
        ).decode
        hints = {field.name: field.type for field in msgspec.structs.fields(self.object_type)}
        spec_fields = msgspec.structs.fields(hints["spec"])
        self._raw_fields = [field.name for field in spec_fields if field.type is msgspec.Raw]

    @property
    def name(self) -> str:
        """The kind as on the wire."""
        return self.resource.kind

    def decode(self, raw: bytes | msgspec.Raw) -> V:
        """One object from JSON.

        What stays undecoded is copied, so that the object keeps no event of a watch in memory.

        Raises:
            msgspec.DecodeError: it is none of this kind.
        """
        job: V = self._decode(raw)
        spec: Any = job.spec
        for name in self._raw_fields:
            # Nobody else has seen the object yet.
            msgspec.structs.force_setattr(spec, name, msgspec.Raw(bytes(getattr(spec, name))))
        return job

    # Read from the manifest: PodSets and what is wrong with them.

    @abstractmethod
    def manifest(self, job: V) -> Manifest:
        """The part of a decoded job's manifest that the methods of this group read."""

    @abstractmethod
    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        """Its pod templates; `elastic`: their pods wait for slices of their own.

        Raises:
            MalformedError: a template has a shape that the API server never sends.
        """

    @abstractmethod
    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        """What it requests, as a Workload stores it.

        Templates come without our reserved keys, and with a topologyRequest where they request
        topology. That names the labels which carry the ranks of pods, where pods have ranks.
        """

    @abstractmethod
    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """Pods of each PodSet."""

    def count_units(self, manifest: Manifest) -> Mapping[str, int]:
        """What the pods of each PodSet are always a multiple of, however the job is resized."""
        return self.counts(manifest)

    def requested_counts(self, manifest: Manifest) -> dict[str, RequestedCount]:
        """What it requests, by PodSet: pods, and how many of them come together."""
        return {name: RequestedCount(count) for name, count in self.counts(manifest).items()}

    def pods_to_delete(self, manifest: Manifest) -> frozenset[str]:
        """Names of pods that are to be deleted first when it shrinks, for kinds that say so."""
        del manifest
        return frozenset()

    @abstractmethod
    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        """What no Workload could carry: too many PodSets, bad names, broken groups."""

    def job_templates(self, manifest: Manifest) -> Collection[tuple[str, Manifest]]:
        """Path and object of the Job templates in it, for warnings."""
        del manifest
        return ()

    def elastic_enabled(self, features: Features) -> bool:
        """Whether jobs of this kind may be resized while they run, if they ask for it."""
        del features
        return False

    def is_elastic(self, manifest: Manifest) -> bool:
        """Whether it asks to be resized while it runs."""
        del manifest
        return False

    def injected_templates(self, manifest: Manifest, *, elastic_enabled: bool) -> list[PodTemplate]:
        """Its pod templates, elastic if the job asks to be and its kind may be."""
        return self.templates(manifest, elastic=elastic_enabled and self.is_elastic(manifest))

    def can_remove_injection(self, manifest: Manifest) -> bool:
        """Whether the templates of a suspended job that loses its queue may be written now."""
        del manifest
        return True

    # Read from a stored job: where it stands.

    def is_suspended(self, job: V) -> bool:
        """Whether `spec.suspend` is true."""
        return job.spec.suspend is True

    @abstractmethod
    def is_inactive(self, job: V, children: Sequence[Job]) -> bool:
        """Whether a suspended job runs nothing, so that its templates may be written.

        Args:
            job: as stored, suspended.
            children: its child Jobs, for the kinds that have any.
        """

    def remaining_pods(self, job: V, children: Sequence[Job]) -> int:
        """Pods of a suspended or leaving job that its status tells of, as far as it does."""
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
        """Whether pods may be due after others were ready: missing ones need not be lost."""
        del job
        return False

    def finished(self, job: V) -> JobOutcome | None:
        """How it ended; None while it has not. Some kinds only end by being deleted."""
        del job
        return None

    def reclaimable_pods(self, job: V) -> Mapping[str, int]:
        """Pods that are done and come no more, by PodSet; PodSets without any are left out."""
        del job
        return {}

    def find_change(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload, *, elastic: bool
    ) -> str | None:
        """Why a running job has to be stopped and queued again; None when it has not.

        Args:
            podsets: what the job requests now, see `podsets`.
            workload: under which it was started.
            elastic: other counts than those admitted are a resize and no change.
        """
        del podsets, workload, elastic
        return None

    # Start and stop.

    def wait_for_termination_ops(self, job: V) -> list[JsonPatchOp]:
        """Operations after which a pod of the job is made only when the one before it has ended.

        Written at the start of a job whose pods no gate holds; none where a kind cannot say so.
        """
        del job
        return []

    def next_stop_action(
        self,
        job: V,
        templates: Sequence[PodTemplate],
        originals: Mapping[str, Template],
        children: Sequence[Job],
        podset_infos: Mapping[str, PodSetInfo],
    ) -> StopAction:
        """What a stop does next, judged from what is stored, so that a crash can be resumed.

        Suspend, wait until the suspension has taken effect, then restore the templates.

        Args:
            job: as stored.
            templates: its pod templates.
            originals: its user's templates by PodSet, as the Workload keeps them.
            children: its child Jobs.
            podset_infos: what the start added to templates, where that is certain; by PodSet.
        """
        if not self.is_suspended(job):
            return StopAction(StopPhase.SUSPEND, [dict(SUSPEND)])
        if not self.is_inactive(job, children):
            return StopAction(StopPhase.WAIT, [])
        operations = self.restore_ops(templates, originals, podset_infos)
        return StopAction(StopPhase.RESTORE if operations else StopPhase.DONE, operations)

    def restore_ops(
        self,
        templates: Sequence[PodTemplate],
        originals: Mapping[str, Template],
        podset_infos: Mapping[str, PodSetInfo],
    ) -> list[JsonPatchOp]:
        """Operations that bring templates back to their user's form."""
        return injection.restore_ops(templates, originals, podset_infos)

    def stale_child_jobs(self, job: V, children: Sequence[Job]) -> list[StaleChildJob]:
        """Children of a suspended, inactive job that carry more than its templates now say."""
        del job, children
        return []
