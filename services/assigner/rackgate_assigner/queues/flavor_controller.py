"""Reports which nodes a flavor's topology excludes, and which flavors share nodes.

It makes one pass over all nodes from time to time, not one per node event: the results are for
people and dashboards, and 40,000 changing nodes must not slow down the scheduling cycle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from rackgate.api.resources import FLAVORS
from rackgate.wire.core import Node
from rackgate.wire.kueue import ResourceFlavor
from rackgate_assigner import metrics
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.flavor_nodes import Survey
from rackgate_assigner.reporter import Reporter

MIN_INTERVAL_S: Final = 5.0
# Nodes that are read before other tasks run: about a millisecond.
PORTION: Final = 200


class FlavorController:
    """Keeps two gauges and the Warnings on ResourceFlavors up to date.

    Attributes:
        rounds: passes made so far.
    """

    def __init__(
        self,
        cache: Cache,
        flavors: Mapping[str, ResourceFlavor],
        reporter: Reporter,
        *,
        min_interval_s: float = MIN_INTERVAL_S,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            cache: nodes and flavors.
            flavors: as the watch shows them: the objects of Events.
            reporter: records the Events.
            min_interval_s: minimum time between the starts of two passes.
        """
        self._cache, self._flavors, self._report = cache, flavors, reporter
        self._min_interval_s = min_interval_s
        self._changed = asyncio.Event()
        self._reported: dict[tuple[str, str], str] = {}
        self.rounds = 0

    def mark(self) -> None:
        """A flavor or Topology changed."""
        self._changed.set()

    def on_node_upsert(self, before: Node | None, node: Node) -> None:
        """A node was added or changed; heartbeats do not count."""
        if before is None or _counted(before) != _counted(node):
            self._changed.set()

    async def run(self) -> None:
        """Report until cancelled. Only the holder of the Lease may call this."""
        self._changed.set()
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._check_all()
                await asyncio.sleep(self._min_interval_s)
        finally:
            metrics.FLAVOR_SKIPPED.clear()
            metrics.FLAVOR_OVERLAP.clear()

    async def _check_all(self) -> None:
        survey = Survey.of(self._cache.flavors.values())
        if survey.flavors:
            nodes = list(self._cache.nodes.values())
            for start in range(0, len(nodes), PORTION):
                survey.add(nodes[start : start + PORTION])
                await asyncio.sleep(0)
        _set_gauges(survey)
        self._report_changes(survey)
        self.rounds += 1

    def _report_changes(self, survey: Survey) -> None:
        """One Warning for each change of the result for a flavor."""
        notes: dict[tuple[str, str], str] = {}
        for flavor in survey.flavors:
            lacking = survey.missing_levels_text(flavor.name)
            if lacking:
                notes[flavor.name, "NodesWithoutLevels"] = (
                    f'nodes of this flavor are not part of topology "{flavor.topology}": {lacking}'
                )
            others = survey.overlaps_of(flavor.name)
            if others:
                notes[flavor.name, "FlavorsShareNodes"] = (
                    "TAS flavors must not share nodes; this one shares nodes with "
                    + ", ".join(f'"{other}"' for other in others)
                )
        for key, note in notes.items():
            flavor_object = self._flavors.get(key[0])
            if flavor_object is not None and self._reported.get(key) != note:
                self._report.configuration(FLAVORS, flavor_object.metadata, key[1], note)
        self._reported = notes


def _counted(node: Node) -> tuple[object, ...]:
    return node.metadata.labels, node.spec.unschedulable, node.ready


def _set_gauges(survey: Survey) -> None:
    metrics.FLAVOR_SKIPPED.clear()
    metrics.FLAVOR_OVERLAP.clear()
    for (flavor, rule), count in survey.skipped.items():
        metrics.FLAVOR_SKIPPED.labels(flavor=flavor, reason=rule).set(count)
    for (first, second), count in survey.shared.items():
        metrics.FLAVOR_OVERLAP.labels(flavor=first, other=second).set(count)
        metrics.FLAVOR_OVERLAP.labels(flavor=second, other=first).set(count)
