"""One page of a list: how much of it is read, and whether it is one at all."""

from __future__ import annotations

from typing import Final

import aiohttp
import msgspec

from rackgate.wire.depth import tolerant

PAGE_SIZE: Final = 500
# A page larger than this makes the following ones shorter: Workloads may be of a megabyte each.
# A page of less than a quarter makes them longer again: it may have been a few of many.
TARGET_PAGE_BYTES: Final = 8 * 2**20
# A page larger than this is given up and asked for anew: it may be the first one, and
# `PAGE_SIZE` objects of a megabyte each are more than a service has.
MAX_PAGE_BYTES: Final = 4 * TARGET_PAGE_BYTES
SHRINK_FACTOR: Final = 8


class PageOverflowError(Exception):
    """The page is larger than was asked for; the rest of it was not read."""


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """Version of a list, and what the next page is asked for with: "" after the last one."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct, frozen=True):
    """A page; its items are parts of it, and keep it alive."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


decode_page = tolerant(msgspec.json.Decoder(Page).decode)


def page_meta(body: bytes) -> ListMeta:
    """The metadata of a page.

    Raises:
        ValueError: this is no list. Every list has a version: without that, JSON of another kind
            (a refusal under 200) would pass for a list of nothing.
    """
    meta = decode_page(body).metadata
    if not meta.resource_version:
        raise ValueError("no list: it has no resourceVersion")
    return meta


def next_page_size(size: int, read_bytes: int, max_size: int) -> int:
    """How many items the next page may have.

    Args:
        size: how many this one was asked to have.
        read_bytes: bytes of this one.
        max_size: how many the first one was asked to have.
    """
    if read_bytes > TARGET_PAGE_BYTES:
        return max(1, size * TARGET_PAGE_BYTES // read_bytes)
    return min(size * 2, max_size) if read_bytes < TARGET_PAGE_BYTES // 4 else size


async def read_body(response: aiohttp.ClientResponse, max_bytes: int | None) -> bytes:
    """The answer's body.

    Raises:
        PageOverflowError: it has more than `max_bytes` bytes. The connection is of no use any more,
            which aiohttp sees to.
    """
    if max_bytes is None:
        return await response.read()
    parts: list[bytes] = []
    read_bytes = 0
    async for chunk in response.content.iter_any():
        read_bytes += len(chunk)
        if read_bytes > max_bytes:
            raise PageOverflowError
        parts.append(chunk)
    return b"".join(parts)
