"""Manifests of the benches of queues: cohorts of ClusterQueues, nodes in racks, Workloads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench.queues.kueue_load import (
    BORROWING_CPU,
    NODE_CPU,
    NODES_PER_RACK,
    NOMINAL_CPU,
    QUEUES_PER_COHORT,
    WorkloadClass,
)
from rackgate.api import names
from tests.support.objects import RACK, Object, cluster_queue, flavor, local_queue, topology_object
from tests.support.objects import node as node_of

POOL: Final = "bench"
FLAVOR: Final = "bench"
TOPOLOGY: Final = "bench"
PREEMPTION: Final = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
# While these gates are alpha, a queue in a cohort with a topology is inactive without them.
TOPOLOGY_GATES: Final = ("TASWithCohorts", "TASWithPreemption")


@dataclass(frozen=True, slots=True)
class Queue:
    """A ClusterQueue, and its one LocalQueue in a namespace of its own; all have the same name."""

    index: int

    @property
    def name(self) -> str:
        """Of ClusterQueue, LocalQueue and namespace."""
        return f"queue-{self.index:04}"

    @property
    def cohort(self) -> str:
        """The cohort, which is only named."""
        return f"cohort-{self.index // QUEUES_PER_COHORT:03}"


def cluster_queue_of(
    queue: Queue, nominal: int = NOMINAL_CPU, borrowing: int = BORROWING_CPU
) -> Object:
    """A ClusterQueue of Kueue's load: CPU alone, with borrowing and both kinds of preemption."""
    made = cluster_queue(queue.name, FLAVOR, {"cpu": str(nominal)}, preemption=PREEMPTION)
    made["spec"]["cohortName"] = queue.cohort
    (group,) = made["spec"]["resourceGroups"]
    group["flavors"][0]["resources"][0]["borrowingLimit"] = str(borrowing)
    return made


def local_queue_of(queue: Queue) -> Object:
    """The LocalQueue of a queue."""
    made = local_queue(queue.name, queue.name)
    made["metadata"]["namespace"] = queue.name
    return made


def namespace_of(queue: Queue) -> Object:
    """The namespace of a queue."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": queue.name}}


def flavor_objects(*, topology: bool) -> tuple[Object | None, Object]:
    """The Topology, None without one, and the ResourceFlavor."""
    levels = topology_object(TOPOLOGY) if topology else None
    return levels, flavor(FLAVOR, POOL, TOPOLOGY if topology else None)


def nodes(count: int) -> Iterator[Object]:
    """Nodes of 96 CPUs, 64 to a rack, all racks in one block."""
    for index in range(count):
        rack = f"rack-{index // NODES_PER_RACK:04}"
        yield node_of(POOL, "block-0", rack, f"n{index:05}", cpu=str(NODE_CPU))


def topology_request(of: WorkloadClass) -> dict[str, Any]:
    """What a class asks of the rack level, as in Kueue's generator; empty for nothing."""
    if of.constraint == "balanced":
        return {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": of.slice_size}
    return {of.constraint: RACK} if of.constraint else {}


def workload(name: str, queue: Queue, of: WorkloadClass) -> Object:
    """A Workload without an owner, as Kueue's runner creates it."""
    resources = {"requests": {"cpu": f"{of.pod_mcpu}m"}}
    container = {"name": "main", "image": "registry.example/train:1", "resources": resources}
    podset: Object = {
        "name": "main",
        "count": of.pods,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    if request := topology_request(of):
        podset["topologyRequest"] = request
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": queue.name},
        "spec": {"queueName": queue.name, "priority": of.priority, "podSets": [podset]},
    }


def class_name(workload_name: str) -> str:
    """The class of a Workload, by the name that its stream gave it."""
    return workload_name.rpartition("-")[0]


def condition(type_: str, moment: str, reason: str = "", status: str = "True") -> Mapping[str, Any]:
    """A condition of a Workload."""
    return {
        "type": type_,
        "status": status,
        "reason": reason or type_,
        "message": "written by the bench",
        "lastTransitionTime": moment,
        "observedGeneration": 1,
    }
