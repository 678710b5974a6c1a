"""Acquires the Leases of shards and runs the worker on the shards that this replica holds.

Each shard has its own `LeaseHolder` with a fencing deadline. All of them share one watch of the
Leases. `handover.py` decides when to acquire a Lease and when to hand it over. Work on a shard
stops before the tenure of its Lease ends; the other shards continue.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final, Protocol

import structlog

from rackgate.kube.client import Client
from rackgate.kube.lease.fence import PROCESS_FENCE, Fence
from rackgate.kube.lease.holder import LeaseHolder
from rackgate.kube.lease.record import LeaseSpec, ObservedLease
from rackgate.kube.lease.watch import LeaseWatch
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.state_file import StateFile
from rackgate.runtime.tasks import spawn, start
from rackgate_ungater import metrics
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_ungater.shards.handover import SHARDS, HandoverPolicy, HandoverTimings, lease_name
from rackgate_ungater.shards.membership import Membership

POLLS_PER_DURATION: Final = 4
# A stopping replica waits this long to leave the list; without that, others notice later.
LEAVE_TIMEOUT_S: Final = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, eq=False, slots=True)
class HeldShard:
    """One period in which a replica acts on the Workloads of a shard.

    Attributes:
        task_group: reconciles its Workloads; cancelled when the tenure ends.
        deadline: monotonic time until which requests may be sent.
        leave: set when no new work may start.
    """

    task_group: asyncio.TaskGroup
    deadline: Callable[[], float]
    leave: asyncio.Event


async def run_unless(leave: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Wait for `work`. If `leave` is set first, cancel it and return False."""
    working, leaving = start(work, "before leading"), start(leave.wait(), "leave")
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not leave.is_set():
            working.result()
        return not leave.is_set()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.wait((working, leaving))


class ShardWorker(Protocol):
    """Acts on shards."""

    async def synced(self) -> None:
        """Return when work could start."""

    async def lead(self, shard: int, deadline: Callable[[], float], leave: asyncio.Event) -> None:
        """Act on a shard until `leave` is set, and return when no request is under way."""

    def has_no_open_requests(self, shard: int) -> bool:
        """Whether every request for a shard was answered or can no longer be applied."""


class _EndReason(Enum):
    """Why a replica stops acting on a shard."""

    STOP = auto()
    HAND_OVER = auto()
    LOST = auto()
    RETURNED = auto()


