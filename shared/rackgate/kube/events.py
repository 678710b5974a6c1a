"""Kubernetes Events about the decisions of the services, written in the background.

Equal Events (same object, reason and note) within a time window are written once, so there is one
per change, not one per scheduling cycle. Events about one object with one reason are limited: a
user who changes an object again and again must not use up the Events of others. Events beyond that
limit, or beyond the queue, are dropped and counted.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.resources import EVENTS, Resource
from rackgate.api.timestamps import rfc3339_micro
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.runtime import clock, metrics
from rackgate.wire.core import Meta

MAX_NOTE_BYTES: Final = 1024
MAX_REASON: Final = 128
MAX_NAME: Final = 253
MAX_REMEMBERED: Final = 10_000
QUEUE_SIZE: Final = 1000
# Different Events about one object with one reason: so many at once, then one for every interval.
OBJECT_BURST: Final = 25
OBJECT_INTERVAL_S: Final = 10.0
# Namespace of Events about cluster-scoped objects.
CLUSTER_SCOPED_NAMESPACE: Final = "default"

log = structlog.get_logger()


class EventType(StrEnum):
    """Types of Events."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Regarding:
    """Reference to the object of an Event."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""

    @classmethod
    def of(cls, resource: Resource, meta: Meta) -> Regarding:
        """An object of `resource` with this metadata."""
        return cls(
            resource.api_version,
            resource.kind,
            meta.name,
            meta.namespace,
            meta.uid,
            meta.resource_version,
        )


class EventRecorder:
    """Queues and writes Events. `record` never blocks and never raises."""

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        instance: str = "",
        window_s: float = 300.0,
        qps: float = 20.0,
        burst: int = 50,
        queue_size: int = QUEUE_SIZE,
    ) -> None:
        """Prepare; `run` does the writing.

        Args:
            client: client whose session is used, with limits `qps` and `burst`.
            component: such as "assigner", for the reporting controller `rackgate.dev/assigner`.
            instance: this replica; the host name by default.
            window_s: seconds within which an equal Event is not written again.
            qps: sustained Events per second.
            burst: Events that may be written at once.
            queue_size: Events that may wait.
        """
        self._client = client.budget(qps, burst)
        self._controller = f"rackgate.dev/{component}"
        self._instance = (instance or socket.gethostname())[:MAX_REASON]
        self._window_s = window_s
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(queue_size)
        self._recent: OrderedDict[tuple[str, str, str], float] = OrderedDict()
        # By object and reason: when `OBJECT_BURST` Events may be written at once again.
        self._rested_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    def record(
        self, regarding: Regarding, type_: EventType | str, reason: str, action: str, note: str
    ) -> None:
        """Queue an Event, unless an equal one was queued within the window.

        `reason` and `action` are UpperCamelCase; `note` is truncated at 1024 bytes.
        """
        note = _truncate(note)
        about = regarding.uid or f"{regarding.namespace}/{regarding.name}"
        key = (about, reason, note)
        now = clock.monotonic()
        if now - self._recent.get(key, float("-inf")) < self._window_s:
            return
        rested_at = max(now, self._rested_at.get((about, reason), now))
        if rested_at - now > (OBJECT_BURST - 1) * OBJECT_INTERVAL_S:
            metrics.EVENTS_DROPPED.labels(reason="object_limit").inc()
            return
        try:
            self._queue.put_nowait(self._body(regarding, type_, reason, action, note))
        except asyncio.QueueFull:
            metrics.EVENTS_DROPPED.labels(reason="queue_full").inc()
            return
        self._recent[key] = now
        self._recent.move_to_end(key)
        self._evict_old(now)
        self._rested_at[about, reason] = rested_at + OBJECT_INTERVAL_S
        self._rested_at.move_to_end((about, reason))
        while len(self._rested_at) > MAX_REMEMBERED or next(iter(self._rested_at.values())) <= now:
            self._rested_at.popitem(last=False)

    def _evict_old(self, now: float) -> None:
        """Remove entries that are older than the window or too many, oldest first."""
        while self._recent:
            at = next(iter(self._recent.values()))
            if now - at < self._window_s and len(self._recent) <= MAX_REMEMBERED:
                return
            self._recent.popitem(last=False)

    async def run(self) -> None:
        """Write queued Events until cancelled; rejected ones are dropped."""
        while True:
            await self._write(await self._queue.get())

    async def drain(self) -> None:
        """Write the queued Events, within a second: the last step of a clean stop."""
        try:
            async with asyncio.timeout(1.0):
                while not self._queue.empty():
                    await self._write(self._queue.get_nowait())
        except TimeoutError:
            metrics.EVENTS_DROPPED.labels(reason="stopped").inc(self._queue.qsize())

    async def _write(self, body: dict[str, Any]) -> None:
        path = EVENTS.path(body["metadata"]["namespace"])
        try:
            await self._client.create(path, msgspec.json.encode(body))
        except KubeError as error:
            metrics.EVENTS_DROPPED.labels(reason=f"http_{error.status}").inc()
            log.info("event_dropped", reason=body["reason"], error=str(error)[:300])

    def _body(
        self, regarding: Regarding, type_: EventType | str, reason: str, action: str, note: str
    ) -> dict[str, Any]:
        # As in client-go: the name of the object and a unique suffix.
        suffix = f".{secrets.token_hex(8)}"
        reference = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            "namespace": regarding.namespace,
            "uid": regarding.uid,
            "resourceVersion": regarding.resource_version,
        }
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": regarding.name[: MAX_NAME - len(suffix)].rstrip(".-") + suffix,
                "namespace": regarding.namespace or CLUSTER_SCOPED_NAMESPACE,
            },
            "eventTime": rfc3339_micro(clock.now()),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "type": str(type_),
            "reason": reason[:MAX_REASON],
            "action": action[:MAX_REASON],
            "note": note,
            "regarding": {key: value for key, value in reference.items() if value},
        }


def _truncate(note: str) -> str:
    """At most 1024 bytes of `note`, without a partial character."""
    raw = note.encode()
    if len(raw) <= MAX_NOTE_BYTES:
        return note
    return raw[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."
