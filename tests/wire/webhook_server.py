"""A webhook's server in the test's own process, and raw connections to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import aiohttp

from rackgate.certificates.certificates import IssuedPair, issue
from rackgate.certificates.tls import client_context, load_pair, server_context
from rackgate.runtime import clock
from rackgate_webhook.serving.server import REVIEW_DURATION, WebhookServer
from tests.wire.webhook_world import JSON, REVIEW

MADE: IssuedPair = issue(
    ["localhost"], validity=timedelta(days=1), now=clock.now(), owner="rackgate-webhook"
)
TRUSTING = client_context(MADE.authority)


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[WebhookServer]:
    context = server_context()
    load_pair(context, MADE.certificate, MADE.key)
    server = WebhookServer("127.0.0.1", 0, context, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connections(server: WebhookServer, count: int) -> AsyncIterator[list[Streams]]:
    """So many open connections, the oldest first."""
    opened: list[Streams] = []
    try:
        for _ in range(count):
            streams = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=TRUSTING, server_hostname="localhost"
            )
            opened.append(streams)
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


@asynccontextmanager
async def connected(server: WebhookServer) -> AsyncIterator[Streams]:
    """One open connection."""
    async with connections(server, 1) as (only,):
        yield only


def request(sent: bytes, query: str = "", length: int | None = None) -> bytes:
    head = (
        f"POST /mutate{query} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(sent) if length is None else length}\r\n\r\n"
    )
    return head.encode() + sent


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Status and body of an answer that closes its connection."""
    head, _, text = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), text.decode()


@asynccontextmanager
async def calling() -> AsyncIterator[aiohttp.ClientSession]:
    """A caller with one connection."""
    connector = aiohttp.TCPConnector(ssl=TRUSTING, limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


def url(server: WebhookServer, path: str = "/mutate") -> str:
    return f"https://localhost:{server.port}{path}"


async def serves(server: WebhookServer) -> bool:
    """Whether a new caller gets an answer."""
    async with (
        calling() as session,
        session.post(url(server), data=REVIEW, headers=JSON) as answer,
    ):
        return answer.status == 200


def count(metric: Any, **labels: str) -> float:
    return float(metric.labels(**labels)._value.get())


def reviewed() -> float:
    """How many reviews have been computed."""
    return sum(
        sample.value
        for family in REVIEW_DURATION.collect()
        for sample in family.samples
        if sample.name.endswith("_count")
    )
