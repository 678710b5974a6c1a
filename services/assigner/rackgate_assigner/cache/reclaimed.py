"""Room that pods which are done no longer take.

A Workload says how many of its pods are done, not which. Where they were shows when all others
are there: then every place without a pod is one that is needed no more. Until then all is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.pods import BoundPods
from rackgate_assigner.cache.queue_usage import WorkloadUsage
from rackgate_assigner.workload.info import WorkloadInfo, remaining_pods


def assignment_without_done_pods(
    assignment: TopologyAssignment, left: int, present: Mapping[Domain, int]
) -> TopologyAssignment:
    """What an assignment still takes.

    Args:
        assignment: as granted.
        left: pods that are not done.
        present: pods that run in each of its domains.
    """
    done = assignment.count - left
    kept = tuple(
        (values, min(count, present.get(values, 0))) for values, count in assignment.domains
    )
    missing = assignment.count - sum(count for _, count in kept)
    if missing == 0 or missing > done:
        return assignment
    return TopologyAssignment(assignment.levels, tuple(pair for pair in kept if pair[1]))


def usage_without_done_pods(
    info: WorkloadInfo, usage: WorkloadUsage, pods: BoundPods
) -> WorkloadUsage:
    """What a Workload holds without the places of pods that are done; `pods` is settled."""
    left = remaining_pods(info)
    charges = tuple(
        replace(
            charge,
            assignment=assignment_without_done_pods(
                assignment, left[podset], pods.present(info.key, podset)
            ),
        )
        if podset in left
        else charge
        for (podset, assignment), charge in zip(
            usage.assignments.items(), usage.charges, strict=True
        )
    )
    return replace(usage, charges=charges)
