"""One reading of a cluster, and how its objects belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.api.workload_names import slice_ordinal
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_invariants.rows.rows import (
    FlavorRow,
    JobRow,
    NodeRow,
    PodRow,
    PodSetRow,
    QueueRow,
    TopologyRow,
    WorkloadRow,
)
from rackgate_invariants.running_pods import RunningPods

# A deletion so many seconds after its grace period is one that its node cannot finish.
OVERDUE_S = 30.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """One reading of a cluster.

    The lists are read one after another, so a breach of a moving cluster counts only when it
    shows in two readings in a row (`lasting`).

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
    workloads: Collection[WorkloadRow] = ()
    flavors: Collection[FlavorRow] = ()
    topologies: Collection[TopologyRow] = ()
    cluster_queues: Collection[QueueRow] = ()
    local_queues: Collection[QueueRow] = ()
    read_at: float = 0.0
    unread: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True, slots=True)
class WorkloadWithSlices:
    """A Workload with its slices, where it has any.

    Attributes:
        slices: those that are not settled in the admission of their parent, in the order in which
            it takes them in: ranks follow the order of domains.
        settled: those that are, and are still there.
    """

    parent: WorkloadRow
    slices: tuple[WorkloadRow, ...] = ()
    merged: tuple[WorkloadRow, ...] = ()

    def slice_podsets(self, podset: str, *, may_ungate: bool) -> list[PodSetRow]:
        """What slices hold for a PodSet of their parent beside it.

        Args:
            podset: its name.
            may_ungate: only of those whose pods may be released now.
        """
        return [
            slice_podset
            for one in self.slices
            if (one.may_ungate if may_ungate else one.holds)
            for slice_podset in one.podsets
            if slice_podset.name == podset
        ]

    def admitted_count(self, podset: PodSetRow) -> int:
        """Pods that a PodSet may have at once."""
        return podset.admitted_count + sum(
            slice_podset.admitted_count
            for slice_podset in self.slice_podsets(podset.name, may_ungate=True)
        )

    def domains(self, podset: PodSetRow, *, may_ungate: bool) -> dict[Domain, int]:
        """Pods by domain, those of slices with the same levels added."""
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
        """NodeIndex of slices that have other levels than their parent: they run beside it."""
        own = podset.assignment.levels if podset.assignment is not None else ()
        return [
            slice_podset.assignment
            for slice_podset in self.slice_podsets(podset.name, may_ungate=False)
            if slice_podset.assignment is not None and slice_podset.assignment.levels != own
        ]

    @property
    def changed_at(self) -> float:
        """When fewer pods may have been granted than before: then more may be left for a while."""
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
        charged: pods that hold room in each domain.
        granted: pods that may run now, those of slices included.
        changed_at: when the places were last written.
        apart: places of slices that have other levels.
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
        """Workload and PodSet."""
        return f"{self.workload.key}/{self.podset.name}"

    @property
    def cap(self) -> int:
        """Most pods that may be ungated at once."""
        return min(self.admitted_count, sum(self.counts.values()))

    def has_earlier_assignment(self, pod: PodRow) -> bool:
        """Whether a pod got its place before the assignment was written as it is now.

        Resizes may follow each other within a second, which is as exact as these times are.
        """
        slack = 1.0 if self.workload.elastic else 0.0
        return 0 < pod.assigned_at < self.changed_at + slack

    def is_in_separate_assignment(self, pod: PodRow) -> bool:
        """Whether a pod is in a place of a slice that runs beside its parent."""
        return any(pod.domain(one.levels) in dict(one.domains) for one in self.separate_assignments)

    def is_stuck_terminating(self, pod: PodRow, now: float) -> bool:
        """Whether nobody waits for this pod: its host was given up and cannot end it."""
        overdue = 0 < pod.ends_at <= now - OVERDUE_S
        return overdue and pod.domain(self.levels) not in self.counts


@dataclass(slots=True)
class ObjectGroup:
    """What belongs to one owner: a Job, JobSet or RayCluster, its Workloads and its pods.

    Attributes:
        root: uid of the owner.
        job: the owner, None while it is not there.
        parts: child Jobs of a JobSet or RayCluster, by `namespace/name`.
        workloads: also the slices of its Workload.
        pods: also those of its parts, and those that lost their controller.
        pods_in_use: what its pods take, once somebody asked; forgotten when anything of it changes.
        account: so is that in the words of its queues, with what was asked of them.
    """

    root: str = ""
    job: JobRow | None = None
    child_jobs: dict[str, JobRow] = field(default_factory=dict)
    workloads: dict[str, WorkloadRow] = field(default_factory=dict)
    pods: dict[str, PodRow] = field(default_factory=dict)
    pods_in_use: RunningPods | None = None
    job_usage: tuple[Any, Any] | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is left of it."""
        return self.job is None and not (self.child_jobs or self.workloads or self.pods)

    @property
    def own(self) -> list[WorkloadRow]:
        """Its Workloads without their slices."""
        return [one for one in self.workloads.values() if not one.is_slice]

    @property
    def managed(self) -> bool:
        """Whether Rackgate acts on its job."""
        return self.job is not None and self.job.managed

    def is_releasing_quota(self, workload: WorkloadRow) -> bool:
        """Whether a Workload holds no more than its pods take: it is deleted, and its job is gone.

        No pod comes any more, and each that ends gives back its part. Its finalizer may stay for
        a while, where nobody leads.
        """
        owned = bool(workload.owner) and not workload.is_slice
        return self.job is None and workload.deleting and owned

    def podset_by_child_job(self) -> dict[str, str]:
        """PodSet of each child Job, by uid."""
        return {part.uid: part.podset_by_child_job for part in self.child_jobs.values()}

    def workloads_with_slices(self) -> list[WorkloadWithSlices]:
        """Its Workloads with their slices. Only of an elastic Workload a slice counts."""
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
            # Pods without a controller are nobody's, whatever they claim.
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
    """Objects by the uid of the job that they belong to; "" gathers what has none.

    A pod of a child Job belongs to the JobSet, a slice to the job of its parent.
    """
    found: dict[str, ObjectGroup] = {}
    owners = OwnerIndex(cluster.unread)

    def group(uid: str) -> ObjectGroup:
        return found.setdefault(uid, ObjectGroup(uid))

    owners.add_parents((*cluster.jobsets, *cluster.rayclusters))
    for job in (*cluster.jobs, *cluster.jobsets, *cluster.rayclusters):
        if owners.is_child_job(job):
            owners.add_child_job(job)
            group(job.parent_uid).child_jobs[job.key] = job
        else:
            group(job.uid).job = job
    for workload in cluster.workloads:
        if workload.owning_uid and not workload.is_slice:
            owners.roots[workload.uid] = workload.owning_uid
    for workload in cluster.workloads:
        group(owners.root(workload.owning_uid)).workloads[workload.key] = workload
    for pod in cluster.pods:
        group(owners.group_key_of(pod)).pods[pod.key] = pod
    return found


def format_domain(domain: Domain | None) -> str:
    """A domain in words."""
    return "/".join(domain) if domain else "none"


def listed(keys: Iterable[str], most: int = 3) -> str:
    """Some names, and how many more there are."""
    every = sorted(keys)
    rest = len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")


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
