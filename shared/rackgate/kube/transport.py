"""One session to one API server: address, TLS, credentials that may change under way."""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import aiohttp
import structlog
from yarl import URL

READ_BUFFER_BYTES: Final = 2**20
SMALL_BODY_BYTES: Final = 2**16
# A program that is asked for credentials and says nothing for so long is not waited for.
RENEW_LIMIT_S: Final = 30.0

log = structlog.get_logger()


class Credentials:
    """The Authorization header, if any."""

    def header(self) -> str | None:
        """The header's value as of now."""
        return None

    async def renew(self, rejected: str | None) -> bool:
        """The server refused the header. Fetch another one; False when there is none.

        Args:
            rejected: as it was sent; by the time of the answer there may be another one already.
        """
        return False


class TokenFile(Credentials):
    """A bearer token in a file, read again when the file changes.

    The kubelet replaces a projected token long before it expires.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._header = ""

    def header(self) -> str | None:
        """`Bearer <token>`. Costs a stat call.

        Raises:
            OSError: there is no such file, or no token in it.
        """
        stat = self._path.stat()
        stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if stamp != self._stamp:
            token = self._path.read_bytes().strip()
            # Also what somebody is only writing.
            if not token.isascii() or not token.decode().isprintable() or not token:
                raise OSError(f'"{self._path}" holds no token')
            self._header = f"Bearer {token.decode()}"
            self._stamp = stamp
        return self._header

    async def renew(self, rejected: str | None) -> bool:
        """Read the file again whatever its times say."""
        self._stamp = None
        return True


class RefreshableToken(Credentials):
    """A header from elsewhere (a kubeconfig), with a hook that fetches a fresh one."""

    def __init__(
        self, header: str | None, renew: Callable[[], Awaitable[str | None]] | None = None
    ) -> None:
        self._header = header
        self._renew = renew
        self._renewing = asyncio.Lock()
        self._failures = 0

    def header(self) -> str | None:
        """The header fetched last."""
        return self._header

    async def renew(self, rejected: str | None) -> bool:
        """Ask the hook, once for all requests that were refused together.

        Those that waited while it failed, or had no other one, do not ask again.
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
            except Exception as error:  # noqa: BLE001 - a program of the user's; asked again later
                message = str(error) or type(error).__name__
                log.warning("credentials_not_renewed", error=message[:300])
            if self._header != rejected:
                return True
            self._failures += 1
            return False


class Transport:
    """The session and what every request needs. Knows nothing of retries or budgets."""

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
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=connections,
                keepalive_timeout=60,
                ssl=ssl_context if ssl_context is not None else True,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            # .netrc and proxy variables cost a thread hop per request.
            trust_env=False,
            read_bufsize=READ_BUFFER_BYTES,
            # Unpacking a page of a list would stop the loop for longer than its bytes take.
            headers={
                "User-Agent": user_agent,
                "Accept": "application/json",
                "Accept-Encoding": "identity",
            },
        )
        # aiohttp would send PUT and DELETE again when a kept connection turns out closed:
        # then a DELETE that worked answers 404. Whether to repeat is decided in Client.
        self._session._retry_connection = False

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
        """One request, one attempt. Redirects are not followed: no credentials elsewhere."""
        headers = {}
        token = self.credentials.header()
        if token:
            headers["Authorization"] = token
        if content_type:
            headers["Content-Type"] = content_type
        if accept:
            headers["Accept"] = accept
        # Parsing the whole address anew would cost as much as the rest of this method.
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
        """Close all connections."""
        await self._session.close()


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    """Large bodies as a reader: aiohttp warns of them as bytes. It costs small ones a task."""
    return body if body is None or len(body) <= SMALL_BODY_BYTES else io.BytesIO(body)
