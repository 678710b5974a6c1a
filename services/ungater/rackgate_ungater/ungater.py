"""The running ungater: watches feed the machine, due Workloads are looked at, writes go out.

Every replica runs the same watches, so its caches are warm for all shards. One that gains a shard
lists all pods once more before its first act on it: its watch may lag behind the last writes of
the replica before it (UNG-13). Right before each batch the Workload itself is read live (UNG-11).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import Final

import structlog

from rackgate.api import names
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.metrics import freeze_heap
from rackgate.runtime.tasks import spawn
from rackgate_ungater import metrics
from rackgate_ungater.machine.backlog import Backlog
from rackgate_ungater.machine.batches import Batches
from rackgate_ungater.machine.events import (
    Event,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadGone,
)
from rackgate_ungater.machine.machine import Machine
from rackgate_ungater.machine.plan import Ungate
from rackgate_ungater.machine.proposals import Proposal
from rackgate_ungater.machine.rows import PodUid, WorkloadKey, WorkloadRow
from rackgate_ungater.machine.schedule import Schedule
from rackgate_ungater.machine.state import Limits, Tombstones
from rackgate_ungater.relist import Relist
from rackgate_ungater.reporter import Reporter
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_ungater.shards.assignment import shard_of
from rackgate_ungater.shards.tenure import Tenure, unless
from rackgate_ungater.watches import Sources
from rackgate_ungater.writer import Writer

# Gauges that are read within so short a time are read by one scrape.
SCRAPE_S: Final = 0.05

log = structlog.get_logger()


class Ungater:
    """One replica: `watch` always, `lead` for each shard while it holds the shard's Lease.

    Args:
        settings: see `UngaterConfiguration`.
        client: for watches and lists.
        writer: for patches and live reads.
        reporter: takes Events.
    """

    def __init__(
        self,
        settings: UngaterConfiguration,
        client: Client,
        writer: Writer,
        reporter: Reporter,
    ) -> None:
        self.settings = settings
        self.machine = Machine(Limits(expectation_s=settings.expectation_timeout))
        self._writer, self._reporter = writer, reporter
        self.sources = Sources(
            client,
            self._heard,
            self._workload_deleted,
            elastic=settings.features.elastic_jobs,
            names_nodes=settings.features.nodes_by_name,
        )
        self.pods, self.workloads = self.sources.pods, self.sources.workloads
        # The watch will tell nothing new of what a list showed first.
        self._relist = Relist(
            client,
            self.sources.selector,
            lambda row: self._heard(PodSeen(row, live=True, listed=True)),
            known=self._known_pods,
            gone=lambda uid, version: self._heard(PodGone(uid, version)),
        )
        self._tenures: dict[int, Tenure] = {}
        self._remade = Tombstones(limit=4096)
        self._schedule: Schedule[WorkloadKey] = Schedule()
        self._batches: Batches[WorkloadKey] = Batches(settings.batch_window)
        self._active: set[WorkloadKey] = set()
        self._again: set[WorkloadKey] = set()
        self._backoff = Backoff(base_s=0.1, cap_s=30.0)
        self._changed = asyncio.Event()
        self._backlog = Backlog()
        metrics.EXPECTATIONS.set_function(lambda: len(self.machine.expectations))
        self._counted_at = float("-inf")
        metrics.GATED.set_function(lambda: len(self._waiting().since))
        metrics.LONGEST_GATED.set_function(lambda: self._waiting().longest_s(clock.monotonic()))

    def missing(self) -> list[str]:
        """What keeps this replica from being ready."""
        return self.sources.missing()

    async def watch(self) -> None:
        """Keep the caches warm, until cancelled."""
        async with asyncio.TaskGroup() as group:
            spawn(group, self.sources.run(), "sources")
            spawn(group, self._relist.run(), "relist")
            spawn(group, self._resync(), "resync")
            spawn(group, self._work(), "work")

    async def synced(self) -> None:
        """Return when the caches have been filled."""
        await self.sources.synced()

    async def lead(self, shard: int, deadline: Callable[[], float], leave: asyncio.Event) -> None:
        """Act on the Workloads of one shard; cancelled, whatever is under way is given up.

        Args:
            shard: as `shard_of` says.
            deadline: monotonic second until which requests may be sent; asked before each.
            leave: once set, what is under way is finished and nothing new begins.
        """
        if not await unless(leave, self._fresh()):
            return
        async with asyncio.TaskGroup() as group:
            self._tenures[shard] = Tenure(group, deadline, leave)
            try:
                self._look_at_all((shard,))
                await leave.wait()
            finally:
                del self._tenures[shard]

    def _known_pods(self, namespace: str | None) -> list[PodUid]:
        rows = self.machine.pods.values()
        return [row.uid for row in rows if namespace in (None, row.namespace)]

    async def _fresh(self) -> None:
        await self.synced()
        await self._relist.fresh()

    def settled(self, shard: int) -> bool:
        """Whether every request for a shard was answered, or cannot be applied any more."""
        flights = self.machine.flights(clock.monotonic())
        return not any(self._shard(key) == shard for key in flights)

    @property
    def leading(self) -> set[int]:
        """The shards that are acted on now."""
        return set(self._tenures)

    # Hearing ------------------------------------------------------------------------------

    def _heard(self, event: Event) -> None:
        key = self.machine.handle(event)
        if key is None or self._tenure(key) is None:
            return
        group, owners = self.machine.groups[key], self.machine.owners
        one_pod = isinstance(event, PodSeen | PodGone)
        now = clock.monotonic()
        self._due(key, self._batches.wait_s(key, group, owners, now, one_pod=one_pod))

    def _workload_deleted(self, row: WorkloadRow) -> None:
        self._heard(WorkloadGone(row.key, row.uid))
        if row.parent is not None:
            return  # nobody acts on a slice, whatever is made under its name
        self._remade.add(row.key)
        self._batches.forget(row.key)
        self._reporter.forget(row.key)
        self._backoff.reset(row.key)

    def _due(self, key: WorkloadKey, wait_s: float) -> None:
        at = clock.monotonic() + wait_s
        if self._schedule.add(key, at) and self._schedule.next_at() == at:
            self._changed.set()

    def _look_at_all(self, shards: Collection[int]) -> None:
        """Every Workload with gated pods is due now: no event needs to remind us (U11)."""
        for key, group in self.machine.groups.items():
            if group.waits and self._shard(key) in shards:
                self._due(key, 0.0)

    # Sharding -----------------------------------------------------------------------------

    def _shard(self, key: WorkloadKey) -> int | None:
        """The shard of a Workload; None while it is not known."""
        group = self.machine.groups.get(key)
        return shard_of(group.row.uid) if group is not None and group.row is not None else None

    def _tenure(self, key: WorkloadKey) -> Tenure | None:
        """Under what we may act on a Workload now; None when it is not ours."""
        shard = self._shard(key)
        tenure = None if shard is None else self._tenures.get(shard)
        return None if tenure is None or tenure.leave.is_set() else tenure

    # Working ------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Start a look at each due Workload; as many at once as writes may be under way."""
        limit = self.settings.ungating.concurrency
        while True:
            self._changed.clear()
            while len(self._active) < limit:
                key = self._schedule.take(clock.monotonic())
                if key is None:
                    break
                self._begin(key)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s(limit)):
                    await self._changed.wait()

    def _begin(self, key: WorkloadKey) -> None:
        tenure = self._tenure(key)
        if tenure is None:
            self._backoff.reset(key)
            return  # another replica's: it looks at everything when it gains the shard
        if key in self._active:
            self._again.add(key)  # never two looks at one Workload at a time
            return
        self._active.add(key)
        self._batches.looked(key, clock.monotonic())
        look = spawn(tenure.group, self._look(key, tenure), f"look {key}")
        # A task that is cancelled before its first step runs no line of its own.
        look.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: WorkloadKey) -> None:
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._due(key, 0.0)
        self._changed.set()

    def _idle_s(self, limit: int) -> float | None:
        """Seconds until time alone makes a Workload due."""
        at = self._schedule.next_at()
        if at is None or len(self._active) >= limit:
            return None  # an event, or a look that ends, sets `_changed`
        return max(0.0, at - clock.monotonic())

    async def _look(self, key: WorkloadKey, tenure: Tenure) -> None:
        """One look at one Workload, and the time of the next one."""
        try:
            done = await self._reconcile(key, tenure)
        except Exception:
            log.exception("reconcile_failed", workload=key)
            done = False
        if done:
            self._backoff.reset(key)
        else:
            self._due(key, self._backoff.next(key))
        now = clock.monotonic()
        wake_at = self.machine.wake_at(key, now)
        if wake_at is not None:
            self._due(key, wake_at - now)

    async def _reconcile(self, key: WorkloadKey, tenure: Tenure) -> bool:
        """Read what is in doubt, plan, confirm, write; False when something must be retried."""
        metrics.RECONCILES.inc()
        # A store that was restored meanwhile may have other pods and Workloads.
        sources = self.sources
        if not sources.is_certain and not await unless(tenure.leave, sources.certain()):
            return False
        if not await self._caught_up(key, tenure):
            return False
        proposal = self._propose(key)
        failures = 0
        if proposal.reads:
            metrics.OVERDUE.inc(proposal.overdue)
            failures = await self._writer.read_pods(proposal.reads, self._heard, tenure.deadline)
            proposal = self._propose(key)
        if proposal.ungates:
            confirmed = await self._confirm(key, proposal, tenure)
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
        if proposal.ungates and self._tenure(key) is tenure:
            failures += await self._ungate(group.row, proposal.ungates, tenure)
        return failures == 0

    async def _caught_up(self, key: WorkloadKey, tenure: Tenure) -> bool:
        """Whether the pods are known as whoever acted on an earlier Workload left them.

        That one had another UID, so perhaps another shard, and our watch may lag behind the
        last writes of the replica that holds it.
        """
        while key in self._remade:
            self._remade.discard(key)  # before the list: it may be made anew once more meanwhile
            listed = False
            try:
                namespace = key.partition("/")[0]
                listed = await unless(tenure.leave, self._relist.fresh(namespace))
            finally:
                if not listed:
                    self._remade.add(key)
            if not listed:
                return False
        return True

    def _propose(self, key: WorkloadKey) -> Proposal:
        return self.machine.propose(key, clock.monotonic())

    async def _confirm(
        self, key: WorkloadKey, proposal: Proposal, tenure: Tenure
    ) -> Proposal | None:
        """Read the Workload live and propose again if anything changed meanwhile."""
        row = self.machine.groups[key].row
        if row is not None and row.elastic:
            return await self._compare(key, row, proposal, tenure)
        event = await self._writer.read_workload(row, tenure.deadline) if row else None
        if row is None or event is None:
            return None
        self.machine.handle(event)
        group = self.machine.groups.get(key)
        if group is not None and group.row is not None and group.row.uid != row.uid:
            # Made anew, and the watch will tell nothing new of it: it is looked at from the start.
            self._remade.add(key)
            self._again.add(key)
            return Proposal()
        return self._upheld(key, proposal)

    async def _compare(
        self, key: WorkloadKey, row: WorkloadRow, proposal: Proposal, tenure: Tenure
    ) -> Proposal | None:
        """As `_confirm` for an elastic Workload: what is read live is only compared.

        The watch tells of it and its slices in the server's order. A row that overtakes the
        others would let a slice count once by itself and once by its parent.
        """
        rows = await self._writer.read_slices(row, tenure.deadline)
        group = self.machine.groups.get(key)
        if rows is None or group is None or not self.machine.covered(key, rows):
            return None  # the watch will say why
        if group.row is None or group.row.uid != row.uid:
            return None
        return self._upheld(key, proposal)

    def _upheld(self, key: WorkloadKey, proposal: Proposal) -> Proposal:
        group = self.machine.groups.get(key)
        if group is not None and group.version == proposal.version:
            return proposal
        return self._propose(key)

    async def _ungate(self, row: WorkloadRow, ungates: list[Ungate], tenure: Tenure) -> int:
        """Record, then write; returns how many writes must be tried again."""
        started = clock.monotonic()
        stands = self.machine.groups[row.key].standing()
        self.machine.commit(ungates, started)
        metrics.BATCH.observe(len(ungates))
        wait_s = metrics.seconds_since(self._grown_at(row))
        gate = names.ELASTIC_GATE if row.elastic else names.TOPOLOGY_GATE
        waits = metrics.GATE_REMOVAL.labels(gate, row.cluster_queue)

        def tell(event: Event) -> None:
            if wait_s is not None and isinstance(event, UngateAccepted):
                waits.observe(wait_s + event.now - started)
            if isinstance(event, UngateFailed):
                self.machine.handle(event)  # this look ends with a pause, and nothing cuts it short
            else:
                self._heard(event)

        def deadline() -> float:
            # A large batch takes minutes, and what was read right before it is old by then.
            may = stands() and self.sources.is_certain
            return tenure.deadline() if may else float("-inf")

        nodes, again = self.sources.known_nodes(), self._backoff.failures(row.key) > 0
        done, failed = await self._writer.patch_pods(ungates, tell, deadline, nodes, again=again)
        if done:
            self._backoff.reset(row.key)
        log.info(
            "pods_ungated",
            workload=row.key,
            count=done,
            failed=failed,
            duration_s=round(clock.monotonic() - started, 3),
        )
        return failed

    def _grown_at(self, row: WorkloadRow) -> str | None:
        """When the Workload was given the last of what it has, as far as that is still known."""
        group = self.machine.groups.get(row.key)
        slices = group.granting_slices() if group is not None and row.elastic else []
        times = [slice_.admitted_at for slice_ in slices if slice_.admitted_at is not None]
        return max(times, default=row.admitted_at)

    def _waiting(self) -> Backlog:
        """The gated pods that may run, as the caches show them now; once for one scrape."""
        now = clock.monotonic()
        if now - self._counted_at >= SCRAPE_S:
            self._counted_at = now
            self._backlog.look(self.machine.groups.values(), now)
        return self._backlog

    # Looking around -----------------------------------------------------------------------

    async def _resync(self) -> None:
        """Look at everything that is gated from time to time; requests only where work is."""
        await self.synced()
        freeze_heap()
        known: set[str] = set()
        while True:
            orphans = self.machine.orphans()
            metrics.ORPHANS.set(len(orphans))
            self._waiting()  # also where nobody asks for metrics
            self._look_at_all(self._tenures)
            # Twice in a row: a pod may simply be seen before its Workload. One replica tells.
            ours = (pod for pod in orphans if shard_of(pod.workload_key) in self._tenures)
            self._reporter.tell_orphans([pod for pod in ours if pod.uid in known])
            known = {pod.uid for pod in orphans}
            await asyncio.sleep(self.settings.resync_period)
