"""The client of the API server: five verbs and a watch, bytes in and bytes out.

The client repeats requests that are rejected with 429, a request that is rejected with 401 once
after it renewed the credentials, and GETs without a response or with 503. It never repeats a write
with unknown outcome: on `TransportError`, the caller reads and decides again. Retry-After is
honored, as seconds and as a date, up to a cap.

Responses are compared with the versions seen before (`versions.py`). After etcd was restored from a
backup, the client sends no more requests.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

import aiohttp
from prometheus_client import Counter, Histogram

from rackgate.api.resources import split_path
from rackgate.kube.errors import (
    KubeError,
    LineTooLongError,
    NotSentError,
    ServerError,
    TooManyRequestsError,
    TransportError,
    UnauthorizedError,
    error_for,
    retry_after,
)
from rackgate.kube.stream import (
    MAX_LINE_BYTES,
    MAX_PAGE_BYTES,
    PAGE_SIZE,
    SHRINK_FACTOR,
    LineOverflowError,
    LineSplitter,
    PageOverflowError,
    next_page_size,
    page_meta,
    read_body,
)
from rackgate.kube.transport import Transport
from rackgate.kube.versions import Versions
from rackgate.runtime import clock, metrics
from rackgate.runtime.backoff import Backoff, sleep_until
from rackgate.runtime.state_file import StateFile

THROTTLE_TRIES: Final = 5
THROTTLE_WAIT_S: Final = 1.0
GET_TRIES: Final = 3
# Methods whose response is the stored object.
MUTATING_METHODS: Final = ("POST", "PUT", "PATCH")
# The server sends a bookmark every minute; after two missed ones the stream counts as stalled.
WATCH_IDLE_S: Final = 150.0

Params = Mapping[str, str]
# Returns monotonic seconds; called repeatedly, as a deadline may move.
Deadline = Callable[[], float]


class PatchType(StrEnum):
    """Content types of PATCH."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


