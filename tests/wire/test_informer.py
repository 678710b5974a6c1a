from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from rackgate.api.resources import PODS
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime import metrics
from rackgate.runtime.backoff import Backoff
from rackgate.wire.core import Pod
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until
from tests.wire.informer_world import Followed, decode_pod, following, lists, pod, watches


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


@pytest_asyncio.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    running = server.client()
    yield running
    await running.close()


async def test_list_then_watch_follows_every_change(server: FakeApiServer, client: Client) -> None:
    server.put(PODS, pod("a"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.put(PODS, pod("b"))
        server.put(PODS, pod("a", x="1"))
        server.remove(PODS, "b", "ns")
        await until(lambda: len(followed.diary) == 4)
        assert followed.diary == ["+a", "+b", "~a", "-b"]
        assert list(followed.informer.store) == ["ns/a"]
        assert lists(server) == 1


async def test_a_long_list_is_read_in_pages_and_synced_once(
    server: FakeApiServer, client: Client
) -> None:
    for number in range(1100):
        server.put(PODS, pod(f"p{number}"))
    synced: list[int] = []
    async with following(client, on_synced=lambda: synced.append(1)) as followed:
        assert len(followed.informer.store) == len(followed.diary) == 1100
        assert synced == [1]
        assert lists(server) == 3


@pytest.mark.requirement("UNG-18")
@pytest.mark.field_note("W11")
@pytest.mark.parametrize("as_status", [True, False], ids=["http_410", "error_event"])
async def test_a_gone_watch_lists_again_and_tells_what_vanished(
    server: FakeApiServer, client: Client, as_status: bool
) -> None:
    server.gone_as_status = as_status
    for name in ("kept", "changed", "deleted"):
        server.put(PODS, pod(name))
    server.put(PODS, pod("recreated", uid="one"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        followed.diary.clear()
        server.faults.append(Fault.status(503, watch=True))
        server.streams[0].cut()
        server.remove(PODS, "deleted", "ns")
        server.remove(PODS, "recreated", "ns")
        server.put(PODS, pod("recreated", uid="two"))
        server.put(PODS, pod("changed", x="1"))
        server.put(PODS, pod("new"))
        server.compact()
        await until(lambda: "new" in followed.names)
        assert followed.diary == ["-deleted", "~changed", "+new", "-recreated", "+recreated"]
        assert followed.names == {"kept", "changed", "new", "recreated"}


async def test_gone_between_two_pages_starts_the_list_over(
    server: FakeApiServer, client: Client
) -> None:
    for number in range(1001):
        server.put(PODS, pod(f"p{number:04}"))

    async def expire(request: Any, handle: Callable[[], Any]) -> Any:
        server.compact()
        server.remove(PODS, "p0000", "ns")
        return await handle()

    server.faults += [Fault(lambda _, handle: handle()), Fault(expire)]
    async with following(client) as followed:
        assert len(followed.names) == 1000
        assert "-p0000" not in followed.diary, "what nobody was told of needs no delete"
        assert "p0000" not in followed.names


async def test_a_cut_stream_goes_on_from_the_last_version_without_a_list(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("a"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.put(PODS, pod("b"))
        await until(lambda: "b" in followed.names)
        server.streams[0].cut()
        server.remove(PODS, "a", "ns")
        await until(lambda: "-a" in followed.diary)
        assert followed.diary == ["+a", "+b", "-a"]
        assert lists(server) == 1


async def test_bookmarks_move_the_version_on(server: FakeApiServer, client: Client) -> None:
    async with following(client):
        await until(lambda: server.streams)
        server.compact()  # other resources moved on; history is short
        server.bookmark()
        server.streams[0].end()
        await until(lambda: watches(server) == 2)
        await until(lambda: server.streams)
        assert lists(server) == 1


async def test_without_bookmarks_the_same_watch_lists_again(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client):
        await until(lambda: server.streams)
        server.compact()
        server.streams[0].end()
        await until(lambda: lists(server) == 2)


async def test_a_silent_stream_is_given_up(server: FakeApiServer, client: Client) -> None:
    async with following(client, idle_s=0.5) as followed:
        await until(lambda: server.streams)
        server.put(PODS, pod("heard"))
        dead = server.streams.pop()  # it gets no events any more, and no end either
        server.put(PODS, pod("late"))
        await until(lambda: "late" in followed.names)
        assert dead.queue.empty()
        assert lists(server) == 1, "it spoke before, so it will go on where it was"


async def test_a_server_restart_loses_nothing(server: FakeApiServer, client: Client) -> None:
    server.put(PODS, pod("a"))
    server.put(PODS, pod("b"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        await server.stop()
        server.remove(PODS, "a", "ns")
        server.put(PODS, pod("c"))
        await server.restart(down_s=0.05)
        await until(lambda: followed.names == {"b", "c"})
        assert followed.diary == ["+a", "+b", "-a", "+c"]
        await until(lambda: server.streams)
        server.put(PODS, pod("d"))
        await until(lambda: "d" in followed.names)


async def test_a_line_of_two_mebibytes_is_an_event_like_others(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.put(PODS, pod("big", x="y" * 2**21))
        server.put(PODS, pod("after"))
        await until(lambda: followed.names == {"big", "after"})
        assert (watches(server), lists(server)) == (1, 1)


async def test_a_line_beyond_the_limit_is_overcome_by_a_list(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.streams[0].feed(b"x" * (4 * 2**20 + 1))
        server.put(PODS, pod("after"))
        await until(lambda: "after" in followed.names)
        assert lists(server) == 2


async def test_garbage_in_the_stream_lists_again(server: FakeApiServer, client: Client) -> None:
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.streams[0].feed(b"<html>\n")
        await until(lambda: lists(server) == 2)
        server.put(PODS, pod("after"))
        await until(lambda: "after" in followed.names)


async def test_another_error_event_is_followed_by_a_list(
    server: FakeApiServer, client: Client
) -> None:
    async with following(client):
        await until(lambda: server.streams)
        server.streams[0].event("ERROR", {"kind": "Status", "code": 500, "reason": "InternalError"})
        await until(lambda: lists(server) == 2)


async def test_throttled_and_rejected_lists_are_tried_until_they_work(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("a"))
    server.faults += [
        Fault.status(429, headers={"Retry-After": "0.02"}),
        Fault.status(403, "Forbidden", times=2),
        Fault.status(404, "NotFound"),
    ]
    async with following(client) as followed:
        assert followed.names == {"a"}


async def test_a_rejected_list_says_what_is_missing(server: FakeApiServer, client: Client) -> None:
    server.faults.append(Fault.status(403, "Forbidden", "pods is forbidden", times=999))
    followed = Followed(client)
    assert followed.informer.missing() == ["pods: not listed yet"]
    task = asyncio.create_task(followed.informer.run())
    await until(lambda: "pods is forbidden" in followed.informer.missing()[0])
    task.cancel()
    await asyncio.wait((task,))


async def test_an_object_that_cannot_be_decoded_is_left_as_it_was_known(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("poison"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        bad = pod("poison")
        bad["spec"] = {"containers": "none"}
        with capture_logs() as logs:
            server.put(PODS, bad)
            server.put(PODS, pod("after"))
            await until(lambda: "after" in followed.names)
        assert [line["key"] for line in logs if line["event"] == "object_not_decoded"] == [
            "ns/poison"
        ]
        assert followed.diary == ["+poison", "+after"]
        server.compact()
        server.streams[0].end()
        await until(lambda: lists(server) == 2)
        await until(lambda: server.streams)
        assert "poison" in followed.names, "listed, so not deleted"
        server.remove(PODS, "poison", "ns")
        await until(lambda: followed.diary[-1] == "-poison")
        assert watches(server) - lists(server) == 1, "the stream went on throughout"


async def test_a_name_taken_by_an_undecodable_object_frees_the_old_one(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("a", uid="one"))
    async with following(client) as followed:
        await until(lambda: server.streams)
        server.put(PODS, {**pod("a", uid="two"), "spec": {"containers": 5}})
        await until(lambda: followed.diary == ["+a", "-a"])


async def test_a_callback_that_raises_stops_nothing(server: FakeApiServer, client: Client) -> None:
    seen: list[str] = []

    def fold(_: Pod | None, new: Pod) -> None:
        seen.append(new.metadata.name)
        if new.metadata.name == "a":
            raise RuntimeError("planted")

    informer = Informer(client, PODS, decode_pod, on_upsert=fold, on_delete=lambda _: None)
    task = asyncio.create_task(informer.run())
    with capture_logs() as logs:
        server.put(PODS, pod("a"))
        server.put(PODS, pod("b"))
        await until(lambda: sorted(seen) == ["a", "b"])
    assert [line["key"] for line in logs if line["event"] == "callback_failed"] == ["ns/a"]
    task.cancel()
    await asyncio.wait((task,))


async def test_rows_without_metadata_name_their_own_parts(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("a"))
    rows: list[tuple[str, ...]] = []

    def row(raw: bytes | msgspec.Raw) -> tuple[str, ...]:
        meta = json.loads(bytes(raw))["metadata"]
        return (f"{meta['namespace']}/{meta['name']}", meta["resourceVersion"], meta["uid"])

    informer = Informer(
        client,
        PODS,
        row,
        on_upsert=lambda _, new: rows.append(new),
        on_delete=rows.remove,
        key_of=lambda item: item[0],
        version_of=lambda item: item[1],
        uid_of=lambda item: item[2],
    )
    task = asyncio.create_task(informer.run())
    await until(lambda: server.streams)
    server.remove(PODS, "a", "ns")
    await until(lambda: not rows)
    task.cancel()
    await asyncio.wait((task,))


async def test_selectors_and_namespace_reach_the_server(
    server: FakeApiServer, client: Client
) -> None:
    server.put(PODS, pod("in", app="x"))
    server.put(PODS, pod("out"))
    options = {"namespace": "ns", "params": {"labelSelector": "app=x"}}
    async with following(client, **options) as followed:
        await until(lambda: server.streams)
        assert followed.names == {"in"}
        query = next(request.query for request in server.requests if request.watch)
        assert query["allowWatchBookmarks"] == "true"
        assert 300 <= int(query["timeoutSeconds"]) <= 600


async def test_restarts_are_counted_by_reason(server: FakeApiServer, client: Client) -> None:
    def count(reason: str) -> float:
        labels = {"resource": "pods", "reason": reason}
        return metrics.REGISTRY.get_sample_value("rackgate_watch_restarts_total", labels) or 0.0

    before = count("broken")
    async with following(client):
        await until(lambda: server.streams)
        server.streams[0].cut()
        await until(lambda: count("broken") == before + 1)


async def test_a_stream_that_always_ends_at_once_is_not_asked_for_in_a_hot_loop(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault.body(b"", watch=True, times=999))
    async with following(client, backoff=Backoff(base_s=0.02, cap_s=0.05)):
        await until(lambda: watches(server) >= 4)
        before, started = watches(server), asyncio.get_running_loop().time()
        await until(lambda: watches(server) >= before + 4)
        assert asyncio.get_running_loop().time() - started > 0.05
