"""Which Workloads of a ClusterQueue are preempted: `conformance/quota`, sections 7 and 8.

Targets are whole Workloads, each with the usage of its slices. A target is lower than its preemptor
in one fixed order, by priority and then by age, so two Workloads never preempt each other in turn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from rackgate_assigner.cache.snapshot import AdmittedWorkload
from rackgate_assigner.quota.queues import NEVER, ClusterQueueInfo, FlavorInfo, FlavorResource
from rackgate_assigner.workload.info import priority_of

LOWER: Final = "LowerPriority"
LOWER_OR_NEWER: Final = "LowerOrNewerEqualPriority"

Amounts = Mapping[FlavorResource, int]


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The Workload for which others may be preempted."""

    key: str
    parent: str
    priority: int
    queue_timestamp: str


def may_preempt(policy: str, preemptor: Preemptor, priority: int, queue_timestamp: str) -> bool:
    """Whether a policy lets a Workload preempt one with this priority and age.

    Among equal priorities only a newer one is preempted, never one of the same age.
    """
    if priority < preemptor.priority:
        return policy in (LOWER, LOWER_OR_NEWER)
    return (
        policy == LOWER_OR_NEWER
        and priority == preemptor.priority
        and queue_timestamp > preemptor.queue_timestamp
    )


def preemption_targets(
    candidates: Iterable[AdmittedWorkload],
    request: Amounts,
    preemption_needed: AbstractSet[FlavorResource],
    room: Amounts,
) -> list[AdmittedWorkload]:
    """The first candidates whose preemption makes a request fit, without those not needed.

    Empty if preempting all of them is not enough.

    Args:
        candidates: in the order in which they are preempted.
        request: by flavor and resource.
        preemption_needed: pairs of the request without enough free quota; a candidate without
            usage of them is skipped.
        room: free quota by pair; negative if usage exceeds the quota.
    """
    left = dict(room)
    chosen: list[AdmittedWorkload] = []
    for candidate in candidates:
        if preemption_needed.isdisjoint(candidate.quota):
            continue
        _add(left, candidate.quota, 1)
        chosen.append(candidate)
        if fits(request, left):
            break
    else:
        return []
    # With the last one it fits. Earlier ones may not be needed any more: check the highest first.
    for index in range(len(chosen) - 2, -1, -1):
        _add(left, chosen[index].quota, -1)
        if fits(request, left):
            del chosen[index]
        else:
            _add(left, chosen[index].quota, 1)
    return chosen


def fits(request: Amounts, room: Amounts) -> bool:
    """Whether every amount of a request fits."""
    return all(amount <= room.get(pair, 0) for pair, amount in request.items() if amount > 0)


def _add(total: dict[FlavorResource, int], part: Amounts, sign: int) -> None:
    for pair, amount in part.items():
        total[pair] = total.get(pair, 0) + sign * amount


@dataclass(frozen=True, slots=True)
class _PreemptibleQuota:
    """What a preemptor of one priority may free in a ClusterQueue.

    Attributes:
        lower: usage of lower priorities, in total.
        queue_timestamps: of those with the same priority, sorted.
        newer: usage of these: of all, of all but the oldest, ..., of none.
    """

    lower: dict[FlavorResource, int]
    queue_timestamps: list[str]
    newer: list[Amounts]


