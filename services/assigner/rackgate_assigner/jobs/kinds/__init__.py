"""The kinds of jobs that the assigner follows, and the one that an object is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.kinds.base import End, JobLike, Kind, StalePart, part_of_owner
from rackgate_assigner.jobs.kinds.job import JobKind
from rackgate_assigner.jobs.kinds.jobset import JobSetKind
from rackgate_assigner.jobs.kinds.raycluster import RayClusterKind

__all__ = [
    "JOB",
    "JOBSET",
    "KINDS",
    "RAYCLUSTER",
    "End",
    "JobLike",
    "Kind",
    "StalePart",
    "kind_of",
    "owner_of",
    "part_of_owner",
]

JOB: Final = JobKind()
JOBSET: Final = JobSetKind()
RAYCLUSTER: Final = RayClusterKind()

KINDS: Final[Mapping[str, Kind[Any]]] = {kind.name: kind for kind in (JOB, JOBSET, RAYCLUSTER)}
_BY_VIEW: Final[Mapping[type, Kind[Any]]] = {kind.view: kind for kind in KINDS.values()}


def kind_of(job: JobLike) -> Kind[Any]:
    """The kind of a decoded job.

    Raises:
        KeyError: it is of no kind followed here.
    """
    return _BY_VIEW[type(job)]


def owner_of(workload: Workload) -> tuple[Kind[Any], str] | None:
    """Kind and `namespace/name` of the job that controls a Workload.

    None when its controller is no job: a slice belongs to another Workload.
    """
    owner = workload.metadata.controller
    kind = KINDS.get(owner.kind) if owner is not None else None
    if owner is None or kind is None:
        return None
    if owner.api_version.partition("/")[0] != kind.resource.group:
        return None
    return kind, f"{workload.metadata.namespace}/{owner.name}"
