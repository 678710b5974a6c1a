"""When the batch of a Workload closes: once all pods that it may release are seen. Pure.

The first event of a Workload opens a batch, and its window is the longest that it stays open. It
closes earlier, at once, when no further pod is waited for: in every PodSet as many pods wait as
there is room for, and there is room for one at least. So most jobs do not wait at all: their last
pod closes the batch.

A Workload whose last look was less than a window ago waits for the rest of it, whatever comes. So
there are never more looks than one per window and one more, however often pods change or fail.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from rackgate_ungater.machine.owners import Owners
from rackgate_ungater.machine.plan import Grant
from rackgate_ungater.machine.rows import PodSetRow
from rackgate_ungater.machine.state import Group, PodSetState

K = TypeVar("K")

# Looks that are remembered, before those whose window is over are forgotten.
REMEMBERED: Final = 4096


class Batches(Generic[K]):
    """How long the next look at each Workload may wait.

    Args:
        window_s: the longest time.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._looked: dict[K, float] = {}
        # Pods that were missing when they were counted last: until so many more have come,
        # counting anew would find some missing again.
        self._missing: dict[K, int] = {}

    def wait_s(self, key: K, group: Group, owners: Owners, now: float, *, one_pod: bool) -> float:
        """Seconds until a look is due, after an event that brings work.

        Args:
            key: the Workload.
            group: all about it.
            owners: child Jobs.
            now: monotonic seconds.
            one_pod: the event was about one pod, so that it brings one pod at most.
        """
        open_at = self._looked.get(key, float("-inf")) + self._window_s
        if now < open_at:
            return open_at - now
        left = self._missing.get(key, 0) - 1
        if one_pod and left > 0:
            self._missing[key] = left
            return self._window_s
        left = missing(group, owners)
        if left == 0:
            self._missing.pop(key, None)
            return 0.0
        self._missing[key] = left
        return self._window_s

    def looked(self, key: K, now: float) -> None:
        """A look at a Workload begins: its batch is closed."""
        self._missing.pop(key, None)
        self._looked[key] = now
        if len(self._looked) > REMEMBERED:
            over = now - self._window_s
            self._looked = {known: at for known, at in self._looked.items() if at > over}

    def forget(self, key: K) -> None:
        """A Workload is gone."""
        self._looked.pop(key, None)
        self._missing.pop(key, None)


def missing(group: Group, owners: Owners) -> int:
    """How many pods at least are still to come before all that may be released are there.

    Returns:
        0 when nobody is waited for, and there is a pod to release. Where nothing may be released
        now, as many as there are pods: it takes time to count them.
    """
    row = group.row
    if row is None or not row.granting:
        return 1
    grants = dict(group.grants())
    lacking, ready, counted = 0, False, 0
    for podset in row.podsets:
        if not row.elastic and podset.assignment is None:
            continue  # its pods never wait for us
        state, grant = group.podsets.get(podset.name), grants.get(podset.name)
        if state is None:
            lacking += _unseen(podset)
        elif state.expected or state.refused:
            lacking += 1  # nothing more of it is released before these are settled
        elif isinstance(grant, Grant):
            found = _lacking(state, grant, group, owners)
            lacking += max(0, found)
            ready = ready or (found <= 0 and state.gated > 0 and _room(state, grant))
            counted += len(state.pods)
    if lacking or ready:
        return lacking
    return max(1, counted)


def _unseen(podset: PodSetRow) -> int:
    """Pods of a PodSet of which none is seen. One that counts no pods has none to wait for."""
    return 1 if podset.count is None else max(0, podset.count - podset.done)


def _lacking(state: PodSetState, grant: Grant, group: Group, owners: Owners) -> int:
    """Pods of a PodSet that could be released and are not there; 0 or less when none are."""
    raw = grant.cap - len(state.pods)
    if raw > 0 or group.row is None:
        return raw  # not even with those that are somebody else's
    found = grant.cap
    pods = owners.pods_of(group.row, state.pods.values(), assignment=grant.assignment)
    for pod in pods:
        found -= not (pod.gates & grant.gates and pod.terminating)
    return found


def _room(state: PodSetState, grant: Grant) -> bool:
    """Whether a pod may be released at all."""
    return sum(not pod.gated for pod in state.pods.values()) < grant.cap
