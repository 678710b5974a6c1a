"""In which order a cycle looks at Workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rackgate_assigner.workload.info import WorkloadRow


def priority_of(row: WorkloadRow, classes: Mapping[str, int]) -> int:
    """`spec.priority`, or the value of its WorkloadPriorityClass while that is absent, or 0."""
    if row.priority is not None:
        return row.priority
    return classes.get(row.priority_class, 0)


def cycle_order(rows: Iterable[WorkloadRow], classes: Mapping[str, int]) -> list[WorkloadRow]:
    """Highest priority first, then the oldest, then by key: never at random (C19).

    Args:
        rows: Workloads that ask for admission.
        classes: WorkloadPriorityClass name to value.
    """
    return sorted(rows, key=lambda row: (-priority_of(row, classes), row.age, row.key))
