"""Child Jobs that have Workloads of gangs of their own (GNG-29). Pure.

The Jobs of a JobSet that start one after the other are no gang together: the first would wait for
the last. Each of them may be one, if its template has the spec. The JobSet has the quota, and is
evicted as a whole. A child Job may appear late, and again after a restart of the JobSet, so its
Workload of gangs is made when it exists. Pods that exist before are held.

What a Job says about itself is a claim: it is a child only if it is controlled by a JobSet that
exists, with that UID.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rackgate.gang.lifecycle import ChildGangs
from rackgate.gang.link import child_job_link
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.registry import kind_of
from rackgate.wire.batch import Job
from rackgate_assigner.gangs.index import GangIndex


@dataclass(frozen=True, slots=True)
class ChildGang:
    """A child Job, and the Workload of gangs that it has.

    Attributes:
        job: the child Job.
        owner: the job that controls it.
        podset: of its pods.
        gangs: what the owner says about it.
    """

    job: Job
    owner: JobLike
    podset: str
    gangs: ChildGangs

    @property
    def uid(self) -> str:
        """Of the child Job."""
        return self.job.metadata.uid

    @property
    def name(self) -> str:
        """Of the Workload of gangs."""
        return child_job_link(self.job.metadata.name, self.uid)

    @property
    def is_over(self) -> bool:
        """Whether it has finished, or is being deleted."""
        return is_over(self.job)

    @property
    def started_at(self) -> str:
        """When it was started; "" if it does not run."""
        return started_at(self.job)

    @property
    def is_ready(self) -> bool:
        """Whether all of its pods are ready, and so have a node, or have succeeded."""
        status = self.job.status
        return status.ready + status.succeeded >= self.gangs.pods


def is_over(job: Job) -> bool:
    """Whether a child Job has finished, or is being deleted."""
    return job.finished is not None or job.metadata.deletion_timestamp is not None


def started_at(job: Job) -> str:
    """When a child Job was started; "" if it does not run.

    A Job that is resumed has the time of its former start until its controller has seen it, and
    until then also the condition Suspended.
    """
    suspended = job.status.condition("Suspended")
    if job.spec.suspend or (suspended is not None and suspended.status == "True"):
        return ""
    return "" if is_over(job) else job.status.start_time or ""


class ChildJobGangs:
    """Child Jobs by their JobSet, and by their Workload of gangs. Follows the watches."""

    def __init__(
        self,
        index: GangIndex,
        jobs: Mapping[str, Mapping[str, JobLike]],
        children: Mapping[str, Job],
    ) -> None:
        """Start empty.

        Args:
            index: which job has which Workload of gangs.
            jobs: by kind, then by `namespace/name`.
            children: child Jobs, by `namespace/name`.
        """
        self._index, self._jobs, self._children = index, jobs, children
        self._by_owner: dict[str, set[str]] = defaultdict(set)
        self._by_workload: dict[str, str] = {}

    def on_upsert(self, before: Job | None, child: Job) -> None:
        """A child Job was added or changed."""
        if before is not None and before.metadata.controller != child.metadata.controller:
            self.on_delete(before)
        owner = child.metadata.controller
        if owner is not None:
            self._by_owner[owner.uid].add(child.metadata.key)
            self._by_workload[_workload_key(child)] = child.metadata.key

    def on_delete(self, child: Job) -> None:
        """A child Job was deleted."""
        owner = child.metadata.controller
        self._by_workload.pop(_workload_key(child), None)
        if owner is None or owner.uid not in self._by_owner:
            return
        self._by_owner[owner.uid].discard(child.metadata.key)
        if not self._by_owner[owner.uid]:
            del self._by_owner[owner.uid]

    def keys(self) -> list[str]:
        """All Jobs that are controlled by another object, by `namespace/name`."""
        return list(self._by_workload.values())

    def get(self, key: str) -> ChildGang | None:
        """A child Job by `namespace/name`; None if it has no Workload of gangs of its own."""
        child = self._children.get(key)
        owner = child.metadata.controller if child is not None else None
        if child is None or owner is None:
            return None
        job = self._jobs.get(owner.kind, {}).get(f"{child.metadata.namespace}/{owner.name}")
        if job is None or job.metadata.uid != owner.uid or not self._index.is_job(job):
            return None
        podset = kind_of(job).podset_of_child(child)
        gangs = self._index.choice(job).children.get(podset)
        return None if gangs is None else ChildGang(child, job, podset, gangs)

    def by_workload(self, key: str) -> ChildGang | None:
        """The child Job that has a Workload of gangs, by `namespace/name` of that one."""
        return self.get(self._by_workload.get(key, ""))

    def jobs_of(self, uid: str) -> list[Job]:
        """All child Jobs of a job, by its UID."""
        found = map(self._children.get, sorted(self._by_owner.get(uid, ())))
        return [child for child in found if child is not None]

    def of_job(self, uid: str) -> list[ChildGang]:
        """The child Jobs of a job, by its UID, that have Workloads of gangs of their own."""
        found = map(self.get, sorted(self._by_owner.get(uid, ())))
        return [child for child in found if child is not None]


def _workload_key(child: Job) -> str:
    meta = child.metadata
    return f"{meta.namespace}/{child_job_link(meta.name, meta.uid)}"
