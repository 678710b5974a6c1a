"""Builders of manifests of our kinds, as plain data."""

from __future__ import annotations

import copy
from typing import Any

Manifest = dict[str, Any]

GROUP = "kueue.x-k8s.io"
HOSTNAME = "kubernetes.io/hostname"
BLOCK = "cloud.provider.com/topology-block"
RACK = "cloud.provider.com/topology-rack"
NOW = "2026-08-01T12:00:00Z"
PLURALS = {
    "AdmissionCheck": "admissionchecks",
    "ClusterQueue": "clusterqueues",
    "Cohort": "cohorts",
    "LocalQueue": "localqueues",
    "ResourceFlavor": "resourceflavors",
    "Topology": "topologies",
    "Workload": "workloads",
    "WorkloadPriorityClass": "workloadpriorityclasses",
}
NAMESPACED = ("LocalQueue", "Workload")


def path_of(manifest: Manifest, namespace: str = "default", *, named: bool = False) -> str:
    """API path of a manifest's collection, or of the object itself."""
    kind = manifest["kind"]
    inner = f"namespaces/{namespace}/" if kind in NAMESPACED else ""
    path = f"/apis/{manifest['apiVersion']}/{inner}{PLURALS[kind]}"
    return f"{path}/{manifest['metadata']['name']}" if named else path


def manifest(kind: str, name: str, *, version: str = "v1beta2", **fields: Any) -> Manifest:
    """A manifest of one of our kinds."""
    head = {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": {"name": name}}
    return {**head, **copy.deepcopy(fields)}


def condition(type_: str, status: str = "True", reason: str = "Ready") -> Manifest:
    """A condition."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": NOW,
    }


def topology(*labels: str, version: str = "v1beta2", name: str = "dc") -> Manifest:
    """A Topology with these levels."""
    levels = [{"nodeLabel": label} for label in labels]
    return manifest("Topology", name, version=version, spec={"levels": levels})


def flavor(name: str = "tas", **spec: Any) -> Manifest:
    """A ResourceFlavor."""
    return manifest("ResourceFlavor", name, spec=spec)


def group(*flavors: str, resources: tuple[str, ...] = ("cpu",), **quota: Any) -> Manifest:
    """A resource group with the same quota everywhere."""
    return {
        "coveredResources": list(resources),
        "flavors": [
            {
                "name": name,
                "resources": [{"name": it, "nominalQuota": "10", **quota} for it in resources],
            }
            for name in flavors
        ],
    }


def cluster_queue(name: str = "cq", **spec: Any) -> Manifest:
    """A ClusterQueue."""
    return manifest("ClusterQueue", name, spec=spec)


TEMPLATE: Manifest = {
    "metadata": {
        "labels": {"app": "train", "example.com/a.b": ""},
        "annotations": {"example.com/note": "kept as it is"},
        "futureField": {"kept": [1, "two", 3.5, None, True]},
    },
    "spec": {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "c",
                "image": "registry.example/train:1",
                "resources": {"requests": {"cpu": "0.5", "memory": "1.5Gi"}},
                "env": [{"name": "A", "value": ""}],
            }
        ],
        "schedulingGates": [{"name": "example.com/other"}],
        "unknownToUs": {"deep": {"er": []}},
    },
}


def podset(name: str = "main", count: int = 4, **fields: Any) -> Manifest:
    """A PodSet with a rich template."""
    return {"name": name, "count": count, "template": copy.deepcopy(TEMPLATE), **fields}


def workload(*podsets: Manifest, name: str = "job-train-1a2b3", **spec: Any) -> Manifest:
    """A Workload."""
    return manifest("Workload", name, spec={"podSets": list(podsets) or [podset()], **spec})


def request(**fields: Any) -> Manifest:
    """A Workload whose one PodSet asks this of the topology."""
    return workload(podset(topologyRequest=fields))


def assigned(assignment: Manifest | None = None, **fields: Any) -> Manifest:
    """Status of a Workload that has its quota."""
    given: Manifest = {"name": "main", "flavors": {"cpu": "tas"}, "count": 4}
    given |= {"resourceUsage": {"cpu": "2", "memory": "6Gi"}} | fields
    if assignment is not None:
        given["topologyAssignment"] = assignment
    return {
        "conditions": [
            condition("QuotaReserved", reason="QuotaReserved"),
            condition("Admitted", reason="Admitted"),
        ],
        "admission": {"clusterQueue": "cq", "podSetAssignments": [given]},
    }


def one_slice(values: list[Manifest], counts: Manifest, domains: int = 2) -> Manifest:
    """An assignment of one slice."""
    part = {"domainCount": domains, "valuesPerLevel": values, "podCounts": counts}
    return {"levels": [BLOCK, RACK][-len(values) :], "slices": [part]}


ASSIGNMENT = one_slice(
    [{"universal": "b1"}, {"individual": {"prefix": "r", "suffix": ".x", "roots": ["1", ""]}}],
    {"individual": [3, 1]},
)
