"""Jobs and their Workloads, kept together: looks at both, asks `jobs_plan`, takes one step.

Level-triggered: a step is judged from what the watches show now, bound to the versions it was
judged by, and repeated with growing pauses when refused. Nothing is remembered between steps but
which keys wait for a flavor to appear, and which of our own writes the watch has yet to show.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from rackgate.api import names
from rackgate.kube.client import Client
from rackgate.kube.resources import WORKLOAD_PRIORITY_CLASSES, WORKLOADS
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate_assigner.job_facts import (
    GROUP,
    KIND,
    Priority,
    facts_of,
    governs,
    name_of,
    owned_by,
    resolve_priority,
    spec_ops,
    unmanaged_namespaces,
)
from rackgate_assigner.job_writer import StepTaker, Stores
from rackgate_assigner.jobs_plan import plan_alone, plan_job, plan_orphan, plan_unlabelled
from rackgate_assigner.reporting import Reporter
from rackgate_assigner.workqueue import WorkQueue
from rackgate_assigner.writer import WorkloadWriter

POLL_S: Final = 0.5


class Key(NamedTuple):
    """What to look at: a Job by `namespace/name`, or a Workload whose Job may be gone."""

    kind: str
    name: str


def job_owner(workload: Workload) -> str | None:
    """Key of the Job that controls a Workload, None when its controller is no Job."""
    owner = workload.metadata.controller
    if owner is None or owner.kind != KIND or not owner.api_version.startswith(f"{GROUP}/"):
        return None
    return f"{workload.metadata.namespace}/{owner.name}"


class JobController:
    """Turns Jobs into Workloads, starts and stops them. Callbacks may run on standbys, too.

    Attributes:
        waiting: Jobs that wait for a flavor to appear, each with its `kind/name`.
    """

    def __init__(
        self,
        stores: Stores,
        client: Client,
        writer: WorkloadWriter,
        reporter: Reporter,
        *,
        workers: int = 32,
        system_namespace: str = names.SYSTEM_NAMESPACE,
    ) -> None:
        self._unmanaged = unmanaged_namespaces(system_namespace)
        self.queue = WorkQueue[Key]("jobs", self._reconcile, workers=workers)
        self._stores, self._report = stores, reporter
        self._steps = StepTaker(stores, client, writer, reporter, waits_for=self._waits_for)
        self._own_writes = self._steps.own_writes
        self._by_owner: dict[str, set[str]] = defaultdict(set)
        self.waiting: dict[Key, str] = {}

    async def run(self) -> None:
        """Look at everything once, then at whatever changes, until cancelled."""
        self._own_writes.clear()
        jobs = [Key(KIND, name) for name in self._stores.jobs]
        workloads = [Key(WORKLOADS.kind, name) for name in self._stores.workloads]
        await self.queue.run([*jobs, *workloads])

    def job_seen(self, _before: Job | None, job: Job) -> None:
        """A Job was added or changed."""
        self.queue.add(Key(KIND, job.metadata.key))

    def job_gone(self, job: Job) -> None:
        """A Job was deleted, or lost its queue label."""
        self.waiting.pop(Key(KIND, job.metadata.key), None)
        self._own_writes.forget(KIND, job.metadata.key)
        for key in self._by_owner.get(job.metadata.uid, ()):
            self.queue.add(Key(WORKLOADS.kind, key))

    def workload_seen(self, before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed."""
        owner = workload.metadata.controller
        if before is not None and before.metadata.controller != owner:
            self._disown(before)
        if owner is not None:
            self._by_owner[owner.uid].add(workload.metadata.key)
        self._add_for(workload)

    def workload_gone(self, workload: Workload) -> None:
        """A Workload was deleted."""
        self._own_writes.forget(WORKLOADS.kind, workload.metadata.key)
        self._disown(workload)
        self._add_for(workload)

    def _disown(self, workload: Workload) -> None:
        owner = workload.metadata.controller
        if owner is None:
            return
        owned = self._by_owner[owner.uid]
        owned.discard(workload.metadata.key)
        if not owned:
            del self._by_owner[owner.uid]

    def appeared(self, what: str) -> None:
        """A flavor that a Job may wait for is there: `kind/name`."""
        for key in [key for key, missing in self.waiting.items() if missing == what]:
            del self.waiting[key]
            self.queue.add(key)

    def class_changed(self, kind: str, name: str) -> None:
        """A priority class came, went or has another value: look at all Jobs it may count for.

        The Jobs that name no WorkloadPriorityClass follow PriorityClasses, one of which may be
        the default.
        """
        ours = kind == WORKLOAD_PRIORITY_CLASSES.kind
        for key, job in self._stores.jobs.items():
            named = job.metadata.labels.get(names.PRIORITY_CLASS_LABEL)
            if named == name if ours else not named:
                self.queue.add(Key(KIND, key))

    def in_step(self, workload: Workload) -> bool:
        """Whether a pending Workload asks for what its Job asks for now, and the Job is at rest."""
        job = self._stores.jobs.get(job_owner(workload) or "")
        if job is None or not owned_by(workload, job.metadata.uid):
            return workload.metadata.controller is None or job_owner(workload) is None
        facts = facts_of(job, workload, self._priority_of(job))
        if facts.stopped and not spec_ops(job, workload, facts):
            return True
        # Should nothing else bring the two together, this does.
        self.queue.add(Key(KIND, job.metadata.key))
        return False

    def _waits_for(self, job: Job, what: str) -> None:
        self.waiting[Key(KIND, job.metadata.key)] = what

    def _add_for(self, workload: Workload) -> None:
        job = self._stores.jobs.get(job_owner(workload) or "")
        if job is not None and owned_by(workload, job.metadata.uid):
            self.queue.add(Key(KIND, job.metadata.key))
        else:
            self.queue.add(Key(WORKLOADS.kind, workload.metadata.key))

    async def _reconcile(self, key: Key) -> None:
        if key.kind == KIND:
            await self._reconcile_job(key)
        else:
            await self._reconcile_workload(key)

    async def _reconcile_job(self, key: Key) -> None:
        job = self._stores.jobs.get(key.name)
        if job is None or not governs(job, self._unmanaged):
            return
        owned = self._by_owner.get(job.metadata.uid, ())
        workloads = [w for name in sorted(owned) if (w := self._stores.workloads.get(name))]
        if self._own_writes.behind(KIND, job.metadata) or any(
            self._own_writes.behind(WORKLOADS.kind, workload.metadata) for workload in workloads
        ):
            return  # the watch will show our last write, and bring this key back
        expected = name_of(job)
        own = next((w for w in workloads if w.metadata.name == expected), None)
        priority = self._priority_of(job)
        if own is None and job.finished is None:
            self._tell_missing(job, priority)
        await self._steps.take(job, plan_job(job, workloads, facts_of(job, own, priority)))

    async def _reconcile_workload(self, key: Key) -> None:
        workload = self._stores.workloads.get(key.name)
        if workload is None:
            return
        if workload.metadata.controller is None:
            await self._steps.take(None, plan_alone(workload))
            return
        owner = job_owner(workload)
        if owner is None:
            return  # the controller of that kind looks after it
        job = self._stores.jobs.get(owner)
        if job is not None and owned_by(workload, job.metadata.uid):
            self.queue.add(Key(KIND, owner))
            return
        # Jobs without the queue label are not followed, and a watch may lag behind: ask.
        live = await self._steps.read_job(owner)
        if live is None or not owned_by(workload, live.metadata.uid):
            await self._steps.take(None, plan_orphan(workload))
        elif names.QUEUE_LABEL in live.metadata.labels:
            self.queue.add_later(key, POLL_S)
        else:
            facts = facts_of(live, workload, Priority())
            await self._steps.take(live, plan_unlabelled(live, workload, facts))
            self.queue.add_later(key, POLL_S)

    def _priority_of(self, job: Job) -> Priority:
        return resolve_priority(job, self._stores.workload_classes, self._stores.classes)

    def _tell_missing(self, job: Job, priority: Priority) -> None:
        if priority.missing is not None:
            kind, _, name = priority.missing.partition("/")
            note = f'{kind} "{name}" does not exist; the Workload is created when it does'
            self._report.job(job, f"{kind}NotFound", note, warning=True)
