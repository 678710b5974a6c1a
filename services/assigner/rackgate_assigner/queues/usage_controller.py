"""Usage history of LocalQueues, for admission fair sharing: observed, sampled, restored.

The status of the LocalQueues holds the histories (`queues.status_controller` writes it), so the
next process continues from there. A watch event only marks a LocalQueue; what it uses is read from
the cache before the next cycle, and for all LocalQueues in every sampling interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from rackgate.runtime import clock
from rackgate.wire.kueue import LocalQueue, Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.usage import QueueTotals
from rackgate_assigner.quota.admission_fair_sharing import Moment, UsageHistory, amounts_of

# Changes within this time are observed together, also if no cycle runs.
BATCH_S: Final = 0.1
# LocalQueues in one step of a sample.
STEP: Final = 500

log = structlog.get_logger()


class UsageController:
    """Keeps the histories in the cache up to date while this replica acts."""

    def __init__(
        self,
        cache: Cache,
        history: UsageHistory,
        *,
        on_change: Callable[[str], None],
        request_cycle: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            cache: counts the usage.
            history: that of the cache.
            on_change: called with each LocalQueue whose history has changed.
            request_cycle: called after each sample: the order of LocalQueues may have changed.
        """
        self._cache, self._history = cache, history
        self._on_change, self._request_cycle = on_change, request_cycle
        self._marked: set[str] = set()
        self._changed = asyncio.Event()
        self._acting = False

    def mark(self, local_queue: str) -> None:
        """The usage of a LocalQueue may have changed."""
        if self._acting:
            self._marked.add(local_queue)
            self._changed.set()

    def on_local_queue_upsert(self, _before: LocalQueue | None, queue: LocalQueue) -> None:
        """A LocalQueue was added or changed: a new one has a history from now on."""
        if self._history.usage(queue.metadata.key) is None:
            self.mark(queue.metadata.key)

    def on_workload_upsert(self, before: Workload | None, workload: Workload) -> None:
        """A Workload was added or changed, maybe in another LocalQueue."""
        if before is not None:
            self._mark_queue_of(before)
        self._mark_queue_of(workload)

    def on_workload_delete(self, workload: Workload) -> None:
        """A Workload is deleted."""
        self._mark_queue_of(workload)

    def _mark_queue_of(self, workload: Workload) -> None:
        self.mark(f"{workload.metadata.namespace}/{workload.spec.queue_name}")

    def update(self) -> None:
        """Observe what was marked, and settle pending penalties; also before each cycle."""
        if not self._acting:
            return
        marked, self._marked = self._marked, set()
        self._changed.clear()
        self._observe(marked, unchanged=False)
        for key in self._history.pending:
            row = self._cache.workloads.get(key)
            if row is not None and row.reserved is not None and row.admitted:
                self._history.settle(key)
                self._on_change(row.queue)
            elif row is None or (row.reserved is None and key not in self._cache.assumed):
                self._history.release(key)

    async def _sample(self) -> None:
        """Observe all LocalQueues, in steps between which the event loop does other work."""
        keys = sorted(self._cache.local_queues)
        for start in range(0, len(keys), STEP):
            self._observe(set(keys[start : start + STEP]))
            await asyncio.sleep(0)

    def _observe(self, local_queues: set[str], *, unchanged: bool = True) -> None:
        """Observe the usage of LocalQueues; with `unchanged` also where it is as before."""
        totals = self._cache.totals.local_queues
        now = Moment(clock.monotonic(), clock.now().timestamp())
        for key in local_queues & self._cache.local_queues.keys():
            used = amounts_of(totals.get(key, QueueTotals()).admitted_quota)
            if unchanged or self._history.usage(key) != used:
                self._history.observe(key, used, now)
                self._on_change(key)

    def take_over(self) -> None:
        """Continue the stored histories; before the first scheduling cycle of this replica."""
        self._acting = True
        self._observe(set(self._cache.local_queues))
        for key, usage in self._cache.usages.items():
            # It reserved quota before this process started, and waits for its admission checks.
            if usage.cluster_queue and not usage.admitted:
                self._cache.charge_entry_penalty(key)
        log.info("usage_histories_restored", local_queues=len(self._cache.local_queues))

    async def run(self) -> None:
        """Observe until cancelled; only for the holder of the Lease, after `take_over`."""
        interval_s = self._history.rules.sampling_interval_s
        due = clock.monotonic() + interval_s
        while True:
            try:
                async with asyncio.timeout(due - clock.monotonic()):
                    await self._changed.wait()
                    await asyncio.sleep(BATCH_S)
            except TimeoutError:
                due = clock.monotonic() + interval_s
                self.update()
                await self._sample()
                self._request_cycle()
            else:
                self.update()
