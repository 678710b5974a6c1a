"""What one scheduling cycle is given: waiting Workloads, queues, quota in use and free room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rackgate_assigner.cache.flavor_topologies import Forest
from rackgate_assigner.quota.queues import ClusterQueueRow, FlavorResource, FlavorRow, LocalQueueRow
from rackgate_assigner.scheduler.preemption import Running
from rackgate_assigner.workload.info import WorkloadRow
from rackgate_assigner.workload_slices.admission import Family


@dataclass(slots=True)
class Snapshot:
    """One cycle's view. A plan uses it up: `used` and `forest` are its own copies.

    Attributes:
        waiting: Workloads that ask for admission, in any order.
        holding: Workloads whose reservation may have to be taken back.
        failing: admitted Workloads that name broken nodes.
        checks: AdmissionCheck name to its controller.
        namespaces: name to labels.
        priorities: WorkloadPriorityClass name to value.
        used: quota in use, by ClusterQueue.
        running: who holds it, by ClusterQueue, of those in which some may have to give way.
        leaving: keys of Workloads whose eviction is being written.
        families: by key, the parents of slices that wait.
    """

    waiting: Sequence[WorkloadRow]
    holding: Sequence[WorkloadRow]
    local_queues: Mapping[str, LocalQueueRow]
    cluster_queues: Mapping[str, ClusterQueueRow]
    flavors: Mapping[str, FlavorRow]
    checks: Mapping[str, str]
    namespaces: Mapping[str, Mapping[str, str]]
    priorities: Mapping[str, int]
    used: dict[str, dict[FlavorResource, int]]
    forest: Forest
    failing: Sequence[WorkloadRow] = ()
    running: Mapping[str, Sequence[Running]] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    families: Mapping[str, Family] = field(default_factory=dict)
