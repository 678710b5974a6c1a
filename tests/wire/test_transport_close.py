"""A session that is closed leaves no socket behind, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rackgate.api.resources import NODES
from rackgate.kube.client import Client
from rackgate.kube.transport import Transport
from rackgate_cli.controlplane.pki import ensure_pki

CLIENT_LIMIT_S = 30.0


@pytest.fixture
def silent_server(tmp_path: Path) -> Iterator[tuple[str, ssl.SSLContext, threading.Semaphore]]:
    """A server that reads each request and then does nothing: it does not end TLS either.

    Yields its URL, what trusts it, and a semaphore that counts the requests that it has read.
    """
    ensure_pki(tmp_path, ("127.0.0.1", "localhost"))
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "kube-apiserver.crt", tmp_path / "kube-apiserver.key")
    requests = threading.Semaphore(0)
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = serving.wrap_socket(listening.accept()[0], server_side=True)
                    held.append(connection)
                    connection.recv(65536)
                    requests.release()

        thread = threading.Thread(target=serve)
        thread.start()
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        yield f"https://127.0.0.1:{listening.getsockname()[1]}", trusting, requests
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in held:
        connection.close()


def test_sockets_of_cancelled_requests_are_closed_with_the_session(
    silent_server: tuple[str, ssl.SSLContext, threading.Semaphore],
) -> None:
    url, trusting, requests = silent_server

    async def cancel_two_requests() -> None:
        client = Client(Transport(url, ssl_context=trusting), request_timeout_s=CLIENT_LIMIT_S)
        calls = [asyncio.create_task(client.get(NODES.path(None, name))) for name in ("a", "b")]
        for _ in calls:
            assert await asyncio.to_thread(requests.acquire, timeout=CLIENT_LIMIT_S)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await client.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(cancel_two_requests())
        gc.collect()
    assert [str(warning.message) for warning in found] == []
