"""The one door to the API server: five verbs and a watch, bytes in and bytes out.

What is repeated: requests answered with 429 (nothing was done), a request refused with 401 once
after reading the credentials again, and GETs that got no answer or 503. A write without an
answer is never repeated here: `TransportError` tells the caller to read and decide again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from enum import StrEnum
from typing import Final

import aiohttp
import msgspec

from rackgate.kube.budget import Budget
from rackgate.kube.errors import (
    KubeError,
    LineTooLongError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
    error_for,
)
from rackgate.kube.lines import MAX_LINE_BYTES, LineOverflowError, LineSplitter
from rackgate.kube.transport import Transport
from rackgate.runtime import metrics
from rackgate.runtime.backoff import Backoff
from rackgate.wire.depth import tolerant

THROTTLE_TRIES: Final = 5
THROTTLE_WAIT_CAP_S: Final = 30.0
GET_TRIES: Final = 3
PAGE_SIZE: Final = 500
# The server sends a bookmark every minute: two missed ones, and the stream is dead.
WATCH_IDLE_S: Final = 150.0

Params = Mapping[str, str]
Observer = Callable[[str, str, str], None]


class PatchType(StrEnum):
    """Content types of PATCH."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


class _PageMeta(msgspec.Struct, frozen=True):
    continue_token: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct, frozen=True):
    metadata: _PageMeta = _PageMeta()


_decode_page = tolerant(msgspec.json.Decoder(_Page).decode)


def count_request(verb: str, resource: str, code: str) -> None:
    """The default observer: counts into `rackgate_api_requests_total`."""
    metrics.API_REQUESTS.labels(verb=verb, resource=resource, code=code).inc()


def resource_of(path: str) -> str:
    """The resource a path is about, as a bounded label: `pods`, `pods/status`, `other`."""
    parts = path.strip("/").split("/")
    skip = {"api": 2, "apis": 3}.get(parts[0])
    if skip is None:
        return "other"
    rest = parts[skip:]
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    if not rest:
        return "other"
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]


