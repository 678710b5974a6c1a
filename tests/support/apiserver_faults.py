"""What the fake API server does on order instead of answering."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from rackgate.runtime.serving.connections import abort
from tests.support.apiserver_objects import status_body

Handler = Callable[[], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def watch(self) -> bool:
        return "watch" in self.query


@dataclass
class Fault:
    """What to do instead of answering, for the next `times` requests that match."""

    answer: Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]
    method: str = ""
    path: str = ""
    watch: bool | None = None
    times: int = 1

    def matches(self, request: Request) -> bool:
        return (
            self.times > 0
            and self.method in ("", request.method)
            and self.path in request.path
            and self.watch in (None, request.watch)
        )

    @classmethod
    def status(
        cls,
        code: int,
        reason: str = "",
        message: str = "",
        headers: Mapping[str, str] | None = None,
        **match: Any,
    ) -> Fault:
        """Answer with a Status; nothing is done."""

        async def answer(_: web.Request, __: Handler) -> web.StreamResponse:
            return web.Response(
                status=code, body=status_body(code, reason, message), headers=headers or {}
            )

        return cls(answer, **match)

    @classmethod
    def body(cls, body: bytes, code: int = 200, **match: Any) -> Fault:
        """Answer with these bytes: garbage, or a stream that ends."""

        async def answer(_: web.Request, __: Handler) -> web.StreamResponse:
            return web.Response(status=code, body=body)

        return cls(answer, **match)

    @classmethod
    def cut(cls, *, applied: bool = False, **match: Any) -> Fault:
        """Close the connection without an answer, after or before the work is done."""

        async def answer(request: web.Request, handle: Handler) -> web.StreamResponse:
            if applied:
                await handle()
            if request.transport is not None:
                abort(request.transport)
            return web.Response()

        return cls(answer, **match)

    @classmethod
    def slow(cls, delay_s: float, **match: Any) -> Fault:
        """Answer rightly, but late."""

        async def answer(_: web.Request, handle: Handler) -> web.StreamResponse:
            await asyncio.sleep(delay_s)
            return await handle()

        return cls(answer, **match)
