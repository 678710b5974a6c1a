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
class OwnerIndex:
    """Which uid leads to which job.

    Attributes:
        unread: what could not be read, plural to reason: owners of such a kind are believed.
        makers: namespace and kind of each JobSet and RayCluster, by uid.
        roots: uid of a part, or of a Workload that may have slices -> uid of the job behind it.
        cleaners: Jobs of RayClusters; pods of theirs may clean up.
    """

    unread: Mapping[str, str] = field(default_factory=dict)
    parents: dict[str, tuple[str, str]] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    cleanup_jobs: set[str] = field(default_factory=set)

    def add_parents(self, jobs: Iterable[JobRow]) -> None:
        """These JobSets and RayClusters exist."""
        self.parents |= {job.uid: (job.namespace, job.kind) for job in jobs}

    def is_child_job(self, job: JobRow) -> bool:
        """Whether a job is a part of the one that it names as its controller."""
        if not job.parent_uid:
            return False
        if _PLURALS.get(job.parent_kind, "") in self.unread:
            return True
        return self.parents.get(job.parent_uid) == (job.namespace, job.parent_kind)

    def add_child_job(self, job: JobRow) -> None:
        """Follow a part to its job."""
        self.roots[job.uid] = job.parent_uid
        if job.parent_kind == RAY_CLUSTER:
            self.cleanup_jobs.add(job.uid)

    def remove_child_job(self, job: JobRow) -> None:
        """Follow it no more."""
        self.roots.pop(job.uid, None)
        self.cleanup_jobs.discard(job.uid)

    def root(self, uid: str) -> str:
        """The uid of the job behind a uid; itself where nothing is known."""
        return self.roots.get(uid, uid)

    def grouping_state(self, uid: str) -> tuple[str, bool]:
        """All that decides where what follows a uid belongs."""
        return self.root(uid), uid in self.cleanup_jobs

    def group_key_of(self, pod: PodRow) -> str:
        """Which group a pod belongs to.

        What cleans up after a RayCluster inherits the marks of its head, and is nobody's pod. A
        pod without a controller belongs to the Workload that it names, under a name of its own.
        """
        owning_uid = pod.owning_uid
        if not owning_uid:
            return orphan_group_key(pod.namespace, pod.workload) if pod.workload else ""
        return (
            ""
            if pod.cleanup and owning_uid in self.cleanup_jobs
            else self.roots.get(owning_uid, owning_uid)
        )


def orphan_group_key(namespace: str, workload: str) -> str:
    """Name of the group of pods without a controller that name a Workload."""
    return f"={namespace}/{workload}"
