"""ray.io RayCluster: the head and each worker group are PodSets; worker groups may be elastic.

Templates and replicas may be written at any time, also by Ray itself. The scaler of a cluster owns
`replicas`: this code never writes it (SLC-33).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from rackgate.api.names import (
    RAY_CLEANUP_TYPE,
    RAY_CLUSTER_LABEL,
    RAY_GROUP_LABEL,
    RAY_HOST_INDEX_LABEL,
    RAY_NODE_TYPE_LABEL,
    RAY_REPLICA_INDEX_LABEL,
)
from rackgate.api.resources import RAY_CLUSTERS, Resource
from rackgate.features import Features
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.generic_job import GenericJob, Manifest, RequestedCount, TemplateEdits
from rackgate.jobframework.injection import PodTemplate
from rackgate.jobframework.jsonpatch import name_tests
from rackgate.jobframework.podsets import (
    MAX_PODSETS,
    counts_of,
    describe_running_change,
    group_errors,
    name_errors,
    original_templates,
    podset_json,
)
from rackgate.jobframework.raycluster.wire import RayCluster
from rackgate.jobframework.templates import (
    Template,
    int_or_default,
    items,
    section,
    strip_reserved,
    validated_template,
)
from rackgate.jobframework.topology_request import topology_request
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload

HEAD: Final = "head"
MAX_PODS: Final = 2**31 - 1
# KubeRay creates no pods for a cluster with another name: its quota would be wasted.
MAX_NAME: Final = 53
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")

# Containers that KubeRay adds to its pods, and what they request. The resources of the sidecar
# can be set in `autoscalerOptions`. The wait for the head can be disabled in the operator, which
# is not known here. So it is counted, except for resources that the workers themselves do not
# request: a queue need not cover a resource that no manifest shows.
_SIDECAR: Final = "autoscaler"
_SIDECAR_RESOURCES: Final = {"cpu": "500m", "memory": "512Mi"}
_WAIT: Final = "wait-gcs-ready"
_WAIT_RESOURCES: Final = {"cpu": "200m", "memory": "256Mi"}
SUBMITTER: Final = "submitter"  # PodSet of a RayJob
_HEAD_PATH: Final = "spec.headGroupSpec.template"
_SUSPENDING: Final = "RayClusterSuspending"
_SUSPENDED: Final = "RayClusterSuspended"
_HEAD_READY: Final = "HeadPodReady"
# KubeRay creates no pods in a group while it expects to see one that it created there, for up to
# 30 s, and reconciles again only after an event or five minutes. A gated pod is removed immediately
# when it is deleted, so a pod that is suspended right after its creation is never seen.
_EXPECTS_S: Final = 31.0
_INACTIVE_STATES: Final = ("", "suspended")


class RayClusterJob(GenericJob[RayCluster]):
    """A RayCluster: PodSet `head`, and one for each worker group. It ends by being deleted."""

    resource: ClassVar[Resource] = RAY_CLUSTERS
    object_type: ClassVar[type] = RayCluster
    controller: ClassVar[str] = "ray.io/kuberay-operator"
    template_edits: ClassVar[TemplateEdits] = TemplateEdits.ANY_TIME
    templates_path: ClassVar[str] = (
        "spec.headGroupSpec.template and spec.workerGroupSpecs[*].template"
    )
    cleanup_labels: ClassVar[Mapping[str, str]] = {RAY_NODE_TYPE_LABEL: RAY_CLEANUP_TYPE}
    elastic_path: ClassVar[str] = "spec.enableInTreeAutoscaling"
    elastic_advice: ClassVar[str] = "set spec.enableInTreeAutoscaling"
    reconcile_after_s: ClassVar[float | None] = _EXPECTS_S

    def manifest(self, job: RayCluster) -> Manifest:
        """Its head, its worker groups, and the options of its autoscaler."""
        spec = job.spec
        return {
            "spec": {
                "enableInTreeAutoscaling": spec.enable_in_tree_autoscaling,
                "autoscalerOptions": msgspec.json.decode(spec.autoscaler_options),
                "headGroupSpec": msgspec.json.decode(spec.head_group_spec),
                "workerGroupSpecs": msgspec.json.decode(spec.worker_group_specs),
            }
        }

    def templates(self, manifest: Manifest, *, elastic: bool = False) -> list[PodTemplate]:
        """PodSet `head`, then one for each worker group.

        In an elastic cluster the pod of the head has the elastic gate, too (SLC-13): all pods
        are ungated by the admitted number.
        """
        head = section(section(manifest, "spec"), "headGroupSpec", "spec")
        pod_templates = [
            PodTemplate(
                HEAD,
                _HEAD_PATH,
                "/spec/headGroupSpec/template",
                validated_template(section(head, "template", "spec.headGroupSpec"), _HEAD_PATH),
                elastic,
            )
        ]
        for index, name, group in _worker_groups(manifest):
            path = f"spec.workerGroupSpecs[{index}]"
            pod_templates.append(
                PodTemplate(
                    name.lower(),
                    f"{path}.template",
                    f"/spec/workerGroupSpecs/{index}/template",
                    validated_template(section(group, "template", path), f"{path}.template"),
                    elastic,
                    name_tests(f"/spec/workerGroupSpecs/{index}/groupName", name),
                )
            )
        return pod_templates

    def podsets(self, manifest: Manifest) -> list[dict[str, Any]]:
        """PodSet `head` with count 1, then one for each worker group.

        Templates also have the containers that KubeRay adds: the autoscaler in the head, and
        the wait for the head in the workers. Ranks run over (replica index, host index).
        """
        elastic = self.is_elastic(manifest)
        templates = self.templates(manifest)
        head = strip_reserved(templates[0].template)
        if elastic:
            head = _with_autoscaler(head, manifest)
        podsets = [podset_json(HEAD, 1, head, topology_request(head))]
        for pod_template, (_, _, group) in zip(
            templates[1:], _worker_groups(manifest), strict=True
        ):
            worker = _with_wait_container(strip_reserved(pod_template.template), pod_template.path)
            request = _worker_request(worker, group, elastic=elastic)
            podsets.append(podset_json(pod_template.podset, pod_count(group), worker, request))
        return podsets

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """One head, and the pods of the worker groups."""
        workers = {name.lower(): pod_count(group) for _, name, group in _worker_groups(manifest)}
        return {**workers, HEAD: 1}

    def count_units(self, manifest: Manifest) -> Mapping[str, int]:
        """In an autoscaled cluster the hosts of one replica, else all pods."""
        if not self.is_elastic(manifest):
            return self.counts(manifest)
        groups = _worker_groups(manifest)
        return {**{name.lower(): hosts_per_replica(group) for _, name, group in groups}, HEAD: 1}

    def requested_counts(self, manifest: Manifest) -> dict[str, RequestedCount]:
        """The head, then the worker groups at their requested size."""
        groups = {
            name.lower(): RequestedCount(pod_count(group), hosts_per_replica(group))
            for _, name, group in _worker_groups(manifest)
        }
        return {HEAD: RequestedCount(1), **groups}

    def pods_to_delete(self, manifest: Manifest) -> frozenset[str]:
        """Workers that the autoscaler names."""
        named: set[str] = set()
        for index, _, group in _worker_groups(manifest):
            path = f"spec.workerGroupSpecs[{index}]"
            listed = section(group, "scaleStrategy", path).get("workersToDelete")
            named.update(str(name) for name in (listed if isinstance(listed, list) else ()))
        return frozenset(named)

    def shape_errors(self, manifest: Manifest) -> list[FieldError]:
        """Too many PodSets, bad names, invalid groups.

        Also replicas without hosts, and cluster names for which KubeRay creates no pods.
        """
        groups = list(_worker_groups(manifest))
        errors: list[FieldError] = []
        name = str(section(manifest, "metadata").get("name", ""))
        if name and (len(name) > MAX_NAME or not self.is_name(name)):
            problem = f"{shown(name)} is not a name for which KubeRay creates pods"
            advice = f"use at most {MAX_NAME} of a-z, 0-9 and -, with a letter first"
            errors.append(FieldError("metadata.name", problem, advice))
        if len(groups) + 1 > MAX_PODSETS:
            problem = f"{len(groups)} worker groups, a Workload has {MAX_PODSETS - 1} and the head"
            errors.append(
                FieldError("spec.workerGroupSpecs", problem, "merge those with equal templates")
            )
        paths = {index: f"spec.workerGroupSpecs[{index}]" for index, _, _ in groups}
        errors += name_errors(
            [(f"{paths[index]}.groupName", name) for index, name, _ in groups], taken=(HEAD,)
        )
        for index, _, group in groups:
            hosts = int_or_default(group.get("numOfHosts"), default=1)
            if hosts < 1:
                problem = f"a replica of {hosts} hosts has no pods"
                errors.append(FieldError(f"{paths[index]}.numOfHosts", problem, "use 1 or more"))
        return errors + group_errors(self.templates(manifest), self.counts(manifest))

    def elastic_enabled(self, features: Features) -> bool:
        """Behind the gate of elastic jobs."""
        return features.elastic_jobs

    def is_elastic(self, manifest: Manifest) -> bool:
        """Ray's autoscaler resizes the worker groups while the cluster runs (SLC-02)."""
        return section(manifest, "spec").get("enableInTreeAutoscaling") is True

    def pod_labels(self, manifest: Manifest) -> Mapping[str, Mapping[str, str]]:
        """The group of the pods."""
        groups = {name.lower(): {RAY_GROUP_LABEL: name} for _, name, _ in _worker_groups(manifest)}
        return {**groups, HEAD: {RAY_NODE_TYPE_LABEL: HEAD}}

    def pod_selector(self, job: RayCluster) -> str:
        """By the name of the RayCluster."""
        return f"{RAY_CLUSTER_LABEL}={job.metadata.name}"

    def is_inactive(self, job: RayCluster, children: Sequence[Job]) -> bool:
        """It has no pods any more, or never had one.

        The conditions leave Suspended before the first pod is created, and return to it after the
        last one is gone. Without conditions (an option of the operator) the state is used.
        `observedGeneration` cannot be used: it is only written together with other changes, so it
        stays behind after a suspended cluster is edited.
        """
        suspended, suspending = job.condition(_SUSPENDED), job.condition(_SUSPENDING)
        if suspended is not None or suspending is not None:
            return suspended is not None and suspended.status == "True"
        return job.status.state in _INACTIVE_STATES

    def pods_ready(self, job: RayCluster, admitted: Mapping[str, int]) -> bool:
        """The head is ready, and as many workers as are admitted and requested."""
        head = job.condition(_HEAD_READY)
        if head is None:
            return job.status.state == "ready"
        wanted = sum(
            min(asked.pods, admitted.get(name, 0))
            for name, asked in self.requested_counts(self.manifest(job)).items()
            if name != HEAD
        )
        return head.status == "True" and job.status.ready_worker_replicas >= wanted

    def find_change(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload, *, elastic: bool
    ) -> str | None:
        """Another template or worker group in any case; another size unless it is elastic."""
        return find_cluster_change(self.name, podsets, workload, elastic=elastic)

    def as_stored(
        self, podsets: Sequence[Mapping[str, Any]], workload: Workload
    ) -> Sequence[Mapping[str, Any]]:
        """Workloads of Kueue have no containers that KubeRay adds."""
        return without_ray_containers(podsets, workload)

    @staticmethod
    def is_name(name: str) -> bool:
        """Whether KubeRay creates pods for a cluster of this name, apart from its length."""
        return bool(_NAME.match(name))


