"""The ungater: feeds the state machine from watches, reconciles due Workloads, patches pods.

Every replica runs the same watches, so its caches are warm for all shards. A replica that acquires
a shard lists all pods again before it acts on it: its watch may lag behind the last writes of the
previous holder (UNG-13). Right before each batch the Workload itself is read live (UNG-11).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

import structlog

from rackgate.api import names
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.metrics import freeze_heap
from rackgate.runtime.tasks import spawn
from rackgate_ungater import metrics
from rackgate_ungater.informers import SELECTOR, Informers, PodRelister
from rackgate_ungater.native_groups_controller import NativeGroupsController
from rackgate_ungater.reporter import Reporter
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_ungater.shards.elector import HeldShard, run_unless
from rackgate_ungater.shards.handover import shard_of
from rackgate_ungater.state_machine.events import (
    Event,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gang_waits import HOLD_REASONS, GangWaits
from rackgate_ungater.state_machine.gang_workloads import GangWorkload
from rackgate_ungater.state_machine.gangs import (
    GangStart,
    NeededGroup,
    first_of_gangs,
    rest_of_gangs,
    run_of,
)
from rackgate_ungater.state_machine.gated_objects import GANG, GatedWorkload, WorkloadKey
from rackgate_ungater.state_machine.queue import Backlog, BatchTimer, DelayQueue
from rackgate_ungater.state_machine.records import Timeouts, Tombstones
from rackgate_ungater.state_machine.state_machine import Proposal, StateMachine
from rackgate_ungater.state_machine.ungating_plan import Ungate
from rackgate_ungater.writer import Writer

# Gauges that are read within this time belong to one scrape.
SCRAPE_S: Final = 0.05

log = structlog.get_logger()


class Ungater:
    """One replica: `watch` always, `lead` for each shard while it holds the shard's Lease.

    Args:
        settings: see `UngaterConfiguration`.
        client: for watches and lists.
        writer: for patches and live reads.
        reporter: records Events.
    """

    def __init__(
        self, settings: UngaterConfiguration, client: Client, writer: Writer, reporter: Reporter
    ) -> None:
        self.settings = settings
        gates = settings.features
        native = gates.gang_scheduling and gates.native_pod_groups
        self.machine = StateMachine(
            Timeouts(expectation_s=settings.expectation_timeout), native_groups=native
        )
        self._writer, self._reporter = writer, reporter
        self._native = (
            NativeGroupsController(
                client,
                settings.leader_election.namespace,
                on_change=self._native_group_changed,
            )
            if native
            else None
        )
        self.informers = Informers(
            client,
            self._handle_event,
            self._workload_deleted,
            elastic=settings.features.elastic_jobs,
            on_gang_workload=self._gang_workload_changed
            if settings.features.gang_scheduling
            else None,
            watch_nodes=settings.features.nodes_by_name,
        )
        self.pods, self.workloads = self.informers.pods, self.informers.workloads
        # The watch does not repeat objects that a list showed first.
        self._relister = PodRelister(
            client,
            SELECTOR,
            lambda pod: self._handle_event(PodSeen(pod, live=True, listed=True)),
            known=lambda namespace: [
                pod.uid for pod in self.machine.pods.values() if namespace in (None, pod.namespace)
            ],
            on_deleted=lambda uid, version: self._handle_event(PodGone(uid, version)),
            decode=self.informers.decode_pod,
        )
        self._held_shards: dict[int, HeldShard] = {}
        self._recreated = Tombstones(limit=4096)
        self._queue: DelayQueue[WorkloadKey] = DelayQueue()
        self._batches: BatchTimer[WorkloadKey] = BatchTimer(settings.batch_window)
        self._gang_waits = GangWaits()
        self._active: set[WorkloadKey] = set()
        self._requeued: set[WorkloadKey] = set()
        self._backoff = Backoff(base_s=0.1, cap_s=30.0)
        self._wake_up = asyncio.Event()
        self._backlog = Backlog()
        metrics.EXPECTATIONS.set_function(lambda: len(self.machine.expectations))
        self._backlog_updated_at = float("-inf")
        metrics.GATED.set_function(lambda: len(self._updated_backlog().since))
        metrics.LONGEST_GATED.set_function(
            lambda: self._updated_backlog().longest_s(clock.monotonic())
        )
        metrics.LONGEST_GANG_WAIT.set_function(
            lambda: self._updated_backlog().longest_gang_wait_s(clock.monotonic())
        )
        for reason in HOLD_REASONS:
            metrics.GANG_HELD.labels(reason).set_function(partial(self._count_held, reason))

    def missing(self) -> list[str]:
        """Why this replica is not ready."""
        return self.informers.missing()

    async def watch(self) -> None:
        """Keep the caches warm, until cancelled."""
        async with asyncio.TaskGroup() as task_group:
            spawn(task_group, self.informers.run(), "sources")
            spawn(task_group, self._relister.run(), "relist")
            spawn(task_group, self._resync(), "resync")
            spawn(task_group, self._start_due_reconciles(), "work")
            if self._native is not None:
                spawn(task_group, self._native.run(), "native PodGroups")

    async def synced(self) -> None:
        """Return when the caches are filled."""
        await self.informers.synced()

    async def lead(self, shard: int, deadline: Callable[[], float], leave: asyncio.Event) -> None:
        """Act on the Workloads of one shard. Cancellation aborts requests under way.

        Args:
            shard: as `shard_of` says.
            deadline: monotonic time until which requests may be sent; checked before each.
            leave: once set, requests under way are finished and no new work starts.
        """
        if not await run_unless(leave, self._sync_and_relist()):
            return
        async with asyncio.TaskGroup() as task_group:
            self._held_shards[shard] = HeldShard(task_group, deadline, leave)
            try:
                self._enqueue_all((shard,))
                await leave.wait()
            finally:
                del self._held_shards[shard]

    async def _sync_and_relist(self) -> None:
        await self.synced()
        await self._relister.relist()

    def has_no_open_requests(self, shard: int) -> bool:
        """Whether every request for a shard was answered or can no longer be applied."""
        workloads_in_flight = self.machine.workloads_in_flight(clock.monotonic())
        return not any(self._shard_of_workload(key) == shard for key in workloads_in_flight)

    @property
    def leading(self) -> set[int]:
        """The shards that this replica acts on now."""
        return set(self._held_shards)

    # Hearing ------------------------------------------------------------------------------

    def _handle_event(self, event: Event) -> None:
        key = self.machine.handle(event)
        if key is not None:
            self._enqueue(key, one_pod=isinstance(event, PodSeen | PodGone))
        elif isinstance(event, WorkloadSeen) and self._has_outdated_groups(event.workload.key):
            self._enqueue(event.workload.key, one_pod=False)

    def _has_outdated_groups(self, key: WorkloadKey) -> bool:
        """Whether a Workload has PodGroups of earlier runs that are not deleted yet."""
        workload_state = self.machine.workload_states.get(key)
        if self._native is None or workload_state is None or workload_state.workload is None:
            return False
        run = run_of(workload_state)
        return bool(self._native.outdated(workload_state.workload.uid, run))

    def _native_group_changed(self, key: WorkloadKey) -> None:
        if key in self.machine.workload_states:
            self._enqueue(key, one_pod=False)

    def _gang_workload_changed(self, key: str, workload: GangWorkload | None) -> None:
        for user in self.machine.set_gang_workload(key, workload):
            self._enqueue(user, one_pod=False)

    def _enqueue(self, key: WorkloadKey, *, one_pod: bool) -> None:
        if self._held_shard_of(key) is None:
            return
        workload_state, owners = self.machine.workload_states[key], self.machine.owners
        now = clock.monotonic()
        self._enqueue_after(
            key, self._batches.wait_s(key, workload_state, owners, now, one_pod=one_pod)
        )

    def _workload_deleted(self, workload: GatedWorkload) -> None:
        self._handle_event(WorkloadGone(workload.key, workload.uid))
        if workload.parent is not None:
            return  # slices are not reconciled themselves
        self._recreated.add(workload.key)
        if self._native is not None:
            self._native.forget(workload)
        self._batches.forget(workload.key)
        self._reporter.forget(workload.key)
        self._gang_waits.forget(workload.key)
        self._backoff.reset(workload.key)

    def _enqueue_after(self, key: WorkloadKey, wait_s: float) -> None:
        at = clock.monotonic() + wait_s
        if self._queue.add(key, at) and self._queue.next_at() == at:
            self._wake_up.set()

    def _enqueue_all(self, shards: Collection[int]) -> None:
        """Make every Workload with gated pods due now, without further events (U11)."""
        for key, workload_state in self.machine.workload_states.items():
            due = workload_state.may_ungate or self._has_outdated_groups(key)
            if due and self._shard_of_workload(key) in shards:
                self._enqueue_after(key, 0.0)

    # Sharding -----------------------------------------------------------------------------

    def _shard_of_workload(self, key: WorkloadKey) -> int | None:
        """The shard of a Workload; None while it is not known."""
        workload = self.machine.workload(key)
        return None if workload is None else shard_of(workload.uid)

    def _held_shard_of(self, key: WorkloadKey) -> HeldShard | None:
        """The held shard of a Workload; None when another replica acts on it."""
        shard = self._shard_of_workload(key)
        held_shard = None if shard is None else self._held_shards.get(shard)
        return None if held_shard is None or held_shard.leave.is_set() else held_shard

    # Working ------------------------------------------------------------------------------

    async def _start_due_reconciles(self) -> None:
        """Reconcile each due Workload, as many concurrently as writes may be under way."""
        limit = self.settings.ungating.concurrency
        while True:
            self._wake_up.clear()
            while len(self._active) < limit:
                key = self._queue.pop_due(clock.monotonic())
                if key is None:
                    break
                self._start_reconcile(key)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s(limit)):
                    await self._wake_up.wait()

    def _start_reconcile(self, key: WorkloadKey) -> None:
        held_shard = self._held_shard_of(key)
        if held_shard is None:
            self._backoff.reset(key)
            return  # of another replica, which reconciles all Workloads when it acquires the shard
        if key in self._active:
            self._requeued.add(key)  # never two reconciliations of one Workload at a time
            return
        self._active.add(key)
        self._batches.reconcile_started(key, clock.monotonic())
        task = spawn(
            held_shard.task_group, self._reconcile_and_requeue(key, held_shard), f"reconcile {key}"
        )
        # A task that is cancelled before it starts runs no code of its own.
        task.add_done_callback(lambda _: self._reconcile_ended(key))

    def _reconcile_ended(self, key: WorkloadKey) -> None:
        self._active.discard(key)
        if key in self._requeued:
            self._requeued.discard(key)
            self._enqueue_after(key, 0.0)
        self._wake_up.set()

    def _idle_s(self, limit: int) -> float | None:
        """Seconds until a Workload is due without an event."""
        at = self._queue.next_at()
        if at is None or len(self._active) >= limit:
            return None  # an event, or a reconciliation that ends, sets `_wake_up`
        return max(0.0, at - clock.monotonic())

    async def _reconcile_and_requeue(self, key: WorkloadKey, held_shard: HeldShard) -> None:
        """Reconcile one Workload once and schedule the next time."""
        try:
            done = await self._reconcile(key, held_shard)
        except Exception:
            log.exception("reconcile_failed", workload=key)
            done = False
        if done:
            self._backoff.reset(key)
        else:
            self._enqueue_after(key, self._backoff.next(key))
        now = clock.monotonic()
        for at in (self.machine.next_timer_at(key, now), self._gang_waits.next_due_at(key)):
            if at is not None:
                self._enqueue_after(key, max(0.0, at - now))

    async def _reconcile(self, key: WorkloadKey, held_shard: HeldShard) -> bool:
        """Read pods with an unknown outcome, plan, confirm, write; False to be retried."""
        metrics.RECONCILES.inc()
        # A store that was restored from a backup may have other pods and Workloads.
        informers = self.informers
        if not informers.is_confirmed and not await run_unless(
            held_shard.leave, informers.wait_confirmed()
        ):
            return False
        if not await self._relist_if_recreated(key, held_shard):
            return False
        failures = await self._delete_outdated_groups(key, held_shard)
        proposal = self._propose(key)
        if proposal.reads:
            metrics.OVERDUE.inc(proposal.overdue)
            failures += await self._writer.read_pods(
                proposal.reads, self._handle_event, held_shard.deadline
            )
            proposal = self._propose(key)
        if proposal.ungates:
            confirmed = await self._confirm_live(key, proposal, held_shard)
            if confirmed is None:
                return False
            proposal = confirmed
        if proposal.awaiting_expectations:
            metrics.HELD.inc()
            log.debug("ungating_awaited", workload=key, count=proposal.awaiting_expectations)
        workload = self.machine.workload(key)
        if workload is None:
            return failures == 0
        self._reporter.report(workload, proposal.reports)
        if proposal.gangs is None:
            self._gang_waits.forget(workload.key)
        else:
            now = clock.monotonic()
            self._gang_waits.update(workload.key, proposal.gangs, now)
            self._reporter.report_held(workload, self._gang_waits.due(workload.key, now))
        if proposal.ungates and self._held_shard_of(key) is held_shard:
            starts = proposal.gangs.starts if proposal.gangs is not None else ()
            groups = proposal.gangs.groups if proposal.gangs is not None else ()
            failures += await self._ungate(workload, proposal.ungates, starts, groups, held_shard)
        elif self._native is not None and proposal.gangs is not None:
            # Of gangs that have started: somebody may have deleted one.
            ensured = await self._native.ensure(
                workload, proposal.gangs.groups, held_shard.deadline
            )
            self._reporter.report(workload, ensured.reports)
            failures += ensured.failures
        return failures == 0

    async def _delete_outdated_groups(self, key: WorkloadKey, held_shard: HeldShard) -> int:
        """Delete the PodGroups of earlier runs; returns how many must be tried again."""
        workload = self.machine.workload(key)
        if self._native is None or workload is None or not self._has_outdated_groups(key):
            return 0
        # Another replica may have made them for a run that the watch has not shown yet.
        event = await self._writer.read_workload(workload, held_shard.deadline)
        if event is None:
            return 1
        if not workload.elastic:
            self.machine.handle(event)
        known = self.machine.workload(key)
        if known is None or known.uid != workload.uid:
            return 0
        run = run_of(self.machine.workload_states[key])
        found = self._native.outdated(known.uid, run)
        return sum([not await self._native.delete(group) for group in found])

    def _count_held(self, reason: str) -> int:
        """Pods of gangs of our shards that wait for that reason."""

        def counts(key: WorkloadKey) -> bool:
            workload_state = self.machine.workload_states.get(key)
            admitted = workload_state is not None and workload_state.may_ungate
            return admitted and self._held_shard_of(key) is not None

        return self._gang_waits.count(reason, counts)

    async def _relist_if_recreated(self, key: WorkloadKey, held_shard: HeldShard) -> bool:
        """Whether the caches include the last writes for an earlier Workload of this name.

        The earlier one had another UID and may be in another shard. The watch may lag behind the
        last writes of the replica that holds that shard.
        """
        while key in self._recreated:
            self._recreated.discard(key)  # before the list: it may be recreated again
            listed = False
            try:
                namespace = key.partition("/")[0]
                listed = await run_unless(held_shard.leave, self._relister.relist(namespace))
            finally:
                if not listed:
                    self._recreated.add(key)
            if not listed:
                return False
        return True

    def _propose(self, key: WorkloadKey) -> Proposal:
        return self.machine.propose(key, clock.monotonic())

    async def _confirm_live(
        self, key: WorkloadKey, proposal: Proposal, held_shard: HeldShard
    ) -> Proposal | None:
        """Read the Workload live and propose again if it changed meanwhile."""
        workload = self.machine.workload(key)
        if workload is None:
            return None
        if workload.elastic:
            return await self._confirm_elastic_live(key, workload, proposal, held_shard)
        event = await self._writer.read_workload(workload, held_shard.deadline)
        if event is None:
            return None
        self.machine.handle(event)
        known = self.machine.workload(key)
        if known is not None and known.uid != workload.uid:
            # Recreated, and the watch may have shown it already: start again.
            self._recreated.add(key)
            self._requeued.add(key)
            return Proposal()
        return self._propose_again_if_changed(key, proposal)

    async def _confirm_elastic_live(
        self, key: WorkloadKey, workload: GatedWorkload, proposal: Proposal, held_shard: HeldShard
    ) -> Proposal | None:
        """As `_confirm_live` for an elastic Workload, but the live state is only compared.

        The watch shows it and its slices in the order of the server. If a live read replaced only
        one of them, a slice could count twice: by itself and in its parent.
        """
        workloads = await self._writer.read_slices(workload, held_shard.deadline)
        known = self.machine.workload(key)
        if (
            workloads is None
            or known is None
            or not self.machine.is_still_admitted(key, workloads)
            or known.uid != workload.uid
        ):
            return None  # the watch will show the change
        return self._propose_again_if_changed(key, proposal)

    def _propose_again_if_changed(self, key: WorkloadKey, proposal: Proposal) -> Proposal:
        workload_state = self.machine.workload_states.get(key)
        if workload_state is not None and workload_state.version == proposal.version:
            return proposal
        return self._propose(key)

    async def _ungate(
        self,
        workload: GatedWorkload,
        ungates: list[Ungate],
        starts: Sequence[GangStart],
        groups: Sequence[NeededGroup],
        held_shard: HeldShard,
    ) -> int:
        """Record, then write; returns how many writes must be tried again.

        The first pod of a gang that starts is written alone. If that fails, nothing of the gang is
        released, and it is judged again.
        """
        started = clock.monotonic()
        still_admitted = self.machine.workload_states[workload.key].admission_check()
        metrics.BATCH.observe(len(ungates))
        wait_s = metrics.seconds_since(self._last_admitted_at(workload))
        gate = names.ELASTIC_GATE if workload.elastic else names.TOPOLOGY_GATE
        if ungates[0].gates == GANG:
            gate = names.GANG_GATE
        waits = metrics.GATE_REMOVAL.labels(gate, workload.cluster_queue)
        accepted: set[str] = set()

        def on_event(event: Event) -> None:
            if starts and isinstance(event, UngateAccepted):
                accepted.add(event.uid)
            if wait_s is not None and isinstance(event, UngateAccepted):
                waits.observe(wait_s + event.now - started)
            if isinstance(event, UngateFailed):
                self.machine.handle(event)  # its backoff follows and is never shortened
            else:
                self._handle_event(event)

        def deadline() -> float:
            # A large batch takes minutes, so the state that was read before it may be outdated.
            may = still_admitted() and self.informers.is_confirmed
            return held_shard.deadline() if may else float("-inf")

        lacking = 0
        if self._native is not None:
            ensured = await self._native.ensure(workload, groups, deadline)
            self._reporter.report(workload, ensured.reports)
            ungates = [ungate for ungate in ungates if ungate.pod.uid not in ensured.held]
            starts = [start for start in starts if not start.pods & ensured.held]
            lacking = ensured.failures

        nodes, shuffle = self.informers.known_nodes(), self._backoff.failures(workload.key) > 0

        async def send(batch: list[Ungate]) -> tuple[int, int]:
            self.machine.expect_ungates(batch, clock.monotonic())
            return await self._writer.patch_pods(batch, on_event, deadline, nodes, shuffle=shuffle)

        if not ungates:
            return lacking
        if not starts:
            done, failed = await send(ungates)
        else:
            first = first_of_gangs(ungates, starts)
            done, failed = await send(first)
            rest = rest_of_gangs(ungates, starts, first, accepted, self.machine.pods)
            if rest:
                done_then, failed_then = await send(rest)
                done, failed = done + done_then, failed + failed_then
        if done:
            self._backoff.reset(workload.key)
        for start in starts:
            self._gang_started(workload, start, len(accepted & start.pods))
        log.info(
            "pods_ungated",
            workload=workload.key,
            count=done,
            failed=failed + lacking,
            duration_s=round(clock.monotonic() - started, 3),
        )
        return failed + lacking

    def _gang_started(self, workload: GatedWorkload, start: GangStart, released: int) -> None:
        if not released:
            return  # not started: all pods of the gang are still gated
        metrics.GANG_MEMBERS.observe(released)
        complete_at = self._batches.complete_at(workload.key)
        if complete_at is not None:
            metrics.GANG_RELEASE.observe(clock.monotonic() - complete_at)
        self._reporter.report_start(workload, start, released)

    def _last_admitted_at(self, workload: GatedWorkload) -> str | None:
        """When the Workload or its latest slice was admitted, if known."""
        workload_state = self.machine.workload_states.get(workload.key)
        slices = workload_state.admitted_slices() if workload_state and workload.elastic else []
        times = [slice_.admitted_at for slice_ in slices if slice_.admitted_at is not None]
        return max(times, default=workload.admitted_at)

    def _updated_backlog(self) -> Backlog:
        """The gated pods of admitted Workloads, computed once per scrape."""
        now = clock.monotonic()
        if now - self._backlog_updated_at >= SCRAPE_S:
            self._backlog_updated_at = now
            self._backlog.update(self.machine.workload_states.values(), self.machine.owners, now)
        return self._backlog

    # Looking around -----------------------------------------------------------------------

    async def _resync(self) -> None:
        """Reconcile every Workload with gated pods from time to time."""
        await self.synced()
        freeze_heap()
        known: set[str] = set()
        while True:
            orphans = self.machine.orphans()
            metrics.ORPHANS.set(len(orphans))
            self._updated_backlog()  # also if metrics are not scraped
            self._enqueue_all(self._held_shards)
            # In two consecutive resyncs, because a pod may be seen before its Workload. One replica
            # reports it.
            ours = (pod for pod in orphans if shard_of(pod.workload_key) in self._held_shards)
            self._reporter.report_orphans([pod for pod in ours if pod.uid in known])
            known = {pod.uid for pod in orphans}
            await asyncio.sleep(self.settings.resync_period)
