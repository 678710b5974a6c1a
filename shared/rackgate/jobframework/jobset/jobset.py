"""jobset.x-k8s.io JobSet: one PodSet for each replicatedJob; its pods belong to child Jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from rackgate.api import names
from rackgate.api.resources import JOBSETS, Resource
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.generic_job import (
    ChildJobs,
    DefaultGang,
    GenericJob,
    JobOutcome,
    Manifest,
    StaleChildJob,
    TemplateEdits,
)
from rackgate.jobframework.injection import PodSetInfo, PodTemplate
from rackgate.jobframework.job.batch_job import (
    TEMPLATE_POINTER,
    is_inactive,
    max_running_pods,
    pods_not_created_again,
    runs_all_at_once,
    stopping_pods,
)
from rackgate.jobframework.jobset.wire import JobSet, ReplicatedJobStatus
from rackgate.jobframework.jsonpatch import name_tests
from rackgate.jobframework.podsets import (
    GANG,
    MAX_PODSETS,
    group_errors,
    name_errors,
    podset_json,
    without_empty,
)
from rackgate.jobframework.templates import (
    RESERVED_ANNOTATIONS,
    RESERVED_GATES,
    RESERVED_LABELS,
    Template,
    annotations_of,
    gates_of,
    int_or_default,
    items,
    labels_of,
    section,
    strip_reserved,
    template_patch,
    validated_template,
    with_field,
    without_entries,
    without_gates,
)
from rackgate.jobframework.topology_request import topology_request
from rackgate.wire.batch import Job

_ENDS: Final = ("Completed", "Failed")
_OWN: Final = "jobset.sigs.k8s.io"
_COMPLETE: Final = "Complete"
_ALWAYS_RESTARTS: Final = "RestartJobSetAndIgnoreMaxRestarts"
_IN_ORDER: Final = "InOrder"
# A value of the annotation: each replicatedJob is a gang of its own.
_GANG_PER_REPLICATED_JOB: Final = "ReplicatedJob"


class JobSetJob(GenericJob[JobSet]):
    """A JobSet."""

    resource: ClassVar[Resource] = JOBSETS
    object_type: ClassVar[type] = JobSet
    controller: ClassVar[str] = "jobset.sigs.k8s.io/jobset-controller"
    template_edits: ClassVar[TemplateEdits] = TemplateEdits.SUSPENDED
    templates_path: ClassVar[str] = "spec.replicatedJobs[*].template.spec.template"
    child_job_label: ClassVar[str] = names.JOBSET_NAME_LABEL
    elastic_advice: ClassVar[str] = "a JobSet cannot be resized"

    def manifest(self, job: JobSet) -> Manifest:
        """Its replicatedJobs, whether they start in order, and its annotations."""
        spec: dict[str, Any] = {"replicatedJobs": msgspec.json.decode(job.spec.replicated_jobs)}
        if job.spec.startup_policy is not None:
            spec["startupPolicy"] = {
                "startupPolicyOrder": job.spec.startup_policy.startup_policy_order
            }
        return {"metadata": {"annotations": job.metadata.annotations}, "spec": spec}

    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        """One template for each replicatedJob; PodSets have the names of the replicatedJobs."""
        return [
            PodTemplate(
                podset=name.lower(),
                path=f"spec.replicatedJobs[{index}].template.spec.template",
                pointer=f"/spec/replicatedJobs/{index}/template/spec/template",
                template=_pod_template(replicated, index),
                tests=name_tests(f"/spec/replicatedJobs/{index}/name", name),
            )
            for index, name, replicated in _replicated_jobs(manifest)
        ]

    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        """One PodSet for each replicatedJob, with replicas x pods of one Job.

        Ranks run over (job index, completion index): each Job of the replicas is one subgroup.
        """
        podsets = []
        for pod_template, (index, _, replicated) in zip(
            self.templates(manifest), _replicated_jobs(manifest), strict=True
        ):
            replicas, spec = _replicas_of(replicated), _job_spec(replicated, index)
            template = strip_reserved(pod_template.template)
            # Indexed is JobSet's own default.
            indexed = (spec.get("completionMode") or "Indexed") == "Indexed"
            request = topology_request(
                template, index_label=names.COMPLETION_INDEX_LABEL if indexed else None
            )
            if request is not None and indexed:
                request["subGroupIndexLabel"] = names.JOB_INDEX_LABEL
                request["subGroupCount"] = replicas
            count = replicas * max_running_pods(spec)
            podsets.append(podset_json(pod_template.podset, count, template, request))
        return podsets

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """Replicas x pods that one Job runs at once."""
        return {
            name.lower(): _replicas_of(replicated) * max_running_pods(_job_spec(replicated, index))
            for index, name, replicated in _replicated_jobs(manifest)
        }

    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        """No PodSets or too many, bad names, invalid groups."""
        jobs = list(_replicated_jobs(manifest))
        errors: list[FieldError] = []
        if not 1 <= len(jobs) <= MAX_PODSETS:
            problem = f"{len(jobs)} replicatedJobs, a Workload has 1 to {MAX_PODSETS} podsets"
            errors.append(
                FieldError("spec.replicatedJobs", problem, "merge those with equal templates")
            )
        named = ((f"spec.replicatedJobs[{index}].name", name) for index, name, _ in jobs)
        groups = group_errors(self.templates(manifest), self.counts(manifest))
        return errors + name_errors(named) + groups

    def job_templates(self, manifest: Manifest) -> Collection[tuple[str, Manifest]]:
        """Their metadata becomes the metadata of the child Jobs."""
        return [
            (f"{path}.template", section(replicated, "template", path))
            for index, _, replicated in _replicated_jobs(manifest)
            for path in (f"spec.replicatedJobs[{index}]",)
        ]

    def default_gangs(self, manifest: Manifest) -> Sequence[DefaultGang]:
        """All pods, or those of each replicatedJob, if all of them run at the same time.

        Not if replicatedJobs start one after the other: the first would wait for the others.
        """
        jobs = list(_replicated_jobs(manifest))
        policy = section(section(manifest, "spec"), "startupPolicy", "spec")
        specs = [_job_spec(replicated, index) for index, _, replicated in jobs]
        # Indexed is JobSet's own default.
        at_once = all(
            (spec.get("completionMode") or "Indexed") == "Indexed" and runs_all_at_once(spec)
            for spec in specs
        )
        ordered = policy.get("startupPolicyOrder") == _IN_ORDER or any(
            _dependencies(replicated) for _, _, replicated in jobs
        )
        counts = self.counts(manifest)
        total = sum(counts.values())
        if ordered or not at_once or total <= 1:
            return ()
        if annotations_of(manifest).get(names.GANG_PER_ANNOTATION) != _GANG_PER_REPLICATED_JOB:
            return (DefaultGang(GANG, total),)
        key = names.REPLICATED_JOB_LABEL
        return tuple(
            DefaultGang(name, counts[name.lower()], {"key": key, "values": [name]})
            for _, name, _ in jobs
            if counts[name.lower()]
        )

    def child_jobs(self, manifest: Manifest) -> Mapping[str, ChildJobs]:
        """The Jobs of each replicatedJob."""
        return {
            name.lower(): ChildJobs(
                f"spec.replicatedJobs[{index}].template",
                annotations_of(section(replicated, "template", f"spec.replicatedJobs[{index}]")),
                _replicas_of(replicated),
                max_running_pods(_job_spec(replicated, index)),
            )
            for index, name, replicated in _replicated_jobs(manifest)
        }

    def podset_of_child(self, child: Job) -> str:
        """By its replicatedJob."""
        return child.metadata.labels.get(names.REPLICATED_JOB_LABEL, "").lower()

    def pod_labels(self, manifest: Manifest) -> Mapping[str, Mapping[str, str]]:
        """The replicatedJob."""
        return {
            name.lower(): {names.REPLICATED_JOB_LABEL: name}
            for _, name, _ in _replicated_jobs(manifest)
        }

    def deletes_itself(self, job: JobSet) -> bool:
        """It has a time to live."""
        return job.spec.ttl_seconds_after_finished is not None

    def pod_selector(self, job: JobSet) -> str:
        """By the name of the JobSet."""
        return f"{names.JOBSET_NAME_LABEL}={job.metadata.name}"

    def is_inactive(self, job: JobSet, children: Sequence[Job]) -> bool:
        """Every unfinished child Job is inactive, and none is being deleted."""
        return all(
            is_inactive(child) and child.metadata.deletion_timestamp is None
            for child in children
            if child.finished is None
        )

    def remaining_pods(self, job: JobSet, children: Sequence[Job]) -> int:
        """Pods of its child Jobs that are active or terminating."""
        return sum(map(stopping_pods, children))

    def pods_ready(self, job: JobSet, admitted: Mapping[str, int]) -> bool:
        """The replicatedJobs that should run now are ready or have succeeded.

        A replicatedJob that depends on the completion of another should not run before that. An
        order of starts needs no special case: each one starts as soon as the previous one is ready.
        """
        states = _states(job)
        wanted: dict[str, int] = {}
        for index, name, replicated in _replicated_jobs(self.manifest(job)):
            replicas = _replicas_of(replicated)
            wanted[name] = replicas
            state = states.get(name, ReplicatedJobStatus())
            empty = max_running_pods(_job_spec(replicated, index)) == 0
            is_due = all(_is_reached(entry, wanted, states) for entry in _dependencies(replicated))
            if is_due and not empty and state.ready + state.succeeded < replicas:
                return False
        return True

    def starts_in_stages(self, job: JobSet) -> bool:
        """Whether a replicatedJob depends on the completion of another one.

        One that depends on another's readiness should run together with it: see `ready`.
        """
        return any(
            dependency.get("status") == _COMPLETE
            for _, _, replicated in _replicated_jobs(self.manifest(job))
            for dependency in _dependencies(replicated)
        )

    def finished(self, job: JobSet) -> JobOutcome | None:
        """Completed or Failed, by any policy."""
        conditions = job.status.conditions
        outcomes = (c for c in conditions if c.type in _ENDS and c.status == "True")
        end = next(outcomes, None)
        return None if end is None else JobOutcome(end.type == "Failed", end.message)

    def reclaimable_pods(self, job: JobSet, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Pods of child Jobs that have succeeded.

        0 while the JobSet may restart: then these Jobs run again, and their quota must not have
        been given to others.
        """
        del counts
        if _may_restart(job):
            return {}
        states, done = _states(job), {}
        for index, name, replicated in _replicated_jobs(self.manifest(job)):
            state = states.get(name, ReplicatedJobStatus())
            succeeded = min(state.succeeded, _replicas_of(replicated))
            count = succeeded * max_running_pods(_job_spec(replicated, index))
            if count > 0:
                done[name.lower()] = count
        return done

    def done_pods(self, children: Sequence[Job]) -> Mapping[str, Mapping[str, int]]:
        """Also of child Jobs that have not finished, and if the JobSet may restart."""
        found: dict[str, dict[str, int]] = {}
        for child in children:
            spec = child.spec
            wanted = spec.parallelism if spec.completions is None else spec.completions
            count = min(spec.parallelism, wanted)
            if child.finished is None or child.finished.type != "Complete":
                count = pods_not_created_again(child, count)
            if count and child.metadata.deletion_timestamp is None:
                found.setdefault(self.podset_of_child(child), {})[child.metadata.uid] = count
        return found

    def stale_child_jobs(
        self, job: JobSet, children: Sequence[Job], podset_infos: Mapping[str, PodSetInfo]
    ) -> list[StaleChildJob]:
        """Child Jobs with injected keys, selector keys or tolerations that the JobSet lacks.

        The JobSet controller merges templates into existing child Jobs and removes nothing, so the
        injected fields of an earlier admission would stay.
        """
        templates = {
            name: section(_job_spec(replicated, index), "template")
            for index, name, replicated in _replicated_jobs(self.manifest(job))
        }
        stale = []
        for child in children:
            replicated_job = child.metadata.labels.get(names.REPLICATED_JOB_LABEL, "")
            wanted = templates.get(replicated_job)
            if wanted is None or child.finished is not None or not is_inactive(child):
                continue
            have: dict[str, Any] = msgspec.json.decode(child.spec.template)
            operations = template_patch(
                have,
                _without_stale_injection(have, wanted, podset_infos.get(replicated_job.lower())),
                TEMPLATE_POINTER,
            )
            if operations:
                stale.append(StaleChildJob(child, operations))
        return stale


