"""One reading of a cluster, with its objects grouped by the job behind them.

A pod belongs to its controller, and a Job to the JobSet, RayCluster or RayJob that it names as its
own controller if that one exists with that UID in the same namespace. Anybody may write such a
reference, so a Job that names an owner which does not exist is grouped as a job of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from rackgate.api.names import slice_ordinal
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_invariants.rows.rows import (
    FlavorRow,
    GangWorkloadRow,
    JobRow,
    NodeRow,
    PodRow,
    PodSetRow,
    QueueRow,
    TopologyRow,
    WorkloadRow,
)
from rackgate_invariants.running_pods import RunningPods

# So many seconds after the grace period of a deletion, its node can no longer finish it.
OVERDUE_S = 30.0
# The assigner may learn late that a queue was changed: a broken watch notices after this time.
SLACK_S = 30.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """One reading of a cluster.

    The lists are read one after another, so a breach of a changing cluster counts only if two
    consecutive readings show it (`lasting`).

    Attributes:
        pods: those that have not ended.
        read_at: Unix time of the reading; 0 counts no deletion as overdue.
        unread: what could not be read, plural to reason.
        whole: all namespaces were read.
    """

    nodes: Collection[NodeRow] = ()
    pods: Collection[PodRow] = ()
    jobs: Collection[JobRow] = ()
    jobsets: Collection[JobRow] = ()
    rayclusters: Collection[JobRow] = ()
    rayjobs: Collection[JobRow] = ()
    workloads: Collection[WorkloadRow] = ()
    gang_workloads: Collection[GangWorkloadRow] = ()
    flavors: Collection[FlavorRow] = ()
    topologies: Collection[TopologyRow] = ()
    cluster_queues: Collection[QueueRow] = ()
    local_queues: Collection[QueueRow] = ()
    cohorts: Collection[QueueRow] = ()
    read_at: float = 0.0
    unread: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True, slots=True)
class WorkloadWithSlices:
    """A Workload with its slices, if it has any.

    Attributes:
        slices: those that are not yet merged into the admission of their parent, in the order of
            merging: ranks follow the order of domains.
        merged: those that are merged and still exist.
    """

    parent: WorkloadRow
    slices: tuple[WorkloadRow, ...] = ()
    merged: tuple[WorkloadRow, ...] = ()

    def slice_podsets(self, podset: str, *, may_ungate: bool) -> list[PodSetRow]:
        """PodSets of the slices that hold quota for a PodSet of their parent.

        Args:
            podset: its name.
            may_ungate: only of slices whose pods may be ungated now.
        """
        return [
            slice_podset
            for one in self.slices
            if (one.may_ungate if may_ungate else one.holds)
            for slice_podset in one.podsets
            if slice_podset.name == podset
        ]

    def admitted_count(self, podset: PodSetRow) -> int:
        """Pods that a PodSet may have, those of its slices included."""
        return podset.admitted_count + sum(
            slice_podset.admitted_count
            for slice_podset in self.slice_podsets(podset.name, may_ungate=True)
        )

    def domains(self, podset: PodSetRow, *, may_ungate: bool) -> dict[Domain, int]:
        """Pods by domain, those of slices with the same levels included."""
        if podset.assignment is None:
            return {}
        counts = dict(podset.assignment.domains)
        for slice_podset in self.slice_podsets(podset.name, may_ungate=may_ungate):
            if (
                slice_podset.assignment is not None
                and slice_podset.assignment.levels == podset.assignment.levels
            ):
                for domain, count in slice_podset.assignment.domains:
                    counts[domain] = counts.get(domain, 0) + count
        return counts

    def separate_assignments(self, podset: PodSetRow) -> list[TopologyAssignment]:
        """Assignments of slices whose levels differ from those of their parent."""
        own = podset.assignment.levels if podset.assignment is not None else ()
        return [
            slice_podset.assignment
            for slice_podset in self.slice_podsets(podset.name, may_ungate=False)
            if slice_podset.assignment is not None and slice_podset.assignment.levels != own
        ]

    @property
    def changed_at(self) -> float:
        """When the admitted count may last have decreased; for a while more pods may exist then."""
        parent = self.parent
        if not parent.elastic:
            return parent.placed_at
        lost = [one.changed_at for one in self.slices if one.holds and not one.may_ungate]
        return max(parent.placed_at, parent.evicted_at, *lost)


@dataclass(slots=True)
class PlacedPodSet:
    """A PodSet with an assignment, and its pods.

    Attributes:
        counts: pods that may be in each domain now, those of slices included.
        charged: pods that hold capacity in each domain.
        admitted_count: pods that may run now, those of slices included.
        changed_at: when the assignment was last written.
        separate_assignments: of slices whose levels differ.
    """

    workload: WorkloadRow
    podset: PodSetRow
    levels: tuple[str, ...]
    counts: dict[Domain, int]
    charged: dict[Domain, int]
    admitted_count: int
    changed_at: float
    separate_assignments: list[TopologyAssignment] = field(default_factory=list)
    live: list[PodRow] = field(default_factory=list)
    gated: list[PodRow] = field(default_factory=list)

    @property
    def subject(self) -> str:
        """Workload and PodSet, as the subject of a breach."""
        return f"{self.workload.key}/{self.podset.name}"

    @property
    def cap(self) -> int:
        """Maximum number of pods that may be ungated at once."""
        return min(self.admitted_count, sum(self.counts.values()))

    def has_earlier_assignment(self, pod: PodRow) -> bool:
        """Whether a pod got its domain before the assignment was last written.

        Several resizes may occur within a second, which is the resolution of these times.
        """
        slack = 1.0 if self.workload.elastic else 0.0
        return 0 < pod.assigned_at < self.changed_at + slack

    def is_in_separate_assignment(self, pod: PodRow) -> bool:
        """Whether a pod is in a domain of a separate assignment."""
        return any(pod.domain(one.levels) in dict(one.domains) for one in self.separate_assignments)

    def is_stuck_terminating(self, pod: PodRow, now: float) -> bool:
        """Whether its deletion is overdue on a host that is not assigned any more."""
        overdue = 0 < pod.ends_at <= now - OVERDUE_S
        return overdue and pod.domain(self.levels) not in self.counts


@dataclass(slots=True)
class ObjectGroup:
    """What belongs to one owner: a Job, JobSet, RayCluster or RayJob, its Workloads and its pods.

    Attributes:
        root: uid of the owner.
        job: the owner, None if it does not exist.
        child_jobs: of a JobSet, RayCluster or RayJob, by `namespace/name`.
        workloads: also the slices of its Workload.
        pods: also those of its child Jobs, and those that lost their controller.
        pods_in_use: cached result of `running_pods_of`.
    """

    root: str = ""
    job: JobRow | None = None
    child_jobs: dict[str, JobRow] = field(default_factory=dict)
    workloads: dict[str, WorkloadRow] = field(default_factory=dict)
    pods: dict[str, PodRow] = field(default_factory=dict)
    pods_in_use: RunningPods | None = None

    @property
    def own(self) -> list[WorkloadRow]:
        """Its Workloads without their slices."""
        return [one for one in self.workloads.values() if not one.is_slice]

    @property
    def managed(self) -> bool:
        """Whether Rackgate acts on its job."""
        return self.job is not None and self.job.managed

    def is_releasing_quota(self, workload: WorkloadRow) -> bool:
        """Whether the Workload is being deleted and its job is gone: only pods still use quota.

        No new pods are created, and each that ends releases its quota. The finalizer may stay for
        a while if the assigner has no leader.
        """
        owned = bool(workload.owner) and not workload.is_slice
        return self.job is None and workload.deleting and owned

    def podset_by_child_job(self) -> dict[str, str]:
        """PodSet of each child Job, by uid."""
        return {
            part.uid: part.podset_by_child_job
            for part in self.child_jobs.values()
            if part.kind == "Job"
        }

    def workloads_with_slices(self) -> list[WorkloadWithSlices]:
        """Its Workloads with their slices; only elastic Workloads have any."""
        found = []
        slices = [one for one in self.workloads.values() if one.is_slice and not one.finished]
        slices.sort(key=lambda one: (slice_ordinal(one.name), one.uid))
        for parent in self.own:
            if not slices:
                found.append(WorkloadWithSlices(parent))
                continue
            merged_uids = {uid for uid, _ in parent.merged_slices}
            mine = [one for one in slices if parent.elastic and one.owner == parent.uid]
            here = tuple(one for one in mine if one.uid not in merged_uids)
            found.append(
                WorkloadWithSlices(
                    parent, here, tuple(one for one in mine if one.uid in merged_uids)
                )
            )
        return found

    def placed(self) -> list[PlacedPodSet]:
        """PodSets that hold an assignment, with their pods."""
        found: dict[str, list[PlacedPodSet]] = {}
        for family in self.workloads_with_slices():
            for podset in family.parent.podsets if family.parent.holds else ():
                if podset.assignment is not None:
                    found.setdefault(podset.name, []).append(_placed(family, podset))
        every = [one for several in found.values() for one in several]
        for pod in self.pods.values() if found else ():
            # A pod without a controller belongs to no PodSet, whatever its labels say.
            theirs = bool(pod.owner and self.root)
            several = (found.get(pod.podset, ()) if pod.podset else every[:1]) if theirs else ()
            if several:
                belongs = several[0]
                if len(several) > 1:
                    named = (one for one in several if one.workload.name == pod.workload)
                    belongs = next(named, belongs)
                (belongs.gated if pod.gated else belongs.live).append(pod)
        return every


def _placed(family: WorkloadWithSlices, podset: PodSetRow) -> PlacedPodSet:
    return PlacedPodSet(
        family.parent,
        podset,
        podset.assignment.levels if podset.assignment else (),
        family.domains(podset, may_ungate=True),
        family.domains(podset, may_ungate=False),
        family.admitted_count(podset),
        family.changed_at,
        family.separate_assignments(podset),
    )


def group_by_job(cluster: Cluster) -> dict[str, ObjectGroup]:
    """Objects by the uid of the job that they belong to, "" for none.

    A pod of a child Job belongs to the JobSet, a slice to the job of its parent.
    """
    found: dict[str, ObjectGroup] = {}
    owners = OwnerIndex(cluster)

    def group(uid: str) -> ObjectGroup:
        return found.setdefault(uid, ObjectGroup(uid))

    for job in jobs_of(cluster):
        if owners.is_child_job(job):
            group(owners.root(job.uid)).child_jobs[job.key] = job
        else:
            group(job.uid).job = job
    for workload in cluster.workloads:
        group(owners.root(workload.owning_uid)).workloads[workload.key] = workload
    for pod in cluster.pods:
        group(owners.group_key_of(pod)).pods[pod.key] = pod
    return found


def jobs_of(cluster: Cluster) -> Iterator[JobRow]:
    """Jobs, JobSets, RayClusters and RayJobs."""
    yield from cluster.jobs
    yield from cluster.jobsets
    yield from cluster.rayclusters
    yield from cluster.rayjobs


def format_domain(domain: Domain | None) -> str:
    """A domain as text."""
    return "/".join(domain) if domain else "none"


def listed(keys: Iterable[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    every = sorted(keys)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


# Plural of each kind that creates Jobs.
_PLURALS: Final = {"JobSet": "jobsets", "RayCluster": "rayclusters", "RayJob": "rayjobs"}
RAY_CLUSTER: Final = "RayCluster"


class OwnerIndex:
    """The uid of the job that each uid leads to.

    References to kinds that could not be read are trusted.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._unread = cluster.unread
        parents = (*cluster.jobsets, *cluster.rayclusters, *cluster.rayjobs)
        # Namespace and kind of each of them, by uid.
        self._parents = {job.uid: (job.namespace, job.kind) for job in parents}
        # uid of a child Job, or of a Workload that may have slices -> uid of its job.
        self._roots = {
            workload.uid: workload.owning_uid
            for workload in cluster.workloads
            if workload.owning_uid and not workload.is_slice
        }
        # Jobs of RayClusters whose pods may clean up after a head.
        self._cleanup_jobs: set[str] = set()
        for job in filter(self.is_child_job, jobs_of(cluster)):
            self._roots[job.uid] = job.parent_uid
            if job.parent_kind == RAY_CLUSTER:
                self._cleanup_jobs.add(job.uid)

    def is_child_job(self, job: JobRow) -> bool:
        """Whether the controller that a job names exists."""
        if not job.parent_uid:
            return False
        if _PLURALS.get(job.parent_kind, "") in self._unread:
            return True
        return self._parents.get(job.parent_uid) == (job.namespace, job.parent_kind)

    def root(self, uid: str) -> str:
        """The uid of the job that a uid leads to; by default the uid itself."""
        # The Job that cleans up after the RayCluster of a RayJob is two steps away.
        found = self._roots.get(uid, uid)
        return self._roots.get(found, found)

    def group_key_of(self, pod: PodRow) -> str:
        """Key of the group that a pod belongs to.

        A pod that cleans up after a RayCluster inherits the labels of its head, and belongs to no
        job. Pods without a controller have a group for each Workload that they name.
        """
        owning_uid = pod.owning_uid
        if not owning_uid:
            return orphan_group_key(pod.namespace, pod.workload) if pod.workload else ""
        is_cleanup = pod.cleanup and owning_uid in self._cleanup_jobs
        return "" if is_cleanup else self.root(owning_uid)


def orphan_group_key(namespace: str, workload: str) -> str:
    """Key of the group of pods without a controller that name a Workload."""
    return f"={namespace}/{workload}"
