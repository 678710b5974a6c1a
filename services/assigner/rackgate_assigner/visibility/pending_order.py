"""Positions of pending Workloads: the order of the scheduling cycle, by queue.

A position is the number of Workloads before it in the cycle order (`scheduler/cycle.py`) of the
same ClusterQueue or LocalQueue. The order of all queues is built together, in steps of `STEP`
Workloads: each step is sorted, and the sorted steps are merged. The caller does other work between
two steps, so a huge queue does not block the event loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.cycle import cycle_key
from rackgate_assigner.scheduler.local_queue_order import pending_ranks
from rackgate_assigner.workload.info import WorkloadInfo, priority_of

STEP: Final = 500


class Position(msgspec.Struct, frozen=True, gc=False):
    """A pending Workload and the number of Workloads before it.

    Not tracked by the garbage collector: there are as many as pending Workloads.

    Attributes:
        key: `namespace/name`.
        queue: `namespace/name` of the LocalQueue.
        priority: effective priority.
        in_cluster_queue: starts at 0.
        in_local_queue: starts at 0.
    """

    key: str
    queue: str
    priority: int
    in_cluster_queue: int
    in_local_queue: int


@dataclass(frozen=True, slots=True)
class PendingOrder:
    """Pending Workloads at one time, in order.

    Attributes:
        cluster_queues: by name of the ClusterQueue.
        local_queues: by `namespace/name` of the LocalQueue.
    """

    cluster_queues: Mapping[str, Sequence[Position]] = field(default_factory=dict)
    local_queues: Mapping[str, Sequence[Position]] = field(default_factory=dict)


def order_in_steps(
    pending: Sequence[WorkloadInfo],
    cluster_queue_of: Mapping[str, str],
    classes: Mapping[str, int],
    rank_of: Callable[[WorkloadInfo], float] = lambda _info: 0.0,
) -> Generator[None, None, PendingOrder]:
    """Build the order; yields after each step.

    Args:
        pending: in any order. Those without a LocalQueue have no position.
        cluster_queue_of: LocalQueue (`namespace/name`) to the name of its ClusterQueue.
        classes: WorkloadPriorityClass name to value.
        rank_of: what orders the Workloads of a ClusterQueue before their priority.
    """

    def order(info: WorkloadInfo) -> tuple[float, tuple[int, str, str]]:
        return rank_of(info), cycle_key(info, classes)

    parts: list[list[WorkloadInfo]] = []
    for start in range(0, len(pending), STEP):
        parts.append(sorted(pending[start : start + STEP], key=order))
        yield
    cluster_queues: dict[str, list[Position]] = {}
    local_queues: dict[str, list[Position]] = {}
    merged = heapq.merge(*parts, key=order)
    for number, info in enumerate(merged, 1):
        cluster_queue = cluster_queue_of.get(info.queue)
        if cluster_queue is not None:
            in_cluster_queue = cluster_queues.setdefault(cluster_queue, [])
            in_local_queue = local_queues.setdefault(info.queue, [])
            priority = priority_of(info, classes)
            position = Position(
                info.key, info.queue, priority, len(in_cluster_queue), len(in_local_queue)
            )
            in_cluster_queue.append(position)
            in_local_queue.append(position)
        if number % STEP == 0:
            yield
    return PendingOrder(cluster_queues, local_queues)


def order_of_cache(cache: Cache) -> Generator[None, None, PendingOrder]:
    """The order of all pending Workloads, as a scheduling cycle has it; yields after each step."""
    queues = {key: queue.cluster_queue for key, queue in cache.local_queues.items()}
    usage = cache.local_queue_usage()
    ranks = pending_ranks(cache.local_queues, cache.cluster_queues, usage, cache.features)
    return order_in_steps(cache.pending(), queues, dict(cache.priorities), ranks)
