"""The kinds of jobs, as far as mutation and validation must tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rackgate.api.names import ELASTIC_ANNOTATION, JOBSET_GROUP, RAY_GROUP
from rackgate.features import Features
from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.injection import PodTemplate, StopPhase
from rackgate.jobframework.job import podsets as jobs
from rackgate.jobframework.jobset import podsets as jobsets
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.podset_groups import group_errors
from rackgate.jobframework.raycluster import podsets as rayclusters
from rackgate.jobframework.templates import RESERVED_GATES, gates_of, section

Object = Mapping[str, Any]

_REQUEST_FIELDS: Final = (
    "containers",
    "initContainers",
    "resources",
    "overhead",
    "runtimeClassName",
)


@dataclass(frozen=True, slots=True)
class JobWebhook:
    """What one kind of job is made of.

    Attributes:
        name: the kind.
        templates: its pod templates. The second argument of this and of `inject`: jobs of the
            kind may be resized in slices, as far as `is_elastic` says so of one.
        inject: what it is given under the queue label.
        remove_injection: what is taken from it without.
        count_units: what the pods of each PodSet are a multiple of.
        counts: pods of each PodSet.
        shape_errors: what no Workload could carry.
        is_elastic: whether it asks to be resized while it runs.
        elastic_path: the field that says so.
        elastic_advice: how to say so.
        templates_path: of its pod templates, for messages.
        can_remove_injection: the templates of the suspended job may be written now.
        templates_editable: its users may write its templates while it is governed.
        immutable_while_running: nobody may change its templates while it runs. A manifest that is
            applied anew must not look like a change for want of what we brought.
        job_templates: path and object of the Job templates in it.
    """

    name: str
    templates: Callable[[Object, bool], list[PodTemplate]]
    inject: Callable[[Object, bool], list[JsonPatchOp]]
    remove_injection: Callable[[Object], list[JsonPatchOp]]
    count_units: Callable[[Object], Mapping[str, int]]
    counts: Callable[[Object], Mapping[str, int]]
    shape_errors: Callable[[Object], list[FieldError]]
    is_elastic: Callable[[Object], bool]
    elastic_path: str
    elastic_advice: str
    templates_path: str
    can_remove_injection: Callable[[Object], bool] = lambda _: True
    templates_editable: bool = True
    immutable_while_running: bool = False
    job_templates: Callable[[Object], Collection[tuple[str, Object]]] = lambda _: ()

    def find_scale_up(self, job: Object, stored: Object) -> dict[str, tuple[int, int]]:
        """PodSets that ask for more pods than they had, and that no gate holds.

        Judged by the stored templates: whoever applies a whole manifest drops our gates, which
        come back in the same write.

        Returns:
            By name, the pods before and now.
        """
        gated_podsets = {
            pod_template.podset
            for pod_template in self.templates(stored, False)
            if any(gate in RESERVED_GATES for gate in gates_of(pod_template.template))
        }
        before, now = self.counts(stored), self.counts(job)
        return {
            name: (before[name], count)
            for name, count in now.items()
            if name not in gated_podsets and count > before.get(name, count)
        }

    def find_changed_podset(self, job: Object, stored: Object) -> str | None:
        """The first PodSet whose new pods would ask for something else than those admitted.

        No gate helps: it counts pods, whatever they ask for.
        """
        before = {
            pod_template.podset: _request_fields_of(pod_template.template)
            for pod_template in self.templates(stored, False)
        }
        for pod_template in self.templates(job, False):
            if before.get(
                pod_template.podset, _request_fields_of(pod_template.template)
            ) != _request_fields_of(pod_template.template):
                return pod_template.podset
        return None


def _request_fields_of(template: Object) -> list[Any]:
    """What requests of a template's pods are made of."""
    spec = section(template, "spec")
    return [spec.get(key) or None for key in _REQUEST_FIELDS]


def _job_errors(job: Object) -> list[FieldError]:
    return group_errors(jobs.templates_of(job), {jobs.PODSET: jobs.pod_count(job)})


def _can_remove_job_injection(job: Object) -> bool:
    # A template that still waits for its pods to end may not be changed yet.
    return jobs.next_stop_action(job, jobs.template_of(job)).phase is not StopPhase.WAIT


_JOB: Final = JobWebhook(
    name="Job",
    templates=lambda job, slices: jobs.templates_of(job, elastic=slices and jobs.is_elastic(job)),
    inject=lambda job, slices: jobs.inject_job(job, elastic_enabled=slices),
    remove_injection=jobs.remove_job_injection,
    count_units=lambda job: {jobs.PODSET: 1 if jobs.is_elastic(job) else jobs.pod_count(job)},
    counts=lambda job: {jobs.PODSET: jobs.pod_count(job)},
    shape_errors=_job_errors,
    is_elastic=jobs.is_elastic,
    elastic_path=f"metadata.annotations[{ELASTIC_ANNOTATION}]",
    elastic_advice='it is "true" on Jobs of completionMode Indexed alone',
    templates_path=jobs.TEMPLATE_PATH,
    can_remove_injection=_can_remove_job_injection,
    templates_editable=False,
)
_JOBSET: Final = JobWebhook(
    name="JobSet",
    templates=lambda jobset, _: jobsets.templates_of(jobset),
    inject=lambda jobset, _: jobsets.inject_jobset(jobset),
    remove_injection=jobsets.remove_jobset_injection,
    count_units=jobsets.counts_of,
    counts=jobsets.counts_of,
    shape_errors=jobsets.podset_errors,
    is_elastic=lambda _: False,
    elastic_path="",
    elastic_advice="a JobSet keeps its size",
    templates_path="spec.replicatedJobs[*].template.spec.template",
    immutable_while_running=True,
    job_templates=jobsets.job_templates_of,
)
_RAYCLUSTER: Final = JobWebhook(
    name="RayCluster",
    templates=lambda cluster, slices: rayclusters.templates_of(
        cluster, elastic=slices and rayclusters.is_elastic(cluster)
    ),
    inject=lambda cluster, slices: rayclusters.inject_raycluster(cluster, elastic_enabled=slices),
    remove_injection=rayclusters.remove_raycluster_injection,
    count_units=rayclusters.scaling_units_of,
    counts=rayclusters.counts_of,
    shape_errors=rayclusters.podset_errors,
    is_elastic=rayclusters.is_elastic,
    elastic_path="spec.enableInTreeAutoscaling",
    elastic_advice="set spec.enableInTreeAutoscaling",
    templates_path="spec.headGroupSpec.template and spec.workerGroupSpecs[*].template",
)

JOB_WEBHOOKS: Final[Mapping[str, JobWebhook]] = {
    "batch/Job": _JOB,
    f"{JOBSET_GROUP}/JobSet": _JOBSET,
    f"{RAY_GROUP}/RayCluster": _RAYCLUSTER,
}


def enabled_elastic_kinds(features: Features) -> frozenset[str]:
    """Names of the kinds whose jobs may be resized in slices."""
    if not features.elastic_jobs:
        return frozenset()
    return frozenset({"RayCluster", *(["Job"] if features.elastic_indexed_jobs else [])})
