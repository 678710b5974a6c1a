"""Writes the status of Workloads of gangs: once they rest for an interval, and only changes.

A gang that starts without delay is not described at each step: no code waits for what it says. One
that is starting, or changes all the time, is described after a few intervals, and then further and
further apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from rackgate.api.timestamps import rfc3339
from rackgate.gang.link import child_job_link
from rackgate.gang.pod_shapes import PodSpecShape, pod_shape
from rackgate.gang.runs.done_pods import DonePods, sum_of_done_pods
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.podsets import counts_of
from rackgate.jobframework.registry import kind_of
from rackgate.kube.errors import NotFoundError
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.bound_pods import BoundPods
from rackgate_assigner.gangs.child_jobs import ChildJobGangs
from rackgate_assigner.gangs.gang_workload import GangWorkload, encode_summary
from rackgate_assigner.gangs.index import GangIndex, JobKey
from rackgate_assigner.gangs.instances import GangInstances
from rackgate_assigner.gangs.native import NativeUse
from rackgate_assigner.gangs.status.gang_status import (
    PODS_MATCHED,
    REPORTED,
    TYPES,
    Summary,
    Use,
    is_starting,
    summarize,
)
from rackgate_assigner.gangs.status.instance_status import InstanceUse, summarize_instances
from rackgate_assigner.gangs.status.writer import GangWriter
from rackgate_assigner.rate_limits import Spacing
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.workload.conditions import condition_list, differs
from rackgate_assigner.workqueue import WorkQueue

# Seconds from the last change to the write that shows it.
INTERVAL_S: Final = 5.0
# Intervals from a change to the write, if other changes follow it all the time, or will: the gang
# is starting.
LONGEST_WAIT: Final = 3
# Intervals between the first two writes, and at most between two.
FIRST_GAP: Final = 2
MOST_GAP: Final = 6


class GangStatusController:
    """Describes each Workload of gangs that a job uses, or has used."""

    def __init__(
        self,
        index: GangIndex,
        jobs: Mapping[str, Mapping[str, JobLike]],
        workloads: Mapping[str, Workload],
        gangs: Mapping[str, GangWorkload],
        writer: GangWriter,
        *,
        reporter: Reporter,
        bound_pods: Callable[[str], BoundPods],
        instances: GangInstances | None = None,
        native: Callable[[], NativeUse | None] = lambda: None,
        children: ChildJobGangs | None = None,
        bound_pods_of_child: Callable[[str, str], BoundPods] | None = None,
        workers: int = 4,
        interval_s: float | None = None,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            index: which job has which Workload of gangs.
            jobs: by kind, then by `namespace/name`.
            workloads: of Kueue's API, by `namespace/name`.
            gangs: Workloads of gangs, by `namespace/name`.
            writer: for Workloads of gangs.
            reporter: for Events.
            bound_pods: of a job, by its uid.
            instances: gangs of pods that no managed job owns.
            native: PodGroups of the cluster; None if Rackgate makes none.
            children: child Jobs that have Workloads of gangs of their own.
            bound_pods_of_child: by the uids of a job and of its child Job.
            workers: objects that are written at the same time.
            interval_s: None for `INTERVAL_S`; see also `LONGEST_WAIT`, `FIRST_GAP` and `MOST_GAP`.
        """
        self._index, self._jobs, self._workloads = index, jobs, workloads
        self._gangs, self._writer, self._bound_pods = gangs, writer, bound_pods
        self._report = reporter
        self._interval_s = INTERVAL_S if interval_s is None else interval_s
        self._instances, self._native = instances, native
        self._spacing = Spacing[str](FIRST_GAP * self._interval_s, MOST_GAP * self._interval_s)
        self._children, self._bound_pods_of_child = children, bound_pods_of_child
        # Monotonic seconds of the first and the last change that the queue has a key for.
        self._changed: dict[str, tuple[float, float]] = {}
        self.queue = WorkQueue[str]("gang-status", self._reconcile, workers=workers)

    async def run(self) -> None:
        """Describe all of them once, then every change, until cancelled."""
        await self.queue.run(list(self._gangs))

    def mark(self, gang: str) -> None:
        """A Workload of gangs, or what uses it, may have changed."""
        if gang not in self._gangs:
            return
        now = clock.monotonic()
        first_and_last = self._changed.get(gang)
        if first_and_last is not None:
            self._changed[gang] = first_and_last[0], now
            return
        self._changed[gang] = now, now
        self.queue.add_later(gang, max(self._interval_s, self._spacing.wait_s(gang, now)))

    def on_gang_delete(self, gang: GangWorkload) -> None:
        """A Workload of gangs is gone."""
        self._spacing.forget(gang.metadata.key)
        self._changed.pop(gang.metadata.key, None)

    async def _reconcile(self, key: str) -> None:
        now = clock.monotonic()
        first, last_change = self._changed.get(key, (now, float("-inf")))
        latest = first + LONGEST_WAIT * self._interval_s
        rested = min(last_change + self._interval_s, latest)
        if rested > now:
            self.queue.add_later(key, rested - now)
            return
        self._changed.pop(key, None)
        gang = self._gangs.get(key)
        if gang is None or gang.metadata.deletion_timestamp is not None:
            return
        use, last = self._use(key, gang), None
        own = self._instance_use(key) if use is None else None
        if use is None and own is None and not gang.conditions:
            return  # no job has used it yet
        if use is None and own is None:
            last = self._use_by(self._index.last_user(key), gang)
        found = summarize(gang, use, last=last) if own is None else summarize_instances(gang, own)
        if latest > now and is_starting(found):
            self._changed[key] = first, now
            self.queue.add_later(key, latest - now)
            return
        same = encode_summary(found.fields) == gang.summary
        said = {one.type for one in found.changes}
        drop = [kind for kind in TYPES if kind not in said]
        outdated = any(one.type in drop for one in gang.conditions)
        if same and not outdated and not differs(gang.conditions, found.changes):
            return
        listed = condition_list(
            gang.conditions,
            TYPES,
            found.changes,
            now=rfc3339(clock.now()),
            generation=gang.metadata.generation,
            drop=drop,
        )
        try:
            await self._writer.write_status(gang.metadata, {**found.fields, "conditions": listed})
        except NotFoundError:
            return
        if key in self._gangs:  # it may be deleted meanwhile
            self._spacing.written(key, clock.monotonic())
        self._report_pods(gang, found)

    def _report_pods(self, gang: GangWorkload, found: Summary) -> None:
        """An Event if pods that are not held differ from what the object says, in a new way."""
        before = next((one for one in gang.conditions if one.type == PODS_MATCHED), None)
        change = next((one for one in found.changes if one.type == PODS_MATCHED), None)
        if change is None or change.reason not in REPORTED:
            return
        if before is None or before.reason != change.reason:
            note = f"{change.reason}: {change.message}"
            self._report.gang(gang.metadata, "PodNotMatched", note, warning=True)

    def on_children_change(self, job_uid: str) -> None:
        """What is true of the child Jobs of a job may have changed."""
        for child in self._children.of_job(job_uid) if self._children is not None else ():
            self.mark(f"{child.job.metadata.namespace}/{child.name}")

    def on_child_upsert(self, _before: Job | None, child: Job) -> None:
        """A child Job was added or changed."""
        meta = child.metadata
        self.mark(f"{meta.namespace}/{child_job_link(meta.name, meta.uid)}")

    def _child_use(self, key: str, gang: GangWorkload) -> Use | None:
        """The child Job that has a Workload of gangs of its own."""
        child = self._children.by_workload(key) if self._children is not None else None
        if child is None or child.is_over or self._bound_pods_of_child is None:
            return None
        owner, meta = child.owner, child.owner.metadata
        bound = self._bound_pods_of_child(meta.uid, child.uid)
        shapes = _shapes_of(owner) if gang.shapes else {}
        return Use(
            child.job.metadata.name,
            self._workloads.get(self._index.workload_key(owner)),
            [
                replace(one, count=child.gangs.pods, copies=1)
                for one in self._index.podsets(owner)
                if one.name == child.podset
            ],
            bound.counts,
            bound.not_held,
            {name: shape for name, shape in shapes.items() if name == child.podset},
            self._index.child_topology(owner, child.podset),
            hold=self._index.hold(owner),
            done={child.podset: min(child.job.status.succeeded, child.gangs.pods)},
            phases=bound.phases,
            native=self._native(),
            not_started=""
            if child.started_at
            else f"the {kind_of(owner).name} {meta.name} has not"
            f" started the Job {child.job.metadata.name}",
        )

    def _use(self, key: str, gang: GangWorkload) -> Use | None:
        users = self._index.users(key)
        if not users:
            return self._child_use(key, gang)
        second = users[1] if len(users) > 1 and gang.has_gangs else None
        return self._use_by(users[0], gang, second)

    def _use_by(
        self, user: JobKey | None, gang: GangWorkload, second: JobKey | None = None
    ) -> Use | None:
        job = self._job(user) if user is not None else None
        if job is None:
            return None
        kind, meta, choice = kind_of(job), job.metadata, self._index.choice(job)
        podsets = self._index.podsets(job)
        workload = self._workloads.get(self._index.workload_key(job))
        counts = (
            {one.name: one.count for one in podsets} if workload is None else counts_of(workload)
        )
        bound = self._bound_pods(meta.uid)
        return Use(
            meta.name,
            workload,
            podsets,
            bound.counts,
            bound.not_held,
            _shapes_of(job) if gang.shapes else {},
            self._index.topology(job, choice, gang, podsets),
            second.name.partition("/")[2] if second is not None else "",
            self._index.hold(job),
            self._native(),
            sum_of_done_pods(self._done_pods(job), kind.reclaimable_pods(job, counts)),
            bound.phases,
            kind.finished(job),
        )

    def _done_pods(self, job: JobLike) -> DonePods:
        jobs = self._children.jobs_of(job.metadata.uid) if self._children is not None else ()
        return kind_of(job).done_pods(jobs) if jobs else {}

    def _instance_use(self, key: str) -> InstanceUse | None:
        if self._instances is None:
            return None
        groups, mismatched = self._instances.groups(key), self._instances.mismatched(key)
        return InstanceUse(groups, mismatched) if groups or mismatched else None

    def _job(self, key: JobKey) -> JobLike | None:
        return self._jobs.get(key.kind, {}).get(key.name)


def _shapes_of(job: JobLike) -> dict[str, PodSpecShape]:
    kind = kind_of(job)
    shapes = {one.podset: pod_shape(one.template) for one in kind.templates(kind.manifest(job))}
    return {name: shape for name, shape in shapes.items() if shape is not None}
