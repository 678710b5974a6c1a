"""What a page of the console does: requests, and a stream whose events make tables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.support.deadlines import DEADLINE_S


class Page:
    """A browser that has the address of a console."""

    def __init__(self, port: int, http: aiohttp.ClientSession) -> None:
        self.address, self.http = f"http://127.0.0.1:{port}", http

    async def get(self, path: str, token: str = "", **headers: str) -> tuple[int, Any]:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with self.http.get(self.address + path, headers=headers) as response:
            body = await response.read()
            kind = response.content_type
            return response.status, json.loads(body) if kind == "application/json" else body

    @asynccontextmanager
    async def stream(self, token: str = "", query: str = "") -> AsyncIterator[Stream]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.http.get(self.address + "/api/stream" + query, headers=headers) as found:
            assert found.status == 200, await found.text()
            yield Stream(found)


class Stream:
    """Events of a stream, and the tables that they make."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.tables: dict[str, dict[str, Any]] = {}
        self.cluster: dict[str, Any] = {}
        self.ended = ""

    async def read(self) -> str:
        """Take one event; returns its name."""
        name = b""
        while True:
            line = await self._response.content.readuntil(b"\n")
            if line.startswith(b"event: "):
                name = line[7:-1]
            elif line.startswith(b"data: "):
                self._take(name.decode(), json.loads(line[6:]))
                return name.decode()

    def _take(self, name: str, found: dict[str, Any]) -> None:
        match name:
            case "tables":
                self.tables = found["tables"]
            case "changes":
                for table, rows in found["tables"].items():
                    for key, row in rows.items():
                        if row is None:
                            self.tables[table].pop(key, None)
                        else:
                            self.tables[table][key] = row
            case "cluster":
                self.cluster = found
            case "end":
                self.ended = found["reason"]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await self.read()
