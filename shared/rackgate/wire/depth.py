"""Deeply nested JSON: the API server stores ten thousand levels, decoders fail on them.

If a schema preserves unknown fields, as in the pod template of a Workload, users can create such
objects. They must not hide the object, or stop its watch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

# Deeper than any field that is read, and within the limit of every decoder.
MAX_DEPTH: Final = 200

T = TypeVar("T")

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))


def truncate_depth(raw: bytes | msgspec.Raw) -> bytes:
    """The same JSON, with null for lists and objects that are nested deeper than `MAX_DEPTH`."""
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
    """A decoder that ignores parts that are nested too deeply."""

    def read(raw: bytes | msgspec.Raw) -> T:
        try:
            return decode(raw)
        except RecursionError:
            return decode(truncate_depth(raw))

    return read
