"""The body of a request: read within limits of size, memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import StreamReader, web

# Two objects of 3 MiB, the most that an API server accepts, and what is around them.
MAX_BODY_BYTES: Final = 7 * 2**20
SMALL_BYTES: Final = 2**15
# So large bodies take 56 MiB at most, whoever sends them.
LARGE_AT_ONCE: Final = 8


class RefusedError(Exception):
    """A request that is not answered with a review.

    Attributes:
        status: HTTP status.
        reason: why, in one word, for metrics.
        words: why, for people.
    """

    def __init__(self, status: int, reason: str, words: str) -> None:
        super().__init__(words)
        self.status, self.reason, self.words = status, reason, words


class BodyReader:
    """Reads bodies; large ones a few at a time, so that memory is bounded."""

    def __init__(self, large_at_once: int = LARGE_AT_ONCE) -> None:
        """Prepare.

        Args:
            large_at_once: how many of more than `SMALL_BYTES` are held.
        """
        self._large = asyncio.Semaphore(large_at_once)

    @asynccontextmanager
    async def reading(self, request: web.BaseRequest, within_s: float) -> AsyncIterator[bytes]:
        """The whole body; a large one has its place until the block ends.

        Raises:
            RefusedError: another type than JSON (415), too large (413), or too slow (408).
        """
        if request.content_type != "application/json":
            raise RefusedError(
                415,
                "type",
                f'expected Content-Type "application/json", found "{request.content_type}"',
            )
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large(f"{request.content_length} bytes")
        async with AsyncExitStack() as place:
            yield await self._in_time(request, within_s, place)

    async def _in_time(
        self, request: web.BaseRequest, within_s: float, place: AsyncExitStack
    ) -> bytes:
        try:
            async with asyncio.timeout(within_s):
                return await self._read(request.content, place)
        except TimeoutError:
            words = f"the request's body was not there within {within_s:.3g} s"
            raise RefusedError(408, "slow", words) from None
        except (web.RequestPayloadError, ConnectionError) as error:
            words = f"the request's body cannot be read: {error}"
            raise RefusedError(400, "broken", words) from None

    async def _read(self, content: StreamReader, place: AsyncExitStack) -> bytes:
        body = bytearray()
        while len(body) <= SMALL_BYTES:
            chunk = await content.readany()
            if not chunk:
                return bytes(body)
            body += chunk
        await place.enter_async_context(self._large)
        while chunk := await content.readany():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise _too_large("more")
        return bytes(body)


def _too_large(found: str) -> RefusedError:
    return RefusedError(
        413, "large", f"the request's body may have {MAX_BODY_BYTES} bytes at most, found {found}"
    )
