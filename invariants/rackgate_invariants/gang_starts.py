"""The first release of each gang in a run, as consecutive events of pods show it.

A gang may lose pods after it was released, so a reading does not show how many existed then. The
watch of pods does: it delivers their events in order, so all pods that existed before a gate went
are known when that event comes. Pods that went shortly before count, too: the ungater may have
decided with them. Pods that have ended are not watched, so a Workload with reclaimable pods is not
judged; nor is a run of which a released pod was seen before.

Complexity: O(pods) for each gang that starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api import names
from rackgate.gang.membership import GangKey, Part, part_of
from rackgate_invariants.cluster import SLACK_S
from rackgate_invariants.rows.rows import GangWorkloadRow, PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.gangs import had_these_numbers, least_of

# Runs that are remembered; the oldest is forgotten first.
_MAX_RUNS: Final = 100_000


@dataclass(slots=True)
class GangStarts:
    """Which gangs have started, and which of their pods went.

    Attributes:
        rows: by attribute of `Cluster`, then by key.
        started: run and gang of each pod that was seen released.
        gone: pods that were live, with the time at which they were seen to go.
    """

    rows: Mapping[str, Mapping[str, Any]]
    started: dict[tuple[str, str, GangKey | None], None] = field(default_factory=dict)
    gone: deque[tuple[float, PodRow]] = field(default_factory=deque)

    def on_pod(self, before: PodRow | None, after: PodRow, now: float) -> Iterator[Breach]:
        """Add an event of a pod, whose row is stored already.

        Args:
            before: the version before it of the same pod, None if there may be one in between.
            after: the new version.
            now: any clock, in seconds.
        """
        if before is not None and after.terminating and not before.terminating:
            self.on_gone(before, now)
        if not after.link or not after.run or names.GANG_GATE in after.gates:
            return
        gang = self._gang_of(after)
        run = (after.run, after.link, None if gang is None else gang[1])
        if run in self.started:
            return
        self.started[run] = None
        if len(self.started) > _MAX_RUNS:
            del self.started[next(iter(self.started))]
        if before is None or names.GANG_GATE not in before.gates or gang is None:
            return
        yield from self._short(after, *gang, now)

    def on_gone(self, pod: PodRow, now: float) -> None:
        """A pod has ended, was deleted, or is being deleted."""
        while self.gone and self.gone[0][0] < now - SLACK_S:
            self.gone.popleft()
        if pod.link and not pod.terminating:
            self.gone.append((now, pod))

    def _short(
        self, pod: PodRow, workload: GangWorkloadRow, key: GangKey, now: float
    ) -> Iterator[Breach]:
        admitted: WorkloadRow | None = self.rows.get("workloads", {}).get(
            f"{pod.namespace}/{pod.workload}"
        )
        least = least_of(workload.spec, key)
        if admitted is None or admitted.run != pod.run or not least or admitted.elastic:
            return
        if admitted.done_pods or any(podset.reclaimable for podset in admitted.podsets):
            return
        if not had_these_numbers(workload, admitted.admitted_at):
            return
        live = self.rows.get("pods", {}).values()
        recent = (one for at, one in self.gone if at >= now - SLACK_S)
        members = {
            one.uid
            for one in _of_workload(pod, (*live, *recent))
            if one.run in ("", pod.run) and (found := self._gang_of(one)) and found[1] == key
        }
        if len(members) < least:
            text = f"{len(members)} of {least} pods existed when the first one was released"
            yield Breach("gang-started-short", f"{workload.key}/{key}", f"{text}, {pod.name}")

    def _gang_of(self, pod: PodRow) -> tuple[GangWorkloadRow, GangKey] | None:
        workload: GangWorkloadRow | None = self.rows.get("gang_workloads", {}).get(
            f"{pod.namespace}/{pod.link}"
        )
        part = part_of(workload.spec, pod.labels) if workload is not None else None
        return (workload, part.gang) if workload is not None and isinstance(part, Part) else None


def _of_workload(pod: PodRow, pods: Iterable[PodRow]) -> Iterator[PodRow]:
    """Pods of the same Workload of gangs and of the same Workload of Kueue's API."""
    same = (pod.namespace, pod.link, pod.workload)
    return (
        one
        for one in pods
        if not one.terminating and (one.namespace, one.link, one.workload) == same
    )
