"""Indexes: sets of values by key, without empty sets."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Hashable)


def discard(index: dict[K, set[V]], key: K, value: V) -> None:
    """Remove a value from the set of a key, if it is there."""
    values = index.get(key)
    if values is not None:
        values.discard(value)
        if not values:
            del index[key]
