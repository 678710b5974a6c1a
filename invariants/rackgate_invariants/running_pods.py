"""The bound pods of one job that have not ended, counted from pods alone.

Admissions are not read here, except to choose a flavor where the labels of a node fit several.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import Amounts, JobRow, PodRow, PodSetRow, QueueRow

PODS = "pods"
MAIN = "main"
# PodSet, requests of one pod, flavors whose labels its node carries.
Shape = tuple[str, Amounts, frozenset[str]]


@dataclass(slots=True)
class RunningPods:
    """Running pods of one job, counted by shape.

    Attributes:
        non_terminating: those that are not being deleted.
        terminating: those that are.
        bound_at: when the latest of them was bound.
    """

    non_terminating: Counter[Shape] = field(default_factory=Counter)
    terminating: Counter[Shape] = field(default_factory=Counter)
    bound_at: float = 0.0

    @property
    def total(self) -> int:
        """Number of pods."""
        return self.non_terminating.total() + self.terminating.total()

    def requests(self, podset: str) -> set[Amounts]:
        """The distinct requests of the pods of a PodSet."""
        return {
            asked for name, asked, _ in (*self.non_terminating, *self.terminating) if name == podset
        }


def podset_of(pod: PodRow, job: JobRow | None, podset_by_child_job: Mapping[str, str]) -> str:
    """The PodSet of a pod: by its controller, or by its labels if that has several.

    Args:
        pod: of the job.
        job: None when it is gone.
        podset_by_child_job: PodSet of each child Job, by uid.
    """
    found = podset_by_child_job.get(pod.owner)
    if found is not None:
        return found
    kind = job.kind if job is not None else pod.owner_kind
    if kind == "Job":
        return pod.podset if job is None and pod.podset else MAIN
    return (pod.group or pod.podset) if kind in ("RayCluster", "RayJob") else pod.podset


def count_running_pods(
    pods: Iterable[PodRow],
    job: JobRow | None,
    podset_by_child_job: Mapping[str, str],
    node_index: NodeIndex,
) -> RunningPods:
    """Count the pods of one job; pods of other namespaces do not belong to it."""
    found = RunningPods()
    alone = not podset_by_child_job and job is not None and job.kind == "Job"
    for pod in pods:
        if not pod.node or (pod.terminating and not node_index.uses_quota(pod)):
            continue
        if job is not None and pod.namespace != job.namespace:
            continue
        podset = MAIN if alone else podset_of(pod, job, podset_by_child_job)
        shape = (podset, pod.requests, node_index.flavors_of_node(pod.node))
        (found.terminating if pod.terminating else found.non_terminating)[shape] += 1
        found.bound_at = max(found.bound_at, pod.scheduled_at)
    return found


@dataclass(slots=True)
class FlavorResolver:
    """The flavor that the pods of one job use for each resource.

    Attributes:
        offered: flavors of the ClusterQueue by resource, in its order.
        assigned: flavor by PodSet and resource, from the admission.
    """

    offered: Mapping[str, tuple[str, ...]]
    assigned: dict[tuple[str, str], str] = field(default_factory=dict)

    def add_assigned(self, podsets: Iterable[PodSetRow]) -> None:
        """Prefer the flavors of an admission if several match a node."""
        for podset in podsets:
            for resource, flavor in podset.flavors.items():
                self.assigned[podset.name, resource] = flavor
                self.assigned.setdefault(("", resource), flavor)

    def amounts(self, counts: Mapping[Shape, int]) -> Counter[tuple[str, str]]:
        """What pods use, by flavor and resource; resources without quota are left out."""
        found: Counter[tuple[str, str]] = Counter()
        for (podset, requests, node_flavors), count in counts.items():
            for resource, amount in (*requests, (PODS, 1)):
                flavor = self._flavor(podset, resource, node_flavors) if amount else ""
                if flavor:
                    found[flavor, resource] += amount * count
        return found

    def _flavor(self, podset: str, resource: str, node_flavors: frozenset[str]) -> str:
        """The queue's flavor of a node; if several match, the assigned one, else the first."""
        offered = self.offered.get(resource, ())
        assigned = self.assigned.get((podset, resource)) or self.assigned.get(("", resource), "")
        fitting = [name for name in offered if name in node_flavors] or offered
        return assigned if assigned in fitting or not fitting else fitting[0]


def flavors_by_resource(queue: QueueRow | None) -> dict[str, tuple[str, ...]]:
    """Flavors of a ClusterQueue by resource, in its order."""
    found: dict[str, list[str]] = defaultdict(list)
    for flavor, resource in queue.nominal if queue is not None else ():
        found[resource].append(flavor)
    return {resource: tuple(flavors) for resource, flavors in found.items()}
