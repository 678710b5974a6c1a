"""ray.io RayCluster: the head and each worker group are PodSets; worker groups may be elastic.

Whoever scales a cluster owns `replicas`: nothing here ever writes it (SLC-33).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rackgate.api.names import RAY_HOST_INDEX_LABEL, RAY_REPLICA_INDEX_LABEL
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.injection import PodTemplate, injection_ops, remove_injection_ops
from rackgate.jobframework.job.podsets import SUSPEND, int_or_default, is_suspended
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.managed import is_managed
from rackgate.jobframework.podset_groups import MAX_PODSETS, group_errors, name_errors
from rackgate.jobframework.templates import (
    Template,
    items,
    section,
    strip_reserved,
    validated_template,
)
from rackgate.jobframework.topology_request import topology_request

HEAD: Final = "head"
MAX_PODS: Final = 2**31 - 1
# KubeRay makes no pods of a cluster with another name: it would hold quota for nothing.
MAX_NAME: Final = 53
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")

# Containers that KubeRay adds to its pods, and what they ask for. The resources of the sidecar
# can be set in `autoscalerOptions`. The wait for the head can be switched off in the operator,
# which is not known here: it counts, but for resources that the workers themselves ask for, so
# that it never demands of a queue what no manifest shows.
_SIDECAR: Final = "autoscaler"
_SIDECAR_RESOURCES: Final = {"cpu": "500m", "memory": "512Mi"}
_WAIT: Final = "wait-gcs-ready"
_WAIT_RESOURCES: Final = {"cpu": "200m", "memory": "256Mi"}
_HEAD_PATH: Final = "spec.headGroupSpec.template"

RayCluster = Mapping[str, Any]


def worker_groups(cluster: RayCluster) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Index, name and object of each worker group."""
    for index, group in enumerate(items(section(cluster, "spec"), "workerGroupSpecs", "spec")):
        yield index, str(group.get("groupName", "")), group


def is_elastic(cluster: RayCluster) -> bool:
    """Whether Ray's autoscaler resizes the worker groups while the cluster runs (SLC-02)."""
    return section(cluster, "spec").get("enableInTreeAutoscaling") is True


def templates_of(cluster: RayCluster, *, elastic: bool = False) -> list[PodTemplate]:
    """The pod templates of a RayCluster: PodSet `head`, then one for each worker group.

    Args:
        cluster: the object.
        elastic: its pods are held by the elastic gate, those of the head, too (SLC-13): all are
            released by the number that was granted.
    """
    head = section(section(cluster, "spec"), "headGroupSpec", "spec")
    pod_templates = [
        PodTemplate(
            HEAD,
            _HEAD_PATH,
            "/spec/headGroupSpec/template",
            validated_template(section(head, "template", "spec.headGroupSpec"), _HEAD_PATH),
            elastic,
        )
    ]
    for index, name, group in worker_groups(cluster):
        path = f"spec.workerGroupSpecs[{index}]"
        pod_templates.append(
            PodTemplate(
                name.lower(),
                f"{path}.template",
                f"/spec/workerGroupSpecs/{index}/template",
                validated_template(section(group, "template", path), f"{path}.template"),
                elastic,
            )
        )
    return pod_templates


def hosts_per_replica(group: Mapping[str, Any]) -> int:
    """Pods of one replica, at least 1."""
    return max(1, int_or_default(group.get("numOfHosts"), default=1))


def replicas_of(group: Mapping[str, Any]) -> int:
    """Replicas that KubeRay makes of a worker group: within its minimum and maximum.

    A suspended group has none.
    """
    if group.get("suspend") is True:
        return 0
    minimum = max(0, int_or_default(group.get("minReplicas"), default=0))
    maximum = max(0, int_or_default(group.get("maxReplicas"), default=MAX_PODS))
    # An absent number means the minimum, as KubeRay takes it.
    return min(max(int_or_default(group.get("replicas"), default=minimum), minimum), maximum)


def pod_count(group: Mapping[str, Any]) -> int:
    """Pods of a worker group: replicas x hosts of each."""
    return min(replicas_of(group) * hosts_per_replica(group), MAX_PODS)


def counts_of(cluster: RayCluster) -> dict[str, int]:
    """Pods of each PodSet: one head, and those of the worker groups."""
    workers = {name.lower(): pod_count(group) for _, name, group in worker_groups(cluster)}
    return {**workers, HEAD: 1}


def scaling_units_of(cluster: RayCluster) -> dict[str, int]:
    """What the pods of each PodSet are always a multiple of, however the cluster is scaled.

    In a cluster that scales itself these are the hosts of one replica, else all of its pods.
    """
    if not is_elastic(cluster):
        return counts_of(cluster)
    groups = worker_groups(cluster)
    return {**{name.lower(): hosts_per_replica(group) for _, name, group in groups}, HEAD: 1}


