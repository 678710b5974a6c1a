"""The job controller: reads a job and its Workload, calls `plan`, executes one action.

Level-triggered: an action is planned from what the watches show now, bound to the versions it was
planned with, and retried with backoff if rejected. Apart from indexes of watched objects, only
the following is remembered between actions, and a restart may lose all of it: which keys wait for a
flavor, which of our own writes and creations are assumed, which claims to an owner were verified,
which owners are missing, and since when a Workload is left to the garbage collector, a job waits
for its pods, or a job that must stop waits for its status.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import structlog

from rackgate.api import names
from rackgate.api.names import UnderlyingCause
from rackgate.api.resources import JOBS, WORKLOAD_PRIORITY_CLASSES, WORKLOADS
from rackgate.features import DEFAULTS, Features
from rackgate.jobframework.generic_job import GenericJob, JobLike
from rackgate.jobframework.injection import StopPhase
from rackgate.jobframework.managed import is_child_of_job
from rackgate.jobframework.pod_group.gang_group import GangGroup
from rackgate.jobframework.pod_group.pod_group import PodGroup
from rackgate.jobframework.podsets import pods_without_gate, total_pods
from rackgate.jobframework.registry import KINDS, POD_KINDS, kind_of, owner_of
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate.wire.core import Pod
from rackgate.wire.kueue import Workload
from rackgate_assigner.assumed_writes import AssumedCreations
from rackgate_assigner.cache.pods.live_pods import LivePodCount
from rackgate_assigner.gangs.pods_controller import GangPods, is_leaving
from rackgate_assigner.gangs.reactions import requeue_state
from rackgate_assigner.gangs.run_spec import NO_GANG
from rackgate_assigner.jobs.executor import ActionExecutor, Stores
from rackgate_assigner.jobs.patches import spec_ops
from rackgate_assigner.jobs.plan import (
    Action,
    CheckGangs,
    CreateWorkload,
    NoAction,
    RequestReconcile,
    StopJob,
    may_run,
    plan_job,
    plan_late_stop,
    plan_orphaned_workload,
    plan_ownerless_workload,
    plan_unmanaged_job,
    reclaimed_pods,
)
from rackgate_assigner.jobs.pod_groups.gang_state import kept_s, late_pods, read_gang_state
from rackgate_assigner.jobs.pod_groups.state import pods_without_podset, read_group_state
from rackgate_assigner.jobs.pod_groups.writer import PodGroupWriter
from rackgate_assigner.jobs.state import (
    GangTimedOut,
    JobState,
    Priority,
    has_foreign_owner,
    is_eligible,
    is_owned_by,
    own_workload,
    read_job_state,
    resolve_priority,
    unmanaged_namespaces,
)
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.workload.elapsed import ElapsedTimes, Moment
from rackgate_assigner.workload.execution_time import execution_time
from rackgate_assigner.workload.pods_ready_timeout import PodsReadyTimeouts, backoff_remaining_s
from rackgate_assigner.workload.retention import Retention
from rackgate_assigner.workqueue import WorkQueue

if TYPE_CHECKING:
    from rackgate_assigner.gangs.index import GangIndex
    from rackgate_assigner.gangs.instances import GangInstances

log = structlog.get_logger()

POLL_S: Final = 0.5
LATE_WATCH_POLL_S: Final = 2.0
PODS_LEFT_POLL_S: Final = 30.0
# A Workload without quota is left to the garbage collector for this long, without a request.
GARBAGE_COLLECTION_S: Final = 30.0
# A suspended job without a live pod whose status says otherwise for this long has its pods read.
STATUS_LATE_S: Final = 10.0
_NO_TIMEOUTS: Final = PodsReadyTimeouts()
_KEEP: Final = Retention()


K = TypeVar("K")


class Key(NamedTuple):
    """What to reconcile: a job by kind and `namespace/name`, or a Workload without a job."""

    kind: str
    name: str


class JobController:
    """Creates Workloads for jobs, starts and stops jobs. Callbacks may run on standbys, too.

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
        on_in_sync: Callable[[str], None] = lambda _key: None,
        live_pods: Callable[[str], LivePodCount] = lambda _job_uid: LivePodCount(),
        on_managed: Callable[[JobLike], None] = lambda _job: None,
        timeouts: PodsReadyTimeouts = _NO_TIMEOUTS,
        retention: Retention = _KEEP,
        is_namespace_selected: Callable[[str], bool] | None = None,
        gangs: GangIndex | None = None,
        gang_pods: GangPods | None = None,
        gang_timeout_limit: int | None = None,
        pods: PodGroupWriter | None = None,
        instances: GangInstances | None = None,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            stores: what the watches show.
            client: for jobs.
            writer: for Workloads.
            reporter: for Events.
            workers: keys reconciled at the same time.
            system_namespace: where the services are installed; nothing is managed there.
            features: feature gates.
            on_in_sync: called with the key of a Workload that is in sync now, after `is_in_sync`
                returned False.
            live_pods: number of live pods of a job, by its uid.
            on_managed: called with each job that is managed although it claims to belong to
                another object.
            timeouts: how long pods of an admitted job may be missing.
            retention: how long ended Workloads are kept.
            is_namespace_selected: whether jobs of a namespace are managed; None: they are in all.
            gangs: Workloads of gangs of jobs; None: gang scheduling is off.
            gang_pods: their pods.
            gang_timeout_limit: evictions because of gangs before a deactivation; None: it has none.
            pods: for groups of plain pods; None: they are not managed.
            instances: gangs of pods that no managed job owns; None: gang scheduling is off.
        """
        self._gangs, self._gang_pods, self._instances = gangs, gang_pods, instances
        self._gang_timeout_limit = gang_timeout_limit
        self._unmanaged = unmanaged_namespaces(system_namespace)
        self.queue = WorkQueue[Key]("jobs", self._reconcile, workers=workers)
        self._stores, self._report, self._features = stores, reporter, features
        self._executor = ActionExecutor(
            stores, client, writer, reporter, on_missing=self._wait_for_flavor, pods=pods
        )
        self._pods = pods
        self._assumed_writes, self._assumed_creations = (
            self._executor.assumed_writes,
            AssumedCreations[None](),
        )
        self._workloads_by_owner: dict[str, set[str]] = defaultdict(set)
        self._children: dict[str, set[str]] = defaultdict(set)
        self.waiting: dict[Key, str] = {}
        self._on_in_sync, self._live_pods, self._on_managed = on_in_sync, live_pods, on_managed
        self._timeouts, self._is_namespace_selected = timeouts, is_namespace_selected
        self._hold_for_terminating = features.hold_quota_for_terminating_pods
        # Workloads by the uid of the job that they were made for, and those with another owner now.
        self._workloads_by_job: dict[str, set[str]] = defaultdict(set)
        self._owner_removed: set[str] = set()
        # Jobs, by uid, that had a Workload which was deleted or got another owner.
        self._had_workload: set[str] = set()
        # Only if namespaces are selected: a namespace that is added looks up its jobs here.
        self._jobs_by_namespace: dict[str, set[Key]] = defaultdict(set)
        # Owners that were found to exist: uid of the child to that of the owner.
        self._verified_owners: dict[str, str] = {}
        self._retention = retention
        self._out_of_sync: set[str] = set()
        self._elapsed = ElapsedTimes()
        # Finished Workloads whose job is not watched any more: until when they are left alone.
        self._left_to_collector_until: dict[str, float] = {}
        # Workloads whose owner is known to be gone, each with its uid: a uid is never used again.
        self._missing_owners: dict[str, str] = {}
        # Generation of the job, and since when it waits.
        self._waiting_for_pods_since: dict[Key, tuple[int, float]] = {}
        # Jobs that must stop and have no live pod, but whose status does not say so.
        self._without_pods_since: dict[Key, float] = {}
        # Jobs with a Workload that must stop and wait for their controller, by uid.
        self._stopping_since: dict[str, float] = {}

    async def run(self) -> None:
        """Reconcile everything once, then every change, until cancelled."""
        self._assumed_writes.clear()
        if self._pods is not None:
            self._pods.clear()
        self._assumed_creations.clear()
        self._left_to_collector_until.clear()
        self._stopping_since.clear()
        jobs = [Key(kind, name) for kind, store in self._stores.jobs.items() for name in store]
        workloads = [Key(WORKLOADS.kind, name) for name in self._stores.workloads]
        await self.queue.run([*jobs, *workloads])

    # Events of the watches.

    def on_job_upsert(self, _before: JobLike | None, job: JobLike) -> None:
        """A job was added or changed."""
        if self._is_namespace_selected is not None:
            self._jobs_by_namespace[job.metadata.namespace].add(_key(job))
        self.queue.add(_key(job))

    def workloads_of(self, job_uid: str) -> list[str]:
        """Keys of the Workloads that a job controls."""
        return sorted(self._workloads_by_owner.get(job_uid, ()))

    def on_job_delete(self, job: JobLike) -> None:
        """A job was deleted, or lost its queue label."""
        key = _key(job)
        _discard_key(self._jobs_by_namespace, job.metadata.namespace, key)
        self.waiting.pop(key, None)
        self._waiting_for_pods_since.pop(key, None)
        self._without_pods_since.pop(key, None)
        self._verified_owners.pop(job.metadata.uid, None)
        self._had_workload.discard(job.metadata.uid)
        self._assumed_writes.forget(key.kind, key.name)
        self._assumed_creations.forget(job.metadata.uid)
        for name in self._workloads_by_owner.get(job.metadata.uid, ()):
            self.queue.add(Key(WORKLOADS.kind, name))

    def on_child_upsert(self, before: Job | None, child: Job) -> None:
        """A child Job was added or changed."""
        if before is not None and before.metadata.controller != child.metadata.controller:
            _remove_from_index(self._children, before)
        owner = child.metadata.controller
        if owner is not None:
            self._children[owner.uid].add(child.metadata.key)
        self._enqueue_owner(child)

    def on_child_delete(self, child: Job) -> None:
        """A child Job was deleted."""
        self._assumed_writes.forget(JOBS.kind, child.metadata.key)
        _remove_from_index(self._children, child)
        self._enqueue_owner(child)

    def on_workload_upsert(self, before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed."""
        owner = workload.owner_uid
        key = workload.metadata.key
        if before is not None and before.owner_uid != owner:
            _discard_key(self._workloads_by_owner, before.owner_uid, key)
            self._record_had_workload(before)
            if owner_of(before) is not None:
                # Its owner was changed, so the job has no Workload now and must stop.
                self._owner_removed.add(key)
                self._enqueue_for_workload(before)
        if before is not None and before.job_uid != workload.job_uid:
            _discard_key(self._workloads_by_job, before.job_uid, key)
        if owner:
            self._workloads_by_owner[owner].add(key)
            self._assumed_creations.forget(owner)
        if workload.job_uid:
            self._workloads_by_job[workload.job_uid].add(key)
        self._enqueue_for_workload(workload)

    def on_workload_delete(self, workload: Workload) -> None:
        """A Workload was deleted."""
        self._record_had_workload(workload)
        self._assumed_writes.forget(WORKLOADS.kind, workload.metadata.key)
        self._out_of_sync.discard(workload.metadata.key)
        self._elapsed.forget(workload.metadata.key)
        self._left_to_collector_until.pop(workload.metadata.key, None)
        self._missing_owners.pop(workload.metadata.key, None)
        self._stopping_since.pop(workload.job_uid, None)
        self._owner_removed.discard(workload.metadata.key)
        if self._gang_pods is not None:
            self._gang_pods.forget(workload.metadata.key)
        _discard_key(self._workloads_by_owner, workload.owner_uid, workload.metadata.key)
        _discard_key(self._workloads_by_job, workload.job_uid, workload.metadata.key)
        self._enqueue_for_workload(workload)

    def _record_had_workload(self, workload: Workload) -> None:
        job = self.job_for(workload)
        if job is not None:  # else nothing would remove it
            self._had_workload.add(job.metadata.uid)

    def on_pods_change(self, job_uid: str) -> None:
        """Pods of a job were added, deleted, or are being deleted; few events need an action."""
        keys = self._workloads_by_job.get(job_uid)
        if not keys:
            return
        count = self._live_pods(job_uid)
        for key in keys:
            workload = self._stores.workloads.get(key)
            if workload is not None and (not count.total or _exceeds_admission(workload, count)):
                self._enqueue_for_workload(workload)

    def on_pod_upsert(self, before: Pod | None, pod: Pod) -> None:
        """A bound pod was added or changed; only with gangs."""
        if is_leaving(before, pod):
            self.on_pod_gone(pod)

    def on_pod_gone(self, pod: Pod) -> None:
        """A bound pod has ended, is being deleted, or is gone; only with gangs."""
        workload = self._gang_pods.on_pod_gone(pod) if self._gang_pods is not None else None
        if workload is not None:
            self._enqueue_for_workload(workload)

    def on_flavor_added(self, what: str) -> None:
        """A flavor that a job may wait for exists now: `kind/name`."""
        for key in [key for key, missing in self.waiting.items() if missing == what]:
            del self.waiting[key]
            self.queue.add(key)

    def on_priority_class_change(self, kind: str, name: str) -> None:
        """A priority class was added, deleted or changed: reconcile all jobs it may apply to.

        The jobs that name no WorkloadPriorityClass follow PriorityClasses, one of which may be
        the default.
        """
        is_workload_class = kind == WORKLOAD_PRIORITY_CLASSES.kind
        for job in self._all_jobs():
            named = job.metadata.labels.get(names.PRIORITY_CLASS_LABEL)
            if named == name if is_workload_class else not named:
                self.queue.add(_key(job))

    # Called by the scheduler and the watches.

    def job_for(self, workload: Workload) -> JobLike | None:
        """The job that controls a Workload; None if no watched job does."""
        owner = owner_of(workload)
        if owner is None:
            return None
        kind, key = owner
        job = self._stores.jobs.get(kind.name, {}).get(key)
        return job if job is not None and is_owned_by(workload, job.metadata.uid) else None

    def is_followed(self, job: JobLike) -> bool:
        """Whether a job is managed, whatever controller it claims to have.

        A job with a Workload stays managed until the Workload is gone, even if its namespace is no
        longer selected: it runs to its end, or is stopped, under its admission.
        """
        if not is_eligible(job, self._unmanaged):
            return False
        if self._is_namespace_selected is None:
            return True
        return (
            self._is_namespace_selected(job.metadata.namespace)
            or job.metadata.uid in self._workloads_by_owner
        )

    def on_namespace_change(self, namespace: str) -> list[JobLike]:
        """The labels of a namespace changed: reconcile its jobs, and return them."""
        jobs: list[JobLike] = []
        for key in sorted(self._jobs_by_namespace.get(namespace, ())):
            job = self._stores.jobs[key.kind].get(key.name)
            if job is not None:
                jobs.append(job)
                self.queue.add(key)
        return jobs

    def is_in_sync(self, workload: Workload) -> bool:
        """Whether a pending Workload requests what its job requests now, and the job is stopped.

        PodsReady of an earlier run must be removed, too: if it is kept on admission, the pods of
        the next run would count as lost since that earlier run. Pods that count as done but are not
        would run without quota.
        """
        if self._is_owner_foreign(workload):
            return False
        job = self.job_for(workload)
        if job is None:
            return owner_of(workload) is None
        job_state = self._job_state(job, workload)
        has_no_pods_ready = workload.condition(names.WorkloadCondition.PODS_READY) is None
        has_its_done_pods = reclaimed_pods(workload) == dict(job_state.reclaimable_pods)
        if (
            has_no_pods_ready
            and has_its_done_pods
            and job_state.stopped
            and not spec_ops(job, workload, job_state)
            and not (isinstance(job, GangGroup) and job_state.workload_ops)
            and not self._is_held(job)
        ):
            return True
        self._out_of_sync.add(workload.metadata.key)
        self.queue.add(_key(job))
        return False

    # Reconciling.

    def _wait_for_flavor(self, job: JobLike, what: str) -> None:
        self.waiting[_key(job)] = what

    def _enqueue_for_workload(self, workload: Workload) -> None:
        job = self.job_for(workload)
        if job is not None:
            self.queue.add(_key(job))
        else:
            self.queue.add(Key(WORKLOADS.kind, workload.metadata.key))

    def _enqueue_for_workload_later(self, workload: Workload, delay_s: float) -> None:
        job = self.job_for(workload)
        key = Key(WORKLOADS.kind, workload.metadata.key) if job is None else _key(job)
        self.queue.add_later(key, delay_s)

    def _enqueue_owner(self, child: Job) -> None:
        """Reconcile the owner of a child if it is stopping, or the child is a gang.

        A running one depends on no other child.
        """
        owner = child.metadata.controller
        store = self._stores.jobs.get(owner.kind, {}) if owner is not None else {}
        job = store.get(f"{child.metadata.namespace}/{owner.name}") if owner is not None else None
        if job is None:
            return
        gangs = self._gangs
        has_gangs = gangs is not None and gangs.is_job(job) and bool(gangs.choice(job).children)
        if has_gangs or kind_of(job).is_suspended(job):
            self.queue.add(_key(job))

    async def _reconcile(self, key: Key) -> None:
        if key.kind == WORKLOADS.kind:
            await self._reconcile_workload(key)
            return
        job = self._stores.jobs[key.kind].get(key.name)
        if job is None:
            return
        if await self._is_reconciled(job):
            await self._reconcile_job(key, job)
        else:
            await self._reconcile_unmanaged_job(key, job)
            if isinstance(job, GangGroup):
                await self._release_without_queue(job)

    async def _release_without_queue(self, group: GangGroup) -> None:
        """A pod that is in no gang, and in no queue that counts, is not held any more (GNG-10)."""
        if self._pods is None or not group.instance.pod or group.hold:
            return
        if await self._pods.release(group):
            note = (
                f'released: no gang group of Workload of gangs "{group.instance.workload}" holds it'
            )
            self._report.job(group, "Released", note)

    async def _is_reconciled(self, job: JobLike) -> bool:
        """Whether Rackgate acts on this job itself, not only on its owner.

        Any user may claim that a JobSet, RayCluster or RayJob controls their Job. Such a Job is a
        child only if that object exists with that uid; otherwise it is queued as any other job.
        """
        if not self.is_followed(job):
            return False
        if not is_child_of_job(job.metadata):
            return True
        if await self._is_child(job):
            return False
        self._on_managed(job)
        return True

    async def _is_child(self, job: JobLike) -> bool:
        owner = job.metadata.controller
        if owner is None or job.metadata.uid == owner.uid:
            return False
        kind, key = KINDS[owner.kind], f"{job.metadata.namespace}/{owner.name}"
        known = self._stores.jobs[kind.name].get(key)
        if known is not None and known.metadata.uid == owner.uid:
            return True
        if self._verified_owners.get(job.metadata.uid) == owner.uid:
            return True
        # It may not be managed and so not be watched, or the watch lags: read it.
        live = await self._executor.read_job(kind, key)
        if live is None or live.metadata.uid != owner.uid:
            note = (
                f"its controller {owner.kind} {owner.name} with uid {owner.uid} does not exist: "
                "the job is queued without it"
            )
            self._report.job(job, "OwnerNotFound", note, warning=True)
            return False
        if job.metadata.key in self._stores.jobs[kind_of(job).name]:  # it may be deleted meanwhile
            self._verified_owners[job.metadata.uid] = owner.uid
        return True

    async def _reconcile_unmanaged_job(self, key: Key, job: JobLike) -> None:
        """Delete the Workloads of a job that belongs to another owner now."""
        owned = self._workloads_by_owner.get(job.metadata.uid, ())
        workloads = [w for name in sorted(owned) if (w := self._stores.workloads.get(name))]
        if not workloads or self._is_cache_behind(key, job, workloads):
            return
        workload = workloads[0]
        await self._executor.execute(
            job, plan_unmanaged_job(job, workload, self._job_state(job, workload))
        )

    async def _reconcile_job(self, key: Key, job: JobLike) -> None:
        owned = self._workloads_by_owner.get(job.metadata.uid, ())
        workloads = [w for name in sorted(owned) if (w := self._stores.workloads.get(name))]
        if self._is_cache_behind(key, job, workloads):
            return  # the watch will show our last write, and reconcile this key again
        own = own_workload(job, workloads)
        if isinstance(job, PodGroup) and self._pods is not None:
            await self._tidy(job, own, self._pods)
        job_state = self._read_timed_state(key, job, own)
        if own is not None and await self._are_pods_gone(key, job, own, job_state):
            job_state = replace(job_state, pods_gone=True)
        if own is None and job_state.finished is None:
            self._report_missing_class(job, job_state.priority)
        action = plan_job(job, workloads, job_state)
        if isinstance(action, CheckGangs):
            if not await self._is_still_running(job):
                return  # the watch will show its change
            job_state = await self._check_gangs(job, action, job_state)
            action = plan_job(job, workloads, job_state)
            self.queue.add(key)
        if isinstance(action, StopJob) and await self._was_admitted_meanwhile(key, job, action):
            return
        if isinstance(action, RequestReconcile) and not self._is_overdue(key, job, action.after_s):
            return
        if own is not None and job_state.stopped and isinstance(action, NoAction):
            self._notify_in_sync(own.metadata.key)
        if isinstance(action, CreateWorkload):
            await self._create(key, job, action)
            return
        await self._execute(job, own, job_state, action)
        if job_state.gang_eviction is not None:
            self._report_gang_eviction(job, job_state)

    async def _execute(
        self, job: JobLike, workload: Workload | None, job_state: JobState, action: Action
    ) -> None:
        """Execute an action, and then complete a stop that is late."""
        uid = job.metadata.uid
        is_late = workload is not None and self._is_stop_late(job, workload, job_state, action)
        await self._executor.execute(job, action)
        if workload is None or not is_late:
            return
        children = (*await self._executor.child_jobs(job), *self._child_objects_of(job))
        late = plan_late_stop(job, workload, children, STATUS_LATE_S)
        await self._executor.execute(job, late)
        if uid in self._stopping_since:
            self._stopping_since[uid] = clock.monotonic()
        self._enqueue_for_workload_later(workload, STATUS_LATE_S)

    def _is_stop_late(
        self, job: JobLike, workload: Workload, job_state: JobState, action: Action
    ) -> bool:
        """Whether a job that must stop waits for its controller, and has done so for long.

        Controllers of some kinds write that they suspend a job before they delete its pods. A user
        who keeps changing the job keeps that from being written, as it is bound to a version. And
        they ignore a job with a value that they reject. If its user resumes it meanwhile, it is
        suspended again, and its time goes on.
        """
        uid, phase = job.metadata.uid, job_state.stop.phase
        waits = phase is StopPhase.WAIT
        resumed = phase is StopPhase.SUSPEND and isinstance(action, StopJob)
        over = isinstance(job, PodGroup) or job.metadata.deletion_timestamp is not None
        if over or not (waits or resumed) or workload.metadata.key not in self._stores.workloads:
            self._stopping_since.pop(uid, None)
            return False
        now = clock.monotonic()
        left_s = self._stopping_since.setdefault(uid, now) + STATUS_LATE_S - now
        if left_s > 0:
            self._enqueue_for_workload_later(workload, left_s)
        return left_s <= 0 and (resumed or isinstance(action, NoAction))

    async def _are_pods_gone(
        self,
        key: Key,
        job: JobLike,
        workload: Workload,
        job_state: JobState,
        *,
        unmanaged: bool = False,
    ) -> bool:
        """Whether a job that must stop has no pods, while its status does not say so in time.

        Its controller writes the status, bound to a version. A user who keeps changing the job
        keeps that from being written, and would keep its quota.
        """
        waits = (
            _must_release_quota(workload, unmanaged=unmanaged)
            and job_state.suspended
            and not job_state.stopped
            and not isinstance(job, PodGroup)
            and not self._live_pods(job.metadata.uid).total
        )
        children = (*self._children_of(job), *self._child_objects_of(job)) if waits else ()
        if not waits or any(may_run(child) for child in children):
            self._without_pods_since.pop(key, None)
            return False
        now = clock.monotonic()
        left_s = self._without_pods_since.setdefault(key, now) + STATUS_LATE_S - now
        if left_s > 0:
            self.queue.add_later(key, left_s)
            return False
        del self._without_pods_since[key]
        children = (*await self._executor.child_jobs(job), *self._child_objects_of(job))
        uids = {job.metadata.uid, *(child.metadata.uid for child in children)}
        if await self._executor.has_pods(job, uids):
            self.queue.add_later(key, STATUS_LATE_S)
            return False
        log.info("job_status_late", job=job.metadata.key, workload=workload.metadata.key)
        note = (
            f"its pods are gone, and its status has not said so for {STATUS_LATE_S:g} s: its quota "
            "is released; is the job changed all the time?"
        )
        self._report.job(job, "StatusLate", note, warning=True)
        return True

    def _report_gang_eviction(self, job: JobLike, job_state: JobState) -> None:
        """An Event on the Workload of gangs, if it still exists."""
        found, links = job_state.gang_eviction, job_state.gang.links
        name = min(links.values(), default="")
        gang = self._gangs.gang(job.metadata.namespace, name) if self._gangs is not None else None
        if found is not None and gang is not None:
            eviction = found.eviction
            self._report.gang(gang.metadata, eviction.reason, eviction.message, warning=True)

    def _is_held(self, job: JobLike) -> bool:
        """Whether its Workload of gangs does not allow its admission; plain pods have none."""
        if isinstance(job, GangGroup):
            return bool(job.hold)
        if self._gangs is None or isinstance(job, PodGroup):
            return False
        return self._gangs.hold(job) is not None

    async def _was_admitted_meanwhile(self, key: Key, job: JobLike, stop: StopJob) -> bool:
        """Whether the watch of Workloads is behind that of jobs, so that no stop is due.

        Another replica admitted and started the job. The key is queued again: nothing else may say
        that the admission ended in the meantime.
        """
        name = stop.unless_admitted
        if not name or not await self._executor.is_admitted(job, name):
            return False
        self.queue.add_later(key, LATE_WATCH_POLL_S)
        return True

    async def _is_still_running(self, job: JobLike) -> bool:
        """Whether a job, read now, still runs as the watch says: its pods may end with it."""
        kind = kind_of(job)
        live = await self._executor.read_job(kind, job.metadata.key)
        return (
            live is not None
            and (live.metadata.uid, live.metadata.deletion_timestamp) == (job.metadata.uid, None)
            and kind.is_suspended(live) == kind.is_suspended(job)
            and kind.finished(live) is None
        )

    async def _check_gangs(self, job: JobLike, action: CheckGangs, job_state: JobState) -> JobState:
        """The state of a job after its pods were read."""
        timed_out = None
        if self._gang_pods is not None:
            children = (*self._children_of(job), *self._child_objects_of(job))
            controllers = {job.metadata.uid, *(child.metadata.uid for child in children)}
            eviction = await self._gang_pods.decide(job, action.workload, action.check, controllers)
            if eviction is not None:
                limit = self._gang_timeout_limit
                requeue = requeue_state(action.workload, eviction.reason, clock.now(), limit=limit)
                timed_out = GangTimedOut(eviction, requeue)
        return replace(job_state, gang_check=None, gang_eviction=timed_out)

    async def _tidy(self, group: PodGroup, workload: Workload | None, pods: PodGroupWriter) -> None:
        """What pods need that no Workload decides: surplus ones go, and ended ones are released."""
        if isinstance(group, GangGroup):
            if self._instances is not None:
                self._instances.set_apart(
                    group.metadata.key,
                    late_pods(group, workload, apart=self._instances.apart(group.metadata.key)),
                )
        elif group.total == 0:
            note = (
                f"metadata.annotations[{names.POD_GROUP_TOTAL_ANNOTATION}] of the oldest pod is not"
                " the number of pods of the group: delete the pods, and create them with it"
            )
            self._report.job(group, "ErrWorkloadCompose", note, warning=True)
        surplus = await pods.tidy(group, workload)
        if surplus:
            names_of_pods = ", ".join(pod.metadata.name for pod in surplus[:5])
            note = f"the group has {group.total} pods: deleted surplus pods {names_of_pods}"
            self._report.job(group, "ExcessPodDeleted", note)
        if workload is not None and (other := pods_without_podset(group, workload)):
            note = (
                f"pod {other[0].metadata.name} requests something else than the pods that were "
                "admitted, and stays gated: create one that requests the same, or delete all pods "
                "of the group"
            )
            self._report.job(group, "PodSetMismatch", note, warning=True)

    async def _create(self, key: Key, job: JobLike, action: CreateWorkload) -> None:
        """Create the Workload of a job, unless an earlier creation is not in the watch yet."""
        uid, now = job.metadata.uid, clock.monotonic()
        wait_s = self._assumed_creations.wait_s(uid, now)
        if wait_s > 0:
            self.queue.add_later(key, wait_s)
            return
        self._assumed_creations.assume(uid, now)
        try:
            await self._executor.execute(job, replace(action, again=uid in self._had_workload))
        except BaseException:
            self._assumed_creations.forget(uid)
            raise

    def _read_timed_state(self, key: Key, job: JobLike, workload: Workload | None) -> JobState:
        """The state, including what changes with time: the key is queued again for that."""
        beyond_admission = self._pods_beyond_admission(job, workload)
        if workload is None:
            return self._job_state(job, workload, beyond_admission=beyond_admission)
        waits_s = 0.0
        now = Moment(clock.now(), clock.monotonic())
        elapsed = self._elapsed.at(workload.metadata.key, now)
        missing = None
        if self._timeouts.enabled:
            staged = kind_of(job).starts_in_stages(job)
            missing = self._timeouts.missing_pods(workload, elapsed, staged=staged)
        paused = backoff_remaining_s(workload, elapsed)
        execution = execution_time(workload, elapsed)
        retained_s = self._retention.remaining_s(workload, elapsed)
        if isinstance(job, GangGroup) and not job.pods:
            waits_s = kept_s(workload, elapsed, paused)
        for delay_s in (
            waits_s,
            retained_s,
            missing.remaining_s if missing is not None else None,
            execution.remaining_s if execution is not None else None,
            paused,
        ):
            if delay_s is not None and delay_s > 0:
                self.queue.add_later(key, delay_s)
        job_state = self._job_state(
            job, workload, beyond_admission=beyond_admission, waits=waits_s > 0
        )
        timed_out = None
        # Lost pods of a suspended job are those of an earlier run.
        is_lost = missing is not None and missing.cause is UnderlyingCause.WAIT_FOR_RECOVERY
        due = not job_state.ready and not (is_lost and job_state.suspended)
        if missing is not None and missing.remaining_s <= 0 and due:
            timed_out = self._timeouts.time_out(workload, missing.cause, now.wall)
        retention_over = retained_s is not None and retained_s <= 0
        gang_check = None
        if self._gang_pods is not None:
            live = self._live_pods(job.metadata.uid).running
            gang_check, later_s = self._gang_pods.check(
                job,
                workload,
                job_state.gang,
                elapsed,
                live=live,
                done_pods=job_state.done_pods,
            )
            if later_s > 0:
                self.queue.add_later(key, later_s)
        return replace(
            job_state,
            gang_check=gang_check,
            retention_over=retention_over,
            execution=execution,
            timed_out=timed_out,
            requeue_in_s=paused,
        )

    def _pods_beyond_admission(self, job: JobLike, workload: Workload | None) -> int:
        """Pods that run beyond those admitted, where no gate holds them.

        A replacement pod is created after the previous pod ended or began to terminate, and the
        watch
        shows both in this order: no correct job has more pods, not even for a moment.
        """
        count = self._live_pods(job.metadata.uid)
        if workload is None or not _exceeds_admission(workload, count):
            return 0
        return max(count.running + count.has_long_grace_period, -(-count.total // 2)) - total_pods(
            workload
        )

    def _is_overdue(self, key: Key, job: JobLike, after_s: float) -> bool:
        """Whether a job has waited `after_s` for its pods; otherwise the key is queued again."""
        now, start = clock.monotonic(), job.metadata.generation
        generation, since = self._waiting_for_pods_since.get(key, (None, 0.0))
        if generation != start:
            self._waiting_for_pods_since[key] = start, now
            since = now
        left_s = since + after_s - now
        if left_s > 0:
            self.queue.add_later(key, left_s)
            return False
        del self._waiting_for_pods_since[key]
        return True

    def _notify_in_sync(self, workload: str) -> None:
        """A job was stopped, and its Workload did not change with it."""
        if workload in self._out_of_sync:
            self._out_of_sync.discard(workload)
            self._on_in_sync(workload)

    def _is_cache_behind(self, key: Key, job: JobLike, workloads: Iterable[Workload]) -> bool:
        behind = self._assumed_writes.is_stale
        # Children are only written while it is suspended, and only then their events arrive here.
        children = self._children_of(job) if kind_of(job).is_suspended(job) else ()
        if isinstance(job, PodGroup) and self._pods is not None and self._pods.is_behind(job):
            return True
        return (
            behind(key.kind, job.metadata)
            or any(behind(WORKLOADS.kind, workload.metadata) for workload in workloads)
            or any(behind(JOBS.kind, child.metadata) for child in children)
        )

    async def _reconcile_workload(self, key: Key) -> None:
        workload = self._stores.workloads.get(key.name)
        if workload is None or self._assumed_writes.is_stale(WORKLOADS.kind, workload.metadata):
            return
        live_pods = self._pods_holding_quota(workload.job_uid)
        if not workload.owner_uid:
            await self._reconcile_ownerless_workload(key, workload, live_pods)
            return
        if self._is_owner_foreign(workload):
            action = plan_orphaned_workload(workload, live_pods, "its owner was changed")
            await self._executor.execute(None, action)
            return
        owner = owner_of(workload)
        is_plain = owner is not None and owner[0] in POD_KINDS
        if owner is None or (is_plain and owner[0].name not in self._stores.jobs):
            return  # The controller of that kind handles it.
        job = self.job_for(workload)
        if job is not None:
            self._left_to_collector_until.pop(workload.metadata.key, None)
            self.queue.add(_key(job))
            return
        wait_s = self._garbage_collection_left_s(workload)
        if wait_s > 0:
            self.queue.add_later(key, wait_s)
            return
        await self._reconcile_missing_owner(key, workload, *owner)

    async def _reconcile_ownerless_workload(
        self, key: Key, workload: Workload, live_pods: int
    ) -> None:
        now = Moment(clock.now(), clock.monotonic())
        elapsed = self._elapsed.at(workload.metadata.key, now)
        execution = execution_time(workload, elapsed)
        paused = backoff_remaining_s(workload, elapsed)
        kept_s = self._retention.remaining_s(workload, elapsed)
        for delay_s in (execution.remaining_s if execution is not None else None, paused, kept_s):
            if delay_s is not None and delay_s > 0:
                self.queue.add_later(key, delay_s)
        is_over = kept_s is not None and kept_s <= 0
        action = plan_ownerless_workload(
            workload, live_pods, execution, paused, retention_over=is_over
        )
        await self._executor.execute(None, action)

    def _garbage_collection_left_s(self, workload: Workload) -> float:
        """Seconds to leave a Workload to the garbage collector, which deletes it with its job.

        Only a finished Workload without quota: most likely its job was deleted, or it lost its
        queue label, and no other object depends on the Workload.
        """
        meta = workload.metadata
        over = workload.is_true(names.WorkloadCondition.FINISHED)
        if not over or names.IN_USE_FINALIZER in meta.finalizers:
            return 0.0
        now = clock.monotonic()
        return max(
            0.0,
            self._left_to_collector_until.setdefault(meta.key, now + GARBAGE_COLLECTION_S) - now,
        )

    async def _reconcile_missing_owner(
        self, key: Key, workload: Workload, kind: GenericJob[Any], owner: str
    ) -> None:
        """Read the owner live: unmanaged jobs are not watched, and a watch may lag."""
        live = (
            None if self._is_owner_missing(workload) else await self._executor.read_job(kind, owner)
        )
        if live is None or not is_owned_by(workload, live.metadata.uid):
            self._record_missing_owner(workload)
            live_pods = self._pods_holding_quota(workload.job_uid)
            await self._executor.execute(None, plan_orphaned_workload(workload, live_pods))
        elif names.QUEUE_LABEL in live.metadata.labels:
            self.queue.add_later(key, POLL_S)
        elif isinstance(live, PodGroup):
            return  # no one may remove the label
        else:
            live_pods = self._remaining_pods(live)
            job_state = read_job_state(
                live, workload, Priority(), children=self._children_of(live), live_pods=live_pods
            )
            if await self._are_pods_gone(key, live, workload, job_state, unmanaged=True):
                job_state = replace(job_state, pods_gone=True)
            action = plan_unmanaged_job(live, workload, job_state)
            await self._execute(live, workload, job_state, action)
            self._assumed_writes.forget(kind.name, owner)  # no watch will show it
            # The pod watch reports pods that must be gone first.
            pods_remain = (
                isinstance(action, NoAction) and self._pods_holding_quota(workload.job_uid) > 0
            )
            self.queue.add_later(key, PODS_LEFT_POLL_S if pods_remain else POLL_S)

    def _is_owner_missing(self, workload: Workload) -> bool:
        meta = workload.metadata
        known = self._missing_owners.get(meta.key)
        return known is not None and known == workload.owner_uid

    def _record_missing_owner(self, workload: Workload) -> None:
        meta = workload.metadata
        # The uid of a group is used again by the next group of its name.
        if meta.controller is not None and meta.key in self._stores.workloads:
            self._missing_owners[meta.key] = meta.controller.uid

    def _is_owner_foreign(self, workload: Workload) -> bool:
        """Whether a Workload of a job got another owner, which has none of its pods."""
        if workload.metadata.key in self._owner_removed and self.job_for(workload) is None:
            return True
        named = workload.parent
        key = f"{workload.metadata.namespace}/{named.name}" if named is not None else ""
        return has_foreign_owner(workload, self._stores.workloads.get(key))

    def _pods_holding_quota(self, job_uid: str) -> int:
        """Pods whose quota is kept until they are gone."""
        return self._live_pods(job_uid).total if self._hold_for_terminating and job_uid else 0

    def _remaining_pods(self, job: JobLike) -> int:
        """As `_pods_holding_quota`, including pods that only the status of the job shows.

        The watches of pods and of jobs are not in sync: each may be ahead of the other.
        """
        if not self._hold_for_terminating:
            return 0
        count = self._live_pods(job.metadata.uid)
        reported = (
            kind_of(job).remaining_pods(job, self._children_of(job)) - count.on_unreachable_node
        )
        return max(count.total, reported)

    def _job_state(
        self,
        job: JobLike,
        workload: Workload | None,
        *,
        beyond_admission: int = 0,
        waits: bool = False,
    ) -> JobState:
        priority = resolve_priority(
            job, self._stores.workload_priority_classes, self._stores.priority_classes
        )
        if isinstance(job, GangGroup):
            return read_gang_state(
                job,
                workload,
                priority,
                live_pods=self._remaining_pods(job),
                beyond_admission=beyond_admission,
                waits=waits,
            )
        if isinstance(job, PodGroup):
            live_pods = self._remaining_pods(job)
            return read_group_state(
                job, workload, priority, live_pods=live_pods, beyond_admission=beyond_admission
            )
        return read_job_state(
            job,
            workload,
            priority,
            children=self._children_of(job),
            features=self._features,
            flavors=self._stores.flavors,
            live_pods=self._remaining_pods(job),
            beyond_admission=beyond_admission,
            gang=NO_GANG if self._gangs is None else self._gangs.job_gang(job),
        )

    def _children_of(self, job: JobLike) -> list[Job]:
        keys = sorted(self._children.get(job.metadata.uid, ()))
        return [child for key in keys if (child := self._stores.child_jobs.get(key)) is not None]

    def _child_objects_of(self, job: JobLike) -> list[JobLike]:
        """Its children of other kinds of jobs: the RayCluster of a RayJob."""
        stores = [self._stores.jobs.get(kind, {}) for kind in kind_of(job).child_kinds]
        return [
            child
            for store in stores
            for child in store.values()
            if child.metadata.controller is not None
            and child.metadata.controller.uid == job.metadata.uid
        ]

    def _all_jobs(self) -> Iterable[JobLike]:
        return (job for store in self._stores.jobs.values() for job in store.values())

    def _report_missing_class(self, job: JobLike, priority: Priority) -> None:
        if priority.missing is not None:
            kind, _, name = priority.missing.partition("/")
            note = f'{kind} "{name}" does not exist; the Workload is created when it does'
            self._report.job(job, f"{kind}NotFound", note, warning=True)


def _key(job: JobLike) -> Key:
    return Key(kind_of(job).name, job.metadata.key)


def _must_release_quota(workload: Workload, *, unmanaged: bool = False) -> bool:
    """Whether a Workload has quota that it releases as soon as its job has stopped.

    Args:
        workload: as stored.
        unmanaged: its job has left its queue.
    """
    if workload.status.admission is None or workload.is_true(names.WorkloadCondition.FINISHED):
        return False
    deleted = workload.metadata.deletion_timestamp is not None
    return unmanaged or deleted or workload.is_true(names.WorkloadCondition.EVICTED)


def _exceeds_admission(workload: Workload, count: LivePodCount) -> bool:
    """Whether more pods of a job run than were admitted, where no gate holds them.

    A job whose pods are replaced has more pods while the old ones terminate. That may take a usual
    grace period; pods that terminate for longer count as running. Twice the admitted number is
    always too many: otherwise repeated deletion of pods would accumulate usage.
    """
    if workload.elastic or not pods_without_gate(workload):
        return False
    admitted = total_pods(workload)
    return count.running + count.has_long_grace_period > admitted or count.total > 2 * admitted


def _remove_from_index(index: dict[str, set[str]], item: Job | Workload) -> None:
    """Remove an object from an index by the uid of its controller."""
    owner = item.metadata.controller
    if owner is not None:
        _discard_key(index, owner.uid, item.metadata.key)


def _discard_key(index: dict[str, set[K]], name: str, key: K) -> None:
    found = index.get(name)
    if found is None:
        return
    found.discard(key)
    if not found:
        del index[name]
