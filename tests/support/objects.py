"""Manifests for tests, as plain dictionaries. Names follow fixture FX-A of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from rackgate.api import names

Object: TypeAlias = dict[str, Any]

POOL_LABEL = "test.rackgate.dev/pool"
BLOCK = "cloud.provider.com/topology-block"
RACK = "cloud.provider.com/topology-rack"
HOST = names.HOSTNAME_LABEL
LEVELS = (BLOCK, RACK, HOST)


def node(
    pool: str,
    block: str,
    rack: str,
    name: str,
    *,
    cpu: str = "8",
    pods: str = "110",
    labels: Mapping[str, str] | None = None,
) -> Object:
    """A node that KWOK keeps alive. Its name and hostname label are prefixed by the pool."""
    full = f"{pool}-{name}"
    resources = {"cpu": cpu, "memory": "32Gi", "pods": pods}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": full,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {POOL_LABEL: pool, BLOCK: block, RACK: rack, HOST: full, **(labels or {})},
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


def fx_a_nodes(pool: str) -> list[Object]:
    """FX-A: block-1 with rack-1, rack-2; block-2 with rack-1, rack-3; two nodes each."""
    racks = [
        ("block-1", "rack-1"),
        ("block-1", "rack-2"),
        ("block-2", "rack-1"),
        ("block-2", "rack-3"),
    ]
    return [
        node(pool, block, rack, f"{block[-1]}{rack[-1]}-{i}")
        for block, rack in racks
        for i in (1, 2)
    ]


def topology_object(name: str, levels: tuple[str, ...] = ()) -> Object:
    """A Topology; block, rack, hostname unless other levels are given."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Topology",
        "metadata": {"name": name},
        "spec": {"levels": [{"nodeLabel": level} for level in levels or LEVELS]},
    }


def flavor(name: str, pool: str, topology: str | None) -> Object:
    """A ResourceFlavor for the nodes of one pool."""
    spec: Object = {"nodeLabels": {POOL_LABEL: pool}}
    if topology:
        spec["topologyName"] = topology
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": spec,
    }


def cluster_queue(name: str, flavor_name: str, quota: Mapping[str, str], **spec: Any) -> Object:
    """A ClusterQueue open to every namespace, with one flavor."""
    resources = [{"name": key, "nominalQuota": value} for key, value in quota.items()]
    group = {
        "coveredResources": list(quota),
        "flavors": [{"name": flavor_name, "resources": resources}],
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": [group], **spec},
    }


def local_queue(name: str, cluster_queue_name: str) -> Object:
    """A LocalQueue."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "LocalQueue",
        "metadata": {"name": name},
        "spec": {"clusterQueue": cluster_queue_name},
    }


def mutating_configuration(labels: Mapping[str, str]) -> Object:
    """The registration of the job webhooks, for namespaces with these labels."""
    outside = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system", "rackgate-system"],
    }
    selector = {"matchLabels": dict(labels), "matchExpressions": [outside]}
    plurals = ("jobs", "jobsets", "rayclusters", "rayjobs")
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "rackgate-mutating.rackgate-system"},
        "webhooks": [
            {"name": f"{plural}.mutate.rackgate.dev", "namespaceSelector": selector}
            for plural in plurals
        ],
    }


def job(
    name: str,
    count: int,
    *,
    queue: str | None = "queue",
    cpu: str = "4",
    required: str | None = None,
    preferred: str | None = None,
    indexed: bool = True,
    completions: int | None = None,
    run_seconds: float | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
    pod: Mapping[str, Any] | None = None,
) -> Object:
    """A Job as a user writes it: not suspended, a queue label, at most one annotation.

    `spec` is merged into the JobSpec, `pod` into the pod's spec.
    """
    marks = dict(annotations or {})
    if required:
        marks[names.REQUIRED_TOPOLOGY] = required
    if preferred:
        marks[names.PREFERRED_TOPOLOGY] = preferred
    if run_seconds is not None:
        marks["rackgate.dev/run-seconds"] = str(run_seconds)
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "resources": {"requests": {"cpu": cpu}},
    }
    template: Object = {
        "metadata": {"annotations": marks} if marks else {},
        "spec": {"restartPolicy": "Never", "containers": [container], **(pod or {})},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**({names.QUEUE_LABEL: queue} if queue else {}), **(labels or {})},
        },
        "spec": {
            "parallelism": count,
            "completions": completions if completions is not None else count,
            "completionMode": "Indexed" if indexed else "NonIndexed",
            "template": template,
            **(spec or {}),
        },
    }
