"""Topology domains as tuples of label values, and the two wire forms of an assignment.

A domain is the tuple of its level values, coarsest first: never a joined string, so a host
named like a rack, or a value that contains a separator, cannot be mistaken for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Domain: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopologyAssignment:
    """Which lowest-level domains take how many pods of one PodSet.

    Attributes:
        levels: node label keys, coarsest first; only the hostname when that is the lowest level.
        domains: `(values, count)` in rank order: the first `count` ranks go to the first domain.
            `values` has one entry per level; `count` is at least 1; no domain appears twice.
    """

    levels: tuple[str, ...]
    domains: tuple[tuple[Domain, int], ...]

    @property
    def count(self) -> int:
        """Total pods over all domains."""
        return sum(count for _, count in self.domains)