class Client:
    """Requests to one API server under one budget. Safe to share between tasks."""

    def __init__(
        self,
        transport: Transport,
        *,
        budget: Budget | None = None,
        request_timeout_s: float = 10.0,
        observe: Observer = count_request,
    ) -> None:
        """Prefer `rackgate.kube.config.connect`.

        Args:
            transport: the session; closed by `close`.
            budget: limits; none by default.
            request_timeout_s: longest time for one attempt, the whole answer included. Writes
                tell the server, which gives up at the same time.
            observe: called once per attempt with verb, resource and code.
        """
        self._transport = transport
        self._budget = budget or Budget(0, 0)
        self.request_timeout_s = request_timeout_s
        self._observe = observe
        self._limit = aiohttp.ClientTimeout(total=request_timeout_s)
        self._write_limit = f"{int(request_timeout_s * 1000)}ms"

    def budget(self, qps: float, burst: int, concurrency: int | None = None) -> Client:
        """A sibling on the same session with limits of its own.

        Args:
            qps: requests a second in the long run; 0 for no limit.
            burst: requests that may go out at once after a quiet time.
            concurrency: requests under way at the same time; watches do not count.
        """
        return Client(
            self._transport,
            budget=Budget(qps, burst, concurrency),
            request_timeout_s=self.request_timeout_s,
            observe=self._observe,
        )

    async def get(self, path: str, params: Params | None = None) -> bytes:
        """Read one object, or anything else the server serves under `path`.

        Raises:
            KubeError: as the server answered; `TransportError` after three tries without answer.
        """
        return await self._send("GET", path, params)

    async def list_pages(
        self, path: str, params: Params | None = None, page_size: int = PAGE_SIZE
    ) -> AsyncGenerator[bytes, None]:
        """The pages of a collection, each a List object of at most `page_size` items.

        Raises:
            GoneError: the continue token expired between pages; start over.
        """
        query = {**(params or {}), "limit": str(page_size)}
        while True:
            body = await self._send("GET", path, query)
            token = _decode_page(body).metadata.continue_token
            yield body
            if not token:
                return
            query["continue"] = token

    async def create(self, path: str, body: bytes, params: Params | None = None) -> bytes:
        """POST an object to its collection; returns it as stored.

        Raises:
            AlreadyExistsError: the name is taken.
        """
        return await self._send("POST", path, params, body, "application/json")

    async def replace(self, path: str, body: bytes, params: Params | None = None) -> bytes:
        """PUT a whole object; with `metadata.resourceVersion` in it, only over that version.

        Raises:
            ConflictError: the object moved on.
        """
        return await self._send("PUT", path, params, body, "application/json")

    async def patch(
        self, path: str, body: bytes, content_type: PatchType, params: Params | None = None
    ) -> bytes:
        """PATCH an object; returns it as stored.

        Raises:
            ConflictError: the `resourceVersion` in the patch is not the current one.
            UnprocessableError: invalid, or a `test` of a JSON patch failed.
        """
        return await self._send("PATCH", path, params, body, content_type.value)

    async def apply(self, path: str, body: bytes, manager: str, force: bool = True) -> bytes:
        """Server-side apply as field manager `manager`; returns the object as stored."""
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        return await self.patch(path, body, PatchType.APPLY, params)

    async def delete(
        self, path: str, body: bytes | None = None, params: Params | None = None
    ) -> bytes:
        """DELETE an object; `body` may hold DeleteOptions with preconditions."""
        kind = "application/json" if body is not None else None
        return await self._send("DELETE", path, params, body, kind)

    async def watch(
        self, path: str, params: Params | None = None, *, idle_s: float = WATCH_IDLE_S
    ) -> AsyncGenerator[bytes, None]:
        """The events of a watch as raw JSON lines, until the server ends the stream.

        As `watch_batches`, one line at a time.
        """
        async for lines in self.watch_batches(path, params, idle_s=idle_s):
            for line in lines:
                yield line

    async def watch_batches(
        self, path: str, params: Params | None = None, *, idle_s: float = WATCH_IDLE_S
    ) -> AsyncGenerator[list[bytes], None]:
        """The events of a watch, in lists of the lines that arrived together.

        Args:
            path: a collection.
            params: query; `watch=1` is added.
            idle_s: seconds without a byte after which the stream counts as dead.

        Raises:
            GoneError: the resourceVersion is too old (as HTTP status; it may also come as an
                ERROR event inside the stream).
            TransportError: the stream broke or fell silent.
        """
        query = {**(params or {}), "watch": "1"}
        await self._budget.take()
        limit = aiohttp.ClientTimeout(
            total=None, sock_connect=self.request_timeout_s, sock_read=idle_s
        )
        try:
            async with self._transport.request(
                "GET", path, params=query, body=None, content_type=None, timeout=limit
            ) as response:
                self._count("WATCH", path, str(response.status))
                if response.status != 200:
                    error = error_for("WATCH", path, response.status, await response.read())
                    if response.status == 401:
                        await self._transport.credentials.renew()
                    raise error
                splitter = LineSplitter(MAX_LINE_BYTES)
                async for chunk in response.content.iter_any():
                    lines = splitter.feed(chunk)
                    if lines:
                        yield lines
        except LineOverflowError as error:
            raise LineTooLongError("WATCH", path, message=str(error)) from error
        except TimeoutError as error:
            raise TransportError("WATCH", path, reason="Stalled", message=_words(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise TransportError("WATCH", path, message=_words(error)) from error

    async def close(self) -> None:
        """Close the session, also that of all siblings."""
        await self._transport.close()

    async def _send(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> bytes:
        query = dict(params or {})
        if method != "GET":
            # The server stops working on a write when nobody waits for it any more.
            query["timeout"] = self._write_limit
        throttled = unanswered = 0
        renewed = False
        while True:
            try:
                return await self._attempt(method, path, query, body, content_type)
            except _ThrottledError as error:
                throttled += 1
                if throttled >= THROTTLE_TRIES:
                    raise error.answer from None
                await asyncio.sleep(error.wait_s)
            except UnauthorizedError:
                if renewed or not await self._transport.credentials.renew():
                    raise
                renewed = True
            except (TransportError, ServerError) as error:
                unanswered += 1
                repeat = method == "GET" and error.status in (0, 503) and unanswered < GET_TRIES
                if not repeat:
                    raise
                await asyncio.sleep(Backoff(base_s=0.1 * 2**unanswered).next())

    async def _attempt(
        self,
        method: str,
        path: str,
        query: Params,
        body: bytes | None,
        content_type: str | None,
    ) -> bytes:
        async with self._budget:
            try:
                async with self._transport.request(
                    method,
                    path,
                    params=query,
                    body=body,
                    content_type=content_type,
                    timeout=self._limit,
                ) as response:
                    answer = await response.read()
            except (aiohttp.ClientError, OSError) as error:
                self._count(method, path, "none")
                raise TransportError(method, path, message=_words(error)) from error
        self._count(method, path, str(response.status))
        if response.status < 300:
            return answer
        refusal = error_for(method, path, response.status, answer)
        if isinstance(refusal, TooManyRequestsError):
            raise _ThrottledError(refusal, _retry_after_s(response.headers.get("Retry-After")))
        raise refusal

    def _count(self, verb: str, path: str, code: str) -> None:
        self._observe(verb, resource_of(path), code)


class _ThrottledError(Exception):
    """429, and how long to wait before asking again."""

    def __init__(self, answer: KubeError, wait_s: float) -> None:
        super().__init__(str(answer))
        self.answer, self.wait_s = answer, wait_s


def _retry_after_s(header: str | None) -> float:
    """Seconds of a Retry-After header; one second when absent or not a number."""
    try:
        wait_s = float(header or 1.0)
    except ValueError:
        wait_s = 1.0
    return min(max(wait_s, 0.0), THROTTLE_WAIT_CAP_S)


def _words(error: BaseException) -> str:
    """An exception's text; its class where it has none."""
    return str(error) or type(error).__name__
