"""A small sound cluster with one RayCluster or one JobSet, to be spoilt by tests.

world = ray()
world.rayclusters[0]["spec"]["workerGroupSpecs"][0]["replicas"] = 5
world.workloads.append(piece(0, None))
"""

from __future__ import annotations

from typing import Any

from rackgate.api import names
from tests.support.sound_cluster import (
    EARLY,
    HOST,
    LATE,
    NAMESPACE,
    RACK,
    Object,
    World,
    assignment,
    conditions,
    queue_status,
    sound,
    template,
)

RAY, PARENT = "ray", "raycluster-ray"
MIDDLE = "2026-01-01T10:30:00Z"


def written(at: str, manager: str = "rackgate-admission") -> list[Object]:
    return [{"manager": manager, "subresource": "status", "time": at}]


def released(item: Object, at: str) -> Object:
    """A pod that the ungater sent to its place then."""
    item["metadata"]["managedFields"] = [{"manager": "rackgate-ungater", "time": at}]
    return item


def controlled(kind: str, name: str) -> list[Object]:
    version = {"RayCluster": "ray.io/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}
    version |= {"Workload": names.API_VERSION, "Job": "batch/v1"}
    owner = {"apiVersion": version[kind], "kind": kind, "name": name, "uid": name}
    return [{**owner, "controller": True}]


def gated_template(cpu: str) -> Object:
    found = template(cpu)
    found["spec"]["schedulingGates"] = [{"name": names.ELASTIC_GATE}]
    found["metadata"]["annotations"] = {names.ELASTIC_ANNOTATION: "true"}
    return found


def raycluster(replicas: int = 3, *, hosts: int = 1) -> Object:
    group = {"groupName": "Workers", "replicas": replicas, "numOfHosts": hosts}
    return {
        "metadata": {
            "name": RAY,
            "namespace": NAMESPACE,
            "uid": RAY,
            "creationTimestamp": EARLY,
            "labels": {names.QUEUE_LABEL: "queue"},
        },
        "spec": {
            "suspend": False,
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {"template": gated_template("2")},
            "workerGroupSpecs": [{**group, "template": gated_template("4")}],
        },
    }


def ray_pod(number: int, host: str | None, *, podset: str = "workers", node: bool = True) -> Object:
    """A pod of the cluster: gated without a host ("" is any), else released, and bound."""
    cpu = "2" if podset == "head" else "4"
    spec: Object = template(cpu)["spec"]
    if host is None:
        spec["schedulingGates"] = [{"name": names.ELASTIC_GATE}]
    elif host:
        spec["nodeSelector"] = {HOST: host}
    if host is not None and node:
        spec["nodeName"] = host or ("n1", "n1", "n2", "n2")[number % 4]
    name = f"{RAY}-{podset}-{number}"
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "creationTimestamp": EARLY,
            "labels": {names.PODSET_LABEL: podset},
            "annotations": {names.WORKLOAD_ANNOTATION: PARENT},
            "ownerReferences": controlled("RayCluster", RAY),
        },
        "spec": spec,
        "status": {"phase": "Running"},
    }


def _granted(name: str, count: int, cpu: int, places: dict[str, int] | None) -> Object:
    found: Object = {
        "name": name,
        "count": count,
        "flavors": {"cpu": "tas"},
        "resourceUsage": {"cpu": str(cpu * count)},
    }
    if places is not None:
        hosts: dict[tuple[str, ...], int] = {(host,): pods for host, pods in places.items()}
        found["topologyAssignment"] = assignment(hosts, (HOST,))
    return found


def _podset(name: str, count: int, cpu: str, *, topology: bool) -> Object:
    found: Object = {"name": name, "count": count, "template": template(cpu)}
    return {**found, "topologyRequest": {"required": RACK}} if topology else found


def parent(*, topology: bool) -> Object:
    workers = {"n1": 2, "n2": 1} if topology else None
    head = {"n2": 1} if topology else None
    given = [_granted("head", 1, 2, head), _granted("workers", 3, 4, workers)]
    asked = [
        _podset("head", 1, "2", topology=topology),
        _podset("workers", 3, "4", topology=topology),
    ]
    return {
        "metadata": {
            "name": PARENT,
            "namespace": NAMESPACE,
            "uid": PARENT,
            "creationTimestamp": EARLY,
            "annotations": {names.ELASTIC_ANNOTATION: "true"},
            "ownerReferences": controlled("RayCluster", RAY),
            "managedFields": written(EARLY),
        },
        "spec": {"queueName": "queue", "podSets": asked},
        "status": {
            "conditions": conditions(QuotaReserved=True, Admitted=True),
            "admission": {"clusterQueue": "cq", "podSetAssignments": given},
        },
    }


def piece(ordinal: int, host: str | None, *, admitted: bool = True) -> Object:
    """A slice of one worker; `host` "" without a topology, None while it waits."""
    waiting = host is None
    name = f"{PARENT}-workers-{ordinal}"
    found: Object = {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "creationTimestamp": MIDDLE,
            "annotations": {names.ELASTIC_ANNOTATION: "true"},
            "labels": {names.JOB_UID_LABEL: RAY},
            "ownerReferences": controlled("Workload", PARENT),
        },
        "spec": {
            "queueName": "queue",
            "podSets": [_podset("workers", 1, "4", topology=bool(host))],
        },
        "status": {"conditions": conditions(QuotaReserved=not waiting, Admitted=not waiting)},
    }
    if not waiting:
        places = {host: 1} if host else None
        given = [_granted("workers", 1, 4, places)]
        found["status"]["admission"] = {"clusterQueue": "cq", "podSetAssignments": given}
        found["status"]["conditions"] = conditions(QuotaReserved=True, Admitted=admitted)
    return found


