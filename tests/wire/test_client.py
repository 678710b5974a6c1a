from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from rackgate.api.resources import NODES, PODS, WORKLOADS
from rackgate.kube import stream
from rackgate.kube.client import Client, PatchType, resource_of
from rackgate.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    GoneError,
    LineTooLongError,
    NotFoundError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
)
from rackgate.kube.stream import LineSplitter
from rackgate.kube.transport import TokenFile
from rackgate.runtime import metrics
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until

POD = PODS.path("ns", "p")


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {}})
        yield running


@pytest_asyncio.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    running = server.client()
    yield running
    await running.close()


async def collect(client: Client, into: list[bytes], **options: Any) -> None:
    async for line in client.watch(PODS.path(), **options):
        into.append(line)  # noqa: PERF401 - seen line by line by the test


async def test_five_verbs_reach_the_object(server: FakeApiServer, client: Client) -> None:
    body = msgspec.json.encode({"metadata": {"name": "q"}, "spec": {"a": 1}})
    created = json.loads(await client.create(PODS.path("ns"), body))
    assert created["metadata"]["uid"]
    patched = await client.patch(PODS.path("ns", "q"), b'{"spec":{"b":2}}', PatchType.MERGE)
    assert json.loads(patched)["spec"] == {"a": 1, "b": 2}
    created["spec"] = {"c": 3}
    del created["metadata"]["resourceVersion"]
    await client.replace(PODS.path("ns", "q"), msgspec.json.encode(created))
    assert json.loads(await client.get(PODS.path("ns", "q")))["spec"] == {"c": 3}
    await client.delete(PODS.path("ns", "q"))
    with pytest.raises(NotFoundError):
        await client.get(PODS.path("ns", "q"))


async def test_apply_names_its_manager_and_forces(server: FakeApiServer, client: Client) -> None:
    await client.apply(POD, b'{"metadata":{"name":"p"}}', "rackgate-admission")
    query = server.requests[-1].query
    assert (query["fieldManager"], query["force"]) == ("rackgate-admission", "true")
    assert server.requests[-1].headers["Content-Type"] == "application/apply-patch+yaml"


async def test_writes_carry_their_time_limit_to_the_server(
    server: FakeApiServer, client: Client
) -> None:
    await client.patch(POD, b"{}", PatchType.MERGE)
    await client.get(POD)
    assert server.requests[-2].query["timeout"] == "10000ms"
    assert "timeout" not in server.requests[-1].query


async def test_pages_follow_the_continue_token(server: FakeApiServer, client: Client) -> None:
    for number in range(7):
        server.put(NODES, {"metadata": {"name": f"n{number}"}})
    pages = [json.loads(page) async for page in client.list_pages(NODES.path(), page_size=3)]
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    assert [request.query["limit"] for request in server.requests] == ["3", "3", "3"]


async def test_an_expired_continue_token_is_gone(server: FakeApiServer, client: Client) -> None:
    for number in range(4):
        server.put(NODES, {"metadata": {"name": f"n{number}"}})
    pages = client.list_pages(NODES.path(), page_size=2)
    await anext(pages)
    server.compact()
    with pytest.raises(GoneError):
        await anext(pages)


async def test_conflicts_and_taken_names_are_reported_apart(
    server: FakeApiServer, client: Client
) -> None:
    stale = b'{"metadata":{"resourceVersion":"1"}}'
    with pytest.raises(ConflictError) as conflict:
        await client.patch(POD, stale, PatchType.MERGE)
    assert not isinstance(conflict.value, AlreadyExistsError)
    assert conflict.value.status == 409
    with pytest.raises(AlreadyExistsError):
        await client.create(PODS.path("ns"), b'{"metadata":{"name":"p"}}')
    assert len(server.requests) == 2, "no answer of the server is asked for again"


@pytest.mark.parametrize("method", ["GET", "PATCH", "POST", "DELETE"])
async def test_throttled_requests_wait_as_reported_and_are_sent_again(
    server: FakeApiServer, client: Client, method: str
) -> None:
    wait = {"Retry-After": "0.05"}
    server.faults.append(Fault.status(429, "TooManyRequests", headers=wait, times=2))
    calls = {
        "GET": lambda: client.get(POD),
        "PATCH": lambda: client.patch(POD, b"{}", PatchType.MERGE),
        "POST": lambda: client.create(PODS.path("ns"), b'{"metadata":{"name":"new"}}'),
        "DELETE": lambda: client.delete(POD),
    }
    started = time.monotonic()
    await calls[method]()
    assert time.monotonic() - started >= 0.1
    assert len(server.requests) == 3


async def test_throttling_without_end_is_an_error(server: FakeApiServer, client: Client) -> None:
    server.faults.append(
        Fault.status(429, "TooManyRequests", headers={"Retry-After": "0"}, times=99)
    )
    with pytest.raises(TooManyRequestsError):
        await client.get(POD)
    assert len(server.requests) == 5


