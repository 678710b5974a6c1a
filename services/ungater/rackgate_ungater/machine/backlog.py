"""How many pods that may run are still gated, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rackgate_ungater.machine.plan import Grant
from rackgate_ungater.machine.rows import PodUid
from rackgate_ungater.machine.state import Group, PodSetState


class Backlog:
    """Remembers since when each such pod has been seen gated.

    The time of a pod's creation says less: a pod may be older than its Workload's admission.

    Attributes:
        since: monotonic seconds of the first look that saw the pod gated under an admission.
    """

    def __init__(self) -> None:
        self.since: dict[PodUid, float] = {}

    def look(self, groups: Iterable[Group], now: float) -> None:
        """Take up who waits now, and forget who does not any more.

        Args:
            groups: everything that is known, by Workload.
            now: monotonic seconds.
        """
        self.since = {
            uid: self.since.get(uid, now)
            for group in groups
            if group.waits
            for uid in self._waiting(group)
        }

    def _waiting(self, group: Group) -> Iterator[PodUid]:
        if group.row is None or not group.row.elastic:
            for podset in group.podsets.values():
                yield from _gated(podset)
            return
        # More pods than were granted wait for slices, not for us: only so many count.
        for name, grant in group.grants():
            if isinstance(grant, Grant):
                podset = group.podsets[name]
                room = max(0, grant.cap - sum(not pod.gated for pod in podset.pods.values()))
                gated = sorted(_gated(podset), key=lambda uid: (uid not in self.since, uid))
                yield from gated[:room]

    def longest_s(self, now: float) -> float:
        """Seconds since the pod that waits longest was first seen waiting; 0 without any."""
        return now - min(self.since.values()) if self.since else 0.0


def _gated(podset: PodSetState) -> Iterator[PodUid]:
    return (uid for uid, pod in podset.pods.items() if pod.gated and not pod.terminating)
