"""Credentials from a program of the user's: asked once, not for ever, and not for late refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from rackgate.api.resources import PODS
from rackgate.kube import transport
from rackgate.kube.errors import UnauthorizedError
from rackgate.kube.transport import RefreshableToken
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until

POD = PODS.path("ns", "p")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        running.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {}})
        running.tokens = {"two"}
        yield running


@pytest.mark.requirement("UNG-18")
async def test_a_program_that_hangs_holds_no_request_for_ever(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "RENEW_LIMIT_S", 0.2, raising=False)
    hung = [True]

    async def renew() -> str | None:
        if hung.pop():
            await asyncio.Event().wait()
        return "Bearer two"

    client = server.client(credentials=RefreshableToken("Bearer one", renew))
    async with asyncio.timeout(20):
        with pytest.raises(UnauthorizedError):
            await client.get(POD)
        hung.append(False)
        await client.get(POD)
    await client.close()


@pytest.mark.requirement("UNG-18")
async def test_a_program_that_fails_is_asked_once_for_all_that_waited(
    server: FakeApiServer,
) -> None:
    asked, fail = [], asyncio.Event()

    async def renew() -> str | None:
        asked.append(1)
        await fail.wait()
        raise RuntimeError("planted: the plugin failed")

    token = RefreshableToken("Bearer one", renew)
    client = server.client(credentials=token)
    reads = [asyncio.create_task(client.get(POD)) for _ in range(5)]
    await until(lambda: len(server.refused) == 5 and len(token._renewing._waiters or ()) == 4)
    fail.set()
    answers = await asyncio.gather(*reads, return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnauthorizedError] * 5
    assert len(asked) == 1
    with pytest.raises(UnauthorizedError):
        await client.get(POD)
    assert len(asked) == 2, "who comes later asks again"
    await client.close()


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize("watch", [False, True], ids=["read", "watch"])
async def test_a_late_rejection_of_the_old_header_renews_no_new_one(
    server: FakeApiServer, watch: bool
) -> None:
    asked, late = [], asyncio.Event()

    async def renew() -> str | None:
        asked.append(1)
        return "Bearer two"

    async def slow(_: web.Request, handle: Any) -> web.StreamResponse:
        await late.wait()
        return web.Response(status=401)

    client = server.client(credentials=RefreshableToken("Bearer one", renew))

    async def ask() -> None:
        if not watch:
            await client.get(POD)
            return
        with pytest.raises(UnauthorizedError):
            async for _ in client.watch(PODS.path()):
                pass

    server.faults.append(Fault(slow))
    slowly = asyncio.create_task(ask())
    await until(lambda: server.requests)
    await client.get(POD)
    late.set()
    await slowly
    assert len(asked) == 1
    await client.close()