def find_cluster_change(
    kind: str,
    podsets: Sequence[Mapping[str, Any]],
    workload: Workload,
    *,
    elastic: bool = False,
) -> str | None:
    """Why a running cluster must be queued again; see `GenericJob.find_change`.

    Args:
        kind: of the job that runs it.
        podsets: what it requests now.
        workload: under which it was started.
        elastic: another size is a resize.
    """
    change = describe_running_change(workload, without_ray_containers(podsets, workload))
    if change is not None:
        return f"the running {kind} was changed: {change}"
    if elastic:
        return None
    admitted = counts_of(workload)
    for podset in podsets:
        name, asked = podset["name"], podset["count"]
        if asked != admitted.get(name, 0):
            return f'podset "{name}" requests {asked} pods, {admitted.get(name, 0)} were admitted'
    return None


def without_ray_containers(
    podsets: Sequence[Mapping[str, Any]], workload: Workload
) -> list[Mapping[str, Any]]:
    """The PodSets without containers of KubeRay that the Workload lacks, if Kueue wrote it.

    Rackgate writes the wait for the head to all workers. In a Workload with it, a sidecar that is
    missing was not admitted: its user enabled the autoscaler since, and says what it requests. In
    one without workers, nothing shows who wrote it.
    """
    templates = original_templates(workload)
    workers = [one for name, one in templates.items() if name not in (HEAD, SUBMITTER)]
    waits = (
        one.get("name") == _WAIT
        for template in workers
        for one in items(section(template, "spec"), "initContainers")
    )
    if not workers or any(waits):
        return list(podsets)
    added = {"containers": _SIDECAR, "initContainers": _WAIT}
    found: list[Mapping[str, Any]] = []
    for podset in podsets:
        stored = section(templates.get(podset["name"], {}), "spec")
        spec = dict(section(podset["template"], "spec"))
        for field, name in added.items():
            if all(one.get("name") != name for one in items(stored, field)):
                spec[field] = [one for one in items(spec, field) if one.get("name") != name]
        found.append({**podset, "template": {**podset["template"], "spec": spec}})
    return found


