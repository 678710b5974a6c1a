"""Evicted Workloads: their record, their pods, and when they may be queued again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rackgate.api import names
from rackgate_invariants.cluster import OVERDUE_S, ObjectGroup, listed
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach

_PREEMPTED: Final = frozenset(names.PreemptedReason)


def check_record(workload: WorkloadRow) -> Iterator[Breach]:
    """`preemption-unrecorded`.

    A preempted Workload may be deactivated before it has quota again: then Evicted has another
    reason, and Preempted stays.
    """
    preempted = workload.evicted_reason == names.EvictionReason.PREEMPTED
    if workload.finished or not (preempted or workload.preempted_reason):
        return
    missing = []
    if not workload.evicted:
        missing.append("Evicted is not True")
    if workload.preempted_reason not in _PREEMPTED:
        missing.append(f'the reason of Preempted is "{workload.preempted_reason}"')
    if not workload.preemptor:
        missing.append("no preemptor is named")
    if not workload.preemptions:
        missing.append("status.schedulingStats does not count it")
    if missing:
        yield Breach("preemption-unrecorded", workload.key, "; ".join(missing))


def check_requeue(workload: WorkloadRow) -> Iterator[Breach]:
    """`requeue-state`.

    The time of the requeue is removed when it has come. While a Workload is evicted, it has its
    next one.
    """
    if not workload.holds or not workload.active:
        return
    if workload.requeue_at and not workload.evicted:
        found = "holds quota, and its requeueAt has not been reached"
        yield Breach("requeue-state", workload.key, found)
    timed_out = workload.evicted_reason in (
        names.EvictionReason.PODS_READY_TIMEOUT,
        names.EvictionReason.GANG_TIMEOUT,
        names.EvictionReason.GANG_MEMBER_LOST,
    )
    if timed_out and workload.timeouts < 1:
        found = (
            f"evicted for {workload.evicted_reason}, and requeueState counts {workload.timeouts}"
        )
        yield Breach("requeue-state", workload.key, found)


def check_pods(group: ObjectGroup, node_index: NodeIndex, now: float) -> Iterator[Breach]:
    """`evicted-still-runs`: pods that are not deleted, or whose grace period is long over."""
    own = [one for one in group.own if not one.finished]
    if not own or not all(one.evicted for one in own) or group.job is None or group.job.over:
        return
    workload = max(own, key=lambda one: one.evicted_at)
    bound = [pod for pod in group.pods.values() if pod.node and pod.owner]
    kept = [pod for pod in bound if not pod.terminating]
    overdue = [pod for pod in bound if _is_overdue(pod, node_index, now)]
    if kept:
        found = f"evicted ({workload.evicted_reason}), and pods run: {listed(p.name for p in kept)}"
        since = max(workload.evicted_at, *(pod.scheduled_at for pod in kept))
    elif overdue:
        names_ = listed(pod.name for pod in overdue)
        found = f"evicted ({workload.evicted_reason}), and pods outlive their grace: {names_}"
        since = max(pod.ends_at for pod in overdue)
    else:
        return
    yield Breach("evicted-still-runs", workload.key, found, since)


def _is_overdue(pod: PodRow, node_index: NodeIndex, now: float) -> bool:
    return 0 < pod.ends_at <= now - OVERDUE_S and node_index.uses_quota(pod)