@pytest.mark.parametrize("method", ["PUT", "PATCH", "POST", "DELETE"])
async def test_a_write_without_an_answer_is_sent_once(
    server: FakeApiServer, client: Client, method: str
) -> None:
    await client.get(POD)  # so that the write finds a kept connection
    server.faults.append(Fault.cut(applied=True, method=method, times=9))
    calls = {
        "PUT": lambda: client.replace(POD, b'{"metadata":{"name":"p","namespace":"ns"}}'),
        "PATCH": lambda: client.patch(POD, b"{}", PatchType.MERGE),
        "POST": lambda: client.create(PODS.path("ns"), b'{"metadata":{"name":"new"}}'),
        "DELETE": lambda: client.delete(POD),
    }
    with pytest.raises(TransportError):
        await calls[method]()
    assert [request.method for request in server.requests] == ["GET", method]


async def test_a_read_without_an_answer_is_repeated(server: FakeApiServer, client: Client) -> None:
    server.faults += [Fault.cut(), Fault.status(503, "ServiceUnavailable")]
    assert json.loads(await client.get(POD))["metadata"]["name"] == "p"
    assert len(server.requests) == 3


async def test_a_read_gives_up_after_three_tries(server: FakeApiServer, client: Client) -> None:
    server.faults.append(Fault.cut(times=99))
    with pytest.raises(TransportError):
        await client.get(POD)
    assert len(server.requests) == 3


async def test_a_failing_webhook_behind_a_write_is_reported(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault.status(500, "InternalError", "failed calling webhook"))
    with pytest.raises(ServerError, match="failed calling webhook"):
        await client.patch(POD, b"{}", PatchType.MERGE)


async def test_a_slow_answer_ends_at_the_time_limit(server: FakeApiServer) -> None:
    client = server.client(request_timeout_s=0.1)
    server.faults.append(Fault.slow(5.0))
    with pytest.raises(TransportError):
        await client.patch(POD, b"{}", PatchType.MERGE)
    await client.close()


async def test_a_body_that_is_no_status_still_becomes_an_error(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault.body(b"<html>oops", code=502))
    with pytest.raises(ServerError, match="<html>oops"):
        await client.patch(POD, b"{}", PatchType.MERGE)


