"""The interface of one kind of job, `GenericJob`. Everything else is the same for all kinds.

A kind of job is one folder next to this file, with one subclass of `GenericJob`, and one line in
`registry`. Webhook, assigner, ungater and `rackgate explain` use this interface and name no kind.
A subclass makes no decisions: it describes one job, as written or as stored.

A kind reads a job in two forms:

- the *manifest*: plain JSON, as users write it and webhooks receive it. PodSets are read only from
  it: templates, counts, requests, errors;
- the *job*: the object that the watches decode, with metadata, `spec.suspend` and status. Its
  templates stay undecoded. `manifest` returns the fields of its manifest that PodSets are read
  from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec

from rackgate.api.names import UNCONSTRAINED_TOPOLOGY
from rackgate.api.resources import Resource
from rackgate.features import Features
from rackgate.jobframework import injection
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.injection import PodSetInfo, PodTemplate, StopAction, StopPhase
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.templates import Template, with_entries
from rackgate.jobframework.topology_request import RANK_FIELDS
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Workload

Manifest = Mapping[str, Any]

SUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": True}
UNSUSPEND: Final[JsonPatchOp] = {"op": "add", "path": "/spec/suspend", "value": False}


class JobSpecLike(Protocol):
    """Spec fields that all kinds have."""

    @property
    def suspend(self) -> bool | None:
        """`spec.suspend`."""

    @property
    def managed_by(self) -> str | None:
        """`spec.managedBy`."""


class JobLike(Protocol):
    """A job of any kind, as decoded by the watches."""

    @property
    def metadata(self) -> Meta:
        """Its metadata."""

    @property
    def spec(self) -> JobSpecLike:
        """Its spec."""


V = TypeVar("V", bound=JobLike)


class TemplateEdits(IntEnum):
    """When users may write the pod templates of a managed job.

    A user who applies a whole manifest then removes what was injected, without intending to.
    """

    AT_REST = 0
    """Only after its suspension has taken effect."""
    SUSPENDED = 1
    """As soon as `spec.suspend` is true. Applying a manifest again must not count as a change."""
    ANY_TIME = 2
    """Also while it runs, so injected fields may be removed."""


@dataclass(frozen=True, slots=True)
class RequestedCount:
    """What a job requests now in one PodSet.

    Attributes:
        pods: total number, never negative.
        slice_size: pods that are added and removed together, so they share one slice; at least 1.
    """

    pods: int
    slice_size: int = 1


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    failed: bool
    message: str


@dataclass(frozen=True, slots=True)
class DefaultGang:
    """Pods of a job that start together, unless its user says otherwise.

    Attributes:
        name: of the gang group.
        pods: how many.
        selector: the label that tells them from other pods of the job, and its values, as in the
            Workload of gangs; None: they are all pods of the job.
    """

    name: str
    pods: int
    selector: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ChildJobs:
    """The child Jobs whose pods are one PodSet.

    Attributes:
        path: of their template in the manifest.
        annotations: that each of them gets.
        count: how many there are.
        pods: that each of them runs at once.
    """

    path: str
    annotations: Mapping[str, str]
    count: int
    pods: int


@dataclass(frozen=True, slots=True)
class StaleChildJob:
    """A child of a stopped job that still has injected fields of an earlier admission.

    Attributes:
        job: the child.
        operations: JSON patch operations that remove them; never empty.
    """

    job: Job
    operations: list[JsonPatchOp]


class GenericJob(ABC, Generic[V]):
    """One kind of job.

    Attributes:
        resource: its API resource.
        object_type: the class of its decoded objects, with `metadata`, `spec` and `status`.
        controller: the value of `spec.managedBy` that means the kind's own controller.
        built_in: every API server serves it.
        template_edits: when users may write the pod templates of a managed job.
        templates_path: path of its pod templates, for messages.
        controls_jobs: its child Jobs start and stop with it, and are never queued
            themselves.
        child_job_label: label of the child Jobs that its pods belong to; "" if the job itself
            controls its pods.
        child_kinds: other kinds of jobs whose objects control its pods, as its children.
        cleanup_labels: labels of pods that clean up after a job that is being deleted: a pod has
            one of them. Such pods are made from its templates, belong to no PodSet, and must run.
        elastic_path: the field by which a job requests to be resized while it runs.
        elastic_advice: how to request that, for messages.
        reconcile_after_s: the operator may wait for pods that were deleted before it saw them.
            After this many seconds its wait times out, but it reconciles only after a change.
    """

    resource: ClassVar[Resource]
    object_type: ClassVar[type]
    controller: ClassVar[str]
    built_in: ClassVar[bool] = False
    template_edits: ClassVar[TemplateEdits] = TemplateEdits.SUSPENDED
    templates_path: ClassVar[str]
    controls_jobs: ClassVar[bool] = True
    child_job_label: ClassVar[str] = ""
    child_kinds: ClassVar[tuple[str, ...]] = ()
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
        """The kind as in the API."""
        return self.resource.kind

    def decode(self, raw: bytes | msgspec.Raw) -> V:
        """Decode one object from JSON.

        Undecoded parts are copied, so that the object does not keep a watch event in memory.

        Raises:
            msgspec.DecodeError: it is not an object of this kind.
        """
        job: V = self._decode(raw)
        spec: Any = job.spec
        for name in self._raw_fields:
            # No other code has seen the object yet.
            msgspec.structs.force_setattr(spec, name, msgspec.Raw(bytes(getattr(spec, name))))
        return job

    # Read from the manifest: PodSets and their errors.

    @abstractmethod
    def manifest(self, job: V) -> Manifest:
        """The fields of a decoded job's manifest that the methods of this group read."""

    @abstractmethod
    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        """Its pod templates; `elastic`: their pods belong to workload slices.

        Raises:
            MalformedError: a template has a shape that the API server never sends.
        """

    @abstractmethod
    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        """Its PodSets, as a Workload stores them.

        Templates do not contain our reserved keys. They have a topologyRequest if they request
        topology, which names the labels with the ranks of pods, if pods have ranks.
        """

    def rank_fields(self, manifest: Manifest) -> dict[str, dict[str, Any]]:
        """By PodSet, the fields of a topologyRequest that name the labels with the ranks of pods.

        As `podsets` writes them for a template that requests topology.
        """
        asking: Any = manifest
        for one in self.templates(manifest):
            asking = _with_request(asking, one.pointer.split("/")[1:])
        return {
            podset["name"]: {
                field: podset["topologyRequest"][field]
                for field in RANK_FIELDS
                if field in podset["topologyRequest"]
            }
            for podset in self.podsets(asking)
        }

    @abstractmethod
    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """Pods of each PodSet."""

    def count_units(self, manifest: Manifest) -> Mapping[str, int]:
        """Pods are added to and removed from each PodSet in multiples of this number."""
        return self.counts(manifest)

    def requested_counts(self, manifest: Manifest) -> dict[str, RequestedCount]:
        """What it requests in each PodSet: pods, and how many of them share a slice."""
        return {name: RequestedCount(count) for name, count in self.counts(manifest).items()}

    def pods_to_delete(self, manifest: Manifest) -> frozenset[str]:
        """Names of pods to delete first when it scales down, for kinds that name them."""
        return frozenset()

    @abstractmethod
    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        """Errors that no Workload can represent: too many PodSets, bad names, invalid groups."""

    def running_errors(self, manifest: Manifest, stored: Manifest) -> list[FieldError]:
        """Errors in a change of a job that is not suspended, before and after it."""
        del manifest, stored
        return []

    def job_templates(self, manifest: Manifest) -> Collection[tuple[str, Manifest]]:
        """Path and object of each Job template in it, for warnings."""
        return ()

    def elastic_enabled(self, features: Features) -> bool:
        """Whether jobs of this kind may be resized while they run, if they request it."""
        return False

    def is_elastic(self, manifest: Manifest) -> bool:
        """Whether it requests to be resized while it runs."""
        return False

    def defaults(self, manifest: Manifest) -> Mapping[str, Any]:
        """Fields of its spec that are written so that all its pods have a template.

        The webhook writes them at creation, and a start those that are still missing.
        """
        del manifest
        return {}

    def injected_templates(self, manifest: Manifest, *, elastic_enabled: bool) -> list[PodTemplate]:
        """Its pod templates; elastic if the job requests it and its kind supports it."""
        return self.templates(manifest, elastic=elastic_enabled and self.is_elastic(manifest))

    def can_remove_injection(self, manifest: Manifest) -> bool:
        """Whether the templates of a suspended job that loses its queue may be written now."""
        return True

    # Gangs.

    def default_gangs(self, manifest: Manifest) -> Sequence[DefaultGang]:
        """Which of its pods start together, or none at all, unless its user says otherwise.

        None if not all of them run at the same time, or their number may change.
        """
        return ()

    def child_jobs(self, manifest: Manifest) -> Mapping[str, ChildJobs]:
        """Its child Jobs by PodSet, if it has any."""
        del manifest
        return {}

    def podset_of_child(self, child: Job) -> str:
        """The PodSet of the pods of a child Job; "" if it has none."""
        del child
        return ""

    def pod_labels(self, manifest: Manifest) -> Mapping[str, Mapping[str, str]]:
        """Labels that its controller adds to all pods of a PodSet, by PodSet."""
        return {}

    def deletes_itself(self, job: V) -> bool:
        """Whether it is deleted after its end, without its user."""
        return False

    def pod_selector(self, job: V) -> str:
        """The label selector of its pods, "" for all pods; others may have the same labels."""
        del job
        return ""

    # Read from a stored job: its state.

    def is_suspended(self, job: V) -> bool:
        """Whether `spec.suspend` is true."""
        return job.spec.suspend is True

    @abstractmethod
    def is_inactive(self, job: V, children: Sequence[Job]) -> bool:
        """Whether a suspended job has no pods left, so that its templates may be written.

        Args:
            job: as stored, suspended.
            children: its child Jobs, for kinds that have child Jobs.
        """

    def remaining_pods(self, job: V, children: Sequence[Job]) -> int:
        """Pods of a suspended job, or of one that is being deleted, as far as its status shows."""
        return 0

    @abstractmethod
    def pods_ready(self, job: V, admitted: Mapping[str, int]) -> bool:
        """Whether all pods that should run now are ready or have succeeded.

        Args:
            job: as stored, not suspended.
            admitted: pods admitted, by PodSet.
        """

    def starts_in_stages(self, job: V) -> bool:
        """Whether more pods may start after others were ready: missing pods need not be lost."""
        return False

    def finished(self, job: V) -> JobOutcome | None:
        """How it ended; None if it has not. Jobs of some kinds end only by being deleted."""
        return None

    def reclaimable_pods(self, job: V, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Pods that are done and not created again, by PodSet; PodSets without any are omitted.

        Args:
            job: as stored.
            counts: pods of each PodSet of its Workload, as admitted if it is.
        """
        return {}

    def done_pods(self, children: Sequence[Job]) -> Mapping[str, Mapping[str, int]]:
        """Pods that child Jobs have completed, and do not create again when they are resumed.

        Returns:
            By PodSet, then by the UID of the child Job; those without any are omitted.
        """
        del children
        return {}

    def find_change(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload, *, elastic: bool
    ) -> str | None:
        """Why a running job must be stopped and queued again; None if it need not be.

        Args:
            podsets: what the job requests now, see `podsets`.
            workload: the Workload under which it was started.
            elastic: counts other than those admitted are a resize, not a change.
        """
        return None

    def as_stored(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload
    ) -> Sequence[Mapping[str, Any]]:
        """The PodSets without what the Workload lacks because Kueue does not write it.

        Args:
            podsets: what the job requests now, see `podsets`.
            workload: an admitted one, which Kueue may have written.
        """
        return podsets

    # Start and stop.

    def wait_for_termination_ops(self, job: V) -> list[JsonPatchOp]:
        """Operations that delay a replacement pod until the previous pod has ended.

        Written at the start of a job whose pods no gate holds; none for kinds that do not support
        it.
        """
        return []

    def reduce_ops(self, job: V, workload: Workload) -> list[JsonPatchOp]:
        """Operations with which it starts with as many pods as were admitted.

        None if all pods were admitted, or for kinds whose PodSets have no `minCount`.
        """
        del job, workload
        return []

    def restore_count_ops(self, job: V, workload: Workload) -> list[JsonPatchOp]:
        """Operations that undo `reduce_ops`, unless its user has changed the number meanwhile."""
        del job, workload
        return []

    def next_stop_action(
        self,
        job: V,
        templates: Sequence[PodTemplate],
        originals: Mapping[str, Template],
        children: Sequence[Job],
        podset_infos: Mapping[str, PodSetInfo],
    ) -> StopAction:
        """The next write of a stop. It depends only on what is stored, so a crash can be resumed.

        Suspend, wait until the suspension has taken effect, then restore the templates.

        Args:
            job: as stored.
            templates: its pod templates.
            originals: its user's templates by PodSet, as stored in the Workload.
            children: its child Jobs.
            podset_infos: what the start added to templates, by PodSet, where that is certain.
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
        """Operations that restore the templates that the user wrote."""
        return injection.restore_ops(templates, originals, podset_infos)

    def stale_child_jobs(
        self, job: V, children: Sequence[Job], podset_infos: Mapping[str, PodSetInfo]
    ) -> list[StaleChildJob]:
        """Children of a suspended, inactive job that contain more than its templates.

        Args:
            job: as stored.
            children: its child Jobs.
            podset_infos: as for `next_stop_action`.
        """
        return []


def _with_request(item: Any, path: Sequence[str]) -> Any:
    """A copy of a manifest in which the template at this path requests topology."""
    if not path:
        return with_entries(item, "metadata", "annotations", {UNCONSTRAINED_TOPOLOGY: "true"})
    if isinstance(item, list):
        index = int(path[0])
        return [*item[:index], _with_request(item[index], path[1:]), *item[index + 1 :]]
    return {**item, path[0]: _with_request(item[path[0]], path[1:])}
