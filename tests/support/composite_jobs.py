"""Manifests of JobSets, RayClusters and LeaderWorkerSets for tests, as their users write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rackgate.api import names
from tests.support.objects import Object

IMAGE = "registry.example/train:1"
RAY_IMAGE = "registry.example/ray:2.46.0"
RAY_VERSION = "2.46.0"


def marks(
    more: Mapping[str, str] | None = None,
    *,
    required: str | None = None,
    preferred: str | None = None,
    run_seconds: float | None = None,
) -> dict[str, str]:
    """Annotations of a pod template."""
    found = dict(more or {})
    if required:
        found[names.REQUIRED_TOPOLOGY] = required
    if preferred:
        found[names.PREFERRED_TOPOLOGY] = preferred
    if run_seconds is not None:
        found["rackgate.dev/run-seconds"] = str(run_seconds)
    return found


def pod_template(
    cpu: str, annotations: Mapping[str, str] | None = None, image: str = IMAGE
) -> Object:
    """A pod template with one container."""
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": cpu}}}
    template: Object = {"spec": {"containers": [container]}}
    if annotations:
        template["metadata"] = {"annotations": dict(annotations)}
    return template


def replicated_job(
    name: str,
    pods: int,
    *,
    replicas: int = 1,
    cpu: str = "1",
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    **more: Any,
) -> Object:
    """One replicatedJob: `replicas` Jobs of `pods` pods; `spec` goes into the JobSpec."""
    template = pod_template(cpu, annotations)
    template["spec"]["restartPolicy"] = "Never"
    job: Object = {"parallelism": pods, "completions": pods, "template": template, **(spec or {})}
    return {"name": name, "replicas": replicas, "template": {"spec": job}, **more}


def jobset(
    name: str, parts: Iterable[Object], *, queue: str | None = "queue", **spec: Any
) -> Object:
    """A JobSet of these replicatedJobs."""
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {names.QUEUE_LABEL: queue} if queue else {}},
        "spec": {"replicatedJobs": list(parts), **spec},
    }


def worker_group(
    name: str,
    replicas: int,
    *,
    least: int = 0,
    most: int = 100,
    hosts: int = 1,
    cpu: str = "1",
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> Object:
    """A worker group; `least` and `most` bound its replicas."""
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": least,
        "maxReplicas": most,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "template": pod_template(cpu, annotations, RAY_IMAGE),
        **more,
    }


def raycluster(
    name: str,
    groups: Iterable[Object],
    *,
    queue: str | None = "queue",
    autoscaling: bool = False,
    head_cpu: str = "1",
    head_annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A RayCluster with these worker groups."""
    head = {"rayStartParams": {}, "template": pod_template(head_cpu, head_annotations, RAY_IMAGE)}
    if autoscaling:
        spec["enableInTreeAutoscaling"] = True
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "labels": {names.QUEUE_LABEL: queue} if queue else {}},
        "spec": {
            "rayVersion": RAY_VERSION,
            "headGroupSpec": head,
            "workerGroupSpecs": list(groups),
            **spec,
        },
    }


def rayjob(
    name: str,
    groups: Iterable[Object],
    *,
    queue: str | None = "queue",
    head_cpu: str = "1",
    head_annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A RayJob whose cluster has these worker groups, and is deleted when it ends."""
    cluster = raycluster(name, groups, head_cpu=head_cpu, head_annotations=head_annotations)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "labels": {names.QUEUE_LABEL: queue} if queue else {}},
        "spec": {
            "entrypoint": "python -c 'import ray; ray.init()'",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": cluster["spec"],
            **spec,
        },
    }


def leaderworkerset(
    name: str,
    *,
    replicas: int,
    size: int,
    cpu: str = "1",
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A LeaderWorkerSet without a queue: `replicas` groups of one leader and `size` - 1 workers."""
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": pod_template(cpu)},
            **spec,
        },
    }
