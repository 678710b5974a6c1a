"""An API server whose store was restored from an older copy, as each kind of answer shows it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web

from rackgate.api.resources import JOBS, LEASES, PODS
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError, RewoundError
from rackgate.kube.versions import collection
from rackgate.runtime import clock, metrics
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until
from tests.wire.informer_world import Followed, following, lists, pod, watches

pytestmark = [pytest.mark.steady_clock, pytest.mark.requirement("UNG-18")]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.put(PODS, pod("a"))
        yield running


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    client = server.client()
    yield client
    await client.close()


def named(name: str, version: str = "", **meta: Any) -> bytes:
    bound = {"resourceVersion": version} if version else {}
    return json.dumps({"metadata": {"name": name, "namespace": "ns", **bound, **meta}}).encode()


def restarts() -> float:
    labels = {"resource": PODS.full_name, "reason": "broken"}
    return metrics.REGISTRY.get_sample_value("rackgate_watch_restarts_total", labels) or 0.0


async def all_pages(client: Client, **params: str) -> list[bytes]:
    return [body async for body in client.list_pages(PODS.path(), params)]


async def older(server: FakeApiServer, client: Client) -> None:
    """Let the client see the latest version; then the store is as it was three writes ago."""
    backup = server.backup()
    for number in range(3):
        server.put(PODS, pod("a", seen=str(number)))
    await all_pages(client)
    server.restore(backup)


def a_version(server: FakeApiServer) -> str:
    stored = server.get(PODS, "a", "ns")
    assert stored is not None
    return str(stored["metadata"]["resourceVersion"])


async def create(server: FakeApiServer, client: Client) -> None:
    await client.create(PODS.path("ns"), named("b"))


async def put(server: FakeApiServer, client: Client) -> None:
    body = named("a", a_version(server), labels={"changed": "now"})
    await client.replace(PODS.path("ns", "a"), body)


async def patch(server: FakeApiServer, client: Client) -> None:
    body = named("a", a_version(server), labels={"changed": "now"})
    await client.patch(PODS.path("ns", "a"), body, PatchType.MERGE)


async def json_patch(server: FakeApiServer, client: Client) -> None:
    body = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": a_version(server)},
        {"op": "add", "path": "/metadata/labels", "value": {"changed": "now"}},
    ]
    await client.patch(PODS.path("ns", "a"), json.dumps(body).encode(), PatchType.JSON)


async def a_list(server: FakeApiServer, client: Client) -> None:
    await all_pages(client)


async def a_read(server: FakeApiServer, client: Client) -> None:
    known = str(int(a_version(server)) + 3)
    await client.get(PODS.path("ns", "a"), known=known)


Act = Callable[[FakeApiServer, Client], Awaitable[None]]


@pytest.mark.parametrize("act", [create, put, patch, json_patch, a_list, a_read])
async def test_each_answer_of_an_older_store_shows_it_and_ends_all_requests(
    server: FakeApiServer, client: Client, act: Act
) -> None:
    writes, lists_ = client.budget(10, 10), client.metadata_only()
    await older(server, client)
    ending = asyncio.create_task(client.versions.wait_rewound())
    with pytest.raises(RewoundError, match="restored from a backup"):
        await act(server, writes)
    with pytest.raises(RewoundError):
        await asyncio.wait_for(ending, 60)
    assert client.versions.missing(), "not ready any more"
    asked = len(server.requests)
    with pytest.raises(RewoundError):
        await writes.patch(PODS.path("ns", "a"), b"{}", PatchType.MERGE)
    with pytest.raises(RewoundError):
        await all_pages(lists_)
    with pytest.raises(RewoundError):
        async for _ in client.watch(PODS.path()):
            pass
    assert len(server.requests) == asked, "nothing more is sent"


async def test_a_write_that_changes_nothing_is_answered_with_an_earlier_version(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("b"))
    await all_pages(client)
    bound, path = a_version(server), PODS.path("ns", "a")
    await client.patch(path, named("a", bound), PatchType.MERGE)
    await client.patch(path, b"{}", PatchType.MERGE)
    tested = [{"op": "test", "path": "/metadata/resourceVersion", "value": bound}]
    await client.patch(path, json.dumps(tested).encode(), PatchType.JSON)
    await client.create(PODS.path("ns"), named("c"), {"dryRun": "All"})
    assert not client.versions.missing()


async def test_resources_are_compared_with_themselves_alone(
    server: FakeApiServer, client: Client
) -> None:
    """They may live in stores of their own."""
    client.versions.observe(PODS.path(), "5000")
    await client.create(JOBS.path("ns"), named("j"))
    async for _ in client.list_pages(JOBS.path()):
        pass
    assert not client.versions.missing()


def test_paths_of_one_resource_are_one_collection() -> None:
    paths = (LEASES.path(), LEASES.path("ns"), LEASES.path("ns", "x"))
    assert {collection(path) for path in paths} == {"leases.coordination.k8s.io"}
    assert collection("/api/v1/namespaces/ns/pods/p/status") == collection("/api/v1/pods")
    assert collection("/apis/batch/v1/jobs") != collection("/apis/other/v1/jobs")
    assert collection("/api/v1/namespaces/ns/status") == collection("/api/v1/namespaces")


async def test_a_list_from_a_cache_that_lags_is_no_older_store(
    server: FakeApiServer, client: Client
) -> None:
    """Whoever asks for `resourceVersion=0` takes what a cache has."""
    await older(server, client)
    await all_pages(client, resourceVersion="0")
    assert not client.versions.missing()


async def test_the_bookmark_of_a_cache_that_lags_is_looked_into_and_ends_nothing(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("b"))
    answer = asyncio.Event()

    async def when_told(_: web.Request, handle: Any) -> web.StreamResponse:
        await answer.wait()
        return await handle()  # type: ignore[no-any-return]  # as the fake server made it

    async with following(client) as followed:
        await until(lambda: server.streams)
        server.faults.append(Fault(when_told, watch=False))
        server.streams[0].event("BOOKMARK", {"metadata": {"resourceVersion": "100"}})
        await until(lambda: not followed.informer.is_confirmed)
        answer.set()
        await until(lambda: followed.informer.is_confirmed)
        await until(lambda: watches(server) == 2)
        server.put(PODS, pod("c"))
        await until(lambda: "c" in followed.names)
        assert lists(server) == 1
        assert not client.versions.missing()


@pytest.mark.parametrize("how", ["end", "cut"])
async def test_a_stream_that_ends_early_is_followed_by_a_question_for_the_version(
    server: FakeApiServer, client: Client, how: str
) -> None:
    """As streams do when the API server that is restored is one of several."""
    backup = server.backup()
    server.put(PODS, pod("b"))
    followed = Followed(client)
    task = asyncio.create_task(followed.informer.run())
    await until(lambda: server.streams)
    server.restore(backup)
    getattr(server.streams[0], how)()
    with pytest.raises(RewoundError):
        await asyncio.wait_for(task, 60)
    assert followed.diary == ["+a", "+b"], "nobody is told what contradicts the rest"
    asked = [request for request in server.requests if request.query.get("limit") == "1"]
    assert len(asked) == 1, "one object is asked for"


async def test_nothing_is_certain_until_the_store_has_shown_its_version(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client) as followed:
        await until(lambda: server.streams)
        assert followed.informer.is_confirmed
        writes = client.with_write_gate(followed.informer.wait_confirmed)
        await server.stop()
        await until(lambda: not followed.informer.is_confirmed)
        writing = asyncio.create_task(writes.patch(PODS.path("ns", "a"), b"{}", PatchType.MERGE))
        reading = asyncio.create_task(writes.get(PODS.path("ns", "a")))
        with suppress(KubeError):
            await reading  # reads wait for nothing
        assert not writing.done()
        await server.start()
        await asyncio.wait_for(writing, 20)
        order = [r.method for r in server.requests if r.method == "PATCH" or r.query.get("limit")]
        assert order[-2:] == ["GET", "PATCH"]


async def test_after_an_outage_everything_is_listed(server: FakeApiServer, client: Client) -> None:
    """An older store may have passed our version by then; its objects still show what it is."""
    async with following(client):
        await until(lambda: server.streams)
        failures = restarts()
        await server.stop()
        await until(lambda: restarts() >= failures + 2)  # the stream, and a question
        await server.start()
        await until(lambda: lists(server) == 2)
        await until(lambda: server.streams)


@pytest.mark.parametrize("what", ["an_earlier_object", "an_object_from_before"])
async def test_a_list_shows_an_older_store_though_its_version_is_a_later_one(
    server: FakeApiServer, client: Client, what: str
) -> None:
    """As after `etcdutl snapshot restore --bump-revision`, or many writes."""
    backup = server.backup()
    if what == "an_earlier_object":
        server.put(PODS, pod("a", changed="since"))
    else:
        server.remove(PODS, "a", "ns")
    followed = Followed(client)
    task = asyncio.create_task(followed.informer.run())
    await until(lambda: server.streams)
    server.restore(backup)
    server._version = 1_000_000
    server.streams[0].expire()
    with pytest.raises(RewoundError):
        await asyncio.wait_for(task, 60)


async def test_a_server_that_does_not_say_its_version_keeps_no_one_waiting(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.faults += [
            Fault.status(503, watch=False, times=3),
            Fault.status(404, watch=False, times=999),
        ]
        server.streams[0].cut()
        await until(lambda: not followed.informer.is_confirmed)
        await asyncio.wait_for(followed.informer.wait_confirmed(), 60)
        assert server.faults[0].times == 0


class Held:
    """Whole lists that are answered once `go` is set; `asked` when the first one came."""

    def __init__(self, server: FakeApiServer) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        server.faults.append(Fault(self._answer, method="GET", watch=False, times=99))

    async def _answer(self, request: web.Request, handle: Any) -> web.StreamResponse:
        if request.query.get("limit") != "1":
            self.asked.set()
            await self.go.wait()
        return await handle()  # type: ignore[no-any-return]  # as the fake server made it


async def test_nothing_is_written_by_what_was_known_before_a_restore_that_bumped_versions(
    server: FakeApiServer, client: Client
) -> None:
    """As with `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`."""
    backup = server.backup()
    server.put(PODS, pod("a", changed="since"))
    followed = Followed(client)
    task = asyncio.create_task(followed.informer.run())
    await until(lambda: server.streams)
    server.restore(backup)
    server._version = server._oldest = 1_000_000_000
    held = Held(server)
    server.streams[0].cut()
    await until(lambda: not followed.informer.is_confirmed)
    writing = asyncio.create_task(
        client.with_write_gate(followed.informer.wait_confirmed).create(
            PODS.path("ns"), named("new")
        )
    )
    await asyncio.wait_for(held.asked.wait(), 60)
    assert not followed.informer.is_confirmed
    held.go.set()
    with pytest.raises(RewoundError):
        await asyncio.wait_for(task, 60)
    assert not [request for request in server.requests if request.method == "POST"]
    writing.cancel()
    await asyncio.wait((writing,))


@pytest.mark.parametrize("how", ["event", "status", "error", "garbage"])
async def test_a_stream_that_cannot_go_on_leaves_nothing_certain_until_all_is_listed(
    server: FakeApiServer, client: Client, how: str
) -> None:
    """A version that was bumped by little shows in the list alone."""
    async with following(client) as followed:
        await until(lambda: server.streams)
        held = Held(server)
        stream = server.streams[0]
        if how == "event":
            stream.expire()
        elif how == "status":
            server.gone_as_status = True
            server.compact()
            stream.end()
        elif how == "error":
            stream.event("ERROR", {"kind": "Status", "code": 500, "message": "no leader"})
        else:
            stream.feed(b"<html>\n")
        await asyncio.wait_for(held.asked.wait(), 60)
        assert not followed.informer.is_confirmed
        held.go.set()
        await until(lambda: followed.informer.is_confirmed)


@pytest.mark.parametrize("code", [410, 429, 502, 503, 504])
async def test_a_list_that_may_soon_be_answered_leaves_nothing_certain(
    server: FakeApiServer, client: Client, code: int
) -> None:
    """410 is a list that took longer than its continue token lived."""
    async with following(client, failing_s=0) as followed:
        await until(lambda: server.streams)
        rejection = Fault.status(code, headers={"Retry-After": "0"})
        waiting: list[asyncio.Task[None]] = []

        async def reject(request: web.Request, handle: Any) -> web.StreamResponse:
            if not waiting:
                waiting.append(asyncio.create_task(followed.informer.wait_confirmed()))
            return await rejection.answer(request, handle)

        server.faults.append(Fault(reject, watch=False, times=5))
        held = Held(server)
        server.streams[0].expire()
        await asyncio.wait_for(held.asked.wait(), 20)
        assert not waiting[0].done()
        held.go.set()
        await waiting[0]


@pytest.mark.parametrize("code", [403, 500])
@pytest.mark.parametrize("list_is_due", [True, False])
async def test_a_server_that_fails_keeps_writes_waiting_for_a_while(
    server: FakeApiServer, client: Client, list_is_due: bool, code: int
) -> None:
    """500 may be etcd that is away, or the conversion webhook of this kind that is broken.

    403 may be an API server that has just started, or a role that was taken away.
    """
    broken = Fault.status(code, watch=False, times=999)
    async with following(client, failing_s=0.5) as followed:
        await until(lambda: server.streams)
        server.faults.append(broken)
        if list_is_due:
            server.streams[0].expire()
        else:
            server.streams[0].cut()
        await until(lambda: broken.times < 999)
        since = clock.monotonic()
        assert not followed.informer.is_confirmed
        await asyncio.wait_for(followed.informer.wait_confirmed(), 60)
        assert clock.monotonic() - since >= 0.4
        assert broken.times < 997, "asked again meanwhile"
        if list_is_due:
            return
        # What cannot be listed can still be watched.
        await until(lambda: server.streams)
        server.put(PODS, pod("b"))
        await until(lambda: "b" in followed.names)


async def test_after_failures_everything_is_listed(server: FakeApiServer, client: Client) -> None:
    """etcd may have been away behind the API server, and an older one may have passed us."""
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.faults.append(Fault.status(500, watch=False, times=3))
        held = Held(server)
        server.streams[0].cut()
        await asyncio.wait_for(held.asked.wait(), 60)
        assert not followed.informer.is_confirmed
        held.go.set()
        await until(lambda: followed.informer.is_confirmed)


async def test_failures_of_another_time_do_not_count(server: FakeApiServer, client: Client) -> None:
    """Each time that a server fails, writes wait for a while."""
    async with following(client, failing_s=0.2) as followed:
        for number in range(2):
            await until(lambda: server.streams)
            server.put(PODS, pod(f"p{number}"))
            await until(lambda number=number: f"p{number}" in followed.names)  # type: ignore[misc]  # bound now
            broken = Fault.status(500, watch=False, times=999)
            server.faults.append(broken)
            server.streams[0].cut()
            await until(lambda broken=broken: broken.times < 999)  # type: ignore[misc]  # bound now
            since = clock.monotonic()
            await asyncio.wait_for(followed.informer.wait_confirmed(), 60)
            assert clock.monotonic() - since >= 0.15
            server.faults.clear()
