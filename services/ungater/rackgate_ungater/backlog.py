"""How many pods that may run are still gated, and for how long. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rackgate_ungater.rows import PodUid
from rackgate_ungater.state import Group


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
            if group.gated and group.row is not None and group.row.granting
            for podset in group.podsets.values()
            for uid, pod in podset.pods.items()
            if pod.gated and not pod.terminating
        }

    def longest_s(self, now: float) -> float:
        """Seconds since the pod that waits longest was first seen waiting; 0 without any."""
        return now - min(self.since.values()) if self.since else 0.0
