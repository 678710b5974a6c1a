"""The kinds of jobs asked about manifests, as the webhook asks them, and about decoded jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rackgate.jobframework.injection import PodTemplate, StopAction
from rackgate.jobframework.job.batch_job import TEMPLATE_PATH, TEMPLATE_POINTER
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.managed import inject, remove_injection
from rackgate.jobframework.podsets import PODSET
from rackgate.jobframework.registry import JOB, JOBSET, RAYCLUSTER
from rackgate.wire.batch import Job

Object = Mapping[str, Any]


def inject_job(job: Object) -> list[JsonPatchOp]:
    return inject(JOB, job)


def remove_job_injection(job: Object) -> list[JsonPatchOp]:
    return remove_injection(JOB, job)


def podsets_of(job: Object | Job) -> list[dict[str, Any]]:
    return JOB.podsets(JOB.manifest(job) if isinstance(job, Job) else job)


def restore_patch(template: Object, original: Object) -> list[JsonPatchOp] | None:
    """Operations that bring the template of a stopped Job back to the user's; None for none."""
    stored = PodTemplate(PODSET, TEMPLATE_PATH, TEMPLATE_POINTER, template)
    return JOB.restore_ops([stored], {PODSET: original}, {}) or None


def next_stop_action(job: Object | Job, original: Object) -> StopAction:
    decoded = job if isinstance(job, Job) else JOB.decode(msgspec.json.encode(job))
    return JOB.next_stop_action(
        decoded, JOB.templates(JOB.manifest(decoded)), {PODSET: original}, (), {}
    )


def inject_jobset(jobset: Object) -> list[JsonPatchOp]:
    return inject(JOBSET, jobset)


def remove_jobset_injection(jobset: Object) -> list[JsonPatchOp]:
    return remove_injection(JOBSET, jobset)


def inject_raycluster(cluster: Object, *, elastic_enabled: bool) -> list[JsonPatchOp]:
    return inject(RAYCLUSTER, cluster, elastic_enabled=elastic_enabled)


def remove_raycluster_injection(cluster: Object) -> list[JsonPatchOp]:
    return remove_injection(RAYCLUSTER, cluster)
