"""Informer: list a collection, watch it, and list it again when needed.

    list pages -> replace the store; objects that are gone are deleted
      -> watch from the version of the list; bookmarks advance the version
           stream ends or breaks   -> watch again from the last version
           410, as status or event -> list again

Guarantees: callbacks run on the loop, one at a time, in the order of the collection's history. No
delete is lost, also while the informer was disconnected. An object that was recreated with the
same name is a delete and an upsert. An object that cannot be decoded is logged, keeps its last
known state, and does not stop the stream.

After etcd was restored from a backup, a watch is silent until the versions pass the requested one,
and does not report objects that no longer exist. So the store is not `is_confirmed` from the time
that a stream breaks, ends early, or cannot continue (410, an ERROR event), until the API server has
shown its version:

    a stream broke or ended early       -> list one object, for the version of the list
    that version is much later          -> list everything: `--bump-revision` makes versions leap
    410, ERROR, the server was away     -> list everything
    no response, 429, 502, 503, 504     -> wait
    403, another 5xx                    -> wait for at most `FAILING_S`; list everything afterwards
    anything else (404)                 -> the server will not show its version: continue

In a list, an object that is earlier than its known version, or that reappears with an old version,
proves a restore as an earlier version of the list does (`versions.py`): `RewoundError` ends the
informer. A silent watch is followed by a list, also if streams end in between, as middleboxes cut
idle streams.

A stream that was cut after some time is opened again without backoff: a middlebox cuts every idle
stream, and all writes wait meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from operator import attrgetter
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec
import structlog

from rackgate.api.resources import Resource
from rackgate.kube.client import WATCH_IDLE_S, Client
from rackgate.kube.errors import (
    GoneError,
    KubeError,
    LineTooLongError,
    RewoundError,
    TransportError,
    error_for,
    parse_status,
)
from rackgate.kube.stream import is_earlier, is_version_leap, read_event, read_meta
from rackgate.runtime import clock, metrics
from rackgate.runtime.backoff import Backoff
from rackgate.wire.lists import decode_page

T = TypeVar("T")

YIELD_EVERY = 200
# The server is away, and may have another store when it is back; 0 is no response.
SERVER_AWAY_STATUSES = (
    0,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
# The server is up: it throttles, or the list took too long.
TRANSIENT_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.GONE)
# Writes wait at most this long after another 5xx or a 403. The API server returns 500 while etcd is
# away or elects a leader, but also while the conversion webhook of a kind is broken. It returns 403
# until it has loaded the roles after its start, but also if a role was removed.
FAILING_S = 30.0
# A stream that ends so much before its timeout did not end because of the timeout.
EARLY_END_MARGIN_S = 1.0
# As client-go: the server ends each watch after 5 to 10 minutes, spread over time.
WATCH_LIMIT_S = 300
# A stream that ends this soon without an event is opened again with backoff.
SHORT_STREAM_S = 1.0

log = structlog.get_logger()


class Informer(Generic[T]):
    """Keeps a store of the objects of one collection.

    Attributes:
        store: objects by `namespace/name`, or by name; a live, read-only view.
        synced: set after the first complete list, and never cleared.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Callable[[bytes | msgspec.Raw], T],
        *,
        on_upsert: Callable[[T | None, T], None],
        on_delete: Callable[[T], None],
        namespace: str | None = None,
        params: Mapping[str, str] | None = None,
        on_synced: Callable[[], None] | None = None,
        key_of: Callable[[T], str] | None = None,
        version_of: Callable[[T], str] | None = None,
        uid_of: Callable[[T], str] | None = None,
        idle_s: float = WATCH_IDLE_S,
        backoff: Backoff | None = None,
        failing_s: float = FAILING_S,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            client: its budget is charged for lists and the start of watches.
            resource: resource of the collection.
            decode: decodes one object from JSON to the fields that are used. It gets a copy of the
                bytes, so a `Raw` in the result does not keep a page in memory.
            on_upsert: called with the previous object (None if new) and the new one. If it raises,
                the error is logged; the store is updated anyway.
            on_delete: called with the last known object.
            namespace: only this namespace; all by default.
            params: labelSelector and fieldSelector.
            on_synced: called once, after the callbacks of the first list.
            key_of: key in the store, for objects without `metadata`; equal to `Meta.key`.
            version_of: resourceVersion, for objects without `metadata`.
            uid_of: UID, for objects without `metadata`.
            idle_s: seconds without data after which a watch counts as stalled, and a list is due.
            backoff: backoff between failures.
            failing_s: longest time that writes wait because of 403 and 500.
        """
        self.resource = resource
        self.synced = asyncio.Event()
        self.problem = "not listed yet"
        self._client = client
        self._decode = decode
        self._on_upsert, self._on_delete = on_upsert, on_delete
        self._on_synced = on_synced
        self._key_of: Callable[[T], str] = key_of or attrgetter("metadata.key")
        self._version_of: Callable[[T], str] = version_of or attrgetter("metadata.resource_version")
        self._uid_of: Callable[[T], str] = uid_of or attrgetter("metadata.uid")
        self._path = resource.path(namespace)
        self._params = dict(params or {})
        self._idle_s = idle_s
        self._backoff = backoff or Backoff(base_s=0.2, cap_s=5.0)
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._objects: dict[str, T] = {}
        self.store: Mapping[str, T] = MappingProxyType(self._objects)
        self._version = ""
        self._list_due = True
        # List next, although the store is not known to be behind, as the watch was silent.
        self._relist = False
        # Set while the API server is known to have the store that was listed.
        self._confirmed = asyncio.Event()
        self._confirmed.set()
        self._failing_s = failing_s
        self._failing_since: float | None = None
        self._last_heard_at = clock.monotonic()
        self._log = log.bind(resource=resource.full_name)

    def silence_s(self) -> float:
        """Seconds since the last data on this collection."""
        return clock.monotonic() - self._last_heard_at

    def missing(self) -> list[str]:
        """Reasons why this informer is not ready: lines for /readyz, empty when synced."""
        return [] if self.synced.is_set() else [f"{self.resource.full_name}: {self.problem}"]

    async def wait_confirmed(self) -> None:
        """Wait until it is known that the API server has no older store."""
        await self._confirmed.wait()

    @property
    def is_confirmed(self) -> bool:
        """Whether `wait_confirmed` returns at once."""
        return self._confirmed.is_set()

    @property
    def listing(self) -> bool:
        """Whether a list is due or in progress, so the store is behind until it completes.

        False for a list after a silent watch, as on quiet collections, until that list fails.
        """
        return self._list_due

    def clear(self) -> None:
        """Delete all objects, as the kind is no longer served; the next `run` lists again.

        Call it only while `run` is not running.
        """
        self._list_due = True
        self._version = ""
        self._mark_confirmed()
        for key in list(self._objects):
            self._delete(key)

    async def run(self) -> None:
        """Follow the collection until cancelled.

        Raises:
            RewoundError: etcd was restored from a backup.
        """
        name = self.resource.full_name
        self._last_heard_at = clock.monotonic()
        # A collection that is not watched, such as a kind that is not installed, has no lag.
        metrics.WATCH_LAG.labels(resource=name).set_function(self.silence_s)
        try:
            await self._list_and_watch()
        finally:
            metrics.WATCH_LAG.remove(name)

    async def _list_and_watch(self) -> None:
        while True:
            wait_s = 0.0
            try:
                if not (self._list_due or self._relist or self._confirmed.is_set()):
                    await self._probe_version()
                if self._list_due or self._relist:
                    await self._list()
                reason = await self._watch()
            except GoneError:
                # The store stays as it is: the next list shows which objects are gone.
                self._mark_behind()
                self._log_restart("expired")
                if self._backoff.failures() == 0:
                    self._backoff.next()
                    continue
            except RewoundError:
                raise
            except KubeError as error:
                self._list_due = self._list_due or isinstance(error, LineTooLongError)
                self._log_failure(error)
                self._log_restart(_reason(error))
                wait_s = error.retry_after_s or 0.0
            else:
                self._log_restart(reason)
                if reason != "short":
                    self._backoff.reset()
                    continue
            await asyncio.sleep(max(wait_s, self._backoff.next()))

    def _log_failure(self, error: KubeError) -> None:
        self.problem = str(error)
        self._log.warning("watch_failed", error=str(error)[:500])

    def _log_restart(self, reason: str) -> None:
        metrics.WATCH_RESTARTS.labels(resource=self.resource.full_name, reason=reason).inc()
        # Streams end every few minutes by their timeout.
        log_line = self._log.debug if reason == "ended" else self._log.info
        log_line("watch_restarted", reason=reason, resource_version=self._version)

    async def _list(self) -> None:
        """Read all pages, then make the store equal to them."""
        listed: dict[str, T] = {}
        try:
            version = await self._read(listed)
        except KubeError as error:
            self._list_due = True
            self._on_version_unknown(error)
            raise
        await self._replace(listed)
        self._version, self._list_due, self._relist, self.problem = version, False, False, ""
        self._mark_confirmed()
        if not self.synced.is_set():
            self._log.info("cache_synced", objects=len(listed), resource_version=version)
            self.synced.set()
            if self._on_synced is not None:
                self._on_synced()

    async def _read(self, listed: dict[str, T]) -> str:
        """Put all objects into `listed`; return the version of the list."""
        version = ""
        async for body in self._client.list_pages(self._path, self._params):
            self._last_heard_at = clock.monotonic()
            # All pages of a list have the version of the first page.
            found = await self._page(body, listed)
            version = version or found
            del body  # free it before the next page is read
        return version

    async def _probe_version(self) -> None:
        """Get the version of the store, which the client compares with what was seen.

        Raises:
            RewoundError: it is an older store.
            KubeError: the server does not show it now, but may soon.
        """
        # With a label selector, the server would search for an object that matches.
        field = {key: value for key, value in self._params.items() if key == "fieldSelector"}
        pages = self._client.list_pages(self._path, field, page_size=1)
        try:
            async with aclosing(pages):
                version = decode_page(await anext(pages)).metadata.resource_version
        except KubeError as error:
            self._on_version_unknown(error)
            if not self._confirmed.is_set():
                raise
            return
        # A restored store with bumped versions shows only in its objects. So does one behind an API
        # server that was up while etcd was away, after new writes.
        if is_version_leap(version, self._version) or self._failing_since is not None:
            self._relist = True
        else:
            self._mark_confirmed()

    def _mark_confirmed(self) -> None:
        """The API server has shown its store, or the informer knows no store."""
        self._failing_since = None
        self._confirmed.set()

    def _on_version_unknown(self, error: KubeError) -> None:
        """The server did not show its version. Do not wait if it never will."""
        if isinstance(error, RewoundError):
            return
        if error.status in SERVER_AWAY_STATUSES:
            self._mark_server_away()
        elif error.status == HTTPStatus.FORBIDDEN or error.status >= 500:
            now = clock.monotonic()
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since < self._failing_s:
                self._mark_unconfirmed()
            else:
                self._confirmed.set()
        elif error.status not in TRANSIENT_STATUSES:
            self._confirmed.set()

    def _mark_server_away(self) -> None:
        """The server is away. An older store may have passed our version before it is back."""
        self._relist = True
        self._failing_since = None
        self._mark_unconfirmed()

    def _mark_behind(self) -> None:
        """No watch can continue from the known version."""
        self._list_due = True
        self._mark_unconfirmed()

    def _mark_unconfirmed(self) -> None:
        """The store may be another one now; before the first list, none is known."""
        if self.synced.is_set():
            self._confirmed.clear()

    async def _page(self, body: bytes, listed: dict[str, T]) -> str:
        """Put the items of one page into `listed`; return the version of the list."""
        page = decode_page(body)
        for number, raw in enumerate(page.items or ()):
            self._collect_item(bytes(raw), listed)
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)
        return page.metadata.resource_version

    def _collect_item(self, raw: bytes, listed: dict[str, T]) -> None:
        """Put one item into `listed`; an unchanged one keeps the known object."""
        item = self._decode_or_log(raw)
        if item is None:
            meta = read_meta(raw)
            known = self._objects.get(meta.key) if meta else None
            # It exists, so it must not be deleted.
            if meta and known is not None and self._uid_of(known) == meta.uid:
                listed[meta.key] = known
            return
        key = self._key_of(item)
        known = self._objects.get(key)
        version = self._version_of(item)
        # An unknown object at or before the known version reappeared from an older store.
        latest = self._version_of(known) if known is not None else self._version
        if is_earlier(version, latest) or (known is None and version and version == latest):
            raise self._client.versions.record_rewind("GET", self._path, version, latest)
        # Reuse known objects: otherwise a list holds every object twice until it is complete.
        listed[key] = known if known is not None and self._is_same_version(known, item) else item

    async def _replace(self, listed: dict[str, T]) -> None:
        """Make the store equal to `listed`: deletes first, as upserts may need what they free."""
        for key in [key for key in self._objects if key not in listed]:
            self._delete(key)
        for number, (key, item) in enumerate(listed.items()):
            self._upsert(key, item)
            if number % YIELD_EVERY == YIELD_EVERY - 1:
                await asyncio.sleep(0)

    async def _watch(self) -> str:
        """Follow one stream.

        Returns:
            Why it ended: `ended`; `broken` or `stalled` if it was cut after some time; `short` if
            it ended soon without an event.

        Raises:
            KubeError: it was rejected, or cut soon.
        """
        limit_s = int(WATCH_LIMIT_S * (1 + self._rng.random()))
        params = {
            **self._params,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(limit_s),
        }
        started = clock.monotonic()
        events = 0
        stream = self._client.watch_batches(self._path, params, idle_s=self._idle_s)
        try:
            async with aclosing(stream):
                async for lines in stream:
                    self.problem = ""
                    if not lines:
                        continue
                    self._last_heard_at = clock.monotonic()
                    for line in lines:
                        self._event(line)
                        events += 1
                        if events % YIELD_EVERY == 0:
                            await asyncio.sleep(0)
                    self._client.versions.observe(self._path, self._version)
                    self._backoff.reset()
                    self._failing_since = None
        except TransportError as error:
            self._mark_unconfirmed()
            if error.reason == "Unreachable":
                self._mark_server_away()
                raise
            self._on_stream_end(events)
            if isinstance(error, LineTooLongError) or clock.monotonic() - started <= SHORT_STREAM_S:
                raise
            self._log_failure(error)
            return _reason(error)
        self._on_stream_end(events)
        if clock.monotonic() - started < limit_s - EARLY_END_MARGIN_S:
            self._mark_unconfirmed()
        return "ended" if events or clock.monotonic() - started > SHORT_STREAM_S else "short"

    def _on_stream_end(self, events: int) -> None:
        """List next if the stream was silent: it may never show an event."""
        self._relist = self._relist or (not events and self.silence_s() >= self._idle_s)

    def _event(self, line: bytes) -> None:
        try:
            event = read_event(line)
        except ValueError as error:
            # Not an event: unknown changes were missed.
            self._mark_behind()
            raise KubeError("WATCH", self._path, reason="Garbage", message=str(error)) from error
        kind = event.type
        if kind in ("ADDED", "MODIFIED"):
            self._on_modified(event.object)
        elif kind == "DELETED":
            self._on_deleted(event.object)
        elif kind == "BOOKMARK":
            self._on_bookmark(event.object)
        elif kind == "ERROR":
            self._mark_behind()
            status = parse_status(event.object)
            raise error_for("WATCH", self._path, status.code, event.object)

    def _on_bookmark(self, raw: msgspec.Raw) -> None:
        """Advance to a bookmark.

        Raises:
            KubeError: it is earlier, from a watch cache that lags or an older store; going back
                would repeat events.
        """
        meta = read_meta(raw)
        if meta is None:
            return
        if is_earlier(meta.resource_version, self._version):
            self._mark_unconfirmed()
            text = f"bookmark {meta.resource_version} after {self._version}"
            raise KubeError("WATCH", self._path, reason="Behind", message=text)
        self._version = meta.resource_version or self._version

    def _on_modified(self, raw: msgspec.Raw) -> None:
        item = self._decode_or_log(raw)
        if item is not None:
            self._upsert(self._key_of(item), item)
            self._version = self._version_of(item) or self._version
            return
        meta = read_meta(raw)
        if meta is None:
            return
        known = self._objects.get(meta.key)
        # Another object has the name now, so the known one is deleted.
        if known is not None and self._uid_of(known) != meta.uid:
            self._delete(meta.key)
        self._version = meta.resource_version or self._version

    def _on_deleted(self, raw: msgspec.Raw) -> None:
        # Only the name is needed, so an object that cannot be decoded is deleted as well.
        meta = read_meta(raw)
        if meta is None:
            return
        if meta.key in self._objects:
            self._delete(meta.key)
        self._version = meta.resource_version or self._version

    def _upsert(self, key: str, item: T) -> None:
        known = self._objects.get(key)
        if known is not None:
            if known is item:
                return
            if self._uid_of(known) != self._uid_of(item):
                self._delete(key)
                known = None
            elif self._version_of(known) == self._version_of(item):
                return
        self._objects[key] = item
        try:
            self._on_upsert(known, item)
        except Exception:  # noqa: BLE001 - the caller's code; others must go on
            self._log.exception("callback_failed", callback="on_upsert", key=key)

    def _is_same_version(self, known: T, item: T) -> bool:
        if self._version_of(known) != self._version_of(item):
            return False
        return self._uid_of(known) == self._uid_of(item)

    def _delete(self, key: str) -> None:
        item = self._objects.pop(key)
        try:
            self._on_delete(item)
        except Exception:  # noqa: BLE001 - the caller's code; others must go on
            self._log.exception("callback_failed", callback="on_delete", key=key)

    def _decode_or_log(self, raw: bytes | msgspec.Raw) -> T | None:
        try:
            return self._decode(raw)
        except Exception as error:  # noqa: BLE001 - the caller's code; others must go on
            meta = read_meta(raw)
            self._log.warning(
                "object_not_decoded", key=meta.key if meta else "", error=str(error)[:500]
            )
            return None


def _reason(error: KubeError) -> str:
    """Why a watch or list failed, as a bounded metric label."""
    if error.status:
        return f"http_{error.status}"
    return "stalled" if error.reason == "Stalled" else "broken"
