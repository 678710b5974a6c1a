"""batch/v1 Job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from rackgate.api import names
from rackgate.api.resources import JOBS, Resource
from rackgate.features import Features
from rackgate.jobframework.injection import PodSetInfo, PodTemplate, StopAction
from rackgate.jobframework.job.podsets import (
    PODSET,
    TEMPLATE_PATH,
    TEMPLATE_POINTER,
    next_stop_action,
    podsets_of,
    template_of,
)
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.templates import Template, strip_reserved
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.kinds.generic_job import GenericJob, JobOutcome, copy_raw, stopping_pods
from rackgate_assigner.jobs.kinds.podsets import has_topology, total_pods

_FAILED: Final = "Failed"

_decode = msgspec.json.Decoder(Job).decode


def decode_job(raw: bytes | msgspec.Raw) -> Job:
    """A Job; its template holds memory of its own, not the whole event."""
    job = _decode(raw)
    spec = msgspec.structs.replace(job.spec, template=copy_raw(job.spec.template))
    return msgspec.structs.replace(job, spec=spec)


def is_inactive(job: Job) -> bool:
    """Whether a Job is suspended, and the suspension has taken effect."""
    if not job.spec.suspend or job.status.active:
        return False
    condition = job.status.condition("Suspended")
    return job.status.start_time is None or (condition is not None and condition.status == "True")


class BatchJob(GenericJob[Job]):
    """A Job: one PodSet, and a template that nobody may write while it runs."""

    resource: ClassVar[Resource] = JOBS
    controller: ClassVar[str] = "kubernetes.io/job-controller"
    object_type: ClassVar[type] = Job
    built_in: ClassVar[bool] = True

    def decode(self, raw: bytes | msgspec.Raw) -> Job:
        """See `decode_job`."""
        return decode_job(raw)

    def managed_by(self, job: Job) -> str | None:
        """`spec.managedBy`."""
        return job.spec.managed_by

    def is_suspended(self, job: Job) -> bool:
        """Whether `spec.suspend` is true."""
        return job.spec.suspend

    def templates(self, job: Job, *, elastic: bool = False) -> list[PodTemplate]:
        """Its one template."""
        template = template_of(job)
        return [PodTemplate(PODSET, TEMPLATE_PATH, TEMPLATE_POINTER, template, elastic)]

    def podsets(self, job: Job) -> list[dict[str, Any]]:
        """One PodSet."""
        return podsets_of(job)

    def pod_count(self, job: Job) -> int:
        """Pods that run at once."""
        return job.pod_count

    def is_inactive(self, job: Job, children: Sequence[Job]) -> bool:
        """No pod is active, and the Job was never started or says that it is suspended."""
        del children
        return is_inactive(job)

    def remaining_pods(self, job: Job, children: Sequence[Job]) -> int:
        """Pods that are active or terminating."""
        del children
        return stopping_pods(job)

    def next_stop_action(
        self,
        job: Job,
        originals: Mapping[str, Template],
        children: Sequence[Job],
        podset_infos: Mapping[str, PodSetInfo],
    ) -> StopAction:
        """As the API server lets a Job be stopped, in three writes."""
        del children, podset_infos  # nobody else writes its template while it runs
        original = next(iter(originals.values()), None)
        return next_stop_action(
            job, strip_reserved(template_of(job)) if original is None else original
        )

    def pods_ready(self, job: Job, admitted: Mapping[str, int]) -> bool:
        """As many pods are ready or have succeeded as were admitted and are wanted.

        A pod that succeeded is not ready any more before it is counted.
        """
        wanted = min(sum(admitted.values()), job.pod_count)
        status = job.status
        succeeded = status.succeeded + len(status.uncounted_terminated_pods.succeeded)
        return status.ready + succeeded >= wanted

    def wait_for_termination_ops(self, job: Job) -> list[JsonPatchOp]:
        """Its replacement policy, which counts from the next pod that ends."""
        if job.spec.pod_replacement_policy == _FAILED:
            return []
        return [{"op": "add", "path": "/spec/podReplacementPolicy", "value": _FAILED}]

    def finished(self, job: Job) -> JobOutcome | None:
        """Complete or Failed."""
        end = job.finished
        return None if end is None else JobOutcome(end.type == "Failed", end.message)

    def is_elastic(self, job: Job, features: Features) -> bool:
        """An Indexed Job that asks for it, behind a gate of its own."""
        allowed = features.elastic_jobs and features.elastic_indexed_jobs
        requested = job.metadata.annotations.get(names.ELASTIC_ANNOTATION) == "true"
        return allowed and job.indexed and requested

    def find_change(
        self, job: Job, workload: Workload, podsets: Sequence[Mapping[str, Any]], *, elastic: bool
    ) -> str | None:
        """Raised parallelism, when no gate holds the pods that come with it."""
        del podsets
        admitted = total_pods(workload)
        if elastic or job.pod_count <= admitted or has_topology(workload):
            return None
        return f"the Job asks for {job.pod_count} pods, {admitted} were admitted"
