"""Whose is it: objects by the job behind them, believing no owner reference that leads nowhere.

A pod belongs to its controller, a Job to the JobSet or RayCluster that it names as its own
controller, provided that this one exists with that UID in the same namespace. Anybody may write
such a reference; a Job that names an owner which is not there is a job like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rackgate_invariants.rows.rows import JobRow, PodRow

# Plural of each kind that makes Jobs of its own.
_PLURALS: Final = {"JobSet": "jobsets", "RayCluster": "rayclusters"}
RAY_CLUSTER: Final = "RayCluster"


@dataclass(slots=True)
class Owners:
    """Which uid leads to which job.

    Attributes:
        unread: what could not be read, plural to reason: owners of such a kind are believed.
        makers: namespace and kind of each JobSet and RayCluster, by uid.
        roots: uid of a part, or of a Workload that may have slices -> uid of the job behind it.
        cleaners: Jobs of RayClusters; pods of theirs may clean up.
    """

    unread: Mapping[str, str] = field(default_factory=dict)
    makers: dict[str, tuple[str, str]] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    cleaners: set[str] = field(default_factory=set)

    def know(self, jobs: Iterable[JobRow]) -> None:
        """These JobSets and RayClusters exist."""
        self.makers |= {job.uid: (job.namespace, job.kind) for job in jobs}

    def made(self, job: JobRow) -> bool:
        """Whether a job is a part of the one that it names as its controller."""
        if not job.part_of:
            return False
        if _PLURALS.get(job.part_kind, "") in self.unread:
            return True
        return self.makers.get(job.part_of) == (job.namespace, job.part_kind)

    def join(self, job: JobRow) -> None:
        """Follow a part to its job."""
        self.roots[job.uid] = job.part_of
        if job.part_kind == RAY_CLUSTER:
            self.cleaners.add(job.uid)

    def leave(self, job: JobRow) -> None:
        """Follow it no more."""
        self.roots.pop(job.uid, None)
        self.cleaners.discard(job.uid)

    def root(self, uid: str) -> str:
        """The uid of the job behind a uid; itself where nothing is known."""
        return self.roots.get(uid, uid)

    def state(self, uid: str) -> tuple[str, bool]:
        """All that decides where what follows a uid belongs."""
        return self.root(uid), uid in self.cleaners

    def home(self, pod: PodRow) -> str:
        """Which group a pod belongs to.

        What cleans up after a RayCluster inherits the marks of its head, and is nobody's pod. A
        pod without a controller belongs to the Workload that it names, under a name of its own.
        """
        lead = pod.lead
        if not lead:
            return claimed(pod.namespace, pod.workload) if pod.workload else ""
        return "" if pod.cleanup and lead in self.cleaners else self.roots.get(lead, lead)


def claimed(namespace: str, workload: str) -> str:
    """Name of the group of pods without a controller that name a Workload."""
    return f"={namespace}/{workload}"
