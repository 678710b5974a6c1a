"""A small fake API server on real loopback HTTP, with faults on order.

    async with FakeApiServer() as server:
        server.put(PODS, {"metadata": {"name": "a", "namespace": "x"}})
        server.faults.append(Fault.status(409, "Conflict", method="PATCH"))
        client = server.client()

It keeps objects of every resource, versions, history and watches, checks uid and
resourceVersion of writes, and knows nothing of schemas, defaults or admission.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import os
import random
import ssl
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.transport import Credentials, Transport
from rackgate.runtime.serving.connections import abort
from rackgate_cli.controlplane import ports
from tests.support.apiserver_faults import Fault, Request
from tests.support.apiserver_objects import (
    RejectedRequest,
    Target,
    apply_patch,
    merged,
    selected,
    status_body,
)

__all__ = ["FakeApiServer", "Fault", "Request", "Stream"]

Object = dict[str, Any]


# Each watch is late by up to so many seconds, by itself: what follows from the order of two watches
# happens then.
LATE_S: Final = float(os.environ.get("LATE_WATCHES_S", "0"))


@dataclass(eq=False)
class Stream:
    """One open watch; `feed` puts raw bytes into it, None ends it; late while not `flows`."""

    target: Target
    query: Mapping[str, str]
    peers: list[Stream]
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    transport: asyncio.Transport | None = None
    since: int = 0
    flows: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.flows.set()

    def follows(self, full_name: str, item: Object) -> bool:
        target = self.target
        return target.full_name == full_name and target.holds(item) and selected(item, self.query)

    def feed(self, raw: bytes) -> None:
        self.queue.put_nowait(raw)

    def event(self, kind: str, item: Object) -> None:
        self.feed(json.dumps({"type": kind, "object": item}).encode() + b"\n")

    def end(self) -> None:
        """End the stream as the server does at its time limit."""
        self._leave()
        self.queue.put_nowait(None)

    def expire(self) -> None:
        """Tell that the versions followed are too old, and end."""
        self.event("ERROR", json.loads(status_body(410, "Expired", "too old")))
        self.end()

    def cut(self) -> None:
        """Break the connection."""
        if self.transport is not None:
            abort(self.transport)
        self.end()

    def _leave(self) -> None:
        if self in self.peers:
            self.peers.remove(self)


class FakeApiServer:
    """See the module. `requests` holds all that was asked, in order; `refused` what of it was."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.refused: list[Request] = []
        self.faults: list[Fault] = []
        self.streams: list[Stream] = []
        self.tokens: set[str] | None = None
        # Answers by path, for example of discovery.
        self.documents: dict[str, Object] = {}
        # Verb and resource of rights that the caller does not have.
        self.denied: set[tuple[str, str]] = set()
        self.gone_as_status = False
        self.port = 0
        self._ssl = ssl_context
        self._version = 100
        self._oldest = 100
        self._objects: dict[str, dict[str, Object]] = {}
        self._history: list[tuple[int, str, str, Object]] = []
        self._runner: web.AppRunner | None = None
        self._names = itertools.count(1)
        self._held = contextlib.ExitStack()

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    def client(self, *, request_timeout_s: float = 10.0, **options: Any) -> Client:
        """A client of this server; the caller closes it."""
        address = self.url + options.pop("below", "")
        transport = Transport(address, credentials=options.pop("credentials", Credentials()))
        return Client(transport, request_timeout_s=request_timeout_s, **options)

    async def __aenter__(self) -> FakeApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._held.close()

    async def start(self) -> None:
        if not self.port:
            # Nobody else gets it while this server is down.
            self.port = self._held.enter_context(ports.reserved({"": None}))[""]
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, ssl_context=self._ssl, reuse_address=True
        )
        await site.start()

    async def stop(self) -> None:
        """Break all connections and stop listening."""
        for stream in tuple(self.streams):
            stream.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def restart(self, down_s: float = 0.0) -> None:
        """Come back on the same port; every older version is gone, as with the real one."""
        await self.stop()
        self.compact()
        await asyncio.sleep(down_s)
        await self.start()

    def compact(self) -> None:
        """Forget history: watches from an older version get 410."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def backup(self) -> tuple[int, dict[str, dict[str, Object]]]:
        """The store as it is, for `restore`."""
        return self._version, copy.deepcopy(self._objects)

    def restore(self, backup: tuple[int, dict[str, dict[str, Object]]]) -> None:
        """Be as at the backup, its version included. The server should be stopped."""
        self._version, self._objects = backup[0], copy.deepcopy(backup[1])
        self._oldest = self._version
        self._history.clear()

    # The cluster's other users.

    def put(self, resource: Resource, item: Object) -> Object:
        """Create or change an object; returns it as stored."""
        meta = item.get("metadata", {})
        space = meta.get("namespace", "") if resource.namespaced else ""
        path = resource.path(space or None)
        known = self._objects.get(resource.full_name, {}).get(f"{space}/{meta.get('name')}")
        target = Target.parse(path)
        stored = copy.deepcopy(item)
        stored.setdefault("metadata", {}).pop("resourceVersion", None)
        if known is not None:
            stored["metadata"].setdefault("uid", known["metadata"]["uid"])
        return self._store(target, stored, known)

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Delete an object."""
        self._drop(resource.full_name, f"{namespace}/{name}")

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        """An object as stored, or None."""
        return self._objects.get(resource.full_name, {}).get(f"{namespace}/{name}")

    def bookmark(self) -> None:
        """Send a bookmark of the current version on every stream."""
        for stream in self._streams_to_notify():
            stream.event("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})

    # Requests.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = Request(
            request.method,
            request.path,
            dict(request.query),
            dict(request.headers),
            await request.read(),
        )
        self.requests.append(seen)

        async def handle() -> web.StreamResponse:
            return await self._answer(request, seen)

        fault = next((fault for fault in self.faults if fault.matches(seen)), None)
        if fault is None:
            return await handle()
        fault.times -= 1
        return await fault.answer(request, handle)

    async def _answer(self, request: web.Request, seen: Request) -> web.StreamResponse:
        try:
            self._authenticate(seen)
            if seen.method == "GET" and seen.path in self.documents:
                return web.json_response(self.documents[seen.path])
            target = Target.parse(seen.path)
            if seen.watch:
                return await self._watch(request, target, seen)
            code, body = self._do(target, seen)
        except RejectedRequest as refused:
            self.refused.append(seen)
            return web.Response(status=refused.code, body=refused.body)
        return web.Response(status=code, body=json.dumps(body).encode())

    def _authenticate(self, seen: Request) -> None:
        token = seen.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            raise RejectedRequest(401, "Unauthorized", "token is not valid")

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        if target.plural == "selfsubjectaccessreviews":
            asked = json.loads(seen.body)["spec"]["resourceAttributes"]
            return 201, {
                "status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}
            }
        objects = self._objects.setdefault(target.full_name, {})
        known = objects.get(target.key) if target.name else None
        if seen.method == "POST" and not target.name:
            if "dryRun" in seen.query:
                return 201, _not_created(json.loads(seen.body))
            return 201, self._create(target, json.loads(seen.body))
        if seen.method == "GET" and not target.name:
            return 200, self._list(target, seen.query)
        applied = seen.headers.get("Content-Type", "").startswith("application/apply-patch")
        if known is None and seen.method == "PATCH" and applied:
            return 201, self._create(target, json.loads(seen.body))
        if known is None:
            raise RejectedRequest(404, "NotFound", f'{target.plural} "{target.name}" not found')
        if seen.method == "GET":
            return 200, known
        if seen.method == "PUT":
            return 200, self._replace(target, known, json.loads(seen.body))
        if seen.method == "PATCH":
            kind = seen.headers["Content-Type"]
            patched = apply_patch(known, kind, seen.body)
            if "dryRun" in seen.query:
                check_preconditions(known, patched.get("metadata", {}))
                return 200, patched
            return 200, self._replace(target, known, patched)
        if seen.method == "DELETE":
            options = json.loads(seen.body or b"{}")
            check_preconditions(known, options.get("preconditions", {}))
            if not options.get("dryRun"):
                self._drop(target.full_name, target.key)
            return 200, known
        raise RejectedRequest(405, "MethodNotAllowed", seen.method)

    def _list(self, target: Target, query: Mapping[str, str]) -> Object:
        """Items in key order; the continue token is `version:offset`."""
        version, start = self._version, 0
        if "continue" in query:
            version, start = (int(part) for part in query["continue"].split(":"))
            if version < self._oldest:
                raise RejectedRequest(410, "Expired", "the provided continue parameter is too old")
        objects = self._objects.get(target.full_name, {})
        items = [
            objects[key]
            for key in sorted(objects)
            if target.holds(objects[key]) and selected(objects[key], query)
        ]
        limit = int(query.get("limit", "0")) or len(items) or 1
        page = items[start : start + limit]
        meta = {"resourceVersion": str(version)}
        if start + limit < len(items):
            meta["continue"] = f"{version}:{start + limit}"
        return {"kind": "List", "apiVersion": "v1", "metadata": meta, "items": page}

    def _create(self, target: Target, item: Object) -> Object:
        meta = item.setdefault("metadata", {})
        if "name" not in meta and "generateName" in meta:
            meta["name"] = f"{meta['generateName']}{next(self._names):05d}"
        meta.setdefault("name", target.name)
        if target.namespace:
            meta["namespace"] = target.namespace
        key = f"{target.namespace}/{meta['name']}"
        if key in self._objects.get(target.full_name, {}):
            raise RejectedRequest(409, "AlreadyExists", f'"{meta["name"]}" already exists')
        return self._store(target, item, None)

    def _replace(self, target: Target, known: Object, item: Object) -> Object:
        meta = item.get("metadata", {})
        check_preconditions(known, meta)
        if target.sub == "status":
            item = {**known, "status": item.get("status", {})}
        return self._store(target, merged({}, item), known)

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        meta = item["metadata"]
        key = f"{meta.get('namespace', '')}/{meta['name']}"
        if known is not None:
            meta.setdefault("uid", known["metadata"]["uid"])
            meta["resourceVersion"] = known["metadata"]["resourceVersion"]
            if item == known:
                return known  # nothing changed: no event, no new version
            if meta["uid"] != known["metadata"]["uid"]:
                self._drop(target.full_name, key)
                known = None
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self._version += 1
        meta["resourceVersion"] = str(self._version)
        self._objects.setdefault(target.full_name, {})[key] = item
        self._publish("MODIFIED" if known is not None else "ADDED", target.full_name, item)
        return item

    def _drop(self, full_name: str, key: str) -> None:
        item = copy.deepcopy(self._objects[full_name].pop(key))
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._publish("DELETED", full_name, item)

    def _publish(self, kind: str, full_name: str, item: Object) -> None:
        self._history.append((self._version, kind, full_name, copy.deepcopy(item)))
        for stream in self._streams_to_notify():
            if stream.follows(full_name, item):
                stream.event(kind, item)

    def _streams_to_notify(self) -> list[Stream]:
        """Streams that are told of the current version: none hears of one it has passed."""
        return [stream for stream in self.streams if stream.since < self._version]

    async def _watch(
        self, request: web.Request, target: Target, seen: Request
    ) -> web.StreamResponse:
        version = int(seen.query.get("resourceVersion") or self._version)
        stream = Stream(
            target, seen.query, self.streams, transport=request.transport, since=version
        )
        if version < self._oldest:
            if self.gone_as_status:
                raise RejectedRequest(410, "Expired", "too old resource version")
            stream.expire()
        for at, kind, full_name, item in self._history:
            if at > version and stream.follows(full_name, item):
                stream.event(kind, item)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if version >= self._oldest:
            self.streams.append(stream)
        try:
            await response.prepare(request)
            while (raw := await stream.queue.get()) is not None:
                if LATE_S and stream.queue.empty():  # what comes meanwhile is shown with it
                    await asyncio.sleep(random.uniform(0, LATE_S))
                await stream.flows.wait()
                await response.write(raw)
            await response.write_eof()
        except ConnectionError:
            pass  # the client went away
        finally:
            stream.end()
        return response


def _not_created(item: Object) -> Object:
    """The answer to a create with dryRun: the object with the time of this machine."""
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    meta = {"creationTimestamp": created, "uid": str(uuid.uuid4()), **item.get("metadata", {})}
    return {**item, "metadata": meta}


def check_preconditions(known: Object, wanted: Mapping[str, Any]) -> None:
    """Reject a write of another version, or of another object of this name."""
    version, uid = wanted.get("resourceVersion"), wanted.get("uid")
    if version and version != known["metadata"]["resourceVersion"]:
        raise RejectedRequest(409, "Conflict", "the object has been modified")
    if uid and uid != known["metadata"]["uid"]:
        raise RejectedRequest(409, "Conflict", "the UID in the precondition does not match")