async def test_a_replaced_token_file_is_used_at_once(server: FakeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    client = server.client(credentials=TokenFile(token))
    server.tokens = {"one"}
    await client.get(POD)
    server.tokens = {"two"}
    (tmp_path / "new").write_text("two\n")
    (tmp_path / "new").rename(token)
    await client.get(POD)
    assert len(server.requests) == 2, "no request was spent on the old token"
    await client.close()


async def test_an_expired_token_is_read_again_once(server: FakeApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    client = server.client(credentials=TokenFile(token))
    server.tokens = {"new"}
    with pytest.raises(UnauthorizedError):
        await client.patch(POD, b"{}", PatchType.MERGE)
    assert len(server.requests) == 2
    await client.close()


async def test_a_token_that_changed_behind_a_rejection_is_used(
    server: FakeApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    client = server.client(credentials=TokenFile(token))
    server.tokens = {"new"}

    async def rotate(request: Any, handle: Any) -> Any:
        # Same size and times, as a coarse clock would leave them.
        stat = token.stat()
        with token.open("r+") as file:
            file.write("new")
        os.utime(token, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return await Fault.status(401, "Unauthorized").answer(request, handle)

    server.faults.append(Fault(rotate))
    await client.get(POD)
    assert len(server.requests) == 2
    await client.close()


async def test_a_watch_line_of_two_mebibytes_arrives_whole(
    server: FakeApiServer, client: Client
) -> None:
    lines: list[bytes] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(collect(client, lines))
        await until(lambda: server.streams)
        stream = server.streams[0]
        long = b'"' + b"x" * 2**21 + b'"\n'
        stream.feed(long + b'"short"\n"ha')
        await until(lambda: len(lines) == 2)
        stream.feed(b'lf"\n\n')
        stream.end()
    assert lines == [long[:-1], b'"short"', b'"half"']


async def test_a_watch_line_without_end_is_rejected(server: FakeApiServer, client: Client) -> None:
    async def flood() -> None:
        await until(lambda: server.streams)
        for _ in range(5):
            server.streams[0].feed(b"x" * 2**20)

    feeding = asyncio.create_task(flood())
    with pytest.raises(LineTooLongError):
        await collect(client, [])
    await feeding


async def test_a_silent_watch_counts_as_lost(server: FakeApiServer, client: Client) -> None:
    with pytest.raises(TransportError) as silent:
        await collect(client, [], idle_s=1.0)
    assert silent.value.reason == "Stalled"


async def test_a_cut_watch_is_an_error_and_an_ended_one_is_not(
    server: FakeApiServer, client: Client
) -> None:
    task = asyncio.create_task(collect(client, []))
    await until(lambda: server.streams)
    server.streams[0].cut()
    with pytest.raises(TransportError):
        await task
    task = asyncio.create_task(collect(client, []))
    await until(lambda: server.streams)
    server.streams[0].end()
    await task


async def test_budgets_bound_rate_and_concurrency_apart(server: FakeApiServer) -> None:
    root = server.client()
    slow = root.budget(qps=50, burst=2)
    started = time.monotonic()
    await asyncio.gather(*(slow.get(POD) for _ in range(7)))
    assert time.monotonic() - started >= 0.095, "five beyond the burst at 50 a second"
    under_way = most = 0

    async def count(request: Any, handle: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return await handle()

    server.faults.append(Fault(count, times=99))
    narrow = root.budget(qps=0, burst=0, concurrency=3)
    await asyncio.gather(*(narrow.get(POD) for _ in range(12)))
    assert most == 3
    await root.close()


async def test_every_attempt_is_observed(server: FakeApiServer) -> None:
    seen: list[tuple[str, str, str]] = []
    times: list[float | None] = []

    def observe(verb: str, resource: str, code: str, spent_s: float | None) -> None:
        seen.append((verb, resource, code))
        times.append(spent_s)

    client = server.client(observe=observe)
    server.faults += [
        Fault.status(429, headers={"Retry-After": "0"}),
        Fault.cut(),
    ]
    await client.get(POD)
    watching = asyncio.create_task(anext(client.watch("/api/v1/pods")))
    await until(lambda: len(seen) == 4)
    watching.cancel()
    await asyncio.wait([watching])
    await client.close()
    assert seen == [
        ("GET", "pods", "429"),
        ("GET", "pods", "none"),
        ("GET", "pods", "200"),
        ("WATCH", "pods", "200"),
    ]
    assert [spent_s is not None and spent_s > 0 for spent_s in times] == [True, True, True, False]


@pytest.mark.requirement("OPS-09")
async def test_how_long_requests_take_is_served(server: FakeApiServer) -> None:
    labels = {"verb": "GET", "resource": "nodes"}
    name = "rackgate_api_request_duration_seconds_count"
    before = metrics.REGISTRY.get_sample_value(name, labels) or 0.0
    client = server.client()
    with pytest.raises(NotFoundError):
        await client.get("/api/v1/nodes/none")
    await client.close()
    assert metrics.REGISTRY.get_sample_value(name, labels) == before + 1


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("/api/v1/pods", "pods"),
        ("/api/v1/namespaces/a/pods/b/status", "pods/status"),
        ("/api/v1/namespaces/a", "namespaces"),
        ("/api/v1/namespaces/a/status", "namespaces/status"),
        ("/apis/kueue.x-k8s.io/v1beta2/namespaces/a/workloads/b", "workloads"),
        ("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/b/status", "clusterqueues/status"),
        ("/readyz", "other"),
        ("/apis/batch/v1", "other"),
    ],
)
def test_labels_of_requests_are_bounded(path: str, label: str) -> None:
    assert resource_of(path) == label


@pytest.mark.parametrize("size", range(1, 12))
def test_lines_come_out_whole_whatever_the_chunks(size: int) -> None:
    stream = b"a\n\nbcdef\nghijklmnopq\nr\nrest"
    splitter = LineSplitter()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    assert lines == [b"a", b"bcdef", b"ghijklmnopq", b"r"]
    assert splitter.feed(b"\n") == [b"rest"]


def test_paths_of_collections_objects_and_subresources() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("a", "b", "status") == "/api/v1/namespaces/a/pods/b/status"
    assert WORKLOADS.path("a") == "/apis/kueue.x-k8s.io/v1beta2/namespaces/a/workloads"
    assert NODES.path(name="n") == "/api/v1/nodes/n"


@pytest.mark.parametrize("parts", [("", "b"), ("a", "", "status")])
def test_paths_that_name_nothing_are_rejected(parts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="pods"):
        PODS.path(*parts)
    with pytest.raises(ValueError, match="cluster-scoped"):
        NODES.path("a")


@pytest.mark.requirement("OPS-07")
async def test_pages_grow_longer_again_where_the_large_items_end(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "TARGET_PAGE_BYTES", 20_000)
    for number in range(100):
        meta = {"name": f"p{number:03}", "namespace": "many"}
        pad = "x" * (8_000 if number < 10 else 1)
        server.put(PODS, {"metadata": meta, "spec": {"pad": pad}})
    items = 0
    async for body in client.list_pages(PODS.path("many"), page_size=16):
        items += len(json.loads(body)["items"])
    assert items == 100
    limits = [int(request.query["limit"]) for request in server.requests]
    assert limits[:4] == [16, 3, 6, 12]
    assert max(limits) == limits[-1] == 16
