"""An adversary that holds many connections to a port, and replaces each one that is closed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence

# The beginning of a ClientHello that says more will come.
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"
HEADERS = b"POST /mutate HTTP/1.1\r\nHost: "
BODY = (
    b"POST /mutate?timeout=30s HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
)


@contextlib.asynccontextmanager
async def flood(
    port: int,
    addresses: Sequence[str],
    count: int,
    sent: bytes = b"",
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Hold `count` connections from these addresses until the end.

    Args:
        port: of 127.0.0.1.
        addresses: source addresses.
        count: of all of them together.
        sent: what each sends before it is silent.
        context: TLS; None sends plain bytes.
    """
    reached = asyncio.Event()
    calls = 0

    async def hold(address: str) -> None:
        nonlocal calls
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1",
                    port,
                    local_addr=(address, 0),
                    ssl=context,
                    server_hostname="localhost" if context else None,
                )
                calls += 1
                if calls >= count // 8:  # a full server takes no more
                    reached.set()
                try:
                    writer.write(sent)
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(hold(addresses[at % len(addresses)])) for at in range(count)]
    try:
        await asyncio.wait_for(reached.wait(), 60)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
