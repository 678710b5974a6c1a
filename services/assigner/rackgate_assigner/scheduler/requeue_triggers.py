"""Which changes of a Workload are reason to plan again."""

from __future__ import annotations

from rackgate_assigner.cache.queue_usage import WorkloadUsage
from rackgate_assigner.workload.info import WorkloadInfo


def usage_visible_to_others(usage: WorkloadUsage | None) -> tuple[object, ...]:
    """The part of a usage that others can feel."""
    if usage is None:
        return ()
    return usage.cluster_queue, usage.pending, usage.quota, usage.charges


def scheduling_inputs_differ(old: WorkloadInfo | None, info: WorkloadInfo) -> bool:
    """Whether a plan could decide otherwise about this Workload itself, or about its slices."""

    def scheduling_inputs(found: WorkloadInfo) -> tuple[object, ...]:
        place = (
            found.uid,
            found.queue,
            found.priority,
            found.priority_class,
            found.queue_timestamp,
        )
        running = found.elastic and found.admitted
        state = (found.active, found.evicted, found.requeue_at, running)
        return (*place, *state, found.shape, found.unhealthy)

    return old is None or scheduling_inputs(old) != scheduling_inputs(info)
