"""Room that pods which are done no longer take.

A Workload says how many of its pods are done, not which. Where they were shows when all others
are there: then every place without a pod is one that is needed no more. Until then all is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.pods import PodLedger
from rackgate_assigner.cache.queue_usage import Holding
from rackgate_assigner.workload.info import WorkloadRow, pods_left


def relieved(
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


def relief(row: WorkloadRow, holding: Holding, pods: PodLedger) -> Holding:
    """What a Workload holds without the places of pods that are done; `pods` is settled."""
    left = pods_left(row)
    charges = tuple(
        replace(
            charge,
            assignment=relieved(assignment, left[podset], pods.present(row.key, podset)),
        )
        if podset in left
        else charge
        for (podset, assignment), charge in zip(
            holding.assignments.items(), holding.charges, strict=True
        )
    )
    return replace(holding, charges=charges)
