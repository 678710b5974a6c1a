"""The end of a listening socket: who waits in its queue is served, later ones go elsewhere."""

from __future__ import annotations

import asyncio
import select
import socket
import sys

import pytest

from rackgate_webhook.serving.listener import drop_new_connections
from tests.wire.webhook_server import TRUSTING, answer_of, request, serving
from tests.wire.webhook_world import REVIEW

pytestmark = [
    pytest.mark.requirement("HOOK-14", "OPS-08"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the kernel's filter is Linux'"
    ),
]

CALLERS = 20
SO_LOCK_FILTER = 44


async def ask(plain: socket.socket) -> int:
    """Handshake and ask over a connection that the kernel has made; the status."""
    reader, writer = await asyncio.open_connection(
        sock=plain, ssl=TRUSTING, server_hostname="localhost"
    )
    writer.write(request(REVIEW))
    status, _ = await answer_of(reader)
    writer.close()
    return status


@pytest.mark.parametrize("filtered", [True, False])
async def test_callers_that_wait_in_the_queue_of_a_stopping_replica_are_served(
    filtered: bool,
) -> None:
    """A plain close would reset each of them. The kernel's filter may be forbidden."""
    async with serving() as server:
        if not filtered:
            listening = server._listeners[0]._listening
            listening.setsockopt(socket.SOL_SOCKET, SO_LOCK_FILTER, 1)
            assert not drop_new_connections(listening)
        # The event loop does not run meanwhile: nobody has accepted them.
        plain = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CALLERS)]
        stopping = asyncio.create_task(server.stop())
        assert await asyncio.gather(*(ask(caller) for caller in plain)) == [200] * CALLERS
        await stopping
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


def test_callers_of_a_deaf_listener_try_again_and_find_another() -> None:
    leaving = socket.create_server(("127.0.0.1", 0), reuse_port=True)
    port = leaving.getsockname()[1]
    with socket.create_server(("127.0.0.1", port), reuse_port=True):
        assert drop_new_connections(leaving)
        callers = []
        for _ in range(CALLERS):
            callers.append(socket.socket())
            callers[-1].setblocking(False)
            callers[-1].connect_ex(("127.0.0.1", port))
        # The kernel chose the deaf one for about half of them.
        waiting = {caller for caller in callers if not writable(caller, 0)}
        assert 0 < len(waiting) < CALLERS
        leaving.close()
        for caller in callers:
            assert writable(caller, 30_000), "no answer to the repeated request"
            assert caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            caller.close()


def writable(caller: socket.socket, within_ms: int) -> bool:
    poll = select.poll()
    poll.register(caller, select.POLLOUT)
    return bool(poll.poll(within_ms))
