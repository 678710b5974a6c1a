"""One watch on its way through a proxy: late, stalled, ended with an error, or cut."""

from __future__ import annotations

import asyncio
import time

import aiohttp
from aiohttp import web

from rackgate.runtime.serving.connections import abort
from tests.support.proxy_faults import Faults, Kind


class Stream:
    """Passes the events of one watch on, in order.

    All methods are called in the proxy's loop.
    """

    def __init__(self, response: web.StreamResponse, request: web.Request, faults: Faults) -> None:
        self.path = request.path
        self._response = response
        self._transport = request.transport
        self._faults = faults
        self._chunks: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()
        self._stalled_until = 0.0
        self._moved = asyncio.Event()
        self._last_line: bytes | None = None
        self._within_line = False

    async def follow(self, content: aiohttp.StreamReader) -> None:
        """Copy until either side ends.

        Raises:
            OSError: the sender is gone.
            aiohttp.ClientError: the API server is gone.
        """
        reading = asyncio.create_task(self._read(content))
        try:
            await self._write()
        finally:
            reading.cancel()
            await asyncio.wait((reading,))

    def cut(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            abort(self._transport)
        self._chunks.put_nowait((0.0, None))

    def end_with(self, line: bytes) -> None:
        """Send that line after the event under way, and nothing more."""
        self._last_line = line
        self._chunks.put_nowait((0.0, b""))

    def stall(self, seconds: float) -> None:
        """Hold everything back for so long from now on."""
        self._stalled_until = time.monotonic() + seconds
        self._moved.set()

    async def _read(self, content: aiohttp.StreamReader) -> None:
        try:
            async for chunk in content.iter_any():
                late = self._faults.active(Kind.LATENCY, time.monotonic())
                due = time.monotonic() + (late.value if late is not None else 0.0)
                self._chunks.put_nowait((due, chunk))
            self._chunks.put_nowait((0.0, None))
        except (aiohttp.ClientError, OSError):
            self.cut()

    async def _write(self) -> None:
        while True:
            due, chunk = await self._chunks.get()
            await self._held(due)
            if chunk is None:
                break
            if chunk:
                await self._response.write(chunk)
                self._within_line = not chunk.endswith(b"\n")
            if self._last_line is not None and not self._within_line:
                await self._response.write(self._last_line)
                break
        await self._response.write_eof()

    async def _held(self, due: float) -> None:
        """Wait until `due`, and until no stall is on."""
        while (wait_s := max(due, self._stalled_until) - time.monotonic()) > 0:
            self._moved.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._moved.wait()
            except TimeoutError:
                continue
