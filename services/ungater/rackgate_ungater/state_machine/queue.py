"""When to reconcile a Workload: batches, retries and timers; and the backlog of gated pods. Pure.

The first event of a Workload opens a batch, which stays open for at most one window. It closes at
once when no further pod is expected: every PodSet has as many gated pods as free capacity, and
there is capacity for at least one. So most jobs do not wait: their last pod closes the batch. A
Workload that was reconciled less than a window ago waits for the rest of the window. So it is
reconciled at most once per window and once more, regardless of how often pods change or fail.

A gang does not wait for the window. The event that completes it makes its Workload due at once, so
once for each gang and admission. While nothing can be released because all gangs are missing pods,
a reconciliation would only find out for how long: one in several windows is enough.

Times are seconds of a monotonic clock and come in as arguments. `DelayQueue` takes O(log n) per
entry; `missing_pods` counts the pods of one Workload, at most once per missing pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from rackgate_ungater.state_machine.child_jobs import ChildJobOwners
from rackgate_ungater.state_machine.gangs import progress, waiting_pods
from rackgate_ungater.state_machine.gated_objects import PodUid
from rackgate_ungater.state_machine.records import PodSetState, WorkloadState
from rackgate_ungater.state_machine.ungating_plan import PodSetAdmission

K = TypeVar("K")
# Workloads with a recorded last reconciliation, before those outside the window are removed.
MAX_REMEMBERED: Final = 4096
# Windows until a Workload is reconciled whose gangs are all missing pods, unless one is completed.
WINDOWS_OF_INCOMPLETE_GANGS: Final = 5


class DelayQueue(Generic[K]):
    """Keys with the monotonic time, in seconds, at which they are due."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: K, at: float) -> bool:
        """Make `key` due at `at` unless it is due earlier; returns whether that changed it."""
        known = self._due.get(key)
        if known is not None and known <= at:
            return False
        self._due[key] = at
        self._count += 1  # breaks ties, so that keys are never compared
        heappush(self._heap, (at, self._count, key))
        return True

    def next_at(self) -> float | None:
        """When the next key is due; None when nothing is."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._due.get(key) == at:
                return at
            heappop(self._heap)  # replaced by an earlier entry, or removed already
        return None

    def pop_due(self, now: float) -> K | None:
        """Remove the key that is due first; None if none is due yet."""
        at = self.next_at()
        if at is None or at > now:
            return None
        key = heappop(self._heap)[2]
        del self._due[key]
        return key


class BatchTimer(Generic[K]):
    """The delay of the next reconciliation of each Workload.

    Args:
        window_s: the maximum delay.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._reconciled_at: dict[K, float] = {}
        # For Workloads with gangs: the admission, the gangs that were complete at the last count,
        # and the events before another one can be; 0 if no gang is missing pods.
        self._gangs: dict[K, tuple[str | None, int, int]] = {}
        self._complete_at: dict[K, float] = {}
        # Pods that were missing at the last count. Before so many more arrive, another count would
        # still find some missing.
        self._missing_pods: dict[K, int] = {}

    def wait_s(
        self,
        key: K,
        workload_state: WorkloadState,
        owners: ChildJobOwners,
        now: float,
        *,
        one_pod: bool,
    ) -> float:
        """Seconds until a reconciliation is due, after an event that requires one.

        Args:
            key: the Workload.
            workload_state: its state.
            owners: child Jobs.
            now: monotonic seconds.
            one_pod: the event was about one pod, so at most one pod arrived.
        """
        if workload_state.gangs is not None and self._completes_gang(
            key, workload_state, owners, now, one_pod=one_pod
        ):
            return 0.0
        if one_pod and self._is_missing_all_gangs(key, workload_state):
            return WINDOWS_OF_INCOMPLETE_GANGS * self._window_s
        open_at = self._reconciled_at.get(key, float("-inf")) + self._window_s
        if now < open_at:
            return open_at - now
        left = self._missing_pods.get(key, 0) - 1
        if one_pod and left > 0:
            self._missing_pods[key] = left
            return self._window_s
        left = missing_pods(workload_state, owners)
        if left == 0:
            self._missing_pods.pop(key, None)
            return 0.0
        self._missing_pods[key] = left
        return self._window_s

    def _completes_gang(
        self,
        key: K,
        workload_state: WorkloadState,
        owners: ChildJobOwners,
        now: float,
        *,
        one_pod: bool,
    ) -> bool:
        """Whether a gang became complete since the last count in this admission."""
        workload = workload_state.workload
        admitted_at = workload.admitted_at if workload is not None else None
        known_at, known, left = self._gangs.get(key, ("", 0, 1))
        if known_at != admitted_at:
            known, left = 0, 1
        if one_pod and left != 1:
            self._gangs[key] = admitted_at, known, max(0, left - 1)
            return False
        complete, left = progress(workload_state, owners)
        self._gangs[key] = admitted_at, complete, left
        if complete > known:
            self._complete_at[key] = now
        return complete > known

    def _is_missing_all_gangs(self, key: K, workload_state: WorkloadState) -> bool:
        """Whether no pod can be released before a gang is complete, as of the last count."""
        _, complete, left = self._gangs.get(key, ("", 0, 0))
        return (
            workload_state.gangs is not None
            and not complete
            and left > 0
            and not any(
                podset.expected or podset.rejected or podset.in_gangs < len(podset.pods)
                for podset in workload_state.podsets.values()
            )
        )

    def complete_at(self, key: K) -> float | None:
        """When the last gang of a Workload became complete; None if that was not seen."""
        return self._complete_at.get(key)

    def reconcile_started(self, key: K, now: float) -> None:
        """Record that a reconciliation starts: the batch is closed."""
        self._missing_pods.pop(key, None)
        self._reconciled_at[key] = now
        if len(self._reconciled_at) > MAX_REMEMBERED:
            over = now - self._window_s
            self._reconciled_at = {
                known: at for known, at in self._reconciled_at.items() if at > over
            }

    def forget(self, key: K) -> None:
        """Remove a deleted Workload."""
        self._reconciled_at.pop(key, None)
        self._missing_pods.pop(key, None)
        self._gangs.pop(key, None)
        self._complete_at.pop(key, None)


