"""Partial msgspec views of OSMO Pools and KAI Topologies."""

from __future__ import annotations

from typing import Any

from rackgate.wire.core import Condition, Meta, View


class PoolStatus(View, frozen=True):
    """Last written status of a Pool."""

    conditions: tuple[Condition, ...] = ()
    topology: str = ""
    observed_generation: int = 0


class Pool(View, frozen=True):
    """A Pool; `rackgate_osmo` reads its spec, as users wrote it."""

    metadata: Meta = Meta()
    spec: dict[str, Any] = {}
    status: PoolStatus = PoolStatus()


class KaiLevel(View, frozen=True):
    """One level: a node label key."""

    node_label: str = ""


class KaiTopologySpec(View, frozen=True):
    """Levels, coarsest first; immutable in KAI."""

    levels: tuple[KaiLevel, ...] = ()


class KaiTopology(View, frozen=True):
    """A Topology of the KAI scheduler."""

    metadata: Meta = Meta()
    spec: KaiTopologySpec = KaiTopologySpec()

    @property
    def labels(self) -> tuple[str, ...]:
        """The node labels of the levels."""
        return tuple(level.node_label for level in self.spec.levels)
