"""batch/v1 Job: one PodSet, and a template that is immutable while the Job runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from rackgate.api.names import (
    COMPLETION_INDEX_LABEL,
    COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION,
    CONTROLLER_UID_LABEL,
    ELASTIC_ANNOTATION,
    MIN_PARALLELISM_ANNOTATION,
)
from rackgate.api.resources import JOBS, Resource
from rackgate.features import Features
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import (
    DefaultGang,
    GenericJob,
    JobOutcome,
    Manifest,
    TemplateEdits,
)
from rackgate.jobframework.injection import PodSetInfo, PodTemplate
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.podsets import (
    GANG,
    JOB_TEMPLATE_LABELS,
    PODSET,
    group_errors,
    has_topology,
    podset_json,
    reduced_counts,
    total_pods,
)
from rackgate.jobframework.templates import (
    Template,
    annotations_of,
    int_or_default,
    labels_of,
    section,
    strip_reserved,
    template_patch,
    validated_template,
    with_entries,
)
from rackgate.jobframework.topology_request import topology_request
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload

MIN_PARALLELISM_PATH: Final = f"metadata.annotations[{MIN_PARALLELISM_ANNOTATION}]"
TEMPLATE_PATH: Final = "spec.template"
TEMPLATE_POINTER: Final = "/spec/template"
_FAILED: Final = "Failed"
_INDEXES: Final = re.compile(r"\d{1,10}(-\d{1,10})?(,\d{1,10}(-\d{1,10})?)*", re.ASCII)


def template_of(job: Manifest) -> dict[str, Any]:
    """The pod template of a Job."""
    return dict(section(section(job, "spec"), "template", "spec"))


def max_running_pods(spec: Mapping[str, Any]) -> int:
    """Pods of a JobSpec that run at once: min(parallelism, completions), never negative."""
    parallelism = int_or_default(spec.get("parallelism"), default=1)
    completions = int_or_default(spec.get("completions"), default=parallelism)
    return max(0, min(parallelism, completions))


def runs_all_at_once(spec: Mapping[str, Any]) -> bool:
    """Whether all pods of a JobSpec run at the same time: it may have as many as it completes."""
    parallelism = int_or_default(spec.get("parallelism"), default=1)
    return parallelism == int_or_default(spec.get("completions"), default=parallelism)


def count_indexes(text: str) -> int:
    """How many indexes a list such as `1,3-5` has; 0 for what is no such list."""
    total = 0
    for part in text.split(",") if _INDEXES.fullmatch(text) else ():
        first, _, last = part.partition("-")
        total += max(0, int(last or first) - int(first) + 1)
    return total


def pods_not_created_again(job: Job, count: int) -> int:
    """Pods of a Job that no remaining completion needs.

    Args:
        job: as stored.
        count: how many of its pods run at once.
    """
    spec, done = job.spec, job.status.succeeded
    wanted = spec.parallelism if spec.completions is None else spec.completions
    if job.indexed:
        done += count_indexes(job.status.failed_indexes)
    return max(0, min(count - max(0, wanted - done), done))


def min_parallelism(manifest: Manifest) -> int | None:
    """The fewest pods that a Job may start with; None if it has no such number, or a bad one."""
    text = annotations_of(manifest).get(MIN_PARALLELISM_ANNOTATION)
    # The length is limited first: converting a long text of digits takes long.
    if not isinstance(text, str) or len(text) > 10 or not (text.isascii() and text.isdigit()):
        return None
    return int(text) or None


def is_inactive(job: Job) -> bool:
    """Whether a Job is suspended, and the suspension has taken effect.

    Only then does the API server allow changes of the template: no pod is active, and condition
    Suspended is True, or the Job was never started.
    """
    if not job.spec.suspend or job.status.active:
        return False
    condition = job.status.condition("Suspended")
    return job.status.start_time is None or (condition is not None and condition.status == "True")


def stopping_pods(job: Job) -> int:
    """Pods of a Job that is suspended or being deleted; 0 for all others."""
    if not (job.spec.suspend or job.metadata.deletion_timestamp) or job.finished is not None:
        return 0
    return job.status.active + job.status.terminating


class BatchJob(GenericJob[Job]):
    """A Job."""

    resource: ClassVar[Resource] = JOBS
    object_type: ClassVar[type] = Job
    controller: ClassVar[str] = "kubernetes.io/job-controller"
    built_in: ClassVar[bool] = True
    template_edits: ClassVar[TemplateEdits] = TemplateEdits.AT_REST
    templates_path: ClassVar[str] = TEMPLATE_PATH
    controls_jobs: ClassVar[bool] = False
    elastic_path: ClassVar[str] = f"metadata.annotations[{ELASTIC_ANNOTATION}]"
    elastic_advice: ClassVar[str] = "it requires completionMode: Indexed"

    def manifest(self, job: Job) -> Manifest:
        """Its template, and the fields that determine how many pods run at once."""
        spec = job.spec
        return {
            "metadata": {"annotations": job.metadata.annotations},
            "spec": {
                "parallelism": spec.parallelism,
                "completions": spec.completions,
                "completionMode": spec.completion_mode,
                "template": msgspec.json.decode(spec.template),
            },
        }

    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        """Its one template."""
        template = validated_template(template_of(manifest), TEMPLATE_PATH)
        return [PodTemplate(PODSET, TEMPLATE_PATH, TEMPLATE_POINTER, template, elastic)]

    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        """One PodSet `main`. Pods of Indexed Jobs carry their rank in a label."""
        template = strip_reserved(template_of(manifest))
        indexed = section(manifest, "spec").get("completionMode") == "Indexed"
        request = topology_request(
            template, index_label=COMPLETION_INDEX_LABEL if indexed else None
        )
        count, fewest = self.counts(manifest)[PODSET], min_parallelism(manifest)
        if fewest is not None and (fewest >= count or self.is_elastic(manifest)):
            fewest = None
        return [podset_json(PODSET, count, template, request, min_count=fewest)]

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """Pods that run at once."""
        return {PODSET: max_running_pods(section(manifest, "spec"))}

    def count_units(self, manifest: Manifest) -> Mapping[str, int]:
        """1 if the Job may be resized, else the number of all pods."""
        return {PODSET: 1} if self.is_elastic(manifest) else self.counts(manifest)

    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        """Its one PodSet cannot form a group; its smallest parallelism is at most its own."""
        errors = group_errors(self.templates(manifest), self.counts(manifest))
        text = annotations_of(manifest).get(MIN_PARALLELISM_ANNOTATION)
        if text is None:
            return errors
        fewest, count = min_parallelism(manifest), self.counts(manifest)[PODSET]
        if fewest is None or fewest > max(count, 1):
            problem = f"{shown(text)} is not a number of pods from 1 to {max(count, 1)}"
            help_ = "write the fewest pods that the Job may start with"
            errors.append(FieldError(MIN_PARALLELISM_PATH, problem, help_))
        elif self.is_elastic(manifest):
            problem = f"an elastic Job is resized instead of started with {fewest} pods"
            help_ = f"remove this annotation or {ELASTIC_ANNOTATION}"
            errors.append(FieldError(MIN_PARALLELISM_PATH, problem, help_))
        return errors

    def elastic_enabled(self, features: Features) -> bool:
        """Elastic, with a gate of its own."""
        return features.elastic_jobs and features.elastic_indexed_jobs

    def is_elastic(self, manifest: Manifest) -> bool:
        """An Indexed Job that requests to be resized by its parallelism."""
        indexed = section(manifest, "spec").get("completionMode") == "Indexed"
        return indexed and annotations_of(manifest).get(ELASTIC_ANNOTATION) == "true"

    def can_remove_injection(self, manifest: Manifest) -> bool:
        """Not while pods of the template are still terminating."""
        status = dict(section(manifest, "status"))
        return is_inactive(msgspec.convert({"spec": {"suspend": True}, "status": status}, Job))

    def default_gangs(self, manifest: Manifest) -> Sequence[DefaultGang]:
        """All pods of an Indexed Job, if they run at the same time and their number is fixed."""
        spec, annotations = section(manifest, "spec"), annotations_of(manifest)
        count = max_running_pods(spec)
        fixed = annotations.get(ELASTIC_ANNOTATION) != "true" and (
            MIN_PARALLELISM_ANNOTATION not in annotations
        )
        indexed = spec.get("completionMode") == "Indexed"
        if not (indexed and fixed and runs_all_at_once(spec) and count > 1):
            return ()
        return (DefaultGang(GANG, count),)

    def deletes_itself(self, job: Job) -> bool:
        """It has a time to live, or its CronJob keeps only the last ones."""
        owner = job.metadata.controller
        of_cron_job = (
            owner is not None
            and owner.kind == "CronJob"
            and owner.api_version.partition("/")[0] == JOBS.group
        )
        return of_cron_job or job.spec.ttl_seconds_after_finished is not None

    def pod_selector(self, job: Job) -> str:
        """By the UID of the Job."""
        return f"{CONTROLLER_UID_LABEL}={job.metadata.uid}"

    def is_inactive(self, job: Job, children: Sequence[Job]) -> bool:
        """Its suspension has taken effect."""
        return is_inactive(job)

    def remaining_pods(self, job: Job, children: Sequence[Job]) -> int:
        """Pods that are active or terminating."""
        return stopping_pods(job)

    def pods_ready(self, job: Job, admitted: Mapping[str, int]) -> bool:
        """As many pods are ready or have succeeded as were admitted and are requested.

        A pod that has succeeded is not ready any more before it is counted.
        """
        wanted = min(sum(admitted.values()), job.pod_count)
        status = job.status
        succeeded = status.succeeded + len(status.uncounted_terminated_pods.succeeded)
        return status.ready + succeeded >= wanted

    def finished(self, job: Job) -> JobOutcome | None:
        """Complete or Failed."""
        end = job.finished
        return None if end is None else JobOutcome(end.type == _FAILED, end.message)

    def reclaimable_pods(self, job: Job, counts: Mapping[str, int]) -> Mapping[str, int]:
        """Pods that no remaining completion needs: a Job creates no more pods than it still needs.

        Its parallelism does not matter: it may be raised again up to what was admitted. None for
        Jobs that may be resized, because their completions change with their size, and for those
        that may start with fewer pods, because that changes how many are needed.
        """
        if MIN_PARALLELISM_ANNOTATION in job.metadata.annotations:
            return {}
        if job.indexed and job.metadata.annotations.get(ELASTIC_ANNOTATION) == "true":
            return {}
        # A Job that requests fewer pods than were admitted may request them again.
        unneeded = pods_not_created_again(job, counts.get(PODSET, 0))
        return {PODSET: unneeded} if unneeded else {}

    def find_change(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload, *, elastic: bool
    ) -> str | None:
        """Increased parallelism, if no gate holds the additional pods; or a parallelism of 0."""
        requested, admitted = podsets[0]["count"], total_pods(workload)
        if requested == 0:
            return "the Job requests no pods"  # it would hold quota for nothing
        if elastic or requested <= admitted or has_topology(workload):
            return None
        return f"the Job requests {requested} pods, {admitted} were admitted"

    def wait_for_termination_ops(self, job: Job) -> list[JsonPatchOp]:
        """Its replacement policy, which applies from the next pod that ends."""
        if job.spec.pod_replacement_policy == _FAILED:
            return []
        return [{"op": "add", "path": "/spec/podReplacementPolicy", "value": _FAILED}]

    def reduce_ops(self, job: Job, workload: Workload) -> list[JsonPatchOp]:
        """Its parallelism, and its completions if they are to be equal."""
        admitted = reduced_counts(workload).get(PODSET)
        return [] if admitted is None else _parallelism_ops(job, admitted)

    def restore_count_ops(self, job: Job, workload: Workload) -> list[JsonPatchOp]:
        """The parallelism that the Workload requests."""
        if job.spec.parallelism != reduced_counts(workload).get(PODSET):
            return []
        return _parallelism_ops(job, workload.spec.pod_sets[0].count)

    def restore_ops(
        self,
        templates: Sequence[PodTemplate],
        originals: Mapping[str, Template],
        podset_infos: Mapping[str, PodSetInfo],
    ) -> list[JsonPatchOp]:
        """Replace the whole template: no other client writes it while the Job runs.

        The labels that its selector needs stay: a Workload of Kueue lacks them.
        """
        template = templates[0].template
        original = next(iter(originals.values()), None)
        wanted = strip_reserved(template) if original is None else original
        labels = labels_of(template)
        own = {key: labels[key] for key in JOB_TEMPLATE_LABELS if key in labels}
        missing = {key: value for key, value in own.items() if key not in labels_of(wanted)}
        if missing:
            wanted = with_entries(wanted, "metadata", "labels", missing)
        return template_patch(template, wanted, TEMPLATE_POINTER)


def _parallelism_ops(job: Job, parallelism: int) -> list[JsonPatchOp]:
    fields = ["parallelism"]
    equal = job.metadata.annotations.get(COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION) == "true"
    # Completions of other Jobs never change.
    if equal and job.indexed and job.spec.completions == job.spec.parallelism:
        fields.append("completions")
    return [{"op": "add", "path": f"/spec/{field}", "value": parallelism} for field in fields]
