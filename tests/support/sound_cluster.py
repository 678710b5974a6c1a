"""A small sound cluster as plain objects, to be spoilt by tests: two racks of two hosts, one Job.

world = sound()
world.pod("train-0")["spec"]["nodeSelector"][HOST] = "n4"
assert rules(world) == ["outside-assignment"]
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rackgate.api import names
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.judge import judge
from rackgate_invariants.reading import SOURCES
from rackgate_invariants.rules.catalog import Breach

Object = dict[str, Any]
OF_STATUS = ("queue-counts", "local-queue-counts", "uncharged")

NAMESPACE = "team"
RACK, HOST = "rack", names.HOSTNAME_LABEL
EARLY, LATE = "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"
NOW = 1767268800.0  # 2026-01-01T12:00:00Z


def node(name: str, rack: str, cpu: str = "8") -> Object:
    return {
        "metadata": {"name": name, "uid": name, "labels": {RACK: rack, HOST: name}},
        "status": {
            "allocatable": {"cpu": cpu, "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def template(cpu: str = "4", **annotations: str) -> Object:
    return {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
    }


def owner(job: str) -> list[Object]:
    return [{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}]


def pod(job: str, index: int, host: str | None, *, cpu: str = "4") -> Object:
    """A pod of a started Job: gated without a host, else released to it and bound there."""
    name = f"{job}-{index}"
    spec: Object = template(cpu)["spec"]
    if host is None:
        spec["schedulingGates"] = [{"name": names.TOPOLOGY_GATE}]
    else:
        spec |= {"nodeSelector": {HOST: host}, "nodeName": host}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "creationTimestamp": LATE,
            "labels": {names.PODSET_LABEL: "main", names.COMPLETION_INDEX_LABEL: str(index)},
            "annotations": {names.WORKLOAD_ANNOTATION: f"job-{job}"},
            "ownerReferences": owner(job),
        },
        "spec": spec,
        "status": {"phase": "Running"},
    }


def other_pod(name: str, host: str, cpu: str = "4") -> Object:
    """A pod that nobody governs."""
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name},
        "spec": {**template(cpu)["spec"], "nodeName": host},
    }


def job(name: str, count: int, *, queue: str | None = "queue", suspended: bool = False) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "creationTimestamp": EARLY,
            "labels": {names.QUEUE_LABEL: queue} if queue else {},
        },
        "spec": {
            "suspend": suspended,
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "template": template(),
        },
    }


def assignment(domains: dict[tuple[str, ...], int], levels: tuple[str, ...]) -> Object:
    columns = [{"individual": {"roots": list(column)}} for column in zip(*domains, strict=True)]
    counts = {"individual": list(domains.values())}
    piece = {"domainCount": len(domains), "valuesPerLevel": columns, "podCounts": counts}
    return {"levels": list(levels), "slices": [piece]}


def conditions(**true: bool) -> list[Object]:
    return [
        {"type": name, "status": str(value), "lastTransitionTime": EARLY}
        for name, value in true.items()
    ]


def workload(
    name: str,
    domains: dict[tuple[str, ...], int],
    levels: tuple[str, ...] = (HOST,),
    *,
    required: str = RACK,
    cpu: int = 4,
) -> Object:
    """An admitted Workload of the Job `name`."""
    count = sum(domains.values())
    request = {"required": required, "podIndexLabel": names.COMPLETION_INDEX_LABEL}
    podset = {"name": "main", "count": count, "template": template(str(cpu))}
    return {
        "metadata": {
            "name": f"job-{name}",
            "namespace": NAMESPACE,
            "uid": f"workload-{name}",
            "creationTimestamp": EARLY,
            "ownerReferences": owner(name),
        },
        "spec": {"queueName": "queue", "podSets": [{**podset, "topologyRequest": request}]},
        "status": {
            "conditions": conditions(QuotaReserved=True, Admitted=True),
            "admission": {
                "clusterQueue": "cq",
                "podSetAssignments": [
                    {
                        "name": "main",
                        "count": count,
                        "flavors": {"cpu": "tas"},
                        "resourceUsage": {"cpu": str(cpu * count)},
                        "topologyAssignment": assignment(domains, levels),
                    }
                ],
            },
        },
    }


def queue_status(pending: int, holding: int, cpu: int) -> Object:
    totals = [{"name": "tas", "resources": [{"name": "cpu", "total": str(cpu)}]}]
    return {
        "pendingWorkloads": pending,
        "reservingWorkloads": holding,
        "admittedWorkloads": holding,
        "flavorsReservation": totals,
        "flavorsUsage": totals,
    }


@dataclass
class World:
    """Objects by attribute of `Cluster`."""

    nodes: list[Object] = field(default_factory=list)
    topologies: list[Object] = field(default_factory=list)
    flavors: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    workloads: list[Object] = field(default_factory=list)
    gang_workloads: list[Object] = field(default_factory=list)
    jobs: list[Object] = field(default_factory=list)
    jobsets: list[Object] = field(default_factory=list)
    rayclusters: list[Object] = field(default_factory=list)
    rayjobs: list[Object] = field(default_factory=list)
    local_queues: list[Object] = field(default_factory=list)
    cohorts: list[Object] = field(default_factory=list)
    cluster_queues: list[Object] = field(default_factory=list)

    def cluster(self, now: float = NOW, **more: Any) -> Cluster:
        rows: dict[str, Any] = {
            source.attribute: [
                source.decode(json.dumps(item).encode()) for item in getattr(self, source.attribute)
            ]
            for source in SOURCES
        }
        return Cluster(**rows, read_at=now, **more)

    def pod(self, name: str) -> Object:
        return next(item for item in self.pods if item["metadata"]["name"] == name)

    @property
    def job(self) -> Object:
        return self.jobs[0]

    @property
    def workload(self) -> Object:
        return self.workloads[0]

    @property
    def granted(self) -> Object:
        found: Object = self.workload["status"]["admission"]["podSetAssignments"][0]
        return found

    def place(self, domains: dict[tuple[str, ...], int], *levels: str) -> None:
        """Give the Workload another assignment."""
        self.granted["topologyAssignment"] = assignment(domains, levels or (HOST,))

    def pend(self) -> None:
        """Take the Workload's admission back, as after a stop."""
        self.workload["status"] = {"conditions": conditions(QuotaReserved=False, Admitted=False)}
        self.job["spec"]["suspend"] = True


