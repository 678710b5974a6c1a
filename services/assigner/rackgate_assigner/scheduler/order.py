"""In which order a cycle looks at Workloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rackgate_assigner.workload.info import WorkloadInfo


def priority_of(info: WorkloadInfo, classes: Mapping[str, int]) -> int:
    """`spec.priority`, or the value of its WorkloadPriorityClass while that is absent, or 0."""
    if info.priority is not None:
        return info.priority
    return classes.get(info.priority_class, 0)


def cycle_order(infos: Iterable[WorkloadInfo], classes: Mapping[str, int]) -> list[WorkloadInfo]:
    """Highest priority first, then the oldest, then by key: never at random (C19).

    Args:
        infos: Workloads that ask for admission.
        classes: WorkloadPriorityClass name to value.
    """
    return sorted(
        infos, key=lambda info: (-priority_of(info, classes), info.queue_timestamp, info.key)
    )
