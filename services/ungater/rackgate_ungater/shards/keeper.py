"""Holds the Leases of the shards that this replica should act on, and acts on no other.

Each shard has a `LeaseHolder` of its own, which fences it. One watch shows all Leases to all of
them; `shards.py` says when to take one and when to hand one over. Work on a shard runs inside
the tenure of its Lease: it is stopped before that ends, and the other shards go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import Final, Protocol

import structlog

from rackgate.kube.client import Client
from rackgate.kube.lease.fence import PROCESS_FENCE, Fence
from rackgate.kube.lease.holder import LeaseHolder
from rackgate.kube.lease.record import LeaseSpec, Sighting
from rackgate.kube.lease.watch import LeaseWatch
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.state_file import StateFile
from rackgate.runtime.tasks import spawn, start
from rackgate_ungater import metrics
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_ungater.shards.assignment import SHARDS, Pace, Turns, lease_name
from rackgate_ungater.shards.membership import Membership

POLLS_PER_DURATION: Final = 4
# Longest time that a stop waits for the others to be told; they find out anyway.
LEAVE_S: Final = 1.0

log = structlog.get_logger()


class Actor(Protocol):
    """What acts on shards."""

    async def synced(self) -> None:
        """Return once acting could begin."""

    async def lead(self, shard: int, deadline: Callable[[], float], leave: asyncio.Event) -> None:
        """Act on a shard until `leave` is set, and return when nothing of it is under way."""

    def settled(self, shard: int) -> bool:
        """Whether every request for a shard was answered, or cannot be applied any more."""


class _End(Enum):
    """Why a replica stops acting on a shard."""

    STOP = auto()
    YIELD = auto()
    LOST = auto()
    RETURNED = auto()


class ShardKeeper:
    """Runs an actor on the shards that this replica holds.

    Args:
        client: give it a budget of its own, so that no other traffic delays renewals.
        settings: identity, Leases and their duration.
        actor: told what to act on.
        stop: set when the process should end.
        fence: what ends the process in time; replaced only where a test lives in-process.
        state: what our predecessor in the same pod left.
    """

    def __init__(
        self,
        client: Client,
        settings: UngaterConfiguration,
        actor: Actor,
        stop: asyncio.Event,
        *,
        fence: Fence = PROCESS_FENCE,
        state: StateFile | None = None,
    ) -> None:
        election = settings.leader_election
        self.held: set[int] = set()
        self._me, self._duration_s = settings.identity, election.lease_duration
        self._actor, self._stop = actor, stop
        self._backoff = Backoff(self._duration_s / 16, self._duration_s / 4)
        self._signal = asyncio.Event()
        self._left = asyncio.Event()
        self._clean: set[int] = set()
        self._watch = LeaseWatch(
            client, election.namespace, self._changed, idle_s=election.lease_duration * 2
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
        self._turns = Turns(settings.identity, Pace.of(election.lease_duration))
        self._holders = [
            LeaseHolder(
                client,
                election.namespace,
                lease_name(shard),
                settings.identity,
                duration_s=election.lease_duration,
                request_timeout_s=timeout_s,
                fence=fence,
                on_written=self._watch.note,
                state=state,
            )
            for shard in range(SHARDS)
        ]
        metrics.SHARDS_HELD.set_function(lambda: len(self.held))
        metrics.REPLICAS.set_function(lambda: len(self._members.live(clock.monotonic())))

    def missing(self) -> list[str]:
        """What keeps this replica from being ready. Holding no shard does not."""
        return self._watch.missing()

    async def run(self) -> None:
        """Take and hand over shards until told to stop; ends when none is held any more."""
        async with asyncio.TaskGroup() as group:
            watching = spawn(group, self._watch.run(), "leases")
            stopping = spawn(group, self._stopped(), "stop")
            if await self._begun():
                beating = spawn(group, self._membership.run(self._wait), "membership")
                serving = [spawn(group, self._serve(n), f"shard {n}") for n in range(SHARDS)]
                await self._stop.wait()
                await self._leave(beating)
                await asyncio.wait(serving)
                await self._membership.give_back()
            watching.cancel()
            stopping.cancel()

    async def _stopped(self) -> None:
        await self._stop.wait()
        self._changed()

    async def _begun(self) -> bool:
        """Wait until acting could begin; False when told to stop before."""
        ready = start(self._ready(), "ready")
        ready.add_done_callback(lambda _: self._changed())
        try:
            while not ready.done() and not self._stop.is_set():
                await self._wait(self._duration_s)
        finally:
            ready.cancel()
        if self._stop.is_set():
            return False
        self._assume_deleted()
        return True

    async def _ready(self) -> None:
        await self._watch.synced.wait()
        await self._actor.synced()

    def _assume_deleted(self) -> None:
        """Wait for the holder of a Lease that is missing among others: it may still act."""
        names = [lease_name(shard) for shard in range(SHARDS)]
        missing = [name for name in names if self._watch.see(name) is None]
        if len(missing) == SHARDS:
            return  # the first replica ever
        unknown = LeaseSpec("unknown", -int(-self._duration_s // 1))
        for name in missing:
            self._watch.assume(name, Sighting(unknown, clock.monotonic(), None))

    async def _leave(self, beating: asyncio.Task[None]) -> None:
        """Tell the others first: who hears of a released shard knows that we are gone."""
        beating.cancel()
        await asyncio.wait((beating,))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._membership.leave()
        self._left.set()

    # Waiting ------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Wake whoever waits: a Lease looks different, work has ended, or it is time to stop."""
        self._membership.note()
        self._signal.set()
        self._signal = asyncio.Event()

    async def _wait(self, limit_s: float) -> None:
        """Return at the next change, or after `limit_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, limit_s)):
                await self._signal.wait()

    async def _pause(self, wait_s: float) -> None:
        """Let time pass, but no longer than until we are told to stop."""
        until = clock.monotonic() + wait_s
        while (left_s := until - clock.monotonic()) > 0 and not self._stop.is_set():
            await self._wait(left_s)

    # One shard ----------------------------------------------------------------------------

    async def _serve(self, shard: int) -> None:
        """Take a shard when it is our turn, act while we hold it, and begin again."""
        holder = self._holders[shard]
        while (sight := await self._turn(shard)) is not None:
            if not await holder.take(sight):
                await self._pause(self._backoff.next(shard))
                await self._watch.look(holder.name)
                continue
            self._backoff.reset(shard)
            now = clock.monotonic()
            self._turns.taken(shard, self._members.live(now), now)
            self.held.add(shard)
            try:
                await holder.hold(
                    partial(self._act, shard), may_clear=partial(self._clean.__contains__, shard)
                )
            finally:
                self.held.discard(shard)
                self._clean.discard(shard)

    async def _turn(self, shard: int) -> Sighting | None:
        """Wait until we should take a shard; None when told to stop."""
        holder = self._holders[shard]
        started = clock.monotonic()
        while not self._stop.is_set():
            now = clock.monotonic()
            sight = self._watch.see(holder.name) or Sighting(LeaseSpec(), started, None)
            self._turns.seen(shard, sight.spec.holder_identity or "")
            wait_s = self._duration_s / POLLS_PER_DURATION
            if self._membership.guarded:
                members = self._members.live(now)
                at = self._turns.take_at(shard, holder.free_since(sight), members, now)
                if now >= at:
                    return sight
                wait_s = min(wait_s, at - now)
            await self._wait(wait_s)
        return None

    async def _act(self, shard: int) -> None:
        """Act on a shard until somebody else should, or may."""
        while True:
            leave = asyncio.Event()
            acting = start(self._actor.lead(shard, self._deadline(shard, leave), leave), "lead")
            acting.add_done_callback(lambda _: self._changed())
            try:
                end = await self._until_over(shard, acting)
                if end is _End.LOST:
                    log.warning("shard_lost", shard=shard)
                    return
                leave.set()
                await acting
            finally:
                acting.cancel()
                await asyncio.wait((acting,))
            # A request without an answer may still arrive: nobody else may count before that.
            if self._actor.settled(shard):
                self._clean.add(shard)
            if end is _End.YIELD and shard not in self._clean:
                continue
            if end is _End.YIELD:
                metrics.HANDOVERS.inc()
            if self._stop.is_set():
                await self._left.wait()
            return

    def _deadline(self, shard: int, leave: asyncio.Event) -> Callable[[], float]:
        """Until when requests for a shard may be sent: not any more, once told to end."""
        holder = self._holders[shard]
        return lambda: float("-inf") if leave.is_set() or self._stop.is_set() else holder.deadline()

    async def _until_over(self, shard: int, acting: asyncio.Task[None]) -> _End:
        """Wait for a reason to stop acting on a shard."""
        name = self._holders[shard].name
        while True:
            now = clock.monotonic()
            sight = self._watch.see(name)
            if acting.done():
                return _End.RETURNED
            if sight and (sight.lease is None or sight.spec.holder_identity != self._me):
                return _End.LOST
            if not self._membership.guarded:
                return _End.LOST  # a replica of an earlier version acts on everything
            if self._stop.is_set():
                return _End.STOP
            at = self._turns.yield_at(shard, self._members.live(now), now)
            if at is not None and now >= at and self._actor.settled(shard):
                return _End.YIELD
            wait_s = self._duration_s / POLLS_PER_DURATION
            await self._wait(wait_s if at is None or now >= at else min(wait_s, at - now))
