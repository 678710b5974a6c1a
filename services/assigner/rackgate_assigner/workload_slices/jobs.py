"""The job fields that a resize reads: requested pods, and the pods that stay."""

from __future__ import annotations

from collections.abc import Mapping

from rackgate.jobframework.generic_job import JobLike, RequestedCount
from rackgate.jobframework.registry import kind_of, owner_of
from rackgate.topology.assignment import Domain
from rackgate.wire.core import Pod
from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.jobs.state import is_owned_by
from rackgate_assigner.reporter import Reporter


class ResizableJobs:
    """Reads jobs and pods from the watches."""

    def __init__(
        self,
        jobs: Mapping[str, Mapping[str, JobLike]],
        pods: Mapping[str, Pod],
        cache: Cache,
        reporter: Reporter,
    ) -> None:
        """Prepare.

        Args:
            jobs: managed jobs by kind, then by `namespace/name`.
            pods: bound pods, by `namespace/name`.
            cache: has the domain of each pod.
            reporter: for Events.
        """
        self._jobs, self._pods, self._cache = jobs, pods, cache
        self._report = reporter

    def requested_pods(self, parent: Workload) -> Mapping[str, RequestedCount] | None:
        """Pods that the job of a Workload requests now, by PodSet.

        None if the job does not exist, is being deleted, or has other PodSets than its Workload:
        that is not a resize, and the job controller handles it (SLC-03).
        """
        job = self._job_of(parent)
        if job is None or job.metadata.deletion_timestamp is not None:
            return None
        kind = kind_of(job)
        asked = kind.requested_counts(kind.manifest(job))
        if set(asked) != {podset.name for podset in parent.spec.pod_sets}:
            return None
        return asked

    def live_pods_by_domain(self, parent: Workload, podset: str) -> Mapping[Domain, int]:
        """Pods of a PodSet that will stay, by assigned domain.

        Pods that are being deleted, or that the job names for deletion, are not included.
        """
        job = self._job_of(parent)
        leaving: frozenset[str] = frozenset()
        if job is not None:
            kind = kind_of(job)
            leaving = kind.pods_to_delete(kind.manifest(job))
        counts: dict[Domain, int] = {}
        found = self._cache.pods.domains_of(parent.metadata.key, podset)
        for key, domain in found.items():
            pod = self._pods.get(key)
            if pod is None or pod.metadata.deletion_timestamp is not None:
                continue
            if pod.metadata.name not in leaving:
                counts[domain] = counts.get(domain, 0) + 1
        return counts

    def report_event(self, parent: Workload, reason: str, note: str, *, warning: bool) -> None:
        """An Event on the Workload and on its job."""
        self._report.workload(parent, reason, note, warning=warning)
        job = self._job_of(parent)
        if job is not None:
            self._report.job(job, reason, note, warning=warning)

    def _job_of(self, parent: Workload) -> JobLike | None:
        owner = owner_of(parent)
        if owner is None:
            return None
        kind, key = owner
        job = self._jobs.get(kind.name, {}).get(key)
        return job if job is not None and is_owned_by(parent, job.metadata.uid) else None