def podsets_of(cluster: RayCluster) -> list[dict[str, Any]]:
    """The PodSets of a RayCluster, as a Workload stores them.

    Returns:
        `head` with count 1, then one for each worker group: name, count, template without our
        reserved keys, and topologyRequest when the template asks for topology. Templates also
        carry the containers that KubeRay will add: with the head the autoscaler, before the
        workers the wait for the head. Ranks run over (replica index, host index).
    """
    elastic = is_elastic(cluster)
    templates = templates_of(cluster)
    head = strip_reserved(templates[0].template)
    if elastic:
        head = _with_autoscaler(head, cluster)
    podsets = [_podset(HEAD, 1, head, topology_request(head))]
    for pod_template, (_, _, group) in zip(templates[1:], worker_groups(cluster), strict=True):
        worker = _with_wait_container(strip_reserved(pod_template.template), pod_template.path)
        request = _worker_request(worker, group, elastic=elastic)
        podsets.append(_podset(pod_template.podset, pod_count(group), worker, request))
    return podsets


def _worker_request(
    template: Template, group: Mapping[str, Any], *, elastic: bool
) -> dict[str, Any] | None:
    # Where replicas come and go, the indices that are left say nothing about an order.
    if elastic:
        return topology_request(template)
    hosts = hosts_per_replica(group)
    label = RAY_REPLICA_INDEX_LABEL if hosts == 1 else RAY_HOST_INDEX_LABEL
    request = topology_request(template, index_label=label)
    if request is not None and hosts > 1:
        request["subGroupIndexLabel"] = RAY_REPLICA_INDEX_LABEL
        request["subGroupCount"] = pod_count(group) // hosts
    return request


def _podset(
    name: str, count: int, template: dict[str, Any], request: Mapping[str, Any] | None
) -> dict[str, Any]:
    asked = {} if request is None else {"topologyRequest": dict(request)}
    return {"name": name, "count": count, "template": template, **asked}


def _with_autoscaler(template: Template, cluster: RayCluster) -> dict[str, Any]:
    """The head's template with the container that KubeRay adds; only what it asks for counts."""
    spec = section(template, "spec", _HEAD_PATH)
    containers = items(spec, "containers", f"{_HEAD_PATH}.spec")
    options = section(section(cluster, "spec"), "autoscalerOptions", "spec")
    sidecar = _container(_SIDECAR, _SIDECAR_RESOURCES)
    if options.get("resources") is not None:
        # Also when it is empty: then the sidecar asks for nothing.
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
    """Names of the resources that a container asks for; limits stand in for requests."""
    resources, inside = section(container, "resources", path), f"{path}.resources"
    return {*section(resources, "requests", inside), *section(resources, "limits", inside)}


def _container(name: str, resources: Mapping[str, str]) -> dict[str, Any]:
    asked = {"limits": dict(resources), "requests": dict(resources)}
    return {"name": name, "resources": asked}


def inject_raycluster(cluster: RayCluster, *, elastic_enabled: bool) -> list[JsonPatchOp]:
    """What a RayCluster is given at creation, or when it gets its queue label while suspended.

    Args:
        cluster: as it came.
        elastic_enabled: feature gate `ElasticJobsViaWorkloadSlices`: templates of a cluster that
            scales itself get the elastic gate, so that pods that come later are held, too.
    """
    if not is_managed(cluster):
        return []
    operations = [] if is_suspended(cluster) else [dict(SUSPEND)]
    elastic = elastic_enabled and is_elastic(cluster)
    return operations + injection_ops(templates_of(cluster, elastic=elastic))


def remove_raycluster_injection(cluster: RayCluster) -> list[JsonPatchOp]:
    """Takes Rackgate's keys out of a suspended RayCluster that lost its queue label."""
    return remove_injection_ops(templates_of(cluster))


def podset_errors(cluster: RayCluster) -> list[FieldError]:
    """Refuse what a Workload cannot carry: too many PodSets, bad names, broken groups.

    Also replicas without hosts, and names, of which KubeRay itself makes no pods.
    """
    groups = list(worker_groups(cluster))
    errors: list[FieldError] = []
    name = str(section(cluster, "metadata").get("name", ""))
    if name and (len(name) > MAX_NAME or not _NAME.match(name)):
        problem = f"{shown(name)} is not a name that KubeRay makes pods of"
        advice = f"use at most {MAX_NAME} of a-z, 0-9 and -, with a letter first"
        errors.append(FieldError("metadata.name", problem, advice))
    if len(groups) + 1 > MAX_PODSETS:
        problem = f"{len(groups)} worker groups, a Workload carries {MAX_PODSETS - 1} and the head"
        errors.append(FieldError("spec.workerGroupSpecs", problem, "join those of equal template"))
    paths = {index: f"spec.workerGroupSpecs[{index}]" for index, _, _ in groups}
    errors += name_errors(
        [(f"{paths[index]}.groupName", name) for index, name, _ in groups], taken=(HEAD,)
    )
    for index, _, group in groups:
        hosts = int_or_default(group.get("numOfHosts"), default=1)
        if hosts < 1:
            problem = f"a replica of {hosts} hosts has no pods"
            errors.append(FieldError(f"{paths[index]}.numOfHosts", problem, "use 1 or more"))
    return errors + group_errors(templates_of(cluster), counts_of(cluster))
