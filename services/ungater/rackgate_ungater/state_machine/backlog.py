"""How many pods that may run are still gated, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rackgate_ungater.state_machine.gated_objects import PodUid
from rackgate_ungater.state_machine.plan import PodSetAdmission
from rackgate_ungater.state_machine.records import PodSetState, WorkloadState


class Backlog:
    """Remembers since when each such pod has been seen gated.

    The time of a pod's creation says less: a pod may be older than its Workload's admission.

    Attributes:
        since: monotonic seconds of the first look that saw the pod gated under an admission.
    """

    def __init__(self) -> None:
        self.since: dict[PodUid, float] = {}

    def update(self, workload_states: Iterable[WorkloadState], now: float) -> None:
        """Take up who waits now, and forget who does not any more.

        Args:
            workload_states: everything that is known, by Workload.
            now: monotonic seconds.
        """
        self.since = {
            uid: self.since.get(uid, now)
            for workload_state in workload_states
            if workload_state.may_ungate
            for uid in self._gated_pods(workload_state)
        }

    def _gated_pods(self, workload_state: WorkloadState) -> Iterator[PodUid]:
        if workload_state.workload is None or not workload_state.workload.elastic:
            for podset in workload_state.podsets.values():
                yield from _gated(podset)
            return
        # More pods than were granted wait for slices, not for us: only so many count.
        for name, admission in workload_state.admissions():
            if isinstance(admission, PodSetAdmission):
                podset = workload_state.podsets[name]
                free = max(
                    0, admission.max_ungated - sum(not pod.gated for pod in podset.pods.values())
                )
                gated = sorted(_gated(podset), key=lambda uid: (uid not in self.since, uid))
                yield from gated[:free]

    def longest_s(self, now: float) -> float:
        """Seconds since the pod that waits longest was first seen waiting; 0 without any."""
        return now - min(self.since.values()) if self.since else 0.0


def _gated(podset: PodSetState) -> Iterator[PodUid]:
    return (uid for uid, pod in podset.pods.items() if pod.gated and not pod.terminating)
