"""The end of a listening socket: who waits in its queue is served, later ones go elsewhere."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.wire.webhook_server import TRUSTING, answer_of, request, serving
from tests.wire.webhook_world import REVIEW

pytestmark = [pytest.mark.requirement("HOOK-14", "OPS-08")]

CALLERS = 20


async def ask(plain: socket.socket) -> int:
    """Handshake and ask over a connection that the kernel has made; the status."""
    reader, writer = await asyncio.open_connection(
        sock=plain, ssl=TRUSTING, server_hostname="localhost"
    )
    writer.write(request(REVIEW))
    status, _ = await answer_of(reader)
    writer.close()
    return status


async def test_callers_that_wait_in_the_queue_of_a_stopping_replica_are_served() -> None:
    """A plain close would reset each of them."""
    async with serving() as server:
        # The event loop does not run meanwhile: nobody has accepted them.
        plain = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CALLERS)]
        stopping = asyncio.create_task(server.stop())
        assert await asyncio.gather(*(ask(caller) for caller in plain)) == [200] * CALLERS
        await stopping
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))
