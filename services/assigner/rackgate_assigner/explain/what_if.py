"""What-if: the Workload's PodSets with some of them changed, put to the placement engine."""

from __future__ import annotations

from collections.abc import Sequence

from rackgate.features import Features
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import When
from rackgate_assigner.topology.model import Placement, PodSetRequest
from rackgate_assigner.topology.placement.place import place


class Trial:
    """Placements in one flavor; the numbers are only read.

    Attributes:
        podsets: of the Workload, those that are placed in this flavor.
    """

    def __init__(
        self, flavor_topology: FlavorTopology, podsets: Sequence[PodSetRequest], features: Features
    ) -> None:
        self.podsets = tuple(podsets)
        self._flavor_topology, self._features = flavor_topology, features

    @property
    def levels(self) -> tuple[str, ...]:
        """Level keys, coarsest first."""
        return self._flavor_topology.tree.levels

    def place(self, changed: Sequence[PodSetRequest] = (), *, empty: bool = False) -> Placement:
        """The engine's answer, with PodSets of the same names replaced by `changed`.

        Args:
            changed: variants of some PodSets.
            empty: as if nothing else had been placed by topology.
        """
        variants = {podset.name: podset for podset in changed}
        flavor_topology = self._flavor_topology
        return place(
            flavor_topology.tree,
            flavor_topology.capacity,
            [variants.get(podset.name, podset) for podset in self.podsets],
            topology_name=flavor_topology.flavor.topology or "",
            flavor_tolerations=flavor_topology.flavor.tolerations,
            simulate_empty=empty,
            features=self._features,
        )

    def fits(self, changed: Sequence[PodSetRequest] = (), *, empty: bool = False) -> bool:
        """Whether the changed PodSets find a place; later ones may still lack theirs."""
        failure = self.place(changed, empty=empty).failure
        names = {podset.name for podset in changed} or {podset.name for podset in self.podsets}
        return failure is None or not names.intersection((failure.podset, *failure.members))

    def when(self, changed: Sequence[PodSetRequest] = ()) -> When | None:
        """Whether they fit now, only when empty, or (None) not even then."""
        if self.fits(changed):
            return "now"
        return "whenEmpty" if self.fits(changed, empty=True) else None
