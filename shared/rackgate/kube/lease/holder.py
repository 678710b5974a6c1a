"""A Lease with fencing: one active replica, and no write after its Lease expired.

- The holder renews every third of the duration. Its time counts from *sending* the renewal; a
  timer (`fence.py`) ends the process at the fencing deadline.
- Work is stopped shortly before that. If it stops in time, the process continues as a standby.
- Standbys measure with their monotonic clock since they observed the last change, not with the
  timestamps in the Lease. They take over after the duration plus the request timeout, as the last
  write of a crashed holder may still be in flight, with that timeout.
- A clean stop clears the holder, so the next replica starts immediately. A holder whose time was
  nearly over does not clear it, as aborted requests may still be in flight.
- A restarted container in the same Pod takes the Leases of its predecessor back as soon as none of
  that one's writes can be in flight (`runtime/state_file.py`).

To wait for many Leases, a process uses `watch.py`, which observes all of them, and `take` and
`hold`, the two halves of `run`.
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
# Share of the duration that is reserved for stopping work before the fencing deadline.
STOP_MARGIN_SHARE: Final = 0.15
MAX_TENURES: Final = 16

log = structlog.get_logger()


class LeaseHolder:
    """Holds one Lease, or waits for it.

    Use `run`, or its steps `acquire` and `hold`, or their steps `take`, `renew` and `release`.
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
            client: needs a separate budget, so that other requests do not delay renewals.
            namespace: namespace of the Lease.
            name: name of the Lease.
            identity: unique among all processes that ever try to acquire the Lease.
            duration_s: at least 1; in whole seconds in the Lease, rounded up.
            request_timeout_s: request timeout of all holders; that of the client by default.
            fence: ends the process in time; only in-process tests replace it.
            on_written: called with each Lease that this holder wrote.
            state: Leases of the predecessor in the same Pod, and of this process for its successor.
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
        # The last tenure, and those requested since: a response may have been lost.
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
        """Monotonic second at which the Lease expires unless renewed; -inf if not held."""
        return self._deadline

    async def acquire(self) -> None:
        """Acquire the Lease, with at most one request per quarter of its duration."""
        pause_s = self.duration_s / POLLS_PER_DURATION
        while True:
            if await self._try_acquire():
                return
            await asyncio.sleep(pause_s * (1 + self._rng.random() / 4))

    def free_since(self, observation: ObservedLease) -> float:
        """Monotonic second from which this process may take the Lease."""
        if any(observation.spec.is_same_tenure(tenure) for tenure in self._tenures):
            return float("-inf")  # our own record: the response was lost, or came too late
        since = observation.free_since(self._request_timeout_s, self.duration_s)
        left = self._predecessor_free_at(observation.spec)
        return since if left is None else min(since, left)

    def _predecessor_free_at(self, spec: LeaseSpec) -> float | None:
        """When this process may take back its predecessor's Lease; None if that held none."""
        if self._state is None or spec.holder_identity != self.identity:
            return None
        acquired, transitions = spec.acquire_time, spec.lease_transitions
        return self._state.free_at(self.name, acquired, transitions, self._request_timeout_s)

    async def take(self, observation: ObservedLease) -> bool:
        """Try once to acquire a Lease that is free. If it returns True, call `hold`.

        The write requires the observed version, so it fails if the observation is outdated.
        """
        if not await self._write_tenure(observation.lease):
            return False
        transitions = self._lease.spec.lease_transitions if self._lease else None
        self._log.info("lease_acquired", transitions=transitions or 0)
        metrics.LEADER.labels(lease=self.name).set(1)
        return True

    async def hold(
        self,
        on_started: Callable[[], Awaitable[None]],
        may_clear: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Run `on_started` while the Lease is held, then release the Lease.

        If cancelled, or if `on_started` fails, the Lease is released after the work has stopped.

        Args:
            on_started: the work; its exceptions are raised.
            may_clear: called after the work has stopped; whether the next holder may start
                immediately. If not, others wait until the Lease expires.

        Returns:
            Whether the work ended by itself; False if the Lease was lost.
        """
        work = start(_await_callback(on_started), name=f"lease {self.name}")
        ended = lost = False
        try:
            ended = await self._renew_until(work)
            lost = not ended
            if lost:
                self._log.warning("lease_lost")
        finally:
            # The work must stop before another process may start. If it does not stop in time, the
            # fence ends this process.
            await _cancel_and_wait(work)
            await self.release(clear=not lost and may_clear())
        # Raise a failure also if it occurred while the work was being stopped.
        if ended or not (work.cancelled() or work.exception() is None):
            work.result()
        return ended

    async def run(self, on_started: Callable[[], Awaitable[None]]) -> None:
        """Acquire the Lease and run `on_started` while it is held; start over if it is lost.

        Ends when `on_started` returns or raises, or when cancelled; the Lease is released after the
        work has stopped.
        """
        while True:
            await self.acquire()
            if await self.hold(on_started):
                return

    async def renew(self) -> bool:
        """Send one renewal; False if it did not extend the deadline."""
        lease = self._lease
        if lease is None:
            return False
        spec = msgspec.structs.replace(lease.spec, renew_time=rfc3339_micro(clock.now()))
        try:
            return await self._write(msgspec.structs.replace(lease, spec=spec))
        except NotFoundError:
            # Deleted: the next process to acquire it creates it.
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
                    # The last renewal may have been applied without a response.
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
        """Renew until the work has ended (True) or the Lease is about to expire (False)."""
        period_s = self.duration_s / RENEWALS_PER_DURATION
        # Leases acquired together are renewed at different times: first early, then with jitter.
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
            # A request that hangs must not prevent further renewals.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, period_s)):
                    renewed = await self.renew()
            next_s = period_s * (0.9 + self._rng.random() / 5) if renewed else period_s / 8
        return False

    def _work_left_s(self) -> float:
        """Seconds until work must be stopped, to be done before the fencing deadline."""
        return self._deadline - self.duration_s * STOP_MARGIN_SHARE - clock.monotonic()

    async def _try_acquire(self) -> bool:
        lease: Lease | None = None
        try:
            seen = self._observation.lease if self._observation else None
            known = seen.metadata.resource_version if seen else ""
            lease = decode_answer("GET", await self._client.get(self._path, known=known))
        except NotFoundError:
            pass  # deleted: the time of an observed holder still counts
        except KubeError as error:
            self._log.warning("lease_not_read", error=str(error)[:300])
            return False
        # Taken after the response: the holder sent this record earlier.
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
            del self._tenures[1]  # the first is the last tenure that was confirmed
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
        """Record a Lease that this process holds, or may hold, for its successor."""
        if self._state is not None:
            acquired, transitions = spec.acquire_time or "", spec.lease_transitions or 0
            self._state.record_tenure(self.name, acquired, transitions, deadline)

    async def _write(self, lease: Lease) -> bool:
        """Write the record; the Lease is held for `duration_s` from the time of sending."""
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
        """After a conflict or no response: whether the Lease is still held, at a newer version."""
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
        # The fence first: no code may rely on a deadline that is not enforced.
        self._fence.arm(self._key, deadline)
        self._lease, self._deadline = lease, deadline
        self._save_tenure(lease.spec, deadline)
        self._tenures.clear()
        self._tenures.append(lease.spec)
        return self.held


async def _await_callback(on_started: Callable[[], Awaitable[None]]) -> None:
    await on_started()


async def _cancel_and_wait(work: asyncio.Task[None]) -> None:
    """Cancel the work and wait until it has ended."""
    work.cancel()
    while not work.done():
        await asyncio.wait((work,))
