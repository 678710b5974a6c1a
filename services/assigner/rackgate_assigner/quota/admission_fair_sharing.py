"""Admission fair sharing: the usage of each LocalQueue over time, which orders its ClusterQueue.

What a LocalQueue has consumed is a mean of its usage in which the past counts less and less: what
was used one half-life ago counts half as much as what is used now. With A = 1 - 0.5^(elapsed /
half-life), `consumed` becomes (1 - A) * consumed + A * usage while the usage does not change.

`UsageHistory` applies this at every change of the usage, so it equals the integral over the usage,
whatever is sampled. An admission adds an *entry penalty*: what the Workload would have consumed in
one sampling interval. It is pending from the decision on, and added to what was consumed when the
Workload is admitted. So the next Workload is ordered by it, before any sample is taken.

Inputs: amounts by resource in units (cores, bytes, devices); times as `Moment`.
Invariant: a history is that of the status if this process has observed nothing yet.
Complexity: O(resources) for each change; nothing grows with the age of a history.
Source: KEP-4136 of Kueue; ADR 44.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeAlias

from rackgate_assigner.quota.queues import Quota

Amounts: TypeAlias = Mapping[str, float]


class Moment(NamedTuple):
    """A time, by both clocks in seconds: the wall clock is compared with stored times alone."""

    monotonic_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class AdmissionFairSharing:
    """How usage counts.

    Attributes:
        half_life_s: seconds after which usage counts half; 0: only the weights of LocalQueues
            count.
        sampling_interval_s: seconds between two samples.
        resource_weights: by resource; 1 for those that are left out.
    """

    half_life_s: float
    sampling_interval_s: float = 300.0
    resource_weights: Mapping[str, float] = field(default_factory=dict)

    def consumed_after(self, consumed: Amounts, usage: Amounts, elapsed_s: float) -> Amounts:
        """What was consumed after some seconds of constant usage."""
        if self.half_life_s == 0:
            return {}
        past = 0.5 ** (max(0.0, elapsed_s) / self.half_life_s)
        return {
            resource: past * consumed.get(resource, 0.0) + (1 - past) * usage.get(resource, 0.0)
            for resource in {**consumed, **usage}
        }

    def entry_penalty(self, request: Amounts) -> Amounts:
        """What one admission adds: its usage in one sampling interval."""
        return self.consumed_after({}, request, self.sampling_interval_s)

    def weighted(self, consumed: Amounts, weight: float) -> float:
        """The usage that orders LocalQueues; infinite for a LocalQueue of weight 0."""
        if weight <= 0:
            return inf
        weights = self.resource_weights
        return sum(weights.get(name, 1.0) * consumed[name] for name in sorted(consumed)) / weight


@dataclass(slots=True)
class _Entry:
    """The history of one LocalQueue.

    Attributes:
        consumed: at `wall_s`.
        wall_s: when this was computed, by the wall clock.
        monotonic_s: the same by the monotonic clock; None: as another process stored it.
        usage: since then; None before the first observation.
        penalties: pending, by key of the Workload.
    """

    consumed: Amounts
    wall_s: float
    monotonic_s: float | None = None
    usage: Amounts | None = None
    penalties: dict[str, Amounts] = field(default_factory=dict)

    def elapsed_s(self, now: Moment) -> float:
        if self.monotonic_s is not None:
            return now.monotonic_s - self.monotonic_s
        # Without consumption, the time is that of no sample: the history starts now.
        return now.wall_s - self.wall_s if self.consumed else 0.0


class UsageHistory:
    """What all LocalQueues have consumed; keys are `namespace/name`."""

    def __init__(self, rules: AdmissionFairSharing) -> None:
        self.rules = rules
        self._entries: dict[str, _Entry] = {}
        self._queue_of: dict[str, str] = {}

    def __contains__(self, queue: str) -> bool:
        return queue in self._entries

    @property
    def pending(self) -> list[str]:
        """Workloads with a pending penalty."""
        return list(self._queue_of)

    def restore(self, queue: str, consumed: Amounts, wall_s: float) -> None:
        """Take over what a status shows, if this process has not observed the LocalQueue."""
        entry = self._entries.setdefault(queue, _Entry(consumed, wall_s))
        if entry.monotonic_s is None:
            entry.consumed, entry.wall_s = consumed, wall_s

    def observe(self, queue: str, usage: Amounts, now: Moment) -> None:
        """The usage of a LocalQueue from now on; it may have changed."""
        entry = self._entries.get(queue)
        if entry is None:
            # As if it had always been so: the first sample of a running LocalQueue is no peak.
            self._entries[queue] = _Entry(dict(usage), now.wall_s, now.monotonic_s, usage)
            return
        before = usage if entry.usage is None else entry.usage
        entry.consumed = self.rules.consumed_after(entry.consumed, before, entry.elapsed_s(now))
        entry.usage, entry.wall_s, entry.monotonic_s = usage, now.wall_s, now.monotonic_s

    def reserve(self, workload: str, queue: str, request: Amounts) -> None:
        """A Workload is about to be admitted: its penalty is pending; once for each Workload.

        A LocalQueue without a history has none, so that the first observation starts it.
        """
        if workload not in self._queue_of and queue in self._entries:
            self._queue_of[workload] = queue
            self._entries[queue].penalties[workload] = self.rules.entry_penalty(request)

    def usage(self, queue: str) -> Amounts | None:
        """The usage that was observed last; None if none was."""
        entry = self._entries.get(queue)
        return None if entry is None else entry.usage

    def settle(self, workload: str) -> None:
        """A Workload is admitted: its penalty was consumed."""
        queue = self._queue_of.get(workload)
        if queue is not None:
            entry = self._entries[queue]
            entry.consumed = total(entry.consumed, entry.penalties[workload])
            self.release(workload)

    def release(self, workload: str) -> None:
        """A Workload is not admitted after all: it has no penalty."""
        queue = self._queue_of.pop(workload, None)
        if queue is not None:
            del self._entries[queue].penalties[workload]

    def forget(self, queue: str) -> None:
        """A LocalQueue is deleted."""
        entry = self._entries.pop(queue, None)
        for workload in entry.penalties if entry is not None else ():
            del self._queue_of[workload]

    def consumed(self, queue: str) -> tuple[Amounts, float]:
        """What a status shows: what was consumed without pending penalties, and its wall time.

        Raises:
            KeyError: the LocalQueue has no history.
        """
        entry = self._entries[queue]
        return entry.consumed, entry.wall_s

    def charged(self, queue: str) -> Amounts:
        """What was consumed, with pending penalties; empty without a history."""
        entry = self._entries.get(queue)
        return {} if entry is None else total(entry.consumed, *entry.penalties.values())


class LocalQueueUsage:
    """What orders LocalQueues in one scheduling cycle: the history, and what the cycle admits."""

    def __init__(self, history: UsageHistory, weight_of: Callable[[str], float]) -> None:
        self._history, self._weight_of = history, weight_of
        self._admitted: dict[str, Amounts] = {}
        self._known: dict[str, float] = {}

    def of(self, queue: str) -> float:
        """The weighted usage of a LocalQueue; it only grows in a cycle."""
        found = self._known.get(queue)
        if found is None:
            charged = total(self._history.charged(queue), self._admitted.get(queue, {}))
            found = self._history.rules.weighted(charged, self._weight_of(queue))
            self._known[queue] = found
        return found

    def admit(self, queue: str, request: Amounts) -> None:
        """The cycle admits a Workload: the next one of its LocalQueue comes later."""
        penalty = self._history.rules.entry_penalty(request)
        self._admitted[queue] = total(self._admitted.get(queue, {}), penalty)
        self._known.pop(queue, None)


def total(*parts: Amounts) -> dict[str, float]:
    """The sum by resource."""
    found: dict[str, float] = {}
    for part in parts:
        for resource, amount in part.items():
            found[resource] = found.get(resource, 0.0) + amount
    return found


def amounts_of(quota: Quota) -> dict[str, float]:
    """Amounts by resource, in units, of quota by flavor and resource."""
    found: dict[str, float] = {}
    for (_, resource), amount in quota.items():
        units = amount / 1000 if resource == "cpu" else float(amount)
        found[resource] = found.get(resource, 0.0) + units
    return found
