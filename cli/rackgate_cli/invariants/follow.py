"""Watches a cluster and checks it after changes, with a limited share of one core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime import clock
from rackgate.runtime.tasks import spawn
from rackgate_cli.invariants.probe import absent_kinds, read_failure, reason_to_stop
from rackgate_invariants.cluster_state import ClusterState, check_removed_gates
from rackgate_invariants.reading import SOURCES, Source
from rackgate_invariants.rows.rows import PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.workload_slices import check_growth
from rackgate_invariants.tracker import Change, Tracker

# A check of a large cluster takes a second: pause at least this many times its duration.
REST_FACTOR = 3.0
# After a disconnection every watch has been retried by then (their backoff ends at 5 s).
RECOVERY_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class FollowCallbacks:
    """Called while a cluster is watched.

    Attributes:
        changed: with breaches that started to count, or ended.
        connection: with a failure, or with "" when the API server answers again.
        synced: after everything was read once.
    """

    changed: Callable[[list[Change]], None]
    connection: Callable[[str], None]
    synced: Callable[[], None]


@dataclass(slots=True)
class _CollectionHandler:
    """Puts the objects of one collection into the state.

    Attributes:
        now: seconds.
        decoded: objects decoded since the last upsert: one, during a watch. After a list, several
            writes may lie between two versions, and their writers are unknown.
    """

    world: ClusterState
    attribute: str
    event: Callable[[Breach], None]
    decode_row: Callable[[bytes | msgspec.Raw], Any]
    now: Callable[[], float]
    decoded: int = 0

    def decode(self, raw: bytes | msgspec.Raw) -> Any:
        self.decoded += 1
        return self.decode_row(raw)

    def upsert(self, before: Any, row: Any) -> None:
        self.world.put(self.attribute, _key(row), row)
        last = before if self.decoded == 1 else None
        self.decoded = 0
        found = [] if last is None else [*self._between(last, row)]
        if isinstance(row, PodRow) and row.link:
            found += self.world.gang_starts.on_pod(last, row, self.now())
        for breach in found:
            self.event(breach)

    def _between(self, before: Any, row: Any) -> Iterable[Breach]:
        """Breaches that only two consecutive versions of an object show."""
        if isinstance(row, PodRow):
            return check_removed_gates(before, row)
        if isinstance(row, WorkloadRow) and row.elastic:
            return check_growth(before, row, self.world.slices_of(row))
        return ()

    def delete(self, row: Any) -> None:
        self.world.drop(self.attribute, _key(row))
        self.decoded = 0
        if isinstance(row, PodRow):
            self.world.gang_starts.on_gone(row, self.now())


def _key(row: Any) -> str:
    return str(getattr(row, "key", "") or row.name)


@dataclass(slots=True)
class ClusterFollower:
    """Checks a cluster until it is stopped.

    Attributes:
        interval_s: shortest time between two checks.
        namespace: the only namespace to watch.
        recovery_pause_s: pause after a disconnection.
        clock_skew_s: seconds that this machine's clock is ahead of the API server's.
        disconnected: nothing was checked yet, or since the cluster could not be read.
        unchecked_s: seconds of disconnection since everything was read once.
    """

    client: Client
    world: ClusterState
    tracker: Tracker
    callbacks: FollowCallbacks
    interval_s: float = 1.0
    namespace: str | None = None
    recovery_pause_s: float = RECOVERY_PAUSE_S
    clock_skew_s: float = 0.0
    disconnected: bool = True
    unchecked_s: float = 0.0
    _failure: str = ""
    _recovered_at: float = 0.0
    _judged_at: float = 0.0
    _clock_offset: float = 0.0
    _absent: frozenset[str] = frozenset()
    _informers: list[tuple[Source, Informer[Any]]] = field(default_factory=list)

    async def run(self, stop: asyncio.Event, limit_s: float | None = None) -> None:
        """Check until `stop` is set, or for `limit_s` seconds after everything was read once."""
        # Later changes of this machine's wall clock have no effect.
        self._clock_offset = clock.now().timestamp() - self.clock_skew_s - clock.monotonic()
        async with self._watching():
            # Do not wait for a kind that the cluster does not serve; it may be installed later.
            self._absent = await absent_kinds(self.client, self.namespace)
            while not all(one.synced.is_set() for one in self._expected()):
                self._report_failure(self._problem())
                if await _set_within(stop, 0.1):
                    return
            self._report_failure("")
            self.callbacks.synced()
            self._judged_at = clock.monotonic()
            await self._check_until(stop, limit_s)
            await self._end()

    async def _check_until(self, stop: asyncio.Event, limit_s: float | None) -> None:
        end = None if limit_s is None else clock.monotonic() + limit_s
        while True:
            rest = await self._check()
            if end is not None:
                rest = min(rest, end - clock.monotonic())
            if rest <= 0 or await _set_within(stop, rest):
                return

    async def _end(self) -> None:
        """Check whether the API server still answers: an idle watch does not show it."""
        if not self.disconnected and self._informers:
            source, _ = self._informers[0]
            why = await read_failure(self.client, source, self.namespace)
            if why:
                self._mark_disconnected(why)
        if self.disconnected:
            self.unchecked_s += clock.monotonic() - self._judged_at

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                spawn(group, informer.run(), f"follow {informer.resource.plural}")
                for _, informer in self._start_informers()
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    def _start_informers(self) -> list[tuple[Source, Informer[Any]]]:
        for source in SOURCES:
            if source.resource.plural in self.world.unread:
                continue
            follower = _CollectionHandler(
                self.world, source.attribute, self._event, source.decode, self._now
            )
            informer: Informer[Any] = Informer(
                self.client,
                source.resource,
                follower.decode,
                on_upsert=follower.upsert,
                on_delete=follower.delete,
                namespace=self.namespace if source.resource.namespaced else None,
                params=source.params,
                key_of=_key,
                version_of=lambda row: str(row.version),
                uid_of=lambda row: str(row.uid),
            )
            self._informers.append((source, informer))
        return self._informers

    def _expected(self) -> list[Informer[Any]]:
        """Informers of the kinds that the cluster serves."""
        return [
            informer
            for source, informer in self._informers
            if informer.synced.is_set() or source.resource.plural not in self._absent
        ]

    def _now(self) -> float:
        """The API server's time, as far as it is known, as Unix seconds."""
        return self._clock_offset + clock.monotonic()

    def _event(self, breach: Breach) -> None:
        self.callbacks.changed([self.tracker.event(self._now(), breach)])

    async def _check(self) -> float:
        """Check once; returns the seconds to pause."""
        if not await self._connected():
            return self.interval_s
        started = clock.monotonic()
        if self.disconnected:
            self.unchecked_s += started - self._judged_at
            self.disconnected = False
        self._judged_at = started
        now = self._now()
        changes = self.tracker.update(now, self.world.judge(now))
        if changes:
            self.callbacks.changed(changes)
        return max(self.interval_s, REST_FACTOR * (clock.monotonic() - started))

    def _problem(self) -> str:
        return next((one.problem for one in self._expected() if _failed(one)), "")

    async def _connected(self) -> bool:
        """Whether the state is current enough to be checked.

        An informer reports a failed watch until its next event, which may take a minute in a quiet
        collection, so the API server is asked whether the collection may still be read.
        """
        if any(informer.listing for informer in self._expected()):
            self._mark_disconnected(self._problem())
            return False
        failed = [(one, source, one.problem) for source, one in self._informers if _failed(one)]
        if failed:
            # Check each of them: a right may have been removed for a single kind.
            sources = [source for _, source, _ in failed]
            why = await reason_to_stop(self.client, self.namespace, sources)
            if why:
                self._mark_disconnected(why)
                self._recovered_at = clock.monotonic() + self.recovery_pause_s
                return False
            for informer, _, problem in failed:
                if informer.problem == problem:
                    informer.problem = ""  # set again if the watch fails again
        self._report_failure("")
        return clock.monotonic() >= self._recovered_at

    def _mark_disconnected(self, why: str) -> None:
        """The state is outdated: check nothing until it is current again."""
        self.disconnected = True
        self.tracker.reset_unconfirmed()
        if why:
            self._report_failure(why)

    def _report_failure(self, message: str) -> None:
        if bool(message) != bool(self._failure):
            self.callbacks.connection(message)
        self._failure = message


def _failed(informer: Informer[Any]) -> bool:
    return bool(informer.problem) and informer.problem != "not listed yet"


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
