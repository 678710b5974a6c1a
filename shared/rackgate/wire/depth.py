"""Deeply nested JSON: the API server stores ten thousand levels, decoders fail on them.

If a schema preserves unknown fields, as in the pod template of a Workload, users can create such
objects. They must not hide the object, or stop its watch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from secrets import token_hex
from typing import Final, TypeVar

import msgspec

# Deeper than any field that is read, and within the limit of every decoder.
MAX_DEPTH: Final = 200

T = TypeVar("T")

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))


def truncate_depth(raw: bytes | msgspec.Raw) -> bytes:
    """The same JSON, with null for lists and objects that are nested deeper than `MAX_DEPTH`."""
    return _replace_deep(bytes(raw), lambda _part: b"null")


def _replace_deep(text: bytes, replacement: Callable[[bytes], bytes]) -> bytes:
    kept: list[bytes] = []
    depth = start = opened = 0
    for token in _TOKEN.finditer(text):
        sign = token[0]
        if sign in _OPENING:
            depth += 1
            if depth == MAX_DEPTH + 1:
                opened = token.start()
        elif len(sign) == 1:
            if depth == MAX_DEPTH + 1:
                kept += (text[start:opened], replacement(text[opened : token.end()]))
                start = token.end()
            depth -= 1
    return b"".join((*kept, text[start:]))


class DeepParts:
    """JSON without its deeply nested parts, which can be put back after it was changed.

    Attributes:
        text: the JSON, with a string in place of each of these parts.
    """

    def __init__(self, text: bytes) -> None:
        """Take the parts out of `text`."""
        # Random: values are put together from parts of the text, and none may become a string
        # that stands for a deep part.
        token = token_hex(8).encode()
        self._parts: list[bytes] = []
        self._placeholder = re.compile(rb'"deep-%s-(\d+)"' % token)

        def replacement(part: bytes) -> bytes:
            self._parts.append(part)
            return b'"deep-%s-%d"' % (token, len(self._parts) - 1)

        self.text = _replace_deep(text, replacement)

    def restore(self, text: bytes) -> bytes:
        """JSON with the parts in place of their strings."""
        return self._placeholder.sub(lambda found: self._parts[int(found[1])], text)


def tolerant(decode: Callable[[bytes | msgspec.Raw], T]) -> Callable[[bytes | msgspec.Raw], T]:
    """A decoder that ignores parts that are nested too deeply."""

    def read(raw: bytes | msgspec.Raw) -> T:
        try:
            return decode(raw)
        except RecursionError:
            return decode(truncate_depth(raw))

    return read
