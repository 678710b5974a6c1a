"""Plain pods, alone or in a group, as a kind of job: one PodSet for each role.

No object of the API is a group: `PodGroup` is assembled from pods. So it has no manifest that a
user writes and no field `suspend`. The assigner starts it by releasing its pods, and stops it by
deleting them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from rackgate.api.meta import MAX_INT32
from rackgate.api.names import POD_GROUP_FAST_ADMISSION, POD_GROUP_TOTAL_ANNOTATION
from rackgate.api.resources import PODS, Resource
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.generic_job import GenericJob, Manifest
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.pod_group.membership import uid_of_group
from rackgate.jobframework.pod_group.pods import GroupPod, Role
from rackgate.jobframework.podsets import podset_json
from rackgate.jobframework.templates import items
from rackgate.wire.batch import Job
from rackgate.wire.core import Meta, View

# A group with more roles gets no Workload.
MAX_ROLES: Final = 8


class PodGroupSpec(View, frozen=True):
    """The pods of a group, the oldest first."""

    suspend: bool | None = None
    managed_by: str | None = None
    pods: tuple[GroupPod, ...] = ()


class PodGroup(View, frozen=True):
    """The pods of one group. Its labels are those of its oldest pod."""

    metadata: Meta = Meta()
    spec: PodGroupSpec = PodGroupSpec()

    @property
    def pods(self) -> tuple[GroupPod, ...]:
        """Its pods, the oldest first."""
        return self.spec.pods

    @property
    def total(self) -> int:
        """How many pods it has when it is complete; 0 if its oldest pod does not say."""
        return total_count(self.pods[0].metadata.annotations) if self.pods else 0

    @property
    def members(self) -> list[GroupPod]:
        """The pods that succeeded, run or will run: those first that cannot be replaced any more.

        At most `total` of them are part of the group. The others are surplus.
        """
        counted = [pod for pod in self.pods if pod.succeeded or pod.active]
        return sorted(counted, key=lambda pod: (not pod.succeeded, not pod.started))

    @property
    def complete(self) -> bool:
        """Whether all its pods exist."""
        return 0 < self.total <= len(self.members)

    @property
    def fast(self) -> bool:
        """Whether it may be admitted before all its pods exist."""
        return self.metadata.annotations.get(POD_GROUP_FAST_ADMISSION) == "true"

    @property
    def roles(self) -> list[tuple[Role, int]]:
        """Each role and its number of pods, by the name of the role; none unless it is complete.

        With fast admission, the first pods stand for those that do not exist yet.
        """
        members = self.members
        found: dict[str, tuple[Role, int]] = {}
        for pod in members[: self.total]:
            role, count = found.get(pod.role.name, (pod.role, 0))
            found[pod.role.name] = (role, count + 1)
        if not self.complete:
            if not (self.fast and len(found) == 1 and self.total):
                return []
            found = {name: (role, self.total) for name, (role, _) in found.items()}
        return [found[name] for name in sorted(found)]


class PlainPod(PodGroup, frozen=True):
    """A pod without a group label: a group of one."""

    @property
    def total(self) -> int:
        """One."""
        return 1


def total_count(annotations: Mapping[str, str]) -> int:
    """The number of pods of a group as written on a pod; 0 for what is no number of pods."""
    text = annotations.get(POD_GROUP_TOTAL_ANNOTATION, "")
    # The length is limited first: converting a long text of digits takes long.
    if len(text) > 10 or not (text.isascii() and text.isdigit()):
        return 0
    value = int(text)
    return value if value <= MAX_INT32 else 0


def assemble(pods: Sequence[GroupPod]) -> PodGroup:
    """A group from its pods, at least one, in any order; a pod alone without a group label."""
    ordered = tuple(sorted(pods, key=lambda pod: pod.age_order))
    oldest = ordered[0].metadata
    if not ordered[0].group:
        return PlainPod(oldest, PodGroupSpec(pods=ordered))
    metadata = Meta(
        name=ordered[0].group,
        namespace=oldest.namespace,
        uid=uid_of_group(oldest.namespace, ordered[0].group),
        creation_timestamp=oldest.creation_timestamp,
        labels=oldest.labels,
        annotations=oldest.annotations,
    )
    return PodGroup(metadata, PodGroupSpec(pods=ordered))


class PodGroupJob(GenericJob[PodGroup]):
    """A group of plain pods."""

    resource: ClassVar[Resource] = Resource("", "v1", "pods", True, "PodGroup")
    object_type: ClassVar[type] = PodGroup
    controller: ClassVar[str] = ""
    built_in: ClassVar[bool] = True
    templates_path: ClassVar[str] = "spec"
    controls_jobs: ClassVar[bool] = False

    def manifest(self, job: PodGroup) -> Manifest:
        """The PodSets of its roles, and the template of its oldest pod."""
        podsets = [
            podset_json(role.name, count, role.template, role.request) for role, count in job.roles
        ]
        oldest = [job.pods[0].role] if job.pods else []
        templates = [{"name": role.name, "template": role.template} for role in oldest]
        return {"spec": {"podSets": podsets, "templates": templates}}

    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        """That of its oldest pod, which names its PriorityClass, whether or not it is complete."""
        return [
            PodTemplate(found["name"], "", "", found["template"])
            for found in items(manifest["spec"], "templates")
        ]

    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        """One for each role."""
        return [dict(podset) for podset in items(manifest["spec"], "podSets")]

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """Pods of each role."""
        return {podset["name"]: podset["count"] for podset in self.podsets(manifest)}

    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        """None: no user writes a group."""
        return []

    def is_inactive(self, job: PodGroup, children: Sequence[Job]) -> bool:
        """Whether no pod runs."""
        return not any(pod.started and not pod.over for pod in job.pods)

    def pods_ready(self, job: PodGroup, admitted: Mapping[str, int]) -> bool:
        """Whether all pods are ready or have succeeded."""
        done = sum(pod.succeeded or (pod.active and pod.ready) for pod in job.pods)
        return 0 < job.total <= done


class PlainPodJob(PodGroupJob):
    """A pod alone."""

    resource: ClassVar[Resource] = PODS
    object_type: ClassVar[type] = PlainPod
