"""JSON nested without end: the API server stores ten thousand levels, no decoder reads them.

Where a schema leaves a field open, as in the pod template of a Workload, anybody may put such a
thing there. It must not hide the object, far less stop the stream it comes in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

# No field that is read lies so deep; every decoder gets so far, whoever calls it.
MAX_DEPTH: Final = 200

T = TypeVar("T")

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))


def truncate_depth(raw: bytes | msgspec.Raw) -> bytes:
    """The same JSON with null for every list and object below `MAX_DEPTH` others."""
    text = bytes(raw)
    kept: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in _OPENING:
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += (text[start : token.start()], b"null")
        elif len(sign) == 1:
            if depth == MAX_DEPTH + 1:
                start = token.end()
            depth -= 1
    return b"".join((*kept, text[start:]))


def tolerant(decode: Callable[[bytes | msgspec.Raw], T]) -> Callable[[bytes | msgspec.Raw], T]:
    """A decoder that reads what is nested too deeply as if it were not there."""

    def read(raw: bytes | msgspec.Raw) -> T:
        try:
            return decode(raw)
        except RecursionError:
            return decode(truncate_depth(raw))

    return read