def _replicated_jobs(jobset: Manifest) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Index, name and object of each replicatedJob."""
    jobs = items(section(jobset, "spec"), "replicatedJobs", "spec")
    for index, replicated in enumerate(jobs):
        yield index, str(replicated.get("name", "")), replicated


def _pod_template(replicated: Mapping[str, Any], index: int) -> Template:
    path = f"spec.replicatedJobs[{index}].template.spec"
    return validated_template(
        section(_job_spec(replicated, index), "template", path), f"{path}.template"
    )


def _job_spec(replicated: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    path = f"spec.replicatedJobs[{index}]"
    return section(section(replicated, "template", path), "spec", f"{path}.template")


def _replicas_of(replicated: Mapping[str, Any]) -> int:
    """Jobs of one replicatedJob; never negative."""
    return max(0, int_or_default(replicated.get("replicas"), default=1))


def _states(job: JobSet) -> dict[str, ReplicatedJobStatus]:
    return {state.name: state for state in job.status.replicated_jobs_status}


def _dependencies(replicated: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return items(replicated, "dependsOn")


def _is_reached(
    dependency: Mapping[str, Any],
    replicas: Mapping[str, int],
    states: Mapping[str, ReplicatedJobStatus],
) -> bool:
    """Whether a replicatedJob has reached the state that its dependents require."""
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


def _without_stale_injection(
    have: Template, wanted: Template, info: PodSetInfo | None
) -> dict[str, Any]:
    """A child's template without fields that only an earlier template of the JobSet had.

    A start adds only our own keys, those of admission checks, selector keys and tolerations. Keys
    of the JobSet controller stay, and so do labels and annotations that others added.
    """
    kept_labels, kept_annotations = labels_of(wanted), annotations_of(wanted)
    ours = (*RESERVED_LABELS, *(info.labels if info is not None else ()))
    labels = [key for key in ours if key not in kept_labels]
    # What says which gang the pods are in is its user's only if the JobSet has it, too.
    injected = (*RESERVED_ANNOTATIONS, *names.GANG_TEMPLATE_KEYS)
    ours = (*injected, *(info.annotations if info is not None else ()))
    annotations = [key for key in ours if key not in kept_annotations]
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
