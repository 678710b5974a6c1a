"""Splitting a byte stream into lines, by hand: aiohttp's `readline` refuses long ones."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_LINE_BYTES: Final = 4 * 2**20


class LineOverflowError(ValueError):
    """A line is longer than the limit."""


class LineSplitter:
    """Feed chunks, get whole lines. Time is linear in the bytes, whatever the chunk sizes."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._buffered_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their ends; empty lines are left out.

        Raises:
            LineOverflowError: the line under way is longer than the limit.
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
        """After the end of the stream: the last line, if it lacks its end only.

        Half an event comes again; a refusal that is taken for half an event never ends.
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