class ShardElector:
    """Runs a worker on the shards that this replica holds.

    Args:
        client: with a separate rate limit, so that other traffic does not delay renewals.
        settings: identity, Leases and their duration.
        worker: acts on the held shards.
        stop: set when the process should end.
        fence: ends the process in time; replaced only by tests that run in-process.
        state: state of the previous container in the same Pod.
    """

    def __init__(
        self,
        client: Client,
        settings: UngaterConfiguration,
        worker: ShardWorker,
        stop: asyncio.Event,
        *,
        fence: Fence = PROCESS_FENCE,
        state: StateFile | None = None,
    ) -> None:
        election = settings.leader_election
        self.held_shards: set[int] = set()
        self._identity, self._duration_s = settings.identity, election.lease_duration
        self._worker, self._stop = worker, stop
        self._backoff = Backoff(self._duration_s / 16, self._duration_s / 4)
        self._wakeup = asyncio.Event()
        self._membership_left = asyncio.Event()
        self._drained: set[int] = set()
        self._watch = LeaseWatch(
            client, election.namespace, self._notify, idle_s=election.lease_duration * 2
        )
        timeout_s = settings.connection.request_timeout
        self._membership = Membership(
            client,
            self._watch,
            election.namespace,
            settings.identity,
            duration_s=election.lease_duration,
            request_timeout_s=timeout_s,
        )
        self._members = self._membership.members
        self._policy = HandoverPolicy(
            settings.identity, HandoverTimings.of(election.lease_duration)
        )
        self._holders = [
            LeaseHolder(
                client,
                election.namespace,
                lease_name(shard),
                settings.identity,
                duration_s=election.lease_duration,
                request_timeout_s=timeout_s,
                fence=fence,
                on_written=self._watch.observe,
                state=state,
            )
            for shard in range(SHARDS)
        ]
        metrics.SHARDS_HELD.set_function(lambda: len(self.held_shards))
        metrics.REPLICAS.set_function(lambda: len(self._members.live(clock.monotonic())))

    def missing(self) -> list[str]:
        """Why this replica is not ready. A replica without shards can be ready."""
        return self._watch.missing()

    async def run(self) -> None:
        """Acquire and hand over shards until `stop` is set; returns when no shard is held."""
        async with asyncio.TaskGroup() as group:
            watching = spawn(group, self._watch.run(), "leases")
            stopping = spawn(group, self._notify_on_stop(), "stop")
            if await self._wait_until_synced():
                renewing = spawn(group, self._membership.run(self._wait), "membership")
                serving = [spawn(group, self._run_shard(n), f"shard {n}") for n in range(SHARDS)]
                await self._stop.wait()
                await self._leave_membership(renewing)
                await asyncio.wait(serving)
                await self._membership.release_group_lease()
            watching.cancel()
            stopping.cancel()

    async def _notify_on_stop(self) -> None:
        await self._stop.wait()
        self._notify()

    async def _wait_until_synced(self) -> bool:
        """Wait until work could start; False if `stop` is set first."""
        ready = start(self._ready(), "ready")
        ready.add_done_callback(lambda _: self._notify())
        try:
            while not ready.done() and not self._stop.is_set():
                await self._wait(self._duration_s)
        finally:
            ready.cancel()
        if self._stop.is_set():
            return False
        self._assume_missing_leases_held()
        return True

    async def _ready(self) -> None:
        await self._watch.synced.wait()
        await self._worker.synced()

    def _assume_missing_leases_held(self) -> None:
        """Wait for the holder of a deleted Lease, which may still act."""
        names = [lease_name(shard) for shard in range(SHARDS)]
        missing = [name for name in names if self._watch.get(name) is None]
        if len(missing) == SHARDS:
            return  # no replica has run before
        unknown = LeaseSpec("unknown", -int(-self._duration_s // 1))
        for name in missing:
            self._watch.assume(name, ObservedLease(unknown, clock.monotonic(), None))

    async def _leave_membership(self, renewing: asyncio.Task[None]) -> None:
        """Leave the list before shards are released, so that no replica waits for this one."""
        renewing.cancel()
        await asyncio.wait((renewing,))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._membership.leave()
        self._membership_left.set()

    # Waiting ------------------------------------------------------------------------------

    def _notify(self) -> None:
        """Wake all waiting tasks: a Lease changed, work has ended, or `stop` is set."""
        self._membership.update()
        self._wakeup.set()
        self._wakeup = asyncio.Event()

    async def _wait(self, limit_s: float) -> None:
        """Return at the next change, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, limit_s)):
                await self._wakeup.wait()

    async def _pause(self, wait_s: float) -> None:
        """Sleep, but return when `stop` is set."""
        until = clock.monotonic() + wait_s
        while (left_s := until - clock.monotonic()) > 0 and not self._stop.is_set():
            await self._wait(left_s)

    # One shard ----------------------------------------------------------------------------

    async def _run_shard(self, shard: int) -> None:
        """Acquire a shard when due, act while it is held, and repeat."""
        holder = self._holders[shard]
        while (sight := await self._wait_for_turn(shard)) is not None:
            if not await holder.take(sight):
                await self._pause(self._backoff.next(shard))
                await self._watch.refresh(holder.name)
                continue
            self._backoff.reset(shard)
            now = clock.monotonic()
            self._policy.acquired(shard, self._members.live(now), now)
            self.held_shards.add(shard)
            try:
                await holder.hold(
                    partial(self._lead_shard, shard),
                    may_clear=partial(self._drained.__contains__, shard),
                )
            finally:
                self.held_shards.discard(shard)
                self._drained.discard(shard)

    async def _wait_for_turn(self, shard: int) -> ObservedLease | None:
        """Wait until this replica should acquire a shard; None if `stop` is set."""
        holder = self._holders[shard]
        started = clock.monotonic()
        while not self._stop.is_set():
            now = clock.monotonic()
            sight = self._watch.get(holder.name) or ObservedLease(LeaseSpec(), started, None)
            self._policy.holder_seen(shard, sight.spec.holder_identity or "")
            wait_s = self._duration_s / POLLS_PER_DURATION
            if self._membership.group_holds_lease:
                members = self._members.live(now)
                at = self._policy.acquire_at(shard, holder.free_since(sight), members, now)
                if now >= at:
                    return sight
                wait_s = min(wait_s, at - now)
            await self._wait(wait_s)
        return None

    async def _lead_shard(self, shard: int) -> None:
        """Act on a shard until another replica should act on it, or might."""
        while True:
            leave = asyncio.Event()
            acting = start(self._worker.lead(shard, self._deadline(shard, leave), leave), "lead")
            acting.add_done_callback(lambda _: self._notify())
            try:
                end = await self._wait_for_end(shard, acting)
                if end is _EndReason.LOST:
                    log.warning("shard_lost", shard=shard)
                    return
                leave.set()
                await acting
            finally:
                acting.cancel()
                await asyncio.wait((acting,))
            # A request without a response may still be applied: no other replica may act before
            # that.
            if self._worker.has_no_open_requests(shard):
                self._drained.add(shard)
            if end is _EndReason.HAND_OVER and shard not in self._drained:
                continue
            if end is _EndReason.HAND_OVER:
                metrics.HANDOVERS.inc()
            if self._stop.is_set():
                await self._membership_left.wait()
            return

    def _deadline(self, shard: int, leave: asyncio.Event) -> Callable[[], float]:
        """Until when requests for a shard may be sent; -inf after the work should end."""
        holder = self._holders[shard]
        return lambda: float("-inf") if leave.is_set() or self._stop.is_set() else holder.deadline()

    async def _wait_for_end(self, shard: int, acting: asyncio.Task[None]) -> _EndReason:
        """Wait for a reason to stop acting on a shard."""
        name = self._holders[shard].name
        while True:
            now = clock.monotonic()
            sight = self._watch.get(name)
            if acting.done():
                return _EndReason.RETURNED
            if sight and (sight.lease is None or sight.spec.holder_identity != self._identity):
                return _EndReason.LOST
            if not self._membership.group_holds_lease:
                return _EndReason.LOST  # a replica of an earlier version acts on all shards
            if self._stop.is_set():
                return _EndReason.STOP
            at = self._policy.hand_over_at(shard, self._members.live(now), now)
            if at is not None and now >= at and self._worker.has_no_open_requests(shard):
                return _EndReason.HAND_OVER
            wait_s = self._duration_s / POLLS_PER_DURATION
            await self._wait(wait_s if at is None or now >= at else min(wait_s, at - now))