# Accept headers of metadata-only watches and lists.
METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, which may be sent several times."""

    method: str
    path: str
    query: Params
    body: bytes | None = None
    content_type: str | None = None
    deadline: Deadline | None = None
    accept: str | None = None
    max_bytes: int | None = None


# Called with verb, resource, status code, and seconds until the complete response (None: a watch).
Observer = Callable[[str, str, str, float | None], None]


def count_request(verb: str, resource: str, code: str, spent_s: float | None) -> None:
    """Count and time a request in the metrics; the default observer."""
    _request_counter(verb, resource, code).inc()
    if spent_s is not None:
        _duration_histogram(verb, resource).observe(spent_s)


@cache  # as bounded as the labels
def _request_counter(verb: str, resource: str, code: str) -> Counter:
    return metrics.API_REQUESTS.labels(verb=verb, resource=resource, code=code)


@cache
def _duration_histogram(verb: str, resource: str) -> Histogram:
    return metrics.API_DURATION.labels(verb=verb, resource=resource)


def resource_of(path: str) -> str:
    """The resource of a path as a bounded metric label: `pods`, `pods/status`, `other`."""
    _, rest = split_path(path)
    if not rest:
        return "other"
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]


class Budget:
    """Client-side rate limit with a burst, and a limit of concurrent requests.

    The rate limit is stored as the time at which the bucket is full again, so waiting requests are
    sent in order. `qps <= 0` is no limit.
    """

    def __init__(self, qps: float, burst: int, concurrency: int | None = None) -> None:
        if qps > 0 and burst < 1:
            raise ValueError(f"burst must be at least 1, found {burst}")
        self._interval_s = 1.0 / qps if qps > 0 else 0.0
        self._slack_s = self._interval_s * (burst - 1)
        self._full_at = 0.0
        self._slots = asyncio.Semaphore(concurrency) if concurrency else None

    async def __aenter__(self) -> None:
        if self._slots is not None:
            await self._slots.acquire()
        try:
            await self.acquire_token()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        if self._slots is not None:
            self._slots.release()

    async def acquire_token(self) -> None:
        """Wait for the rate limit only: a watch must not occupy a slot."""
        if not self._interval_s:
            return
        now = asyncio.get_running_loop().time()
        self._full_at = max(self._full_at, now) + self._interval_s
        wait_s = self._full_at - self._interval_s - self._slack_s - now
        if wait_s > 0:
            await asyncio.sleep(wait_s)


class Client:
    """Requests to one API server under one budget. Safe to share between tasks.

    Attributes:
        server_date: `Date` header of the last response: the server's clock in whole seconds; ""
            before the first response.
        versions: versions that this client and its siblings have seen.
    """

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
            transport: the session; `close` closes it.
            budget: limits; none by default.
            request_timeout_s: timeout of one attempt, including the whole response. Writes send it
                to the server, which aborts at the same time.
            observe: called once per attempt.
        """
        self._transport = transport
        self._metadata_only = False
        self._write_gate: Callable[[], Awaitable[None]] | None = None
        self._state: StateFile | None = None
        self.versions = Versions()
        self._budget = budget or Budget(0, 0)
        self.request_timeout_s = request_timeout_s
        self.server_date = ""
        self._observe = observe
        self._limit = aiohttp.ClientTimeout(total=request_timeout_s)
        self._write_limit = f"{int(request_timeout_s * 1000)}ms"

    def budget(self, qps: float, burst: int, concurrency: int | None = None) -> Client:
        """A sibling on the same session with separate limits.

        Args:
            qps: sustained requests per second; 0 for no limit.
            burst: requests that may be sent at once after a quiet time.
            concurrency: limit of concurrent requests, without watches.
        """
        return self._sibling(Budget(qps, burst, concurrency))

    def metadata_only(self) -> Client:
        """A sibling whose lists and watches return only the metadata of objects.

        The server does not send the rest. Limits, single reads and writes are as of this client.
        """
        sibling = self._sibling(self._budget)
        sibling._metadata_only = True
        return sibling

    def with_write_gate(self, may_write: Callable[[], Awaitable[None]]) -> Client:
        """A sibling whose writes wait for `may_write` before each attempt.

        Its limits are those of this client. Call `budget` on the sibling for other limits.
        """
        sibling = self._sibling(self._budget)
        sibling._write_gate = may_write
        return sibling

    def record_writes_in(self, state: StateFile | None) -> None:
        """Record writes in the state file. Call it before creating siblings."""
        self._state = state
        if state is not None:
            self.versions.on_rewind = state.invalidate

    def _sibling(self, budget: Budget) -> Client:
        sibling = Client(
            self._transport,
            budget=budget,
            request_timeout_s=self.request_timeout_s,
            observe=self._observe,
        )
        sibling._write_gate, sibling.versions = self._write_gate, self.versions
        sibling._state = self._state
        return sibling

    async def get(
        self,
        path: str,
        params: Params | None = None,
        *,
        deadline: Deadline | None = None,
        known: str = "",
    ) -> bytes:
        """GET an object, or anything else under `path`.

        `deadline` is as for `patch`; `known` is a version that the object is known to have had.

        Raises:
            KubeError: the error of the server; `TransportError` after three tries without response.
            RewoundError: the object is earlier than `known`.
        """
        answer = await self._send(_Call("GET", path, params or {}, deadline=deadline))
        if known:
            self.versions.check_read(path, answer, known)
        return answer

    async def list_pages(
        self,
        path: str,
        params: Params | None = None,
        page_size: int = PAGE_SIZE,
        *,
        deadline: Deadline | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """The pages of a collection, each a List object of at most `page_size` items.

        Pages of large items have fewer items. `deadline` is as for `patch`.

        Raises:
            GoneError: the continue token expired between pages; start over.
            TransportError: no response, or one that is not a list.
            RewoundError: the list is older than what was seen before.
        """
        query, max_page_size = dict(params or {}), page_size
        accept = METADATA_LIST if self._metadata_only else None
        while True:
            query["limit"] = str(page_size)
            max_bytes = MAX_PAGE_BYTES if page_size > 1 else None
            call = _Call("GET", path, query, accept=accept, deadline=deadline, max_bytes=max_bytes)
            min_version = 0 if "continue" in query else self.versions.highest(path)
            try:
                body = await self._send(call)
                meta = page_meta(body)
            except PageOverflowError:
                page_size = max(1, page_size // SHRINK_FACTOR)
                continue
            except ValueError as error:
                raise TransportError("GET", path, reason="Garbage", message=str(error)) from error
            self.versions.check_list(path, query, meta.resource_version, min_version)
            page_size = next_page_size(page_size, len(body), max_page_size)
            yield body
            del body  # free it before the next page is read
            if not meta.continue_token:
                return
            query["continue"] = meta.continue_token

    async def create(self, path: str, body: bytes, params: Params | None = None) -> bytes:
        """POST an object to its collection; return it as stored.

        Raises:
            AlreadyExistsError: an object with this name exists.
        """
        return await self._write("POST", path, params, body, "application/json")

    async def replace(self, path: str, body: bytes, params: Params | None = None) -> bytes:
        """PUT a whole object; a `metadata.resourceVersion` in it is a precondition.

        Raises:
            ConflictError: the object has another version.
        """
        return await self._write("PUT", path, params, body, "application/json")

    async def patch(
        self,
        path: str,
        body: bytes,
        content_type: PatchType,
        params: Params | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> bytes:
        """PATCH an object; return it as stored.

        Args:
            path: path of the object.
            body: the patch.
            content_type: type of the patch.
            params: query.
            deadline: returns monotonic seconds after which no attempt is sent: a request may wait
                long for the budget, or for a server that throttles.

        Raises:
            ConflictError: the `resourceVersion` in the patch is not the current one.
            UnprocessableError: invalid, or a `test` of a JSON patch failed.
            NotSentError: the deadline passed, and no attempt was applied.
        """
        return await self._write("PATCH", path, params, body, content_type.value, deadline=deadline)

    async def apply(self, path: str, body: bytes, manager: str, force: bool = True) -> bytes:
        """Server-side apply as field manager `manager`; return the object as stored."""
        params = {"fieldManager": manager, "force": "true" if force else "false"}
        return await self.patch(path, body, PatchType.APPLY, params)

    async def delete(
        self, path: str, body: bytes | None = None, params: Params | None = None
    ) -> bytes:
        """DELETE an object; `body` may be DeleteOptions with preconditions."""
        kind = "application/json" if body is not None else None
        return await self._write("DELETE", path, params, body, kind)

    async def watch(
        self, path: str, params: Params | None = None, *, idle_s: float = WATCH_IDLE_S
    ) -> AsyncGenerator[bytes, None]:
        """As `watch_batches`, one line at a time."""
        async for lines in self.watch_batches(path, params, idle_s=idle_s):
            for line in lines:
                yield line

    async def watch_batches(
        self, path: str, params: Params | None = None, *, idle_s: float = WATCH_IDLE_S
    ) -> AsyncGenerator[list[bytes], None]:
        """The events of a watch as raw JSON lines, until the server ends the stream.

        Each list has the lines that arrived together. The first one is empty: the server accepted
        the watch, and its first event may take minutes.

        Args:
            path: a collection.
            params: query; `watch=1` is added.
            idle_s: seconds without data after which the stream counts as stalled.

        Raises:
            GoneError: the resourceVersion is too old. The server may also send this as an ERROR
                event in the stream.
            TransportError: with reason `Unreachable`, `Broken`, or `Stalled` (no data).
        """
        query = {**(params or {}), "watch": "1"}
        accept = METADATA if self._metadata_only else None
        try:
            async with self._open_stream("WATCH", path, query, accept, idle_s) as response:
                splitter = LineSplitter(MAX_LINE_BYTES)
                yield []
                async for chunk in response.content.iter_any():
                    if lines := splitter.feed(chunk):
                        yield lines
                if lines := splitter.flush():
                    yield lines
        except LineOverflowError as error:
            raise LineTooLongError("WATCH", path, message=str(error)) from error

    async def read_stream(
        self, path: str, params: Params | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The bytes of an answer as they arrive, such as a log that is followed.

        Raises:
            TransportError: with reason `Unreachable` or `Broken`.
        """
        async with self._open_stream("GET", path, params or {}, None, None) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    @contextlib.asynccontextmanager
    async def _open_stream(
        self, verb: str, path: str, query: Params, accept: str | None, idle_s: float | None
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """A response whose body has no end; `idle_s` limits the time without data."""
        opened = False
        self.versions.check()
        await self._budget.acquire_token()
        limit = aiohttp.ClientTimeout(
            total=None, sock_connect=self.request_timeout_s, sock_read=idle_s
        )
        try:
            async with self._transport.request(
                "GET",
                path,
                params=query,
                body=None,
                content_type=None,
                accept=accept,
                timeout=limit,
            ) as response:
                self._count(verb, path, str(response.status), None)
                if response.status != 200:
                    error = _response_error(verb, path, response, await response.read())
                    if isinstance(error, UnauthorizedError):
                        await self._transport.credentials.renew(error.sent)
                    raise error
                opened = True
                yield response
        except (aiohttp.ClientError, OSError) as error:
            broken = "Stalled" if isinstance(error, TimeoutError) else "Broken"
            reason = broken if opened else "Unreachable"
            raise TransportError(verb, path, reason=reason, message=_describe(error)) from error

    async def close(self) -> None:
        """Close the session, which all siblings share."""
        await self._transport.close()

    async def _write(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: bytes | None,
        content_type: str | None,
        *,
        deadline: Deadline | None = None,
    ) -> bytes:
        # The server aborts a write when the client no longer waits for it.
        query = {**(params or {}), "timeout": self._write_limit}
        return await self._send(_Call(method, path, query, body, content_type, deadline))

    async def _wait_until_sendable(self, call: _Call) -> None:
        if call.method != "GET" and self._write_gate is not None:
            await self._write_gate()
        self.versions.check()

    async def _send(self, call: _Call) -> bytes:
        throttled = unanswered = 0
        renewed = False
        while True:
            try:
                return await self._attempt(call)
            except TooManyRequestsError as error:
                throttled += 1
                if throttled >= THROTTLE_TRIES:
                    raise
                wait_s = error.retry_after_s
                await sleep_until(THROTTLE_WAIT_S if wait_s is None else wait_s, call.deadline)
            except UnauthorizedError as error:
                if renewed or not await self._transport.credentials.renew(error.sent):
                    raise
                renewed = True
            except (TransportError, ServerError) as error:
                unanswered += 1
                known = call.method == "GET" and error.status in (0, 503)
                if not known or unanswered >= GET_TRIES:
                    raise
                wait_s = Backoff(base_s=0.1 * 2**unanswered).next()
                await sleep_until(max(wait_s, error.retry_after_s or 0.0), call.deadline)

    async def _attempt(self, call: _Call) -> bytes:
        method, path = call.method, call.path
        await self._wait_until_sendable(call)
        async with self._budget:
            self.versions.check()
            min_version = self.versions.highest(path)
            if call.deadline is not None and clock.monotonic() >= call.deadline():
                raise NotSentError(method, path, reason="TooLate", message="its deadline passed")
            state_file = self._state if method != "GET" else None
            outcome_known = False
            if state_file is not None:
                state_file.begin_write()
            sent_at = clock.monotonic()
            try:
                async with self._transport.request(
                    method,
                    path,
                    params=call.query,
                    body=call.body,
                    content_type=call.content_type,
                    accept=call.accept,
                    timeout=self._limit,
                ) as response:
                    self.server_date = response.headers.get("Date", "")
                    answer = await read_body(response, call.max_bytes)
                    # After a 5xx, the write may have been applied.
                    outcome_known = response.status < 500
            except PageOverflowError:
                self._count(method, path, "200", clock.monotonic() - sent_at)
                raise
            except (aiohttp.ClientError, OSError) as error:
                self._count(method, path, "none", clock.monotonic() - sent_at)
                raise TransportError(method, path, message=_describe(error)) from error
            finally:
                if state_file is not None:
                    state_file.end_write(outcome_known=outcome_known)
            self._count(method, path, str(response.status), clock.monotonic() - sent_at)
        if response.status >= 300:
            raise _response_error(method, path, response, answer)
        if method in MUTATING_METHODS and "dryRun" not in call.query:
            self.versions.check_write(method, path, answer, min_version, call.body)
        return answer

    def _count(self, verb: str, path: str, code: str, spent_s: float | None) -> None:
        self._observe(verb, resource_of(path), code, spent_s)


def _response_error(
    verb: str, path: str, response: aiohttp.ClientResponse, answer: bytes
) -> KubeError:
    wait_s = retry_after(response.headers.get("Retry-After"), clock.now())
    error = error_for(verb, path, response.status, answer, wait_s)
    if isinstance(error, UnauthorizedError):
        error.sent = response.request_info.headers.get("Authorization")
    return error


def _describe(error: BaseException) -> str:
    return str(error) or type(error).__name__
