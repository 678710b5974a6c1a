"""Responses of lists and watches, before their objects are decoded.

A watch is a byte stream of JSON lines; `LineSplitter` splits it. aiohttp's `readline` rejects long
lines. A list is a sequence of pages; `read_body` and `next_page_size` limit how much is in memory.
Items and events stay raw (`msgspec.Raw`), so the informer decodes each object once.
"""

from __future__ import annotations

from typing import Final

import aiohttp
import msgspec

from rackgate.wire.core import Meta, MetadataOnly
from rackgate.wire.depth import tolerant
from rackgate.wire.lists import ListMeta, decode_page

MAX_LINE_BYTES: Final = 4 * 2**20

PAGE_SIZE: Final = 500
# After a larger page, the next pages have fewer items: a Workload may have a megabyte. After a page
# of less than a quarter of this, they have more items again.
TARGET_PAGE_BYTES: Final = 8 * 2**20
# A larger page is aborted and requested again with fewer items: `PAGE_SIZE` objects of a megabyte
# each are more than the memory of a service.
MAX_PAGE_BYTES: Final = 4 * TARGET_PAGE_BYTES
SHRINK_FACTOR: Final = 8

# The known version of a quiet collection is minutes old: etcd reports its progress every ten
# minutes by default. To advance so far in that time, a cluster would have to write 16,000 times a
# second. The etcd documentation recommends to bump revisions by 1,000,000,000 after a restore.
MAX_VERSION_STEP: Final = 10_000_000


class LineOverflowError(ValueError):
    """A line is longer than the limit."""


class LineSplitter:
    """Split chunks of bytes into lines, in linear time for any chunk sizes."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._buffered_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without line ends and empty lines.

        Raises:
            LineOverflowError: the incomplete line exceeds the limit.
        """
        if b"\n" not in chunk:
            self._buffer(chunk)
            return []
        lines = chunk.split(b"\n")
        if self._parts:
            self._buffer(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._buffered_bytes = 0
        rest = lines.pop()
        if rest:
            self._buffer(rest)
        return [line for line in lines if line]

    def flush(self) -> list[bytes]:
        """The last line at the end of the stream, if it is complete JSON without a line end.

        An incomplete event is sent again by the next watch. An ERROR event is not: if it were
        dropped as incomplete, the watch would be restarted forever.
        """
        rest = b"".join(self._parts)
        try:
            msgspec.json.decode(rest, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            return []
        return [rest]

    def _buffer(self, part: bytes) -> None:
        self._buffered_bytes += len(part)
        if self._buffered_bytes > self._limit:
            raise LineOverflowError(f"line of more than {self._limit} bytes")
        self._parts.append(part)


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch. `object` is a Status if `type` is ERROR, so check the type first."""

    type: str
    object: msgspec.Raw


_decode_event = tolerant(msgspec.json.Decoder(WatchEvent).decode)
_decode_metadata = tolerant(msgspec.json.Decoder(MetadataOnly).decode)


def read_event(line: bytes) -> WatchEvent:
    """Decode one line of a watch.

    Raises:
        ValueError: it is not an event (a `DecodeError`), or not UTF-8.
    """
    return _decode_event(line)


def read_meta(raw: bytes | msgspec.Raw) -> Meta | None:
    """The metadata of an object; None if it cannot be decoded."""
    try:
        return _decode_metadata(raw).metadata
    except ValueError:
        return None


def page_meta(body: bytes) -> ListMeta:
    """The metadata of a page.

    Raises:
        ValueError: it is not a list. Every list has a version; without this check, other JSON, such
            as an error with status 200, would count as an empty list.
    """
    meta = decode_page(body).metadata
    if not meta.resource_version:
        raise ValueError("not a list: it has no resourceVersion")
    return meta


def next_page_size(size: int, read_bytes: int, max_size: int) -> int:
    """Number of items to request for the next page.

    Args:
        size: number of items that were requested for the last page.
        read_bytes: size of the last page.
        max_size: number of items that were requested for the first page.
    """
    if read_bytes > TARGET_PAGE_BYTES:
        return max(1, size * TARGET_PAGE_BYTES // read_bytes)
    return min(size * 2, max_size) if read_bytes < TARGET_PAGE_BYTES // 4 else size


class PageOverflowError(Exception):
    """The page is larger than the limit; the rest of it was not read."""


async def read_body(response: aiohttp.ClientResponse, max_bytes: int | None) -> bytes:
    """The body of a response.

    Raises:
        PageOverflowError: it has more than `max_bytes` bytes. aiohttp closes the connection.
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


def is_earlier(version: str, other: str) -> bool:
    """Whether a version is earlier than another; False for opaque versions."""
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


def is_version_leap(version: str, other: str) -> bool:
    """Whether a version is later than another by more than a cluster can write in between."""
    return is_earlier(other, version) and int(version) - int(other) > MAX_VERSION_STEP
