"""A Lease that fences: one active replica, and no write by one whose time is over.

- The holder renews every third of the duration. Its time counts from *sending* the renewal, and
  a dead-man timer (`fence.py`) ends the process when it runs out.
- Work is stopped a little before that. If it stops in time, the process lives on as a standby.
- Others judge by their own monotonic clock since they saw the Lease change; timestamps in the
  Lease are for people. They take over after its duration plus the longest request time: the last
  write of a dead holder may still be on its way, and carries that time limit.
- A clean stop clears the holder, so the next replica starts at once. A holder whose time was
  nearly over does not: requests that it gave up may still be on their way.
- A process that follows another one in the same pod takes back what that one held, as soon as
  nothing of it may be on its way any more (`runtime/state_file.py`).

A process that waits for many Leases need not ask for each: `lease_watch.py` shows all of them,
and `take` and `hold` are the two halves of `run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from rackgate.api.resources import LEASES
from rackgate.api.timestamps import rfc3339_micro
from rackgate.kube.client import Client
from rackgate.kube.errors import ConflictError, KubeError, NotFoundError, TransportError
from rackgate.kube.lease.fence import PROCESS_FENCE, Fence
from rackgate.kube.lease.record import (
    Lease,
    LeaseMeta,
    LeaseSpec,
    ObservedLease,
    decode_answer,
    encode_lease,
    observe_first,
)
from rackgate.runtime import clock, metrics
from rackgate.runtime.state_file import StateFile
from rackgate.runtime.tasks import start

RENEWALS_PER_DURATION: Final = 3
POLLS_PER_DURATION: Final = 4
# Part of the duration that is left for stopping work before the fence strikes.
STOP_MARGIN_SHARE: Final = 0.15
MAX_TENURES: Final = 16

log = structlog.get_logger()


class LeaseHolder:
    """Holds one Lease, or waits for it.

    Use `run`; `acquire` and `hold` are its steps, and `take`, `renew` and `release` theirs.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration_s: float = 15.0,
        request_timeout_s: float | None = None,
        fence: Fence = PROCESS_FENCE,
        on_written: Callable[[Lease], None] = lambda _: None,
        state: StateFile | None = None,
    ) -> None:
        """Prepare; nothing is sent.

        Args:
            client: give it a budget of its own, so that no other traffic delays renewals.
            namespace: of the Lease.
            name: of the Lease.
            identity: unique among all processes that ever ask for it.
            duration_s: at least 1; whole seconds in the Lease, rounded up.
            request_timeout_s: longest time that a write of a holder may be on its way; the
                client's own limit by default.
            fence: what ends the process in time; replaced only where a test lives in-process.
            on_written: told of each answer to a write of ours.
            state: shows the Leases of our predecessor in the same pod, and ours to our successor.
        """
        self.name, self.identity, self.duration_s = name, identity, duration_s
        self._client = client
        self._fence = fence
        self._on_written = on_written
        self._state = state
        self._namespace = namespace
        self._key = f"{namespace}/{name}"
        self._path = LEASES.path(namespace, name)
        self._request_timeout_s = request_timeout_s or client.request_timeout_s
        self._deadline = float("-inf")
        self._lease: Lease | None = None
        # The tenure that we had last, and those we asked for since: an answer may have been lost.
        self._tenures: deque[LeaseSpec] = deque(maxlen=MAX_TENURES)
        self._observation: ObservedLease | None = None
        self._log = log.bind(lease=self._key, identity=identity)
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        metrics.LEADER.labels(lease=name).set(0)

    @property
    def held(self) -> bool:
        """Whether this process may act under the Lease now."""
        return clock.monotonic() < self._deadline

    def deadline(self) -> float:
        """Monotonic second at which the Lease ends unless renewed; -inf when not held."""
        return self._deadline

    async def acquire(self) -> None:
        """Wait until the Lease is ours. At most one request per quarter of its duration."""
        pause_s = self.duration_s / POLLS_PER_DURATION
        while True:
            if await self._try_acquire():
                return
            await asyncio.sleep(pause_s * (1 + self._rng.random() / 4))

    def free_since(self, observation: ObservedLease) -> float:
        """From which monotonic second on this process may take the Lease; it may lie ahead."""
        if any(observation.spec.is_same_tenure(tenure) for tenure in self._tenures):
            return float("-inf")  # our own record: an answer came late or never, or time ran out
        since = observation.free_since(self._request_timeout_s, self.duration_s)
        left = self._predecessor_free_at(observation.spec)
        return since if left is None else min(since, left)

    def _predecessor_free_at(self, spec: LeaseSpec) -> float | None:
        """From when on we may take back what our predecessor held; None if it did not."""
        if self._state is None or spec.holder_identity != self.identity:
            return None
        acquired, transitions = spec.acquire_time, spec.lease_transitions
        return self._state.free_at(self.name, acquired, transitions, self._request_timeout_s)

    async def take(self, observation: ObservedLease) -> bool:
        """Ask once for a Lease that is free; True when it is ours now, and `hold` must follow.

        The request is bound to the version seen, so it fails where the observation is outdated.
        """
        if not await self._write_tenure(observation.lease):
            return False
        self._log.info("lease_acquired", transitions=self._transitions())
        metrics.LEADER.labels(lease=self.name).set(1)
        return True

    async def hold(
        self,
        on_started: Callable[[], Awaitable[None]],
        may_clear: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Run `on_started` as long as the Lease is held, then let go of it.

        Cancelled, or when `on_started` fails, the Lease is let go of after the work has stopped.

        Args:
            on_started: the work; its exceptions pass through.
            may_clear: asked once the work has stopped: may the next one begin at once? If not,
                others wait until the time of the last renewal is over.

        Returns:
            Whether the work ended by itself; False when the Lease was lost.
        """
        work = start(_await_callback(on_started), name=f"lease {self.name}")
        ended = lost = False
        try:
            ended = await self._renew_until(work)
            lost = not ended
            if lost:
                self._log.warning("lease_lost")
        finally:
            # Work must have stopped before anybody else may begin. If it does not stop
            # in time, the fence ends the process.
            await _cancel_and_wait(work)
            await self.release(clear=not lost and may_clear())
        # A failure is told even when it came while the work was being stopped.
        if ended or not (work.cancelled() or work.exception() is None):
            work.result()
        return ended

    async def run(self, on_started: Callable[[], Awaitable[None]]) -> None:
        """Acquire, run `on_started` as long as the Lease is held, and begin again when lost.

        Ends when `on_started` returns; its exceptions pass through. Either way, and when
        cancelled, the Lease is released after the work has stopped.
        """
        while True:
            await self.acquire()
            if await self.hold(on_started):
                return

    async def renew(self) -> bool:
        """Send one renewal; False when it did not lengthen our time."""
        lease = self._lease
        if lease is None:
            return False
        spec = msgspec.structs.replace(lease.spec, renew_time=rfc3339_micro(clock.now()))
        try:
            return await self._write(msgspec.structs.replace(lease, spec=spec))
        except NotFoundError:
            # Deleted: the next one to ask creates it, and is the holder.
            self._lease = None
        except KubeError as error:
            self._log.info("lease_not_renewed", error=str(error)[:300])
            if isinstance(error, ConflictError | TransportError):
                await self._reread(lease)
        return False

    async def release(self, *, clear: bool = True) -> None:
        """Disarm the fence; with `clear`, take out the holder if it is us. Nothing may act."""
        lease, held = self._lease, self.held
        self._deadline = float("-inf")
        self._lease = None
        self._fence.disarm(self._key)
        metrics.LEADER.labels(lease=self.name).set(0)
        if lease is None or not held or not clear:
            return
        try:
            async with asyncio.timeout(self._request_timeout_s):
                try:
                    await self._clear(lease)
                except ConflictError:
                    # Our last renewal may have been applied without an answer.
                    if await self._reread(lease):
                        await self._clear(self._lease or lease)
        except (KubeError, TimeoutError) as error:
            self._log.info("lease_not_released", error=str(error)[:300])
        else:
            self._log.info("lease_released")
        finally:
            self._lease = None

    async def _clear(self, lease: Lease) -> None:
        spec = msgspec.structs.replace(
            lease.spec,
            holder_identity="",
            lease_duration_seconds=1,
            renew_time=rfc3339_micro(clock.now()),
        )
        body = encode_lease(msgspec.structs.replace(lease, spec=spec))
        self._on_written(decode_answer("PUT", await self._client.replace(self._path, body)))

    async def _renew_until(self, work: asyncio.Task[None]) -> bool:
        """Renew until the work has ended (True) or the time is nearly over (False)."""
        period_s = self.duration_s / RENEWALS_PER_DURATION
        # Leases taken together are renewed apart: the first time early, then with jitter.
        next_s = period_s * (0.3 + 0.7 * self._rng.random())
        while self._lease is not None:
            left_s = self._work_left_s()
            if left_s <= 0:
                return False
            await asyncio.wait((work,), timeout=min(next_s, left_s))
            if work.done():
                return True
            left_s = self._work_left_s()
            if left_s <= 0:
                return False
            renewed = False
            # One request that hangs must not use up all chances.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, period_s)):
                    renewed = await self.renew()
            next_s = period_s * (0.9 + self._rng.random() / 5) if renewed else period_s / 8
        return False

    def _work_left_s(self) -> float:
        """Seconds that work may still go on; the rest of our time is for stopping it."""
        return self._deadline - self.duration_s * STOP_MARGIN_SHARE - clock.monotonic()

    async def _try_acquire(self) -> bool:
        lease: Lease | None = None
        try:
            seen = self._observation.lease if self._observation else None
            known = seen.metadata.resource_version if seen else ""
            lease = decode_answer("GET", await self._client.get(self._path, known=known))
        except NotFoundError:
            pass  # deleted under a holder that we have seen: its time counts on
        except KubeError as error:
            self._log.warning("lease_not_read", error=str(error)[:300])
            return False
        # After the answer, not before: the holder sent this record earlier than now.
        now = clock.monotonic()
        before = self._observation
        self._observation = before.observe(lease, now) if before else observe_first(lease, now)
        return now >= self.free_since(self._observation) and await self.take(self._observation)

    async def _write_tenure(self, lease: Lease | None) -> bool:
        stamp = rfc3339_micro(clock.now())
        before = lease.spec.lease_transitions or 0 if lease else -1
        spec = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=-int(-self.duration_s // 1),
            acquire_time=stamp,
            renew_time=stamp,
            lease_transitions=before + 1,
        )
        meta = lease.metadata if lease else LeaseMeta(name=self.name, namespace=self._namespace)
        if len(self._tenures) == MAX_TENURES:
            del self._tenures[1]  # not the first: the last one that we surely had
        self._tenures.append(spec)
        self._save_tenure(spec, clock.monotonic() + self.duration_s)
        try:
            return await self._write(Lease(metadata=meta, spec=spec))
        except ConflictError:
            return False
        except KubeError as error:
            self._log.warning("lease_not_acquired", error=str(error)[:300])
            return False

    def _save_tenure(self, spec: LeaseSpec, deadline: float) -> None:
        """Leave to our successor what it needs to know of a Lease that is ours, or may be."""
        if self._state is not None:
            acquired, transitions = spec.acquire_time or "", spec.lease_transitions or 0
            self._state.record_tenure(self.name, acquired, transitions, deadline)

    async def _write(self, lease: Lease) -> bool:
        """Write the record; from the moment of sending, `duration_s` of life are ours."""
        sent_at = clock.monotonic()
        body = encode_lease(lease)
        if lease.metadata.resource_version:
            answer = await self._client.replace(self._path, body)
        else:
            answer = await self._client.create(LEASES.path(self._namespace), body)
        written = decode_answer("PUT", answer)
        self._on_written(written)
        return self._set_held(written, sent_at)

    async def _reread(self, sent: Lease) -> bool:
        """After a conflict or no answer: still ours? Then only the version has moved."""
        try:
            known = sent.metadata.resource_version
            lease = decode_answer("GET", await self._client.get(self._path, known=known))
        except KubeError:
            return False
        if not lease.spec.is_same_tenure(sent.spec):
            self._log.warning("lease_taken", holder=lease.spec.holder_identity)
            self._lease = None
            return False
        self._lease = lease
        return True

    def _set_held(self, lease: Lease, sent_at: float) -> bool:
        deadline = sent_at + self.duration_s
        if clock.monotonic() >= deadline:
            return False
        # The fence first: nothing may believe in a deadline that is not enforced.
        self._fence.arm(self._key, deadline)
        self._lease, self._deadline = lease, deadline
        self._save_tenure(lease.spec, deadline)
        self._tenures.clear()
        self._tenures.append(lease.spec)
        return self.held

    def _transitions(self) -> int:
        return (self._lease.spec.lease_transitions or 0) if self._lease else 0


async def _await_callback(on_started: Callable[[], Awaitable[None]]) -> None:
    await on_started()


async def _cancel_and_wait(work: asyncio.Task[None]) -> None:
    """Cancel the work and wait until it has really ended."""
    work.cancel()
    while not work.done():
        await asyncio.wait((work,))