def missing_pods(workload_state: WorkloadState, owners: ChildJobOwners) -> int:
    """A lower bound of the pods that are still missing before all that may be ungated exist.

    Returns:
        0 if no pod is missing and one can be ungated. If no pod may be ungated now, the number of
        pods, because counting them takes time.
    """
    workload = workload_state.workload
    if workload is None or not workload.admitted:
        return 1
    admissions = dict(workload_state.admissions())
    missing_count, ready, counted = 0, False, 0
    for podset in workload.podsets:
        state, admission = workload_state.podsets.get(podset.name), admissions.get(podset.name)
        if admission is None and not workload.elastic and podset.assignment is None:
            continue  # its pods are not gated
        if state is None:
            unseen = 1 if podset.count is None else podset.count - podset.reclaimable
            missing_count += max(0, unseen)
        elif state.expected or state.rejected:
            missing_count += 1  # no other pod of it is ungated before these are resolved
        elif isinstance(admission, PodSetAdmission):
            found = _missing_of_podset(state, admission, workload_state, owners)
            missing_count += max(0, found)
            ungated = state.live - state.gated
            ready = ready or (found <= 0 < state.gated and ungated < admission.max_ungated)
            counted += state.live
    if missing_count or ready:
        return missing_count
    return max(1, counted)


def _missing_of_podset(
    state: PodSetState,
    admission: PodSetAdmission,
    workload_state: WorkloadState,
    owners: ChildJobOwners,
) -> int:
    """Pods of a PodSet that could be ungated but do not exist; 0 or less if none."""
    raw = admission.max_ungated - state.live
    if raw > 0 or workload_state.workload is None:
        return raw  # true even if it counts pods of other owners
    found = admission.max_ungated
    pods = owners.pods_of(
        workload_state.workload, state.pods.values(), assignment=admission.assignment
    )
    for pod in pods:
        found -= not (pod.terminal or (pod.gates & admission.holding and pod.terminating))
    return found


class Backlog:
    """When each gated pod of an admitted Workload was first seen.

    The creation time is not used: a pod may be older than the admission of its Workload.

    Attributes:
        since: monotonic seconds at which the pod was first seen gated under an admission.
        waits: pods that wait for their gang, not for the ungater, and since when. They are in
            `since` from the present time, until their gang may start.
    """

    def __init__(self) -> None:
        self.since: dict[PodUid, float] = {}
        self.waits: dict[PodUid, float] = {}

    def update(
        self, workload_states: Iterable[WorkloadState], owners: ChildJobOwners, now: float
    ) -> None:
        """Add pods that are gated now, and remove those that are not.

        Args:
            workload_states: everything that is known, by Workload.
            owners: child Jobs.
            now: monotonic seconds.
        """
        since, waits = self.since, self.waits
        self.since, self.waits = {}, {}
        for workload_state in workload_states:
            if not workload_state.may_ungate:
                continue
            waiting = waiting_pods(workload_state, owners)
            for uid in self._gated_pods(workload_state, since):
                if uid in waiting:
                    self.waits[uid] = waits.get(uid, now)
                self.since[uid] = now if uid in waiting else since.get(uid, now)

    @staticmethod
    def _gated_pods(
        workload_state: WorkloadState, since: Mapping[PodUid, float]
    ) -> Iterator[PodUid]:
        if workload_state.workload is None or not workload_state.workload.elastic:
            for podset in workload_state.podsets.values():
                yield from _gated(podset)
            return
        # Pods beyond the admitted count wait for slices, not for the ungater: they do not count.
        for name, admission in workload_state.admissions():
            if isinstance(admission, PodSetAdmission):
                podset = workload_state.podsets[name]
                free = max(0, admission.max_ungated - podset.live + podset.gated)
                gated = sorted(_gated(podset), key=lambda uid: (uid not in since, uid))
                yield from gated[:free]

    def longest_s(self, now: float) -> float:
        """Seconds since the first of the gated pods was seen; 0 if there is none."""
        return max(0.0, now - min(self.since.values())) if self.since else 0.0

    def longest_gang_wait_s(self, now: float) -> float:
        """Seconds since the first pod was seen to wait for its gang; 0 if there is none."""
        return max(0.0, now - min(self.waits.values())) if self.waits else 0.0


def _gated(podset: PodSetState) -> Iterator[PodUid]:
    return (uid for uid, pod in podset.pods.items() if pod.gated and not pod.terminating)
