"""One session to one API server: address, TLS, and credentials that may change."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import ssl
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import aiohttp
import structlog
from yarl import URL

READ_BUFFER_BYTES: Final = 2**20
SMALL_BODY_BYTES: Final = 2**16
# Timeout of credential plugins.
RENEW_LIMIT_S: Final = 30.0
# Sockets that are shut down are closed in the next few turns of the loop.
CLOSE_TURNS: Final = 1000

log = structlog.get_logger()


class Credentials:
    """The Authorization header, if any."""

    def header(self) -> str | None:
        """The current value of the header."""
        return None

    async def renew(self, rejected: str | None) -> bool:
        """Get another header after the server rejected `rejected`; False if there is none.

        By the time of the response, the current header may already be another one.
        """
        return False


class TokenFile(Credentials):
    """A bearer token in a file, which is read again when it changes.

    The kubelet replaces a projected token long before it expires.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._header = ""

    def header(self) -> str | None:
        """`Bearer <token>`; calls stat each time.

        Raises:
            OSError: the file does not exist, or does not contain a token.
        """
        stat = self._path.stat()
        stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if stamp != self._stamp:
            token = self._path.read_bytes().strip()
            # The file may be partially written.
            if not token.isascii() or not token.decode().isprintable() or not token:
                raise OSError(f'"{self._path}" contains no token')
            self._header = f"Bearer {token.decode()}"
            self._stamp = stamp
        return self._header

    async def renew(self, rejected: str | None) -> bool:
        """Read the file again, even if its modification time is the same."""
        self._stamp = None
        return True


class RefreshableToken(Credentials):
    """A header from a kubeconfig, and a function that gets a new one."""

    def __init__(
        self, header: str | None, renew: Callable[[], Awaitable[str | None]] | None = None
    ) -> None:
        self._header = header
        self._renew = renew
        self._renewing = asyncio.Lock()
        self._failures = 0

    def header(self) -> str | None:
        """The last header."""
        return self._header

    async def renew(self, rejected: str | None) -> bool:
        """Call the function once for all requests that were rejected at the same time.

        Requests that waited while it failed, or returned the same header, do not call it again.
        """
        if self._renew is None:
            return False
        failures = self._failures
        async with self._renewing:
            if self._header != rejected:
                return True
            if self._failures != failures:
                return False
            try:
                async with asyncio.timeout(RENEW_LIMIT_S):
                    self._header = await self._renew()
            except Exception as error:  # noqa: BLE001 - a plugin of the user; called again later
                message = str(error) or type(error).__name__
                log.warning("credentials_not_renewed", error=message[:300])
            if self._header != rejected:
                return True
            self._failures += 1
            return False


async def send_once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """A middleware for sessions that send each request once.

    aiohttp sends GET, PUT and DELETE again after two of its errors, if a keep-alive connection was
    closed: a DELETE that succeeded would then return 404. Here they become an error that it raises.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise  # no connection, so nothing was sent; aiohttp does not repeat it
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error) or type(error).__name__) from error


class Transport:
    """The HTTP session, without retries and budgets."""

    def __init__(
        self,
        server: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        user_agent: str = "rackgate",
        connections: int = 128,
        proxy: str | None = None,
    ) -> None:
        """Open a session. Needs a running loop; connects on the first request."""
        self._root = URL(server)
        self._prefix = self._root.path.rstrip("/")
        self.credentials = credentials or Credentials()
        self._proxy = proxy
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                keepalive_timeout=60,
                ssl=ssl_context if ssl_context is not None else True,
                socket_factory=self._open_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            # With .netrc and proxy variables, each request would use a thread.
            trust_env=False,
            read_bufsize=READ_BUFFER_BYTES,
            # Decompression of a list page would block the loop for longer than the network does.
            headers={
                "User-Agent": user_agent,
                "Accept": "application/json",
                "Accept-Encoding": "identity",
            },
            middlewares=(send_once,),
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        body: bytes | None,
        content_type: str | None,
        accept: str | None = None,
        timeout: aiohttp.ClientTimeout,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """One attempt of a request. Redirects are not followed, to keep credentials here."""
        headers = {}
        token = self.credentials.header()
        if token:
            headers["Authorization"] = token
        if content_type:
            headers["Content-Type"] = content_type
        if accept:
            headers["Accept"] = accept
        # Parsing the whole URL would double the cost of this method.
        url = self._root.with_path(self._prefix + path)
        return self._session.request(
            method,
            url.with_query(params) if params else url,
            data=_data(body),
            headers=headers,
            timeout=timeout,
            proxy=self._proxy,
            allow_redirects=False,
        )

    async def close(self) -> None:
        """Close all connections, and wait until their sockets are closed."""
        await self._session.close()
        # The session does not wait for connections of requests that were cancelled: they wait for
        # the server to end TLS. A socket that is shut down reads EOF, so the loop closes it.
        for opened in self._open_sockets():
            with contextlib.suppress(OSError):  # not connected yet, or no longer
                opened.shutdown(socket.SHUT_RDWR)
        for _ in range(CLOSE_TURNS):
            if not self._open_sockets():
                break
            await asyncio.sleep(0.001)

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        opened = socket.socket(*address[:3])
        self._sockets.add(opened)
        return opened

    def _open_sockets(self) -> list[socket.socket]:
        return [opened for opened in self._sockets if opened.fileno() != -1]


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    """Large bodies as a reader, as aiohttp warns about large bytes; a reader costs a task."""
    return body if body is None or len(body) <= SMALL_BODY_BYTES else io.BytesIO(body)
