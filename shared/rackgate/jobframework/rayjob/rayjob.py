"""ray.io RayJob: the PodSets of the RayCluster that it creates, and one for its submitter.

KubeRay creates a RayCluster from `spec.rayClusterSpec`, and in the mode K8sJobMode a Job that
submits the entrypoint. Both are children: they start and stop with the RayJob, and are never queued
themselves. The RayCluster gets the labels and annotations of the RayJob, and its templates as they
are when it is created: KubeRay ignores later changes until it creates the next one, which it does
after a suspension, and after a failure if there is a `backoffLimit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import msgspec

from rackgate.api import names
from rackgate.api.resources import RAY_JOBS, Resource
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import (
    GenericJob,
    JobOutcome,
    Manifest,
    RequestedCount,
    TemplateEdits,
)
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.podsets import MAX_PODSETS, podset_json
from rackgate.jobframework.raycluster.raycluster import (
    SUBMITTER,
    RayClusterJob,
    find_cluster_change,
    without_ray_containers,
)
from rackgate.jobframework.rayjob.wire import RayJob
from rackgate.jobframework.templates import (
    Template,
    items,
    section,
    strip_reserved,
    validated_template,
)
from rackgate.jobframework.topology_request import topology_request
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload

# KubeRay creates no pods for a RayJob with a longer name.
MAX_NAME: Final = 47

_CLUSTER: Final = RayClusterJob()
_IN_SPEC: Final = "spec."
_CLUSTER_PATH: Final = "spec.rayClusterSpec"
_SUBMITTER_PATH: Final = "spec.submitterPodTemplate"
_SUBMITTER_POINTER: Final = "/spec/submitterPodTemplate"
_K8S_JOB_MODE: Final = "K8sJobMode"
# KubeRay does not suspend InteractiveMode while it waits. Other modes may run more containers.
_QUEUED_MODES: Final = (_K8S_JOB_MODE, "HTTPMode")
# What KubeRay 1.4 runs without a template: GetDefaultSubmitterTemplate in controllers/ray/common.
_SUBMITTER_NAME: Final = "ray-job-submitter"
_SUBMITTER_RESOURCES: Final = {
    "limits": {"cpu": "1", "memory": "1Gi"},
    "requests": {"cpu": "500m", "memory": "200Mi"},
}
# Values of status.jobDeploymentStatus.
_NEW: Final = ""
_SUSPENDED: Final = "Suspended"
_READY: Final = frozenset({"Running", "Waiting", "Complete", "Failed"})
_ENDED: Final = frozenset({"Complete", "Failed"})
_SUCCEEDED: Final = "SUCCEEDED"
_DELETE_SELF: Final = "DeleteSelf"


class RayJobJob(GenericJob[RayJob]):
    """A RayJob: PodSet `head`, one for each worker group, and `submitter`."""

    resource: ClassVar[Resource] = RAY_JOBS
    object_type: ClassVar[type] = RayJob
    controller: ClassVar[str] = RayClusterJob.controller
    template_edits: ClassVar[TemplateEdits] = TemplateEdits.ANY_TIME
    templates_path: ClassVar[str] = (
        "spec.rayClusterSpec.headGroupSpec.template, "
        "spec.rayClusterSpec.workerGroupSpecs[*].template and spec.submitterPodTemplate"
    )
    child_job_label: ClassVar[str] = names.RAY_ORIGIN_NAME_LABEL
    child_kinds: ClassVar[tuple[str, ...]] = (RayClusterJob.resource.kind,)
    elastic_advice: ClassVar[str] = "a RayJob cannot be resized"

    def manifest(self, job: RayJob) -> Manifest:
        """The cluster that it creates, and what submits its entrypoint."""
        spec = job.spec
        submitter = msgspec.json.decode(spec.submitter_pod_template)
        return {
            "spec": {
                "submissionMode": spec.submission_mode,
                "rayClusterSpec": msgspec.json.decode(spec.ray_cluster_spec) or {},
                **({} if submitter is None else {"submitterPodTemplate": submitter}),
            }
        }

    def defaults(self, manifest: Manifest) -> Mapping[str, Any]:
        """The template of the submitter that KubeRay would use, so that it can be injected."""
        spec = section(manifest, "spec")
        if not _has_submitter(manifest) or spec.get("submitterPodTemplate"):
            return {}
        return {"submitterPodTemplate": _default_submitter(manifest)}

    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        """Those of the cluster, and that of the submitter if the manifest has one.

        In another mode it is not used. If the mode was changed together with a suspension, it still
        has what the start added, and is restored with the others.
        """
        del elastic
        found = [
            replace(
                one,
                path=f"{_CLUSTER_PATH}.{one.path.removeprefix(_IN_SPEC)}",
                pointer=_pointer_in_job(one.pointer),
                tests=tuple({**test, "path": _pointer_in_job(test["path"])} for test in one.tests),
            )
            for one in _CLUSTER.templates(_cluster(manifest))
        ]
        submitter = section(section(manifest, "spec"), "submitterPodTemplate", "spec")
        if submitter and (_has_submitter(manifest) or strip_reserved(submitter) != submitter):
            template = validated_template(submitter, _SUBMITTER_PATH)
            found.append(PodTemplate(SUBMITTER, _SUBMITTER_PATH, _SUBMITTER_POINTER, template))
        return found

    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        """Those of the cluster, and `submitter` with count 1 in the mode K8sJobMode."""
        podsets = _CLUSTER.podsets(_cluster(manifest))
        if _has_submitter(manifest):
            written = section(section(manifest, "spec"), "submitterPodTemplate", "spec")
            template = strip_reserved(written or _default_submitter(manifest))
            podsets.append(podset_json(SUBMITTER, 1, template, topology_request(template)))
        return podsets

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """One head, the pods of the worker groups, and one submitter."""
        counts = _CLUSTER.counts(_cluster(manifest))
        return {**counts, SUBMITTER: 1} if _has_submitter(manifest) else counts

    def requested_counts(self, manifest: Manifest) -> dict[str, RequestedCount]:
        """As `counts`."""
        counts = _CLUSTER.requested_counts(_cluster(manifest))
        return {**counts, SUBMITTER: RequestedCount(1)} if _has_submitter(manifest) else counts

    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        """What KubeRay cannot suspend or would not run, and errors of the cluster."""
        errors = [*_name_errors(manifest), *_mode_errors(section(manifest, "spec"))]
        if errors and errors[-1].path in ("spec.clusterSelector", _CLUSTER_PATH):
            return errors
        cluster = _cluster(manifest)
        groups = items(section(cluster, "spec"), "workerGroupSpecs", _CLUSTER_PATH)
        if _has_submitter(manifest):
            if len(groups) + 2 > MAX_PODSETS:
                problem = (
                    f"{len(groups)} worker groups, a Workload has {MAX_PODSETS - 2}, the head and "
                    "the submitter"
                )
                advice = "merge those with equal templates"
                errors.append(FieldError(f"{_CLUSTER_PATH}.workerGroupSpecs", problem, advice))
            errors += [
                FieldError(
                    f"{_CLUSTER_PATH}.workerGroupSpecs[{index}].groupName",
                    f"{shown(group.get('groupName'))} is the name of the PodSet of the submitter",
                    "use another name",
                )
                for index, group in enumerate(groups)
                if str(group.get("groupName", "")).lower() == SUBMITTER
            ]
        errors += _in_cluster_spec(_CLUSTER.shape_errors(cluster))
        return errors

    def running_errors(self, manifest: Manifest, stored: Manifest) -> list[FieldError]:
        """Another mode: it has a submitter that was never admitted, or none."""
        before, now = _mode(stored), _mode(manifest)
        if before == now:
            return []
        problem = (
            "the mode of a RayJob that is not suspended cannot change from "
            f"{shown(before)} to {shown(now)}"
        )
        advice = "set spec.suspend to true in this change"
        return [FieldError("spec.submissionMode", problem, advice)]

    def pod_labels(self, manifest: Manifest) -> Mapping[str, Mapping[str, str]]:
        """The group of the pods."""
        return _CLUSTER.pod_labels(_cluster(manifest))

    def deletes_itself(self, job: RayJob) -> bool:
        """By its deletionPolicy."""
        return job.spec.deletion_policy == _DELETE_SELF

    def is_inactive(self, job: RayJob, children: Sequence[Job]) -> bool:
        """Whether KubeRay has deleted its cluster and its submitter, or never created them.

        A started RayJob passes through the empty status on its way to a new cluster, also after a
        failure. Then KubeRay may not have seen its suspension yet.
        """
        del children
        status = job.status.job_deployment_status
        if status == _NEW:
            return names.WORKLOAD_ANNOTATION not in job.metadata.annotations
        return status in (_SUSPENDED, *_ENDED)

    def pods_ready(self, job: RayJob, admitted: Mapping[str, int]) -> bool:
        """Whether the cluster was ready. Its own status is not copied while the job runs."""
        del admitted
        return job.status.job_deployment_status in _READY

    def starts_in_stages(self, job: RayJob) -> bool:
        """A retry deletes all pods and creates others."""
        del job
        return True

    def finished(self, job: RayJob) -> JobOutcome | None:
        """By its deployment status; a retry comes before it fails."""
        status = job.status
        if status.job_deployment_status not in _ENDED:
            return None
        failed = status.job_deployment_status != "Complete" or status.job_status != _SUCCEEDED
        fallback = f"the RayJob ended with status {status.job_status or 'unknown'}"
        return JobOutcome(failed, status.message or fallback)

    def find_change(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload, *, elastic: bool
    ) -> str | None:
        """Another template, worker group or size."""
        del elastic
        return find_cluster_change(self.name, podsets, workload)

    def as_stored(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload
    ) -> Sequence[Mapping[str, Any]]:
        """Workloads of Kueue have no containers that KubeRay adds."""
        return without_ray_containers(podsets, workload)


def _has_submitter(manifest: Manifest) -> bool:
    """Whether KubeRay creates a Job that submits the entrypoint; that is its default."""
    return _mode(manifest) == _K8S_JOB_MODE


def _mode(manifest: Manifest) -> str:
    """How KubeRay submits the entrypoint."""
    return str(section(manifest, "spec").get("submissionMode") or _K8S_JOB_MODE)


def _pointer_in_job(pointer: str) -> str:
    """Where a field of a RayCluster is in the RayJob, both as JSON pointers."""
    return f"/spec/rayClusterSpec/{pointer.removeprefix('/spec/')}"


def _cluster(manifest: Manifest) -> Manifest:
    """The manifest of the RayCluster that it creates, without a name: KubeRay chooses one."""
    return {"spec": section(section(manifest, "spec"), "rayClusterSpec", "spec")}


def _default_submitter(manifest: Manifest) -> Template:
    head = section(section(_cluster(manifest), "spec"), "headGroupSpec", _CLUSTER_PATH)
    path = f"{_CLUSTER_PATH}.headGroupSpec.template"
    spec = section(section(head, "template", path), "spec", path)
    containers = items(spec, "containers", f"{path}.spec")
    container: dict[str, Any] = {"name": _SUBMITTER_NAME, "resources": _SUBMITTER_RESOURCES}
    if containers and containers[0].get("image"):
        container["image"] = containers[0]["image"]
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


def _in_cluster_spec(errors: Iterable[FieldError]) -> list[FieldError]:
    """Errors of the cluster with the paths of the RayJob."""
    return [
        replace(one, path=f"{_CLUSTER_PATH}.{one.path.removeprefix(_IN_SPEC)}") for one in errors
    ]


def _name_errors(manifest: Manifest) -> list[FieldError]:
    name = str(section(manifest, "metadata").get("name", ""))
    if not name or (len(name) <= MAX_NAME and RayClusterJob.is_name(name)):
        return []
    problem = f"{shown(name)} is not a name for which KubeRay creates pods"
    advice = f"use at most {MAX_NAME} of a-z, 0-9 and -, with a letter first"
    return [FieldError("metadata.name", problem, advice)]


def _mode_errors(spec: Manifest) -> list[FieldError]:
    """What prevents that KubeRay suspends it, or that its pods end with it."""
    errors = []
    mode = spec.get("submissionMode") or _K8S_JOB_MODE
    if mode not in _QUEUED_MODES:
        advice = "use " + " or ".join(_QUEUED_MODES)
        errors.append(FieldError("spec.submissionMode", f"{shown(mode)} cannot be queued", advice))
    if spec.get("shutdownAfterJobFinishes") is not True:
        problem = "KubeRay suspends no RayJob whose cluster outlives it"
        errors.append(FieldError("spec.shutdownAfterJobFinishes", problem, "set it to true"))
    if section(spec, "rayClusterSpec", "spec").get("enableInTreeAutoscaling") is True:
        problem = "the cluster of a RayJob with a queue label is not resized while it runs"
        advice = "remove it, or use a RayCluster with a queue label"
        errors.append(FieldError(f"{_CLUSTER_PATH}.enableInTreeAutoscaling", problem, advice))
    if spec.get("clusterSelector"):
        problem = "a RayJob with a queue label cannot use a cluster that exists"
        advice = (
            "set spec.rayClusterSpec, or remove the queue label: its cluster is queued by its own"
        )
        errors.append(FieldError("spec.clusterSelector", problem, advice))
    elif not section(spec, "rayClusterSpec", "spec"):
        problem = "a RayJob with a queue label needs the cluster that it creates"
        errors.append(FieldError(_CLUSTER_PATH, problem, "set it"))
    return errors
