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

from rackgate_ungater.state_machine.child_jobs import ChildJobOwners
from rackgate_ungater.state_machine.gated_objects import GatedPodSet
from rackgate_ungater.state_machine.plan import PodSetAdmission
from rackgate_ungater.state_machine.records import PodSetState, WorkloadState

K = TypeVar("K")

# Looks that are remembered, before those whose window is over are forgotten.
MAX_REMEMBERED: Final = 4096


class BatchTimer(Generic[K]):
    """How long the next look at each Workload may wait.

    Args:
        window_s: the longest time.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._reconciled_at: dict[K, float] = {}
        # Pods that were missing when they were counted last: until so many more have come,
        # counting anew would find some missing again.
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
        """Seconds until a look is due, after an event that brings work.

        Args:
            key: the Workload.
            workload_state: all about it.
            owners: child Jobs.
            now: monotonic seconds.
            one_pod: the event was about one pod, so that it brings one pod at most.
        """
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

    def reconcile_started(self, key: K, now: float) -> None:
        """A look at a Workload begins: its batch is closed."""
        self._missing_pods.pop(key, None)
        self._reconciled_at[key] = now
        if len(self._reconciled_at) > MAX_REMEMBERED:
            over = now - self._window_s
            self._reconciled_at = {
                known: at for known, at in self._reconciled_at.items() if at > over
            }

    def forget(self, key: K) -> None:
        """A Workload is gone."""
        self._reconciled_at.pop(key, None)
        self._missing_pods.pop(key, None)


def missing_pods(workload_state: WorkloadState, owners: ChildJobOwners) -> int:
    """How many pods at least are still to come before all that may be released are there.

    Returns:
        0 when nobody is waited for, and there is a pod to release. Where nothing may be released
        now, as many as there are pods: it takes time to count them.
    """
    workload = workload_state.workload
    if workload is None or not workload.admitted:
        return 1
    admissions = dict(workload_state.admissions())
    missing_count, ready, counted = 0, False, 0
    for podset in workload.podsets:
        if not workload.elastic and podset.assignment is None:
            continue  # its pods never wait for us
        state, admission = workload_state.podsets.get(podset.name), admissions.get(podset.name)
        if state is None:
            missing_count += _unseen_pods(podset)
        elif state.expected or state.rejected:
            missing_count += 1  # nothing more of it is released before these are settled
        elif isinstance(admission, PodSetAdmission):
            found = _missing_of_podset(state, admission, workload_state, owners)
            missing_count += max(0, found)
            ready = ready or (
                found <= 0 and state.gated > 0 and _has_free_capacity(state, admission)
            )
            counted += len(state.pods)
    if missing_count or ready:
        return missing_count
    return max(1, counted)


def _unseen_pods(podset: GatedPodSet) -> int:
    """Pods of a PodSet of which none is seen. One that counts no pods has none to wait for."""
    return 1 if podset.count is None else max(0, podset.count - podset.reclaimable)


def _missing_of_podset(
    state: PodSetState,
    admission: PodSetAdmission,
    workload_state: WorkloadState,
    owners: ChildJobOwners,
) -> int:
    """Pods of a PodSet that could be released and are not there; 0 or less when none are."""
    raw = admission.max_ungated - len(state.pods)
    if raw > 0 or workload_state.workload is None:
        return raw  # not even with those that are somebody else's
    found = admission.max_ungated
    pods = owners.pods_of(
        workload_state.workload, state.pods.values(), assignment=admission.assignment
    )
    for pod in pods:
        found -= not (pod.gates & admission.gates and pod.terminating)
    return found


def _has_free_capacity(state: PodSetState, admission: PodSetAdmission) -> bool:
    """Whether a pod may be released at all."""
    return sum(not pod.gated for pod in state.pods.values()) < admission.max_ungated