def ray(*, topology: bool = False) -> World:
    """A RayCluster of a head and three workers that runs: n1 has two of them, n2 the rest."""
    world = sound()
    hosts = ("n1", "n1", "n2") if topology else ("", "", "")
    world.jobs = []
    world.rayclusters = [raycluster()]
    world.workloads = [parent(topology=topology)]
    world.pods = [ray_pod(0, "n2" if topology else "", podset="head")]
    world.pods += [ray_pod(number, host) for number, host in enumerate(hosts)]
    world.pods[0]["spec"]["nodeName"] = "n2"
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(0, 1, 14)
    return world


def merge_slices(world: World, *pieces: Object, places: dict[str, int] | None = None) -> None:
    """Take slices into their parent, in one write of its status and one of its spec."""
    status = world.workload["status"]
    entries = [{"uid": one["metadata"]["uid"], "podSet": "workers"} for one in pieces]
    status["foldedSlices"] = [*status.get("foldedSlices", []), *entries]
    count = status["admission"]["podSetAssignments"][1]["count"] + len(pieces)
    grant(world, count, places)


def grant(world: World, count: int, places: dict[str, int] | None = None) -> None:
    """Give the workers another number of pods."""
    given = world.workload["status"]["admission"]["podSetAssignments"]
    given[1] = _granted("workers", count, 4, places)
    world.workload["spec"]["podSets"][1]["count"] = count


def want(world: World, replicas: int, **more: Any) -> None:
    """What Ray's autoscaler writes."""
    world.rayclusters[0]["spec"]["workerGroupSpecs"][0] |= {"replicas": replicas, **more}


def jobset(*, suspended: bool = False) -> Object:
    jobs = [
        {
            "name": "Leader",
            "replicas": 1,
            "template": {"spec": {"parallelism": 1, "completions": 1, "template": template("2")}},
        },
        {
            "name": "workers",
            "replicas": 2,
            "template": {"spec": {"parallelism": 2, "completions": 2, "template": template("4")}},
        },
    ]
    return {
        "metadata": {
            "name": "set",
            "namespace": NAMESPACE,
            "uid": "set",
            "creationTimestamp": EARLY,
            "labels": {names.QUEUE_LABEL: "queue"},
        },
        "spec": {"suspend": suspended, "replicatedJobs": jobs},
    }


def child(replicated: str, index: int, *, suspended: bool = False) -> Object:
    """A child Job of the JobSet."""
    name = f"set-{replicated.lower()}-{index}"
    count = 2 if replicated == "workers" else 1
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "creationTimestamp": EARLY,
            "labels": {
                names.JOBSET_NAME_LABEL: "set",
                names.REPLICATED_JOB_LABEL: replicated,
                names.JOB_INDEX_LABEL: str(index),
            },
            "ownerReferences": controlled("JobSet", "set"),
        },
        "spec": {
            "suspend": suspended,
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "template": template("4" if replicated == "workers" else "2"),
        },
    }


def set_pod(replicated: str, job: int, index: int, host: str | None) -> Object:
    """A pod of a child Job: gated without a host, else released to it and bound there."""
    cpu = "4" if replicated == "workers" else "2"
    spec: Object = template(cpu)["spec"]
    if host is None:
        spec["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    else:
        spec |= {"nodeSelector": {HOST: host}, "nodeName": host}
    owner = f"set-{replicated.lower()}-{job}"
    name = f"{owner}-{index}"
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "creationTimestamp": LATE,
            "labels": {
                names.PODSET_LABEL: replicated.lower(),
                names.COMPLETION_INDEX_LABEL: str(index),
                names.JOB_INDEX_LABEL: str(job),
            },
            "annotations": {names.WORKLOAD_ANNOTATION: "jobset-set"},
            "ownerReferences": controlled("Job", owner),
        },
        "spec": spec,
        "status": {"phase": "Running"},
    }


def sets() -> World:
    """A JobSet of one leader and two Jobs of two workers: ranks 0, 1 on n1, the rest in r1, too."""
    world = sound()
    label = {"podIndexLabel": names.COMPLETION_INDEX_LABEL}
    label |= {"subGroupIndexLabel": names.JOB_INDEX_LABEL}
    podsets = [
        {"name": "leader", "count": 1, "template": template("2")},
        {"name": "workers", "count": 4, "template": template("4")},
    ]
    for podset, groups in zip(podsets, (1, 2), strict=True):
        podset["topologyRequest"] = {"required": RACK, **label, "subGroupCount": groups}
    given = [
        _granted("leader", 1, 2, {"n3": 1}),
        _granted("workers", 4, 4, {"n1": 2, "n2": 2}),
    ]
    world.workloads = [parent(topology=True)]
    meta = {"name": "jobset-set", "uid": "jobset-set", "annotations": {}}
    world.workload["metadata"] |= {**meta, "ownerReferences": controlled("JobSet", "set")}
    world.workload["spec"]["podSets"] = podsets
    world.workload["status"]["admission"]["podSetAssignments"] = given
    world.jobsets = [jobset()]
    world.jobs = [child("Leader", 0), child("workers", 0), child("workers", 1)]
    world.pods = [set_pod("Leader", 0, 0, "n3")]
    for job, host in ((0, "n1"), (1, "n2")):
        world.pods += [set_pod("workers", job, index, host) for index in (0, 1)]
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(0, 1, 18)
    return world
