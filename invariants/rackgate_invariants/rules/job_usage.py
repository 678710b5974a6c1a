"""Usage of the pods of each managed job, by flavor and resource of its queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rackgate_invariants.cluster import Cluster, ObjectGroup, WorkloadWithSlices, orphan_group_key
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import WorkloadRow
from rackgate_invariants.running_pods import (
    FlavorResolver,
    RunningPods,
    count_running_pods,
    flavors_by_resource,
)

Total = Counter[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class JobUsage:
    """Usage of one job.

    Attributes:
        local_queue: `namespace/name`, "" if none is known.
        cluster_queue: the one it was admitted to, else the one of its LocalQueue.
        reserved_usage: what its Workloads reserve.
        non_terminating: what pods use that are not being deleted.
        running_usage: what all its running pods use.
        admitted: a Workload of it is admitted.
        bound_at: when the latest of the pods was bound.
    """

    local_queue: str
    cluster_queue: str
    reserved_usage: Total
    non_terminating: Total
    running_usage: Total
    admitted: bool
    bound_at: float


def running_pods_of(group: ObjectGroup, node_index: NodeIndex) -> RunningPods:
    """Running pods of a group; counted once."""
    if group.pods_in_use is None:
        group.pods_in_use = count_running_pods(
            group.pods.values(), group.job, group.podset_by_child_job(), node_index
        )
    return group.pods_in_use


def all_running_pods_of(
    group: ObjectGroup, groups: Mapping[str, ObjectGroup], node_index: NodeIndex
) -> list[RunningPods]:
    """Running pods of a group, including those without a controller that name its Workloads."""
    found = [running_pods_of(group, node_index)] if group.pods else []
    for workload in group.workloads.values():
        left = groups.get(orphan_group_key(workload.namespace, workload.name))
        if left is not None and left.pods:
            found.append(running_pods_of(left, node_index))
    return found


def job_usages(
    cluster: Cluster, groups: Mapping[str, ObjectGroup], node_index: NodeIndex
) -> list[JobUsage]:
    """Usage of all jobs with running pods."""
    cluster_queue_of = {queue.key: queue.cluster_queue for queue in cluster.local_queues}
    # Flavors by ClusterQueue and resource, in the queue's order.
    offered = {queue.key: flavors_by_resource(queue) for queue in cluster.cluster_queues}
    usages = (
        _job_usage(group, cluster_queue_of, offered, groups, node_index)
        for group in groups.values()
        if group.root and (group.workloads or group.managed)
    )
    return [usage for usage in usages if usage is not None]


def _job_usage(
    group: ObjectGroup,
    cluster_queue_of: Mapping[str, str],
    offered: Mapping[str, Mapping[str, tuple[str, ...]]],
    groups: Mapping[str, ObjectGroup],
    node_index: NodeIndex,
) -> JobUsage | None:
    every = [one for one in all_running_pods_of(group, groups, node_index) if one.total]
    if not every:
        return None
    workloads_with_slices = group.workloads_with_slices()
    queues = _queues(group, workloads_with_slices, cluster_queue_of)
    if queues is None:
        return None
    local, cluster_queue = queues
    flavors = FlavorResolver(offered.get(cluster_queue, {}))
    flavors.add_assigned(
        podset for family in workloads_with_slices for podset in family.parent.podsets
    )
    non_terminating, running_usage, reserved_usage = Total(), Total(), Total()
    for one in every:
        non_terminating.update(flavors.amounts(one.non_terminating))
        running_usage.update(flavors.amounts(one.terminating))
    running_usage.update(non_terminating)
    for family in workloads_with_slices:
        for workload in (family.parent, *family.slices):
            if not group.is_releasing_quota(workload):
                reserved_usage.update(reserved_by(workload))
    return JobUsage(
        local,
        cluster_queue,
        reserved_usage,
        non_terminating,
        running_usage,
        any(family.parent.holds and family.parent.admitted for family in workloads_with_slices),
        max(one.bound_at for one in every),
    )


def _queues(
    group: ObjectGroup,
    workloads_with_slices: list[WorkloadWithSlices],
    cluster_queue_of: Mapping[str, str],
) -> tuple[str, str] | None:
    """LocalQueue and ClusterQueue of the Workload that has quota, else of the job.

    If the job is gone, those of a Workload without quota.
    """
    holding = next((one.parent for one in workloads_with_slices if one.parent.holds), None)
    if holding is not None:
        return holding.queue, holding.cluster_queue
    queue = group.job.queue if group.job is not None and group.managed else ""
    if not queue and group.job is None:
        queue = next((one.parent.queue for one in workloads_with_slices), "")
    return (queue, cluster_queue_of.get(queue, "")) if queue else None


def reserved_by(workload: WorkloadRow) -> Total:
    """What a Workload reserves, by flavor and resource."""
    found: Total = Counter()
    for podset in workload.podsets if workload.holds else ():
        for resource, flavor in podset.flavors.items():
            found[flavor, resource] += podset.held(resource)
    return found
