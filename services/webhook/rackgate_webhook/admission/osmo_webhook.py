"""Reviews of OSMO's kinds: reads the objects that `osmo` needs for its decision.

Nothing is cached between reviews, so nothing can be stale: one `kubectl apply` may create a Pool
and then its Workflow. Submissions are rare, and one read each costs less than a watch.

Workflows are checked in a thread: one of 20,000 tasks takes more than 0.3 s, and reviews of other
kinds must not wait for it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Final

import msgspec
import structlog

from rackgate.api.resources import OSMO_POOLS, OSMO_WORKFLOWS
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError, NotFoundError
from rackgate.wire.lists import page_items
from rackgate_webhook.admission.objects import name_errors
from rackgate_webhook.admission.osmo import (
    POOL,
    is_osmo_write,
    pool_of,
    pool_response,
    removed_topology_keys,
    topology_keys_of,
    workflow_response,
)
from rackgate_webhook.admission.review import AdmissionResponse, Review
from rackgate_webhook.serving.bodies import RequestRejectedError

# Our webhook configurations set timeoutSeconds: 5.
READ_TIMEOUT_S: Final = 2.0
# A Workflow may have 1.5 MiB, so a page has at most 24 MiB.
PAGE_SIZE: Final = 16
QPS: Final = 50.0
BURST: Final = 100
MAX_CONCURRENT_READS: Final = 16
# All threads share one interpreter: a second thread would only delay all reviews.
WORKFLOW_THREADS: Final = 1

log = structlog.get_logger()


def used_keys(page: bytes, keys: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Each Workflow of a page, as `namespace/name`, with those of `keys` that it names.

    They are decoded one at a time: a whole page takes ten times its size.
    """
    for raw in page_items(page):
        item = msgspec.json.decode(raw)
        meta = item["metadata"]
        yield f"{meta['namespace']}/{meta['name']}", keys & topology_keys_of(item)


class OsmoReviews:
    """Decides about Pools and Workflows."""

    def __init__(self, *, timeout_s: float = READ_TIMEOUT_S) -> None:
        """Prepare; `connect` must be called before the first review.

        Args:
            timeout_s: longest time that reading for one review may take.
        """
        self._timeout_s = timeout_s
        self._client: Client | None = None
        # A review that is queued for a thread is not started after its caller has hung up.
        self._workflow_executor = ThreadPoolExecutor(WORKFLOW_THREADS, "judge")
        self._list_lock = asyncio.Lock()  # only one page is in memory, however many Pools change

    def connect(self, client: Client) -> None:
        """Connect to the API server, with a rate limit of its own."""
        self._client = client.budget(QPS, BURST, MAX_CONCURRENT_READS)

    async def decide(self, review: Review) -> AdmissionResponse:
        """The response to one review.

        Raises:
            MalformedError: the object has a shape that the API server never sends.
            RequestRejectedError: its Pool cannot be read; the failurePolicy decides.
        """
        if not is_osmo_write(review):
            return AdmissionResponse()
        if review.kind == POOL:
            keys = removed_topology_keys(review)
            name = str(review.object.get("metadata", {}).get("name", ""))
            return pool_response(
                review, await self._workflows_by_key(name, set(keys)) if keys else {}
            )
        pool = await self._pool(pool_of(review.object))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workflow_executor, workflow_response, review, pool)

    async def _pool(self, name: str) -> dict[str, Any] | None:
        """A Pool as stored; None when there is none."""
        if name_errors(name, "", ""):
            return None  # it must not become part of a URL path
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._reader().get(OSMO_POOLS.path(name=name))
        except NotFoundError:
            return None
        except (KubeError, TimeoutError) as error:
            cause = str(error) or f"no answer within {self._timeout_s:g} s"
            log.warning("pool_not_read", pool=name, error=cause[:300])
            message = f'spec.pool: pool "{name}" cannot be read now, try again ({cause[:300]})'
            raise RequestRejectedError(503, "unread", message) from error
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    async def _workflows_by_key(self, pool: str, keys: set[str]) -> dict[str, list[str]] | None:
        """Workflows of a Pool by each of `keys` they name; None when not all could be read."""
        users: dict[str, list[str]] = defaultdict(list)
        params = {"fieldSelector": f"spec.pool={pool}"}
        pages = self._reader().list_pages(OSMO_WORKFLOWS.path(), params, PAGE_SIZE)
        try:
            async with asyncio.timeout(self._timeout_s), self._list_lock, aclosing(pages):
                async for page in pages:
                    for name, used in used_keys(page, keys):
                        for key in used:
                            users[key].append(name)
                        await asyncio.sleep(0)  # let other reviews run
        except (KubeError, TimeoutError) as error:
            log.warning("workflows_not_read", pool=pool, error=str(error)[:300])
            return None
        return users

    def _reader(self) -> Client:
        if self._client is None:
            raise RequestRejectedError(503, "unread", "not connected yet")
        return self._client
