"""Follows a cluster by watches and judges it as it changes, within a bounded share of one core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, GoneError, KubeError, NotFoundError, TransportError
from rackgate.kube.informer import Informer
from rackgate.runtime import clock
from rackgate.runtime.tasks import spawn
from rackgate_cli.checker.rows import PodRow
from rackgate_cli.checker.rules import Breach
from rackgate_cli.checker.sources import SOURCES, Source
from rackgate_cli.checker.tracker import Change, Tracker
from rackgate_cli.checker.world import World, gates_taken
from rackgate_cli.reading import why_not

# A judgement of a large cluster takes a second: at least this many times as long is rested.
REST = 3.0
# After an interruption every watch has been tried again by then (their pauses end at 5 s).
CALM_S = 10.0
PROBE_S = 2.0


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _List(msgspec.Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()


_list = msgspec.json.Decoder(_List).decode


@dataclass(frozen=True, slots=True)
class Heard:
    """What is told while a cluster is followed.

    Attributes:
        changed: breaches that began to count, or ended.
        connection: the words of a failure, or "" when the API server answers again.
        synced: everything was read once.
    """

    changed: Callable[[list[Change]], None]
    connection: Callable[[str], None]
    synced: Callable[[], None]


async def unreadable(client: Client, namespace: str | None) -> dict[str, str]:
    """What cannot be followed, plural to reason.

    Raises:
        KubeError: the API server does not answer.
    """
    async with asyncio.TaskGroup() as group:
        asked = {
            source.resource.plural: spawn(
                group, _refusal(client, source, namespace), f"probe {source.resource.plural}"
            )
            for source in SOURCES
        }
    return {plural: task.result() for plural, task in asked.items() if task.result()}


async def _refusal(client: Client, source: Source, namespace: str | None) -> str:
    """Why a collection cannot be listed or watched; "" when it can."""
    path = source.path(namespace)
    try:
        answer = _list(await client.get(path, {**source.params, "limit": "1"}))
    except (ForbiddenError, NotFoundError) as error:
        return why_not(source, error)
    except msgspec.DecodeError as error:
        raise TransportError("GET", path, reason="Garbage", message=str(error)) from error
    params = {
        **source.params,
        "resourceVersion": answer.metadata.resource_version,
        "timeoutSeconds": "1",
    }
    try:
        async with asyncio.timeout(PROBE_S), aclosing(client.watch_batches(path, params)) as stream:
            await anext(stream, None)
    except ForbiddenError:
        return f"{source.resource.plural} may not be watched"
    except (TimeoutError, GoneError):
        pass  # silence is consent; an old version only says that time went by
    return ""


@dataclass(slots=True)
class _Follower:
    """Folds one collection into the world.

    Attributes:
        decoded: objects decoded since the last one was folded: one, while a watch goes on. After
            a list several writes may lie between two versions, and nobody can tell who did what.
    """

    world: World
    attribute: str
    event: Callable[[Breach], None]
    decode_row: Callable[[bytes | msgspec.Raw], Any]
    decoded: int = 0

    def decode(self, raw: bytes | msgspec.Raw) -> Any:
        self.decoded += 1
        return self.decode_row(raw)

    def upsert(self, before: Any, row: Any) -> None:
        self.world.put(self.attribute, _key(row), row)
        if isinstance(row, PodRow) and before is not None and self.decoded == 1:
            for breach in gates_taken(before, row):
                self.event(breach)
        self.decoded = 0

    def delete(self, row: Any) -> None:
        self.world.drop(self.attribute, _key(row))
        self.decoded = 0


def _key(row: Any) -> str:
    return str(getattr(row, "key", "") or row.name)


@dataclass(slots=True)
class Following:
    """Judges a cluster until it is told to stop.

    Attributes:
        interval_s: least time between two judgements.
        namespace: of namespaced kinds only this one.
        calm_s: after an interruption, the rest before the next judgement.
    """

    client: Client
    world: World
    tracker: Tracker
    heard: Heard
    interval_s: float = 1.0
    namespace: str | None = None
    calm_s: float = CALM_S
    _failure: str = ""
    _calm_at: float = 0.0
    _informers: list[Informer[Any]] = field(default_factory=list)

    async def run(self, stop: asyncio.Event, limit_s: float | None = None) -> None:
        """Follow until `stop` is set, or for `limit_s` seconds after all was read once."""
        async with self._watching():
            while not all(informer.synced.is_set() for informer in self._informers):
                self._tell_failure(self._problem())
                if await _set_within(stop, 0.1):
                    return
            self._tell_failure("")
            self.heard.synced()
            end = None if limit_s is None else clock.monotonic() + limit_s
            while True:
                rest = await self._look()
                if end is not None:
                    rest = min(rest, end - clock.monotonic())
                if rest <= 0 or await _set_within(stop, rest):
                    return

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                spawn(group, informer.run(), f"follow {informer.resource.plural}")
                for informer in self._follow()
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    def _follow(self) -> list[Informer[Any]]:
        for source in SOURCES:
            if source.resource.plural in self.world.unread:
                continue
            follower = _Follower(self.world, source.attribute, self._event, source.decode)
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
            self._informers.append(informer)
        return self._informers

    def _event(self, breach: Breach) -> None:
        self.heard.changed([self.tracker.event(clock.now().timestamp(), breach)])

    async def _look(self) -> float:
        """Judge once; returns the seconds to rest."""
        if not await self._connected():
            return self.interval_s
        started = clock.monotonic()
        now = clock.now().timestamp()
        changes = self.tracker.update(now, self.world.judge(now))
        if changes:
            self.heard.changed(changes)
        return max(self.interval_s, REST * (clock.monotonic() - started))

    def _problem(self) -> str:
        return next((one.problem for one in self._informers if _failed(one)), "")

    async def _connected(self) -> bool:
        """Whether what is known is up to date enough to be judged.

        A watch that failed shows it until something comes through it again, which may take a
        minute on a quiet collection: so the API server is asked for what it should bring.
        """
        if any(informer.listing for informer in self._informers):
            self.tracker.interrupted()
            return False
        failed = [informer.resource for informer in self._informers if _failed(informer)]
        if not failed:
            self._tell_failure("")
            return True
        try:
            # Each of them: a right may have been taken away for one kind alone.
            for resource in failed:
                path = resource.path(self.namespace if resource.namespaced else None)
                await self.client.get(path, {"limit": "1"})
        except KubeError as error:
            self._tell_failure(str(error))
            self.tracker.interrupted()
            self._calm_at = clock.monotonic() + self.calm_s
            return False
        self._tell_failure("")
        return clock.monotonic() >= self._calm_at

    def _tell_failure(self, words: str) -> None:
        if bool(words) != bool(self._failure):
            self.heard.connection(words)
        self._failure = words


def _failed(informer: Informer[Any]) -> bool:
    return bool(informer.problem) and informer.problem != "not listed yet"


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