def sound() -> World:
    """Job `train` of three pods: two on n1, one on n2, all in rack r1; each host takes two."""
    return World(
        nodes=[node("n1", "r1"), node("n2", "r1"), node("n3", "r2"), node("n4", "r2")],
        topologies=[
            {
                "metadata": {"name": "dc"},
                "spec": {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]},
            }
        ],
        flavors=[{"metadata": {"name": "tas"}, "spec": {"topologyName": "dc"}}],
        pods=[pod("train", 0, "n1"), pod("train", 1, "n1"), pod("train", 2, "n2")],
        workloads=[workload("train", {("n1",): 2, ("n2",): 1})],
        jobs=[job("train", 3)],
        local_queues=[
            {
                "metadata": {"name": "queue", "namespace": NAMESPACE, "creationTimestamp": EARLY},
                "spec": {"clusterQueue": "cq"},
                "status": queue_status(0, 1, 12),
            }
        ],
        cluster_queues=[
            {
                "metadata": {"name": "cq", "creationTimestamp": EARLY},
                "spec": {
                    "resourceGroups": [
                        {
                            "coveredResources": ["cpu"],
                            "flavors": [
                                {
                                    "name": "tas",
                                    "resources": [{"name": "cpu", "nominalQuota": "20"}],
                                }
                            ],
                        }
                    ]
                },
                "status": queue_status(0, 1, 12),
            }
        ],
    )


def plain() -> World:
    """The same Job in a queue without a topology: its pods carry no marks, and n1 is full."""
    world = sound()
    del world.flavors[0]["spec"]["topologyName"]
    del world.granted["topologyAssignment"]
    del world.workload["spec"]["podSets"][0]["topologyRequest"]
    world.workload["metadata"]["labels"] = {names.JOB_UID_LABEL: "train"}
    world.pods = [plain_pod("train", 0, "n1"), plain_pod("train", 1, "n1")]
    world.pods.append(plain_pod("train", 2, "n2"))
    return world


def plain_pod(job: str, index: int, host: str, *, cpu: str = "4") -> Object:
    """A pod without marks, as the Job controller makes it, bound to a host."""
    found = pod(job, index, host, cpu=cpu)
    found["metadata"] |= {"labels": {"batch.kubernetes.io/controller-uid": job}, "annotations": {}}
    del found["spec"]["nodeSelector"]
    return found


def found(world: World, now: float = NOW) -> list[Breach]:
    """All that the world shows, apart from what its queues say: they have their own tests."""
    return [one for one in judge(world.cluster(now)) if one.rule not in OF_STATUS]


def rules(world: World, now: float = NOW) -> list[str]:
    return [one.rule for one in found(world, now)]