def _worker_groups(cluster: Manifest) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Index, name and object of each worker group."""
    for index, group in enumerate(items(section(cluster, "spec"), "workerGroupSpecs", "spec")):
        yield index, str(group.get("groupName", "")), group


def hosts_per_replica(group: Mapping[str, Any]) -> int:
    """Pods of one replica, at least 1."""
    return max(1, int_or_default(group.get("numOfHosts"), default=1))


def replicas_of(group: Mapping[str, Any]) -> int:
    """Replicas that KubeRay creates in a worker group: within its minimum and maximum.

    A suspended group has none.
    """
    if group.get("suspend") is True:
        return 0
    minimum = max(0, int_or_default(group.get("minReplicas"), default=0))
    maximum = max(0, int_or_default(group.get("maxReplicas"), default=MAX_PODS))
    # An absent number means the minimum, as in KubeRay.
    return min(max(int_or_default(group.get("replicas"), default=minimum), minimum), maximum)


def pod_count(group: Mapping[str, Any]) -> int:
    """Pods of a worker group: replicas x hosts of each."""
    return min(replicas_of(group) * hosts_per_replica(group), MAX_PODS)


def _worker_request(
    template: Template, group: Mapping[str, Any], *, elastic: bool
) -> dict[str, Any] | None:
    # Where replicas are added and removed, the remaining indices do not define an order.
    if elastic:
        return topology_request(template)
    hosts = hosts_per_replica(group)
    label = RAY_REPLICA_INDEX_LABEL if hosts == 1 else RAY_HOST_INDEX_LABEL
    request = topology_request(template, index_label=label)
    if request is not None and hosts > 1:
        request["subGroupIndexLabel"] = RAY_REPLICA_INDEX_LABEL
        request["subGroupCount"] = pod_count(group) // hosts
    return request


def _with_autoscaler(template: Template, cluster: Manifest) -> dict[str, Any]:
    """The head's template with the container that KubeRay adds; only its requests count."""
    spec = section(template, "spec", _HEAD_PATH)
    containers = items(spec, "containers", f"{_HEAD_PATH}.spec")
    options = section(section(cluster, "spec"), "autoscalerOptions", "spec")
    sidecar = _container(_SIDECAR, _SIDECAR_RESOURCES)
    if options.get("resources") is not None:
        # Also when it is empty: then the sidecar requests nothing.
        sidecar["resources"] = section(options, "resources", "spec.autoscalerOptions")
    return {**template, "spec": {**spec, "containers": [*containers, sidecar]}}


def _with_wait_container(template: Template, path: str) -> dict[str, Any]:
    """A worker's template with the init container that KubeRay adds."""
    spec, inside = section(template, "spec", path), f"{path}.spec"
    asked = {
        name
        for field in ("containers", "initContainers")
        for index, container in enumerate(items(spec, field, inside))
        for name in _requested_resources(container, f"{inside}.{field}[{index}]")
    }
    resources = {name: value for name, value in _WAIT_RESOURCES.items() if name in asked}
    if not resources:
        return dict(template)
    containers = [*items(spec, "initContainers", inside), _container(_WAIT, resources)]
    return {**template, "spec": {**spec, "initContainers": containers}}


def _requested_resources(container: Mapping[str, Any], path: str) -> set[str]:
    """Names of the resources that a container requests; limits stand in for requests."""
    resources, inside = section(container, "resources", path), f"{path}.resources"
    return {*section(resources, "requests", inside), *section(resources, "limits", inside)}


def _container(name: str, resources: Mapping[str, str]) -> dict[str, Any]:
    asked = {"limits": dict(resources), "requests": dict(resources)}
    return {"name": name, "resources": asked}
