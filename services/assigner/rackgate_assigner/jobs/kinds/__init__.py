"""The kinds of jobs that the assigner follows, and the one that an object is of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.kinds.generic_job import (
    GenericJob,
    JobLike,
    JobOutcome,
    StaleChildJob,
    is_child_of_job,
)
from rackgate_assigner.jobs.kinds.job import BatchJob
from rackgate_assigner.jobs.kinds.jobset import JobSetJob
from rackgate_assigner.jobs.kinds.raycluster import RayClusterJob

__all__ = [
    "JOB",
    "JOBSET",
    "KINDS",
    "RAYCLUSTER",
    "GenericJob",
    "JobLike",
    "JobOutcome",
    "StaleChildJob",
    "is_child_of_job",
    "kind_of",
    "owner_of",
]

JOB: Final = BatchJob()
JOBSET: Final = JobSetJob()
RAYCLUSTER: Final = RayClusterJob()

KINDS: Final[Mapping[str, GenericJob[Any]]] = {
    kind.name: kind for kind in (JOB, JOBSET, RAYCLUSTER)
}
_BY_TYPE: Final[Mapping[type, GenericJob[Any]]] = {
    kind.object_type: kind for kind in KINDS.values()
}


def kind_of(job: JobLike) -> GenericJob[Any]:
    """The kind of a decoded job.

    Raises:
        KeyError: it is of no kind followed here.
    """
    return _BY_TYPE[type(job)]


def owner_of(workload: Workload) -> tuple[GenericJob[Any], str] | None:
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