class Preemption:
    """Targets of one cycle; quota that one preemptor frees is not given to another."""

    def __init__(
        self,
        running: Mapping[str, Sequence[AdmittedWorkload]],
        priorities: Mapping[str, int],
        flavors: Mapping[str, FlavorInfo],
        being_evicted: AbstractSet[str],
    ) -> None:
        """Prepare.

        Args:
            running: by ClusterQueue, Workloads with quota there.
            priorities: WorkloadPriorityClass name to value.
            flavors: all flavors there are.
            being_evicted: keys of further Workloads that are about to release their quota.
        """
        self._running, self._priorities = running, priorities
        self._flavors, self._being_evicted = flavors, being_evicted
        self._ordered: dict[str, list[AdmittedWorkload]] = {}
        self._sums: dict[tuple[str, int], _PreemptibleQuota] = {}
        # Quota of the targets chosen in this cycle, by ClusterQueue.
        self._freed_quota: dict[str, dict[FlavorResource, int]] = {}
        self.target_keys: set[str] = set()

    def supports(self, queue: ClusterQueueInfo) -> bool:
        """Whether Workloads of a queue may preempt others of the same queue.

        Not with topology flavors: freed quota says nothing about fitting domains there.
        """
        if queue.within_cluster_queue == NEVER:
            return False
        found = (self._flavors.get(name) for name in queue.flavors)
        return not any(flavor is not None and flavor.topology for flavor in found)

    def preemptible_quota(
        self, queue: ClusterQueueInfo, preemptor: Preemptor
    ) -> dict[FlavorResource, int]:
        """What preempting all candidates would free, by pair.

        Read for every pending Workload, so it is computed once for each priority. It includes the
        parent of a slice, which `find_targets` excludes.
        """
        if not self.supports(queue):
            return {}
        known = self._sums.get((queue.name, preemptor.priority))
        if known is None:
            known = self._sums[queue.name, preemptor.priority] = self._sum(queue.name, preemptor)
        total = dict(self._freed_quota.get(queue.name, {}))
        _add(total, known.lower, 1)
        if queue.within_cluster_queue == LOWER_OR_NEWER:
            _add(
                total,
                known.newer[bisect_right(known.queue_timestamps, preemptor.queue_timestamp)],
                1,
            )
        return total

    def _sum(self, name: str, preemptor: Preemptor) -> _PreemptibleQuota:
        lower: dict[FlavorResource, int] = {}
        equal: list[AdmittedWorkload] = []
        for running in self._running.get(name, ()):
            if running.info.key in self.target_keys:
                continue
            priority = self._priority(running)
            if priority < preemptor.priority:
                _add(lower, running.quota, 1)
            elif priority == preemptor.priority:
                equal.append(running)
        equal.sort(key=lambda running: running.info.queue_timestamp)
        newer: list[Amounts] = [{}]
        for running in reversed(equal):
            total = dict(newer[-1])
            _add(total, running.quota, 1)
            newer.append(total)
        return _PreemptibleQuota(
            lower, [running.info.queue_timestamp for running in equal], newer[::-1]
        )

    def find_targets(
        self,
        queue: ClusterQueueInfo,
        preemptor: Preemptor,
        request: Amounts,
        preemption_needed: AbstractSet[FlavorResource],
        room: Amounts,
    ) -> list[AdmittedWorkload] | None:
        """Targets, which no other Workload gets in this cycle; empty if those of others suffice.

        Args:
            queue: the ClusterQueue.
            preemptor: the Workload to admit.
            request: its request by pair.
            preemption_needed: pairs without enough free quota.
            room: free quota by pair.

        Returns:
            None if preempting all candidates would not be enough.
        """
        freed = self._freed_quota.setdefault(queue.name, {})
        later = dict(room)
        _add(later, freed, 1)
        if fits(request, later):
            return []
        chosen = preemption_targets(
            self._candidates(queue, preemptor), request, preemption_needed, later
        )
        for target in chosen:
            self.target_keys.add(target.info.key)
            _add(freed, target.quota, 1)
            self._drop_candidate(queue.name, target)
        return chosen or None

    def _drop_candidate(self, name: str, target: AdmittedWorkload) -> None:
        """A target is not a candidate for others in this cycle."""
        self._ordered[name].remove(target)
        priority = self._priority(target)
        for queue, above in list(self._sums):
            if queue == name and above == priority:
                del self._sums[queue, above]
            elif queue == name and above > priority:
                _add(self._sums[queue, above].lower, target.quota, -1)

    def is_being_evicted(self, running: AdmittedWorkload) -> bool:
        """Whether the quota of a Workload is released without another preemption."""
        return running.being_evicted or running.info.key in self._being_evicted

    def _candidates(
        self, queue: ClusterQueueInfo, preemptor: Preemptor
    ) -> Iterator[AdmittedWorkload]:
        for running in self._ordered_candidates(queue.name):
            priority, info = self._priority(running), running.info
            if info.key != preemptor.parent and may_preempt(
                queue.within_cluster_queue, preemptor, priority, info.queue_timestamp
            ):
                yield running

    def _ordered_candidates(self, name: str) -> Sequence[AdmittedWorkload]:
        """Workloads under eviction first, then by lowest priority, then by newest reservation."""
        found = self._ordered.get(name)
        if found is None:
            found = sorted(
                self._running.get(name, ()), key=lambda one: (one.info.uid, one.info.key)
            )
            # One whose reservation the watch does not show yet is the newest of all.
            found.sort(key=lambda one: one.info.reserved_at or "~", reverse=True)
            found.sort(key=lambda one: (not self.is_being_evicted(one), self._priority(one)))
            self._ordered[name] = found
        return found

    def _priority(self, running: AdmittedWorkload) -> int:
        return priority_of(running.info, self._priorities)
