"""The kinds that Rackgate manages. To add one, add its folder and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rackgate.features import Features
from rackgate.jobframework.deployment.deployment import DeploymentKind
from rackgate.jobframework.generic_job import GenericJob, JobLike
from rackgate.jobframework.job.batch_job import BatchJob
from rackgate.jobframework.jobset.jobset import JobSetJob
from rackgate.jobframework.leaderworkerset.leader_worker_set import LeaderWorkerSetKind
from rackgate.jobframework.linked_kind import LinkedKind
from rackgate.jobframework.mpijob.mpi_job import MPIJobKind
from rackgate.jobframework.pod_group.gang_group import GangGroupJob
from rackgate.jobframework.pod_group.membership import is_gang_id
from rackgate.jobframework.pod_group.pod_group import PlainPodJob, PodGroupJob
from rackgate.jobframework.raycluster.raycluster import RayClusterJob
from rackgate.jobframework.rayjob.rayjob import RayJobJob
from rackgate.jobframework.statefulset.stateful_set import StatefulSetKind
from rackgate.jobframework.templates import items, section
from rackgate.jobframework.trainjob.train_job import TrainJobKind
from rackgate.wire.kueue import Workload

JOB: Final = BatchJob()
JOBSET: Final = JobSetJob()
RAYCLUSTER: Final = RayClusterJob()
RAYJOB: Final = RayJobJob()

KINDS: Final[dict[str, GenericJob[Any]]] = {}
"""Kinds by their name in the API."""
CLEANUP_LABELS: Final[dict[str, str]] = {}
"""Labels of pods that clean up after a job, for the kinds that have such pods."""
_BY_TYPE: Final[dict[type, GenericJob[Any]]] = {}


def register(kind: GenericJob[Any]) -> None:
    """Register a kind of job."""
    KINDS[kind.name] = _BY_TYPE[kind.object_type] = kind
    CLEANUP_LABELS.update(kind.cleanup_labels)


for _kind in (JOB, JOBSET, RAYCLUSTER, RAYJOB):
    register(_kind)


# Of the decoded form alone: no manifest is a group, and plain pods are watched apart.
PLAIN_POD: Final = PlainPodJob()
POD_GROUP: Final = PodGroupJob()
GANG: Final = GangGroupJob()
POD_KINDS: Final = (PLAIN_POD, POD_GROUP, GANG)
# They have the name of their Workload.
NAMED_AS_WORKLOAD: Final = (POD_GROUP, GANG)
_BY_TYPE.update({kind.object_type: kind for kind in POD_KINDS})


LINKED_KINDS: Final[dict[str, LinkedKind]] = {
    kind.name: kind
    for kind in (
        StatefulSetKind(),
        DeploymentKind(),
        LeaderWorkerSetKind(),
        MPIJobKind(),
        TrainJobKind(),
    )
}
"""Kinds whose pods are linked to a Workload of gangs, by their name in the API."""


def find_linked_kind(group: str, kind: str) -> LinkedKind | None:
    """The linked kind of this name in an API group."""
    found = LINKED_KINDS.get(kind)
    return found if found is not None and group == found.resource.group else None


def is_linked_part(manifest: Mapping[str, Any]) -> bool:
    """Whether an object of a known kind makes this one: the outermost one has the gangs."""
    return any(
        is_known_kind(api_version, kind) for api_version, kind, _ in _controllers_of(manifest)
    )


def linked_makers(manifest: Mapping[str, Any]) -> list[tuple[LinkedKind, str]]:
    """Kind and name of the object of a linked kind that makes this one; at most one."""
    found = (
        (find_linked_kind(_group_of(api_version), kind), name)
        for api_version, kind, name in _controllers_of(manifest)
    )
    return [(kind, name) for kind, name in found if kind is not None]


def is_known_kind(api_version: str, kind: str) -> bool:
    """Whether an owner reference names a kind of job, or a linked kind."""
    linked = find_linked_kind(_group_of(api_version), kind)
    return linked is not None or find_kind(api_version, kind) is not None


def _controllers_of(manifest: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """API version, kind and name of the owners that control an object."""
    owners = items(section(manifest, "metadata"), "ownerReferences", "metadata")
    return [
        (str(owner.get("apiVersion", "")), str(owner.get("kind", "")), str(owner.get("name", "")))
        for owner in owners
        if owner.get("controller") is True
    ]


def _group_of(api_version: str) -> str:
    group, slash, _ = api_version.partition("/")
    return group if slash else ""


def kind_of(job: JobLike) -> GenericJob[Any]:
    """The kind of a decoded job.

    Raises:
        KeyError: its kind is not in the registry.
    """
    return _BY_TYPE[type(job)]


def find_kind(api_version: str, kind: str) -> GenericJob[Any] | None:
    """The kind that an object or an owner reference names, in any version of its group."""
    found = KINDS.get(kind)
    group, slash, _ = api_version.partition("/")
    return found if found is not None and slash and group == found.resource.group else None


def has_child_jobs(api_version: str, kind: str) -> bool:
    """Whether the pods of such a job belong to objects that it creates."""
    found = find_kind(api_version, kind)
    return found is not None and found.child_job_label != ""


def owner_of(workload: Workload) -> tuple[GenericJob[Any], str] | None:
    """Kind and `namespace/name` of the job that controls a Workload.

    None if its controller is not a job: a slice belongs to another Workload. A group of pods, and a
    gang of pods, have the name of their Workload.
    """
    owner = workload.metadata.controller
    if workload.is_of_pod_group:
        return GANG if is_gang_id(workload.job_uid) else POD_GROUP, workload.metadata.key
    if owner is not None and (owner.kind, owner.api_version) == (PLAIN_POD.name, "v1"):
        return PLAIN_POD, f"{workload.metadata.namespace}/{owner.name}"
    kind = find_kind(owner.api_version, owner.kind) if owner is not None else None
    if owner is None or kind is None:
        return None
    return kind, f"{workload.metadata.namespace}/{owner.name}"


def enabled_elastic_kinds(features: Features) -> frozenset[str]:
    """Names of the kinds whose jobs may be resized with slices."""
    return frozenset(kind.name for kind in KINDS.values() if kind.elastic_enabled(features))
