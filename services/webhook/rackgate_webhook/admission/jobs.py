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

_ASKING: Final = ("containers", "initContainers", "resources", "overhead", "runtimeClassName")


@dataclass(frozen=True, slots=True)
class JobKind:
    """What one kind of job is made of.

    Attributes:
        name: the kind.
        templates: its pod templates. The second argument of this and of `govern`: jobs of the
            kind may be resized in slices, as far as `scales` says so of one.
        govern: what it is given under the queue label.
        release: what is taken from it without.
        units: what the pods of each PodSet are a multiple of.
        counts: pods of each PodSet.
        shape_errors: what no Workload could carry.
        scales: whether it asks to be resized while it runs.
        scales_path: the field that says so.
        scales_advice: how to say so.
        templates_path: of its pod templates, for messages.
        released: the templates of the suspended job may be written now.
        editable: its users may write its templates while it is governed.
        frozen: nobody may change its templates while it runs. A manifest that is applied anew
            must not look like a change for want of what we brought.
        job_templates: path and object of the Job templates in it.
    """

    name: str
    templates: Callable[[Object, bool], list[PodTemplate]]
    govern: Callable[[Object, bool], list[JsonPatchOp]]
    release: Callable[[Object], list[JsonPatchOp]]
    units: Callable[[Object], Mapping[str, int]]
    counts: Callable[[Object], Mapping[str, int]]
    shape_errors: Callable[[Object], list[FieldError]]
    scales: Callable[[Object], bool]
    scales_path: str
    scales_advice: str
    templates_path: str
    released: Callable[[Object], bool] = lambda _: True
    editable: bool = True
    frozen: bool = False
    job_templates: Callable[[Object], Collection[tuple[str, Object]]] = lambda _: ()

    def grown(self, job: Object, stored: Object) -> dict[str, tuple[int, int]]:
        """PodSets that ask for more pods than they had, and that no gate holds.

        Judged by the stored templates: whoever applies a whole manifest drops our gates, which
        come back in the same write.

        Returns:
            By name, the pods before and now.
        """
        held = {
            part.podset
            for part in self.templates(stored, False)
            if any(gate in RESERVED_GATES for gate in gates_of(part.template))
        }
        before, now = self.counts(stored), self.counts(job)
        return {
            name: (before[name], count)
            for name, count in now.items()
            if name not in held and count > before.get(name, count)
        }

    def reshaped(self, job: Object, stored: Object) -> str | None:
        """The first PodSet whose new pods would ask for something else than those admitted.

        No gate helps: it counts pods, whatever they ask for.
        """
        before = {part.podset: _asks(part.template) for part in self.templates(stored, False)}
        for part in self.templates(job, False):
            if before.get(part.podset, _asks(part.template)) != _asks(part.template):
                return part.podset
        return None


def _asks(template: Object) -> list[Any]:
    """What requests of a template's pods are made of."""
    spec = section(template, "spec")
    return [spec.get(key) or None for key in _ASKING]


def _job_errors(job: Object) -> list[FieldError]:
    return group_errors(jobs.templates_of(job), {jobs.PODSET: jobs.pod_count(job)})


def _settled(job: Object) -> bool:
    # A template that still waits for its pods to end may not be changed yet.
    return jobs.stop_step(job, jobs.template_of(job)).phase is not StopPhase.WAIT


_JOB: Final = JobKind(
    name="Job",
    templates=lambda job, slices: jobs.templates_of(job, elastic=slices and jobs.is_elastic(job)),
    govern=lambda job, slices: jobs.govern_job(job, slices=slices),
    release=jobs.release_job,
    units=lambda job: {jobs.PODSET: 1 if jobs.is_elastic(job) else jobs.pod_count(job)},
    counts=lambda job: {jobs.PODSET: jobs.pod_count(job)},
    shape_errors=_job_errors,
    scales=jobs.is_elastic,
    scales_path=f"metadata.annotations[{ELASTIC_ANNOTATION}]",
    scales_advice='it is "true" on Jobs of completionMode Indexed alone',
    templates_path=jobs.TEMPLATE_PATH,
    released=_settled,
    editable=False,
)
_JOBSET: Final = JobKind(
    name="JobSet",
    templates=lambda jobset, _: jobsets.templates_of(jobset),
    govern=lambda jobset, _: jobsets.govern_jobset(jobset),
    release=jobsets.release_jobset,
    units=jobsets.counts_of,
    counts=jobsets.counts_of,
    shape_errors=jobsets.podset_errors,
    scales=lambda _: False,
    scales_path="",
    scales_advice="a JobSet keeps its size",
    templates_path="spec.replicatedJobs[*].template.spec.template",
    frozen=True,
    job_templates=jobsets.job_templates_of,
)
_RAYCLUSTER: Final = JobKind(
    name="RayCluster",
    templates=lambda cluster, slices: rayclusters.templates_of(
        cluster, elastic=slices and rayclusters.is_elastic(cluster)
    ),
    govern=lambda cluster, slices: rayclusters.govern_raycluster(cluster, slices=slices),
    release=rayclusters.release_raycluster,
    units=rayclusters.units_of,
    counts=rayclusters.counts_of,
    shape_errors=rayclusters.podset_errors,
    scales=rayclusters.is_elastic,
    scales_path="spec.enableInTreeAutoscaling",
    scales_advice="set spec.enableInTreeAutoscaling",
    templates_path="spec.headGroupSpec.template and spec.workerGroupSpecs[*].template",
)

JOB_KINDS: Final[Mapping[str, JobKind]] = {
    "batch/Job": _JOB,
    f"{JOBSET_GROUP}/JobSet": _JOBSET,
    f"{RAY_GROUP}/RayCluster": _RAYCLUSTER,
}


def sliced_kinds(features: Features) -> frozenset[str]:
    """Names of the kinds whose jobs may be resized in slices."""
    if not features.elastic_jobs:
        return frozenset()
    return frozenset({"RayCluster", *(["Job"] if features.elastic_indexed_jobs else [])})
