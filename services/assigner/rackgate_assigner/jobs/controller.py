"""Jobs and their Workloads, kept together: looks at both, asks `jobs_plan`, takes one step.

Level-triggered: a step is judged from what the watches show now, bound to the versions it was
judged by, and repeated with growing pauses when rejected. In addition to indexes of what the
watches show, only this is remembered between steps, and nothing of it is needed to go on: which
keys wait for a flavor to appear, which of our own writes and creations the watch has yet to show,
which claims to an owner were found true, which owners were found to be gone, and since when a
Workload is left to the garbage collector or a job is waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from rackgate.api import names
from rackgate.api.resources import JOBS, WORKLOAD_PRIORITY_CLASSES, WORKLOADS
from rackgate.features import DEFAULTS, Features
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.live_pods import LivingCount
from rackgate_assigner.events import Reporter
from rackgate_assigner.jobs.actions import CreateWorkload, Nothing, Remind
from rackgate_assigner.jobs.facts import (
    Facts,
    Priority,
    facts_of,
    has_strange_owner,
    is_managed,
    name_of,
    owned_by,
    resolve_priority,
    spec_ops,
    unmanaged_namespaces,
)
from rackgate_assigner.jobs.kinds import (
    KINDS,
    JobLike,
    Kind,
    kind_of,
    owner_of,
    part_of_owner,
)
from rackgate_assigner.jobs.kinds.podsets import pods_given, pods_ungated
from rackgate_assigner.jobs.plan import plan_alone, plan_job, plan_orphan, plan_unlabelled
from rackgate_assigner.jobs.start import brought, is_bare
from rackgate_assigner.jobs.writer import StepTaker, Stores
from rackgate_assigner.node_replacement.recovery_timeout import Recovery, pause_left_s
from rackgate_assigner.own_writes import OwnCreations
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.workqueue import WorkQueue

POLL_S: Final = 0.5
WAIT_S: Final = 30.0
# For so long a Workload that holds nothing is left to the garbage collector, without a question.
COLLECTED_S: Final = 30.0
_NO_TIMEOUT: Final = Recovery()


K = TypeVar("K")


class Key(NamedTuple):
    """What to look at: a job by kind and `namespace/name`, or a Workload without one."""

    kind: str
    name: str


class JobController:
    """Turns jobs into Workloads, starts and stops them. Callbacks may run on standbys, too.

    Attributes:
        waiting: jobs that wait for a flavor to appear, each with its `kind/name`.
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
        features: Features = DEFAULTS,
        ready: Callable[[str], None] = lambda _key: None,
        living: Callable[[str], LivingCount] = lambda _job_uid: LivingCount(),
        managed: Callable[[JobLike], None] = lambda _job: None,
        recovery: Recovery = _NO_TIMEOUT,
        selected: Callable[[str], bool] | None = None,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            stores: what the watches show.
            client: for jobs.
            writer: for Workloads.
            reporter: for Events.
            workers: keys looked at at the same time.
            system_namespace: where the services are installed; nothing is governed there.
            features: feature gates.
            ready: told the key of a Workload that is in step now, after `in_step` said no.
            living: how many pods of a job live, by its uid.
            managed: told each job that is managed although it claims to belong to another object.
            recovery: how long pods may be missing that were ready.
            selected: whether jobs of a namespace are managed; None: they are in all.
        """
        self._unmanaged = unmanaged_namespaces(system_namespace)
        self.queue = WorkQueue[Key]("jobs", self._reconcile, workers=workers)
        self._stores, self._report, self._features = stores, reporter, features
        self._steps = StepTaker(stores, client, writer, reporter, waits_for=self._waits_for)
        self._own_writes, self._created = self._steps.own_writes, OwnCreations()
        self._by_owner: dict[str, set[str]] = defaultdict(set)
        self._parts: dict[str, set[str]] = defaultdict(set)
        self.waiting: dict[Key, str] = {}
        self._ready, self._living, self._managed = ready, living, managed
        self._recovery, self._selected = recovery, selected
        self._holds = features.hold_quota_for_terminating_pods
        # Workloads by the uid of the job that they were made for, and those given another owner.
        self._by_job: dict[str, set[str]] = defaultdict(set)
        self._stripped: set[str] = set()
        # Only where namespaces are selected: each that comes asks for its jobs.
        self._by_namespace: dict[str, set[Key]] = defaultdict(set)
        # Owners that were found to exist: uid of the child to that of the owner.
        self._verified: dict[str, str] = {}
        self._refused: set[str] = set()
        # Finished Workloads whose job is not followed any more: until when they are left alone.
        self._left: dict[str, float] = {}
        # Workloads whose owner was found to be gone, each with its uid: no uid ever comes back.
        self._vanished: dict[str, str] = {}
        self._unready: dict[Key, tuple[int, float]] = {}  # generation, and since when

    async def run(self) -> None:
        """Look at everything once, then at whatever changes, until cancelled."""
        self._own_writes.clear()
        self._created.clear()
        self._left.clear()
        jobs = [Key(kind, name) for kind, store in self._stores.jobs.items() for name in store]
        workloads = [Key(WORKLOADS.kind, name) for name in self._stores.workloads]
        await self.queue.run([*jobs, *workloads])

    # What the watches tell.

    def job_seen(self, _before: JobLike | None, job: JobLike) -> None:
        """A job was added or changed."""
        if self._selected is not None:
            self._by_namespace[job.metadata.namespace].add(_key(job))
        self.queue.add(_key(job))

    def job_gone(self, job: JobLike) -> None:
        """A job was deleted, or lost its queue label."""
        key = _key(job)
        _discard(self._by_namespace, job.metadata.namespace, key)
        self.waiting.pop(key, None)
        self._unready.pop(key, None)
        self._verified.pop(job.metadata.uid, None)
        self._own_writes.forget(key.kind, key.name)
        self._created.settle(job.metadata.uid)
        for name in self._by_owner.get(job.metadata.uid, ()):
            self.queue.add(Key(WORKLOADS.kind, name))

    def part_seen(self, before: Job | None, part: Job) -> None:
        """A child Job of a JobSet was added or changed."""
        if before is not None and before.metadata.controller != part.metadata.controller:
            _drop(self._parts, before)
        owner = part.metadata.controller
        if owner is not None:
            self._parts[owner.uid].add(part.metadata.key)
        self._add_owner(part)

    def part_gone(self, part: Job) -> None:
        """A child Job of a JobSet was deleted."""
        self._own_writes.forget(JOBS.kind, part.metadata.key)
        _drop(self._parts, part)
        self._add_owner(part)

    def workload_seen(self, before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed."""
        owner = workload.metadata.controller
        key = workload.metadata.key
        if before is not None and before.metadata.controller != owner:
            _drop(self._by_owner, before)
            if owner_of(before) is not None:
                # Whoever took it from its job: the job has no Workload now, and has to stop.
                self._stripped.add(key)
                self._add_for(before)
        if before is not None and before.job_uid != workload.job_uid:
            _discard(self._by_job, before.job_uid, key)
        if owner is not None:
            self._by_owner[owner.uid].add(key)
            self._created.settle(owner.uid)
        if workload.job_uid:
            self._by_job[workload.job_uid].add(key)
        self._add_for(workload)

    def workload_gone(self, workload: Workload) -> None:
        """A Workload was deleted."""
        self._own_writes.forget(WORKLOADS.kind, workload.metadata.key)
        self._refused.discard(workload.metadata.key)
        self._left.pop(workload.metadata.key, None)
        self._vanished.pop(workload.metadata.key, None)
        self._stripped.discard(workload.metadata.key)
        _drop(self._by_owner, workload)
        _discard(self._by_job, workload.job_uid, workload.metadata.key)
        self._add_for(workload)

    def pods_changed(self, job_uid: str) -> None:
        """Pods of a job came, went or are being deleted; most of that is nothing to act on."""
        keys = self._by_job.get(job_uid)
        if not keys:
            return
        count = self._living(job_uid)
        for key in keys:
            workload = self._stores.workloads.get(key)
            if workload is not None and (not count.total or _is_beyond(workload, count)):
                self._add_for(workload)

    def appeared(self, what: str) -> None:
        """A flavor that a job may wait for is there: `kind/name`."""
        for key in [key for key, missing in self.waiting.items() if missing == what]:
            del self.waiting[key]
            self.queue.add(key)

    def class_changed(self, kind: str, name: str) -> None:
        """A priority class came, went or has another value: look at all jobs it may count for.

        The jobs that name no WorkloadPriorityClass follow PriorityClasses, one of which may be
        the default.
        """
        ours = kind == WORKLOAD_PRIORITY_CLASSES.kind
        for job in self._all():
            named = job.metadata.labels.get(names.PRIORITY_CLASS_LABEL)
            if named == name if ours else not named:
                self.queue.add(_key(job))

    # What others ask.

    def job_of(self, workload: Workload) -> JobLike | None:
        """The job that controls a Workload, None when none is followed that does."""
        owner = owner_of(workload)
        if owner is None:
            return None
        kind, key = owner
        job = self._stores.jobs.get(kind.name, {}).get(key)
        return job if job is not None and owned_by(workload, job.metadata.uid) else None

    def follows(self, job: JobLike) -> bool:
        """Whether a job is managed, whatever controller it claims to have.

        One that has a Workload stays managed until that is gone, also when its namespace is not
        selected any more: it runs to its end, or is stopped, under what it was granted.
        """
        if not is_managed(job, self._unmanaged):
            return False
        if self._selected is None:
            return True
        return self._selected(job.metadata.namespace) or job.metadata.uid in self._by_owner

    def namespace_changed(self, namespace: str) -> list[JobLike]:
        """The labels of a namespace changed: look at its jobs, and return them."""
        jobs: list[JobLike] = []
        for key in sorted(self._by_namespace.get(namespace, ())):
            job = self._stores.jobs[key.kind].get(key.name)
            if job is not None:
                jobs.append(job)
                self.queue.add(key)
        return jobs

    def in_step(self, workload: Workload) -> bool:
        """Whether a pending Workload asks for what its job asks for now, and the job is at rest.

        What it says of pods of an earlier run has to be gone, too: admitted with it, it would count
        the pods of the next run as lost, since the loss of that earlier one.
        """
        job = self.job_of(workload)
        if job is None:
            return owner_of(workload) is None and not self._is_strange(workload)
        facts = self._facts(job, workload)
        forgotten = workload.condition(names.WorkloadCondition.PODS_READY) is None
        if forgotten and facts.stopped and not spec_ops(job, workload, facts):
            return True
        self._refused.add(workload.metadata.key)
        # Should nothing else bring the two together, this does.
        self.queue.add(_key(job))
        return False

    # What is done about it.

    def _waits_for(self, job: JobLike, what: str) -> None:
        self.waiting[_key(job)] = what

    def _add_for(self, workload: Workload) -> None:
        job = self.job_of(workload)
        if job is not None:
            self.queue.add(_key(job))
        else:
            self.queue.add(Key(WORKLOADS.kind, workload.metadata.key))

    def _add_owner(self, part: Job) -> None:
        """Look at the owner of a child, if it is stopping: a running one does not depend on it."""
        owner = part.metadata.controller
        store = self._stores.jobs.get(owner.kind, {}) if owner is not None else {}
        job = store.get(f"{part.metadata.namespace}/{owner.name}") if owner is not None else None
        if job is not None and kind_of(job).suspended(job):
            self.queue.add(_key(job))

    async def _reconcile(self, key: Key) -> None:
        if key.kind == WORKLOADS.kind:
            await self._reconcile_workload(key)
            return
        job = self._stores.jobs[key.kind].get(key.name)
        if job is None:
            return
        if await self._manages(job):
            await self._reconcile_job(key, job)
        else:
            await self._let_go(key, job)

    async def _manages(self, job: JobLike) -> bool:
        """Whether Rackgate acts on this job itself, and not only on what it belongs to.

        Any user may claim that a JobSet or RayCluster controls his Job. Such a Job is a part only
        if that object exists with that uid; else it is a job like any other.
        """
        if not self.follows(job):
            return False
        if not part_of_owner(job.metadata):
            return True
        if await self._is_part(job):
            return False
        self._managed(job)
        return True

    async def _is_part(self, job: JobLike) -> bool:
        owner = job.metadata.controller
        if owner is None or job.metadata.uid == owner.uid:
            return False
        kind, key = KINDS[owner.kind], f"{job.metadata.namespace}/{owner.name}"
        known = self._stores.jobs[kind.name].get(key)
        if known is not None and known.metadata.uid == owner.uid:
            return True
        if self._verified.get(job.metadata.uid) == owner.uid:
            return True
        # It may not be managed, so that it is not followed, or the watch is late: ask.
        live = await self._steps.read_job(kind, key)
        if live is None or live.metadata.uid != owner.uid:
            note = (
                f"its controller {owner.kind} {owner.name} with uid {owner.uid} does not exist: "
                "it is queued like any other"
            )
            self._report.job(job, "OwnerNotFound", note, warning=True)
            return False
        if job.metadata.key in self._stores.jobs[kind_of(job).name]:  # it may have gone meanwhile
            self._verified[job.metadata.uid] = owner.uid
        return True

    async def _let_go(self, key: Key, job: JobLike) -> None:
        """Clear away the Workloads of a job that belongs to another owner now."""
        owned = self._by_owner.get(job.metadata.uid, ())
        workloads = [w for name in sorted(owned) if (w := self._stores.workloads.get(name))]
        if not workloads or self._behind(key, job, workloads):
            return
        workload = workloads[0]
        await self._steps.take(job, plan_unlabelled(job, workload, self._facts(job, workload)))

    async def _reconcile_job(self, key: Key, job: JobLike) -> None:
        owned = self._by_owner.get(job.metadata.uid, ())
        workloads = [w for name in sorted(owned) if (w := self._stores.workloads.get(name))]
        if self._behind(key, job, workloads):
            return  # the watch will show our last write, and bring this key back
        expected = name_of(job)
        own = next((w for w in workloads if w.metadata.name == expected), None)
        facts = self._timed(key, job, own)
        if own is None and facts.end is None:
            self._tell_missing(job, facts.priority)
        step = plan_job(job, workloads, facts)
        if isinstance(step, Remind) and not self._is_overdue(key, job, step.after_s):
            return
        if own is not None and facts.stopped and isinstance(step, Nothing):
            self._tell_ready(own.metadata.key)
        if isinstance(step, CreateWorkload):
            await self._create(key, job, step)
        else:
            await self._steps.take(job, step)

    async def _create(self, key: Key, job: JobLike, step: CreateWorkload) -> None:
        """Create the Workload of a job, unless it was and the watch has yet to show it."""
        uid, now = job.metadata.uid, clock.monotonic()
        wait_s = self._created.wait_s(uid, now)
        if wait_s > 0:
            self.queue.add_later(key, wait_s)
            return
        self._created.expect(uid, now)
        try:
            await self._steps.take(job, step)
        except BaseException:
            self._created.settle(uid)
            raise

    def _timed(self, key: Key, job: JobLike, workload: Workload | None) -> Facts:
        """All facts, those that time alone changes included: the key comes back for these."""
        beyond = self._pods_beyond(job, workload)
        if workload is None:
            return self._facts(job, workload, beyond=beyond)
        now = clock.now()
        staged = self._recovery.timeout_s is not None and kind_of(job).staged(job)
        left_s = None if staged else self._recovery.left_s(workload, now)
        paused = pause_left_s(workload, now)
        for waits_s in (left_s, paused):
            if waits_s is not None and waits_s > 0:
                self.queue.add_later(key, waits_s)
        late = left_s is not None and left_s <= 0
        facts = self._facts(job, workload, beyond=beyond)
        retry = self._recovery.next_try(workload, now) if late else None
        return replace(facts, late=None if facts.ready or facts.suspended else retry, paused=paused)

    def _pods_beyond(self, job: JobLike, workload: Workload | None) -> int:
        """Pods that run beyond those admitted, where no gate holds them.

        A pod that replaces another is made after that one ended or began to terminate, and the
        watch shows both in this order: no correct job has more, not even for a moment.
        """
        count = self._living(job.metadata.uid)
        if workload is None or not _is_beyond(workload, count):
            return 0
        return max(count.running + count.lingering, -(-count.total // 2)) - pods_given(workload)

    def _is_overdue(self, key: Key, job: JobLike, after_s: float) -> bool:
        """Whether a job waits for its pods for `after_s` by now; if not, the key comes back."""
        now, start = clock.monotonic(), job.metadata.generation
        generation, since = self._unready.get(key, (None, 0.0))
        if generation != start:
            self._unready[key] = start, now
            since = now
        left_s = since + after_s - now
        if left_s > 0:
            self.queue.add_later(key, left_s)
            return False
        del self._unready[key]
        return True

    def _tell_ready(self, workload: str) -> None:
        """A job that was not at rest may be now, and nothing of its Workload changed with that."""
        if workload in self._refused:
            self._refused.discard(workload)
            self._ready(workload)

    def _behind(self, key: Key, job: JobLike, workloads: Iterable[Workload]) -> bool:
        behind = self._own_writes.behind
        # Children are only written while it is suspended, and only then their events come here.
        parts = self._parts_of(job) if kind_of(job).suspended(job) else ()
        return (
            behind(key.kind, job.metadata)
            or any(behind(WORKLOADS.kind, workload.metadata) for workload in workloads)
            or any(behind(JOBS.kind, part.metadata) for part in parts)
        )

    async def _reconcile_workload(self, key: Key) -> None:
        workload = self._stores.workloads.get(key.name)
        if workload is None or self._own_writes.behind(WORKLOADS.kind, workload.metadata):
            return
        living = self._held_pods(workload.job_uid)
        if workload.metadata.controller is None:
            await self._steps.take(None, plan_alone(workload, living))
            return
        if self._is_strange(workload):
            step = plan_orphan(workload, living, "somebody gave it another owner")
            await self._steps.take(None, step)
            return
        owner = owner_of(workload)
        if owner is None:
            return  # the controller of that kind looks after it
        job = self.job_of(workload)
        if job is not None:
            self._left.pop(workload.metadata.key, None)
            self.queue.add(_key(job))
            return
        wait_s = self._collected_s(workload)
        if wait_s > 0:
            self.queue.add_later(key, wait_s)
            return
        await self._ask_for_owner(key, workload, *owner)

    def _collected_s(self, workload: Workload) -> float:
        """Seconds to leave a Workload to the garbage collector, which deletes it with its job.

        Only one that is over and holds nothing: its job was deleted, most likely, or else lost its
        queue label, and nobody waits for what becomes of it.
        """
        meta = workload.metadata
        over = workload.is_true(names.WorkloadCondition.FINISHED)
        if not over or names.IN_USE_FINALIZER in meta.finalizers:
            return 0.0
        now = clock.monotonic()
        return max(0.0, self._left.setdefault(meta.key, now + COLLECTED_S) - now)

    async def _ask_for_owner(
        self, key: Key, workload: Workload, kind: Kind[Any], owner: str
    ) -> None:
        """Jobs without the queue label are not followed, and a watch may lag behind: ask."""
        live = None if self._is_vanished(workload) else await self._steps.read_job(kind, owner)
        if live is None or not owned_by(workload, live.metadata.uid):
            self._note_vanished(workload)
            living = self._held_pods(workload.job_uid)
            await self._steps.take(None, plan_orphan(workload, living))
        elif names.QUEUE_LABEL in live.metadata.labels:
            self.queue.add_later(key, POLL_S)
        else:
            living = self._pods_of(live)
            facts = facts_of(live, workload, Priority(), parts=self._parts_of(live), living=living)
            step = plan_unlabelled(live, workload, facts)
            await self._steps.take(live, step)
            self._own_writes.forget(kind.name, owner)  # no watch will show it
            # Of pods that have to go first the pod watch tells.
            waits = isinstance(step, Nothing) and self._held_pods(workload.job_uid) > 0
            self.queue.add_later(key, WAIT_S if waits else POLL_S)

    def _is_vanished(self, workload: Workload) -> bool:
        meta = workload.metadata
        known = self._vanished.get(meta.key)
        return known is not None and meta.controller is not None and known == meta.controller.uid

    def _note_vanished(self, workload: Workload) -> None:
        meta = workload.metadata
        if meta.controller is not None and meta.key in self._stores.workloads:
            self._vanished[meta.key] = meta.controller.uid

    def _is_strange(self, workload: Workload) -> bool:
        """Whether a Workload of a job was given another owner, which answers for no pods."""
        if workload.metadata.key in self._stripped and self.job_of(workload) is None:
            return True
        named = workload.parent
        key = f"{workload.metadata.namespace}/{named.name}" if named is not None else ""
        return has_strange_owner(workload, self._stores.workloads.get(key))

    def _held_pods(self, job_uid: str) -> int:
        """Pods for which quota is held until they are gone."""
        return self._living(job_uid).total if self._holds and job_uid else 0

    def _pods_of(self, job: JobLike) -> int:
        """As `_held_pods`, with those that only the job itself tells of.

        The watches of pods and of jobs are not in step: each may be ahead of the other.
        """
        if not self._holds:
            return 0
        count = self._living(job.metadata.uid)
        told = kind_of(job).pods_left(job, self._parts_of(job)) - count.silent
        return max(count.total, told)

    def _facts(self, job: JobLike, workload: Workload | None, *, beyond: int = 0) -> Facts:
        priority = resolve_priority(job, self._stores.workload_classes, self._stores.classes)
        given = brought(job, workload, self._stores.flavors)
        return facts_of(
            job,
            workload,
            priority,
            parts=self._parts_of(job),
            features=self._features,
            given=given,
            bare=is_bare(job, workload, self._stores.flavors),
            living=self._pods_of(job),
            beyond=beyond,
        )

    def _parts_of(self, job: JobLike) -> list[Job]:
        keys = sorted(self._parts.get(job.metadata.uid, ()))
        return [part for key in keys if (part := self._stores.parts.get(key)) is not None]

    def _all(self) -> Iterable[JobLike]:
        return (job for store in self._stores.jobs.values() for job in store.values())

    def _tell_missing(self, job: JobLike, priority: Priority) -> None:
        if priority.missing is not None:
            kind, _, name = priority.missing.partition("/")
            note = f'{kind} "{name}" does not exist; the Workload is created when it does'
            self._report.job(job, f"{kind}NotFound", note, warning=True)


def _key(job: JobLike) -> Key:
    return Key(kind_of(job).name, job.metadata.key)


def _is_beyond(workload: Workload, count: LivingCount) -> bool:
    """Whether more pods of a job run than were admitted, where no gate holds them.

    A job whose pods are replaced has more while the old ones end. That may take as long as grace
    periods usually are; those that last longer count as running. Twice as many as admitted are too
    many all the same: deleting pods again and again would add up.
    """
    if workload.elastic or not pods_ungated(workload):
        return False
    admitted = pods_given(workload)
    return count.running + count.lingering > admitted or count.total > 2 * admitted


def _drop(index: dict[str, set[str]], item: JobLike) -> None:
    """Take an object out of an index by the uid of its controller."""
    owner = item.metadata.controller
    if owner is not None:
        _discard(index, owner.uid, item.metadata.key)


def _discard(index: dict[str, set[K]], name: str, key: K) -> None:
    found = index.get(name)
    if found is None:
        return
    found.discard(key)
    if not found:
        del index[name]
