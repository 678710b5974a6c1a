"""The running ungater: watches feed the machine, due Workloads are looked at, writes go out.

Standby replicas run the same watches, so their caches are warm. A replica that becomes active
lists all pods once more before its first act: its watch may lag behind the last writes of the
replica before it (UNG-13). Right before each batch the Workload itself is read live (UNG-11).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import structlog

from rackgate.api import names
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.kube.informer import Informer
from rackgate.kube.resources import PODS, WORKLOADS
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.metrics import freeze_heap
from rackgate.runtime.tasks import spawn
from rackgate_ungater import metrics
from rackgate_ungater.events import (
    Event,
    PodGone,
    PodSeen,
    UngateAccepted,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.machine import Limits, Machine, Proposal
from rackgate_ungater.plan import Ungate
from rackgate_ungater.reporter import Reporter
from rackgate_ungater.rows import PodRow, WorkloadKey, WorkloadRow, decode_pod, decode_workload
from rackgate_ungater.schedule import Schedule
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_ungater.writer import Writer

log = structlog.get_logger()

# The value of the label is not trusted, its presence only keeps other pods off the wire.
SELECTOR = {"labelSelector": names.TAS_LABEL}


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] = []


class Ungater:
    """One replica: `watch` always, `lead` while it holds the lease.

    Args:
        settings: see `UngaterConfiguration`.
        client: for watches and lists.
        writer: for patches and live reads.
        reporter: takes Events.
        stop: set when the process should end.
    """

    def __init__(
        self,
        settings: UngaterConfiguration,
        client: Client,
        writer: Writer,
        reporter: Reporter,
        stop: asyncio.Event,
    ) -> None:
        self.settings = settings
        self.machine = Machine(Limits(expectation_s=settings.expectation_timeout))
        self._client, self._writer, self._reporter = client, writer, reporter
        self._stop = stop
        self._schedule: Schedule[WorkloadKey] = Schedule()
        self._active: set[WorkloadKey] = set()
        self._again: set[WorkloadKey] = set()
        self._backoff = Backoff(base_s=0.1, cap_s=30.0)
        self._changed = asyncio.Event()
        self._leading = False
        self.pods = Informer(
            client,
            PODS,
            decode_pod,
            on_upsert=lambda _, row: self._heard(PodSeen(row)),
            on_delete=lambda row: self._heard(PodGone(row.uid)),
            params=SELECTOR,
            key_of=lambda row: row.key,
            version_of=lambda row: row.resource_version,
            uid_of=lambda row: row.uid,
        )
        self.workloads = Informer(
            client,
            WORKLOADS,
            decode_workload,
            on_upsert=lambda _, row: self._heard(WorkloadSeen(row)),
            on_delete=self._workload_deleted,
            key_of=lambda row: row.key,
            version_of=lambda row: row.resource_version,
            uid_of=lambda row: row.uid,
        )
        metrics.EXPECTATIONS.set_function(lambda: len(self.machine.expectations))

    def missing(self) -> list[str]:
        """What keeps this replica from being ready."""
        return self.pods.missing() + self.workloads.missing()

    async def watch(self) -> None:
        """Keep the caches warm, until cancelled."""
        async with asyncio.TaskGroup() as group:
            spawn(group, self.workloads.run(), "workloads")
            spawn(group, self.pods.run(), "pods")
            spawn(group, self._resync(), "resync")

    async def lead(self) -> None:
        """Act, until told to stop: what is under way is finished, nothing new begins."""
        await self.workloads.synced.wait()
        await self.pods.synced.wait()
        await self._list_afresh()
        self._leading = True
        self._schedule = Schedule()
        try:
            self._look_at_all()
            async with asyncio.TaskGroup() as group:
                await self._work(group)
        finally:
            self._leading = False
            self._active.clear()
            self._again.clear()

    # Hearing ------------------------------------------------------------------------------

    def _heard(self, event: Event) -> None:
        key = self.machine.handle(event)
        if key is not None and self._leading:
            self._due(key, self.settings.batch_window)

    def _workload_deleted(self, row: WorkloadRow) -> None:
        self._heard(WorkloadGone(row.key, row.uid))
        self._reporter.forget(row.key)
        self._backoff.reset(row.key)

    def _due(self, key: WorkloadKey, wait_s: float) -> None:
        at = clock.monotonic() + wait_s
        if self._schedule.add(key, at) and self._schedule.next_at() == at:
            self._changed.set()

    def _look_at_all(self) -> None:
        """Every Workload with gated pods is due now: no event needs to remind us (U11)."""
        for key, group in self.machine.groups.items():
            if group.gated and group.row is not None and group.row.granting:
                self._due(key, 0.0)

    async def _list_afresh(self) -> None:
        """Learn what the replica before us wrote last, also where our watch is behind."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        while True:
            try:
                async for row in self._listed():
                    self.machine.handle(PodSeen(row, live=True))
            except KubeError as error:
                log.warning("list_failed", resource="pods", error=str(error))
                await asyncio.sleep(backoff.next())
            else:
                return

    async def _listed(self) -> AsyncIterator[PodRow]:
        decoder = msgspec.json.Decoder(_Page)
        async for page in self._client.list_pages(PODS.path(), SELECTOR):
            for raw in decoder.decode(page).items:
                try:
                    yield decode_pod(raw)
                except msgspec.MsgspecError as error:
                    log.warning("object_not_decoded", resource="pods", error=str(error))

    # Working ------------------------------------------------------------------------------

    async def _work(self, group: asyncio.TaskGroup) -> None:
        """Start a look at each due Workload; as many at once as writes may be under way."""
        spawn(group, self._wake_on_stop(), "stop")
        limit = self.settings.ungating.concurrency
        while not self._stop.is_set():
            self._changed.clear()
            while len(self._active) < limit:
                key = self._schedule.take(clock.monotonic())
                if key is None:
                    break
                if key in self._active:
                    self._again.add(key)  # never two looks at one Workload at a time
                    continue
                self._active.add(key)
                spawn(group, self._look(key), f"look {key}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s(limit)):
                    await self._changed.wait()

    async def _wake_on_stop(self) -> None:
        await self._stop.wait()
        self._changed.set()

    def _idle_s(self, limit: int) -> float | None:
        """Seconds until time alone makes a Workload due."""
        at = self._schedule.next_at()
        if at is None or len(self._active) >= limit:
            return None  # an event, or a look that ends, sets `_changed`
        return max(0.0, at - clock.monotonic())

    async def _look(self, key: WorkloadKey) -> None:
        """One look at one Workload, and the time of the next one."""
        try:
            done = await self._reconcile(key)
        except Exception:
            log.exception("reconcile_failed", workload=key)
            done = False
        finally:
            self._active.discard(key)
            self._changed.set()
        if done:
            self._backoff.reset(key)
        else:
            self._due(key, self._backoff.next(key))
        if key in self._again:
            self._again.discard(key)
            self._due(key, 0.0)
        now = clock.monotonic()
        wake_at = self.machine.wake_at(key, now)
        if wake_at is not None:
            self._due(key, wake_at - now)

    async def _reconcile(self, key: WorkloadKey) -> bool:
        """Read what is in doubt, plan, confirm, write; False when something must be retried."""
        metrics.RECONCILES.inc()
        proposal = self._propose(key)
        failures = 0
        if proposal.reads:
            metrics.OVERDUE.inc(proposal.overdue)
            failures = await self._writer.read_pods(proposal.reads, self._heard)
            proposal = self._propose(key)
        if proposal.ungates:
            confirmed = await self._confirm(key, proposal)
            if confirmed is None:
                return False
            proposal = confirmed
        if proposal.held:
            metrics.HELD.inc()
            log.debug("ungating_awaited", workload=key, count=proposal.held)
        group = self.machine.groups.get(key)
        if group is None or group.row is None:
            return failures == 0
        self._reporter.tell(group.row, proposal.reports)
        if proposal.ungates:
            failures += await self._ungate(group.row, proposal.ungates)
        return failures == 0

    def _propose(self, key: WorkloadKey) -> Proposal:
        return self.machine.propose(key, clock.monotonic(), clock.now().timestamp())

    async def _confirm(self, key: WorkloadKey, proposal: Proposal) -> Proposal | None:
        """Read the Workload live and propose again if anything changed meanwhile."""
        row = self.machine.groups[key].row
        event = await self._writer.read_workload(row) if row else None
        if event is None:
            return None
        self.machine.handle(event)
        group = self.machine.groups.get(key)
        if group is not None and group.version == proposal.version:
            return proposal
        return self._propose(key)

    async def _ungate(self, row: WorkloadRow, ungates: list[Ungate]) -> int:
        """Record, then write; returns how many writes must be tried again."""
        started = clock.monotonic()
        self.machine.commit(ungates, started)
        metrics.BATCH.observe(len(ungates))
        wait_s = _wait_since(row)

        def tell(event: Event) -> None:
            if wait_s is not None and isinstance(event, UngateAccepted):
                _observe_wait(row, wait_s + event.now - started)
            self._heard(event)

        done, failed = await self._writer.patch_pods(ungates, tell)
        log.info(
            "pods_ungated",
            workload=row.key,
            count=done,
            failed=failed,
            duration_s=round(clock.monotonic() - started, 3),
        )
        return failed

    # Looking around -----------------------------------------------------------------------

    async def _resync(self) -> None:
        """Look at everything that is gated from time to time; requests only where work is."""
        await self.workloads.synced.wait()
        await self.pods.synced.wait()
        freeze_heap()
        known: set[str] = set()
        while True:
            orphans = self.machine.orphans()
            metrics.ORPHANS.set(len(orphans))
            if self._leading:
                self._look_at_all()
                # Twice in a row: a pod may simply be seen before its Workload.
                self._reporter.tell_orphans([pod for pod in orphans if pod.uid in known])
            known = {pod.uid for pod in orphans}
            await asyncio.sleep(self.settings.resync_period)


def _wait_since(row: WorkloadRow) -> float | None:
    """Seconds since the Workload was admitted, by the wall clocks of both; None if unknown."""
    if row.admitted_at is None:
        return None
    try:
        admitted = clock.parse_rfc3339(row.admitted_at)
    except ValueError:
        return None
    return max(0.0, (clock.now() - admitted).total_seconds())


def _observe_wait(row: WorkloadRow, wait_s: float) -> None:
    metrics.GATE_REMOVAL.labels(name=names.TOPOLOGY_GATE, cluster_queue=row.cluster_queue).observe(
        wait_s
    )
