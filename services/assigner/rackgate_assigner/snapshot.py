"""Frozen views for callers above the cache: what-if questions on the very code of a cycle."""

from __future__ import annotations

from rackgate_assigner.cache import Cache
from rackgate_assigner.core.cycle import Snapshot


def freeze(cache: Cache) -> Snapshot:
    """A copy of the cache's state for one cycle; using it up does not touch the cache."""
    return cache.freeze()
