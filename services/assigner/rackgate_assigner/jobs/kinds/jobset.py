"""jobset.x-k8s.io JobSet, and the child Jobs that its controller makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from rackgate.api import names
from rackgate.api.resources import JOBSETS, Resource
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.job.podsets import TEMPLATE_POINTER, max_running_pods, template_of
from rackgate.jobframework.jobset.podsets import (
    job_spec,
    podsets_of,
    replicas_of,
    replicated_jobs,
    templates_of,
)
from rackgate.jobframework.templates import (
    RESERVED_ANNOTATIONS,
    RESERVED_GATES,
    RESERVED_LABELS,
    Template,
    annotations_of,
    gates_of,
    items,
    labels_of,
    section,
    template_patch,
    with_field,
    without_entries,
    without_gates,
)
from rackgate.wire.batch import Job
from rackgate.wire.jobset import JobSet, ReplicatedJobStatus
from rackgate_assigner.jobs.kinds.generic_job import (
    GenericJob,
    JobOutcome,
    StaleChildJob,
    copy_raw,
    stopping_pods,
)
from rackgate_assigner.jobs.kinds.job import is_inactive
from rackgate_assigner.jobs.kinds.podsets import without_empty

_ENDS: Final = ("Completed", "Failed")
_OWN: Final = "jobset.sigs.k8s.io"
_COMPLETE: Final = "Complete"
_ALWAYS_RESTARTS: Final = "RestartJobSetAndIgnoreMaxRestarts"

_decode = msgspec.json.Decoder(JobSet).decode


def decode_jobset(raw: bytes | msgspec.Raw) -> JobSet:
    """A JobSet; its templates hold memory of their own, not the whole event."""
    found = _decode(raw)
    replicated = copy_raw(found.spec.replicated_jobs)
    spec = msgspec.structs.replace(found.spec, replicated_jobs=replicated)
    return msgspec.structs.replace(found, spec=spec)


class JobSetJob(GenericJob[JobSet]):
    """A JobSet: one PodSet for each replicatedJob; its pods belong to child Jobs."""

    resource: ClassVar[Resource] = JOBSETS
    controller: ClassVar[str] = "jobset.sigs.k8s.io/jobset-controller"
    object_type: ClassVar[type] = JobSet
    mutable_while_running: ClassVar[bool] = True

    def decode(self, raw: bytes | msgspec.Raw) -> JobSet:
        """See `decode_jobset`."""
        return decode_jobset(raw)

    def managed_by(self, job: JobSet) -> str | None:
        """`spec.managedBy`."""
        return job.spec.managed_by

    def is_suspended(self, job: JobSet) -> bool:
        """Whether `spec.suspend` is true."""
        return job.spec.suspend is True

    def templates(self, job: JobSet, *, elastic: bool = False) -> list[PodTemplate]:
        """One template for each replicatedJob."""
        del elastic
        return templates_of(_manifest(job))

    def podsets(self, job: JobSet) -> list[dict[str, Any]]:
        """One PodSet for each replicatedJob."""
        return podsets_of(_manifest(job))

    def is_inactive(self, job: JobSet, children: Sequence[Job]) -> bool:
        """Every child Job that has not finished is at rest; none of them is on its way out."""
        del job
        return all(
            is_inactive(child) and child.metadata.deletion_timestamp is None
            for child in children
            if child.finished is None
        )

    def remaining_pods(self, job: JobSet, children: Sequence[Job]) -> int:
        """Pods of its child Jobs that are active or terminating."""
        del job
        return sum(map(stopping_pods, children))

    def pods_ready(self, job: JobSet, admitted: Mapping[str, int]) -> bool:
        """The replicatedJobs that are due by now are ready, or have succeeded.

        One that waits for another to complete is not due before. Those that start in order need
        no thought: each is due as soon as the one before it is ready.
        """
        del admitted
        states = _states(job)
        wanted: dict[str, int] = {}
        for index, name, replicated in replicated_jobs(_manifest(job)):
            replicas = replicas_of(replicated)
            wanted[name] = replicas
            state = states.get(name, ReplicatedJobStatus())
            empty = max_running_pods(job_spec(replicated, index)) == 0
            is_due = all(_is_reached(entry, wanted, states) for entry in _dependencies(replicated))
            if is_due and not empty and state.ready + state.succeeded < replicas:
                return False
        return True

    def starts_in_stages(self, job: JobSet) -> bool:
        """Whether a replicatedJob waits for another one to complete.

        Those that wait for another to be ready are due together with it: see `ready`.
        """
        return any(
            dependency.get("status") == _COMPLETE
            for _, _, replicated in replicated_jobs(_manifest(job))
            for dependency in _dependencies(replicated)
        )

    def finished(self, job: JobSet) -> JobOutcome | None:
        """Completed or Failed, whatever policy led there."""
        conditions = job.status.conditions
        outcomes = (c for c in conditions if c.type in _ENDS and c.status == "True")
        end = next(outcomes, None)
        return None if end is None else JobOutcome(end.type == "Failed", end.message)

    def reclaimable_pods(self, job: JobSet) -> Mapping[str, int]:
        """Pods of child Jobs that have succeeded.

        Nothing while the JobSet may still start anew: then these Jobs run once more, and what
        they hold must not have been given to others.
        """
        if _may_restart(job):
            return {}
        states, done = _states(job), {}
        for index, name, replicated in replicated_jobs(_manifest(job)):
            state = states.get(name, ReplicatedJobStatus())
            succeeded = min(state.succeeded, replicas_of(replicated))
            count = succeeded * max_running_pods(job_spec(replicated, index))
            if count > 0:
                done[name.lower()] = count
        return done

    def stale_child_jobs(self, job: JobSet, children: Sequence[Job]) -> list[StaleChildJob]:
        """Child Jobs that carry marks, selector keys or tolerations which the JobSet has not.

        The JobSet controller merges templates into the child Jobs there are, and takes nothing
        out: what an earlier admission brought would stay for good.
        """
        templates = {
            name: section(job_spec(replicated, index), "template")
            for index, name, replicated in replicated_jobs(_manifest(job))
        }
        stale = []
        for child in children:
            wanted = templates.get(child.metadata.labels.get(names.REPLICATED_JOB_LABEL, ""))
            if wanted is None or child.finished is not None or not is_inactive(child):
                continue
            have = template_of(child)
            operations = template_patch(
                have, _without_stale_injection(have, wanted), TEMPLATE_POINTER
            )
            if operations:
                stale.append(StaleChildJob(child, operations))
        return stale


def _manifest(job: JobSet) -> dict[str, Any]:
    """The part of a JobSet that `inject_jobset` reads, as plain JSON."""
    return {"spec": {"replicatedJobs": msgspec.json.decode(job.spec.replicated_jobs)}}


def _states(job: JobSet) -> dict[str, ReplicatedJobStatus]:
    return {state.name: state for state in job.status.replicated_jobs_status}


def _dependencies(replicated: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return items(replicated, "dependsOn")


def _is_reached(
    dependency: Mapping[str, Any],
    replicas: Mapping[str, int],
    states: Mapping[str, ReplicatedJobStatus],
) -> bool:
    """Whether a replicatedJob has come as far as one that depends on it waits for."""
    name = str(dependency.get("name", ""))
    state, wanted = states.get(name), replicas.get(name)
    if state is None or wanted is None:
        return False
    reached = state.succeeded if dependency.get("status") == _COMPLETE else state.ever_ready
    return reached >= wanted


def _may_restart(job: JobSet) -> bool:
    policy = job.spec.failure_policy
    if policy is None:
        return False
    if any(rule.action == _ALWAYS_RESTARTS for rule in policy.rules or ()):
        return True
    return job.status.restarts_count_towards_max < policy.max_restarts


def _without_stale_injection(have: Template, wanted: Template) -> dict[str, Any]:
    """A child's template without what only an earlier form of the JobSet's template had.

    A start adds marks of ours, selector keys and tolerations, nothing else. Keys of the JobSet
    controller stay; so does what others added to labels and annotations.
    """
    kept_labels, kept_annotations = labels_of(wanted), annotations_of(wanted)
    labels = [key for key in RESERVED_LABELS if key not in kept_labels]
    annotations = [key for key in RESERVED_ANNOTATIONS if key not in kept_annotations]
    kept_gates = gates_of(wanted)
    clean = without_entries(have, "metadata", "labels", labels)
    clean = without_entries(clean, "metadata", "annotations", annotations)
    clean = without_gates(clean, [gate for gate in RESERVED_GATES if gate not in kept_gates])
    spec = section(wanted, "spec")
    selector = section(spec, "nodeSelector")
    keys = section(section(have, "spec"), "nodeSelector")
    stale = [key for key in keys if key not in selector and not _is_jobset_key(key)]
    clean = without_entries(clean, "spec", "nodeSelector", stale)
    tolerated = [without_empty(entry) for entry in items(spec, "tolerations")]
    tolerations = items(section(have, "spec"), "tolerations")
    kept = [
        entry
        for entry in tolerations
        if without_empty(entry) in tolerated or _is_jobset_key(str(entry.get("key", "")))
    ]
    if len(kept) == len(tolerations):
        return clean
    return with_field(clean, "spec", "tolerations", kept or None)


def _is_jobset_key(key: str) -> bool:
    """Whether the JobSet controller itself uses this key."""
    return key.partition("/")[0].endswith(_OWN)
