"""Usage of quota in the last hour: a point for each interval. Pure.

Memory: two numbers of 8 bytes for each point, ClusterQueue, flavor and resource.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.quota.tree import QuotaTree

INTERVAL_S: Final = 30.0
POINTS: Final = 120


@dataclass(slots=True)
class _Series:
    """Numbers of one pair; `start` is the number of the first point."""

    start: int
    used: array[int] = field(default_factory=lambda: array("q"))
    nominal: array[int] = field(default_factory=lambda: array("q"))


class History:
    """Usage of all ClusterQueues over time."""

    def __init__(self) -> None:
        self._times: deque[str] = deque(maxlen=POINTS)
        self._count = 0
        self._series: dict[str, dict[FlavorResource, _Series]] = {}

    def add(self, tree: QuotaTree, now: str) -> None:
        """Add a point."""
        self._times.append(now)
        for gone in self._series.keys() - tree.queues.keys():
            del self._series[gone]
        for name, node in tree.queues.items():
            series = self._series.setdefault(name, {})
            for gone_pair in series.keys() - node.nominal.keys():
                del series[gone_pair]
            for pair, nominal in node.nominal.items():
                one = series.get(pair)
                if one is None:
                    one = series[pair] = _Series(self._count)
                one.used.append(_bounded(node.usage.get(pair, 0)))
                one.nominal.append(_bounded(nominal))
                if len(one.used) > POINTS:
                    del one.used[0], one.nominal[0]
                    one.start += 1
        self._count += 1

    def of_queue(self, name: str) -> Mapping[str, Any] | None:
        """Times and numbers of a ClusterQueue; None for where it did not exist."""
        series = self._series.get(name)
        if series is None:
            return None
        first = self._count - len(self._times)

        def padded(one: _Series, numbers: array[int]) -> list[int | None]:
            return [*[None] * (one.start - first), *numbers]

        return {
            "times": list(self._times),
            "series": [
                {
                    "flavor": flavor,
                    "resource": resource,
                    "used": padded(one, one.used),
                    "nominal": padded(one, one.nominal),
                }
                for (flavor, resource), one in series.items()
            ],
        }


def _bounded(value: int) -> int:
    return max(-(2**63), min(2**63 - 1, value))
