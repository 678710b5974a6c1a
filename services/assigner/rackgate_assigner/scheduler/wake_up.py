"""Which changes of a Workload are reason to plan again."""

from __future__ import annotations

from rackgate_assigner.cache.queue_usage import Holding
from rackgate_assigner.workload.info import WorkloadRow


def felt(holding: Holding | None) -> tuple[object, ...]:
    """The part of a holding that others can feel."""
    if holding is None:
        return ()
    return holding.cluster_queue, holding.waiting, holding.quota, holding.charges


def asks_differently(old: WorkloadRow | None, row: WorkloadRow) -> bool:
    """Whether a plan could decide otherwise about this Workload itself, or about its slices."""

    def asked(found: WorkloadRow) -> tuple[object, ...]:
        place = (found.uid, found.queue, found.priority, found.priority_class, found.age)
        running = found.elastic and found.admitted
        state = (found.active, found.evicted, found.requeue_at, running)
        return (*place, *state, found.shape, found.unhealthy)

    return old is None or asked(old) != asked(row)
