"""Reads the body of a request within limits of size, memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import StreamReader, web

# Two objects of 3 MiB, the limit of the API server, and the fields around them.
MAX_BODY_BYTES: Final = 7 * 2**20
SMALL_BYTES: Final = 2**15
# So large bodies use at most 56 MiB.
MAX_LARGE_BODIES: Final = 8


class RequestRejectedError(Exception):
    """The response to a request is an HTTP error instead of a review.

    Attributes:
        status: HTTP status.
        reason: why, in one word, for metrics.
        message: why, for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class BodyReader:
    """Reads bodies. Only a few large ones are read at a time, so that memory is bounded."""

    def __init__(
        self, max_large_bodies: int = MAX_LARGE_BODIES, max_bytes: int = MAX_BODY_BYTES
    ) -> None:
        """Prepare.

        Args:
            max_large_bodies: how many of more than `SMALL_BYTES` may be in memory.
            max_bytes: of one body.
        """
        self._large_bodies = asyncio.Semaphore(max_large_bodies)
        self._max_bytes = max_bytes

    @asynccontextmanager
    async def read_body(self, request: web.BaseRequest, timeout_s: float) -> AsyncIterator[bytes]:
        """The whole body. A large body counts toward the limit until the block ends.

        Raises:
            RequestRejectedError: not JSON (415), too large (413), or too slow (408).
        """
        if request.content_type != "application/json":
            raise RequestRejectedError(
                415,
                "type",
                f'expected Content-Type "application/json", found "{request.content_type}"',
            )
        if (request.content_length or 0) > self._max_bytes:
            raise self._too_large(f"{request.content_length} bytes")
        async with AsyncExitStack() as slot:
            yield await self._read_with_timeout(request, timeout_s, slot)

    async def _read_with_timeout(
        self, request: web.BaseRequest, timeout_s: float, slot: AsyncExitStack
    ) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read(request.content, slot)
        except TimeoutError:
            message = f"the request's body was not there within {timeout_s:.3g} s"
            raise RequestRejectedError(408, "slow", message) from None
        except (web.RequestPayloadError, ConnectionError) as error:
            message = f"the request's body cannot be read: {error}"
            raise RequestRejectedError(400, "broken", message) from None

    async def _read(self, content: StreamReader, slot: AsyncExitStack) -> bytes:
        body = bytearray()
        while len(body) <= SMALL_BYTES:
            chunk = await content.readany()
            if not chunk:
                return bytes(body)
            body += chunk
        await slot.enter_async_context(self._large_bodies)
        while chunk := await content.readany():
            body += chunk
            if len(body) > self._max_bytes:
                raise self._too_large("more")
        return bytes(body)

    def _too_large(self, found: str) -> RequestRejectedError:
        problem = f"the request's body may have {self._max_bytes} bytes at most, found {found}"
        return RequestRejectedError(413, "large", problem)
