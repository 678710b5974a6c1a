"""What no healthy server says, and that an informer neither ends nor forgets by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from rackgate.api.resources import PODS
from rackgate.kube.errors import RewoundError
from rackgate.kube.transport import Credentials, RefreshableToken, TokenFile
from rackgate.runtime import metrics
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until
from tests.wire.informer_world import Followed, lists, pod, watches
from tests.wire.informer_world import following as follow

STATUS = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


@asynccontextmanager
async def following(
    server: FakeApiServer, credentials: Credentials | None = None, **options: Any
) -> AsyncIterator[Followed]:
    """With a client of its own, perhaps of these credentials."""
    client = server.client(credentials=credentials or Credentials())
    try:
        async with follow(client, **options) as followed:
            yield followed
    finally:
        await client.close()


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        json.dumps(STATUS).encode(),
        b'{"metadata":{"resourceVersion":"200"},"items":{}}',
        b'{"metadata":{"resourceVersion":7},"items":[]}',
        b'{"metadata":{"resourceVersion":""},"items":[]}',
    ],
    ids=["nothing", "status", "no_list_of_items", "version_of_another_type", "empty_version"],
)
async def test_an_answer_that_is_no_list_takes_nothing_for_deleted(
    server: FakeApiServer, body: bytes
) -> None:
    server.put(PODS, pod("a"))
    async with following(server) as followed:
        await until(lambda: server.streams)
        server.faults.append(Fault.body(body, watch=False, times=2))
        server.compact()
        server.streams[0].expire()
        await until(lambda: lists(server) == 4)
        server.put(PODS, pod("b"))
        await until(lambda: followed.names == {"a", "b"})
        assert followed.diary == ["+a", "+b"]


@pytest.mark.requirement("UNG-18")
async def test_a_list_is_as_old_as_its_first_page(server: FakeApiServer) -> None:
    """What was deleted while the last page was read would else never be told."""
    pages = [("100", "more", pod("a")), ("107", "", pod("b"))]
    for version, token, item in pages:
        meta = {"resourceVersion": version, "continue": token}
        body = json.dumps({"metadata": meta, "items": [item]}).encode()
        server.faults.append(Fault.body(body, watch=False))
    async with following(server) as followed:
        await until(lambda: server.streams)
        assert followed.names == {"a", "b"}
        assert server.requests[-1].query["resourceVersion"] == "100"


@pytest.mark.requirement("UNG-18")
async def test_a_bookmark_older_than_what_was_seen_repeats_no_history(
    server: FakeApiServer,
) -> None:
    async with following(server) as followed:
        await until(lambda: server.streams)
        stream = server.streams[0]
        server.put(PODS, pod("a"))
        server.remove(PODS, "a", "ns")
        server.put(PODS, pod("b"))
        await until(lambda: "b" in followed.names)
        stream.event("BOOKMARK", {"metadata": {"resourceVersion": "100"}})
        stream.end()
        await until(lambda: watches(server) == 2)
        assert server.requests[-1].query["resourceVersion"] == "103"
        server.put(PODS, pod("c"))
        await until(lambda: "c" in followed.names)
        assert followed.diary == ["+a", "-a", "+b", "+c"]


@pytest.mark.parametrize("item", ["null", "[]", '{"metadata":{"resourceVersion":5}}', '"x"'])
@pytest.mark.parametrize("kind", ["BOOKMARK", "ADDED", "DELETED", "ERROR", "UNHEARD_OF"])
async def test_an_event_about_nothing_ends_nothing(
    server: FakeApiServer, kind: str, item: str
) -> None:
    server.put(PODS, pod("a"))
    async with following(server) as followed:
        await until(lambda: server.streams)
        server.streams[0].feed(f'{{"type":"{kind}","object":{item}}}\n'.encode())
        server.put(PODS, pod("b"))
        await until(lambda: followed.names == {"a", "b"})
        assert followed.diary == ["+a", "+b"]


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize("end", [b"\n", b""], ids=["line", "no_end_of_line"])
@pytest.mark.parametrize(
    "answer", [STATUS, {"type": "ERROR", "object": STATUS}], ids=["status", "event"]
)
async def test_a_watch_that_is_answered_with_a_rejection_under_200_lists_again(
    server: FakeApiServer, answer: dict[str, Any], end: bytes
) -> None:
    body = json.dumps(answer).encode() + end
    server.faults.append(Fault.body(body, watch=True))
    async with following(server):
        await until(lambda: server.streams)
        assert (lists(server), watches(server)) == (2, 2)


@pytest.mark.requirement("UNG-18")
async def test_a_store_that_was_restored_from_a_backup_ends_who_remembers_another(
    server: FakeApiServer,
) -> None:
    """Its versions are lower: it sends nothing until they have passed the one asked for."""
    server.put(PODS, pod("kept"))
    server.put(PODS, pod("deleted_since"))
    backup = server.backup()
    client = server.client()
    followed = Followed(client, idle_s=0.3)
    task = asyncio.create_task(followed.informer.run())
    await until(lambda: server.streams)
    server.put(PODS, pod("made_since"))
    server.remove(PODS, "deleted_since", "ns")
    await until(lambda: followed.diary[-1] == "-deleted_since")
    await server.stop()
    server.restore(backup)
    await server.start()
    async with asyncio.timeout(20):
        with pytest.raises(RewoundError, match="version 102 after 104: restored from a backup"):
            await task
    assert followed.diary[-1] == "-deleted_since", "nobody is told what contradicts the rest"
    async with following(server) as anew:
        assert anew.names == {"kept", "deleted_since"}
    await client.close()


@pytest.mark.requirement("UNG-18")
async def test_credentials_that_cannot_be_had_for_a_while_end_nothing(
    server: FakeApiServer,
) -> None:
    asked: list[int] = []

    async def renew() -> str | None:
        asked.append(1)
        if len(asked) < 4:
            raise RuntimeError("planted: the plugin failed")
        return "Bearer two"

    server.tokens = {"one"}
    async with following(server, RefreshableToken("Bearer one", renew)) as followed:
        await until(lambda: server.streams)
        server.tokens = {"two"}
        server.compact()
        server.put(PODS, pod("a"))
        server.streams[0].cut()
        await until(lambda: "a" in followed.names)
        assert len(asked) == 4


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize("half", [b"", b"\xff\xfe", b"two\nlines", b"\x00", None])
async def test_a_token_file_that_is_being_written_ends_nothing(
    server: FakeApiServer, tmp_path: Path, half: bytes | None
) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    server.tokens = {"one", "two"}
    async with following(server, TokenFile(token)) as followed:
        await until(lambda: server.streams)
        with capture_logs() as logs:
            token.unlink()
            if half is not None:
                token.write_bytes(half)
            server.streams[0].cut()
            await until(lambda: len(logs) > 3)
        assert watches(server) == 1, "nothing is asked for in nobody's name"
        token.write_text("two")
        server.put(PODS, pod("a"))
        await until(lambda: "a" in followed.names)


def lag() -> float | None:
    labels = {"resource": "pods"}
    return metrics.REGISTRY.get_sample_value("rackgate_watch_lag_seconds", labels)


@pytest.mark.requirement("OPS-09")
async def test_what_is_not_followed_is_never_late(server: FakeApiServer) -> None:
    """A kind that is not installed would raise an alarm on every cluster without it."""
    client = server.client()
    followed = Followed(client)
    assert lag() is None
    task = asyncio.create_task(followed.informer.run())
    await until(followed.informer.synced.is_set)
    assert lag() is not None
    task.cancel()
    await asyncio.wait((task,))
    assert lag() is None
    await client.close()
