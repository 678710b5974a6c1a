"""Remedies for PodSets that do not fit: changed requests, verified by placement itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rackgate.features import Features
from rackgate.wire.core import Toleration
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import Remedy, RemedyKind, When
from rackgate_assigner.topology.model import Placement, PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.nested import place_nested

WHEN_ORDER: Final[tuple[When, ...]] = ("now", "whenEmpty", "perhaps")
_TOLERATE_ALL: Final = Toleration(operator="Exists")


class Trial:
    """Placements in one flavor, with changed requests.

    Attributes:
        podsets: those of the Workload that are placed in this flavor.
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
        """Place the PodSets; `changed` replace those of the same names.

        Args:
            changed: variants of some PodSets.
            empty: as if nothing else were placed by topology.
        """
        variants = {podset.name: podset for podset in changed}
        flavor_topology = self._flavor_topology
        return place_nested(
            flavor_topology.tree,
            flavor_topology.capacity,
            [variants.get(podset.name, podset) for podset in self.podsets],
            topology_name=flavor_topology.flavor.topology or "",
            flavor_tolerations=flavor_topology.flavor.tolerations,
            simulate_empty=empty,
            features=self._features,
        )

    def fits(self, changed: Sequence[PodSetRequest] = (), *, empty: bool = False) -> bool:
        """Whether the changed PodSets fit; later ones may still not fit."""
        failure = self.place(changed, empty=empty).failure
        names = {podset.name for podset in changed} or {podset.name for podset in self.podsets}
        return failure is None or not names.intersection((failure.podset, *failure.members))

    def when(self, changed: Sequence[PodSetRequest] = ()) -> When | None:
        """Whether they fit now, only on an empty cluster, or (None) not at all."""
        if self.fits(changed):
            return "now"
        return "whenEmpty" if self.fits(changed, empty=True) else None


@dataclass(frozen=True, slots=True)
class _Idea:
    kind: RemedyKind
    value: str
    text: str
    changed: tuple[PodSetRequest, ...]


def remedies(
    trial: Trial, not_fitting: Sequence[PodSetRequest], rules: Sequence[tuple[str, str]]
) -> tuple[Remedy, ...]:
    """Changes that help by themselves; those that fit now come first.

    Args:
        trial: of the flavor.
        not_fitting: the PodSets to change.
        rules: (rule, detail) of the nodes that are excluded.
    """
    found: list[Remedy] = []
    kinds: set[tuple[RemedyKind, When]] = set()
    for idea in _ideas(trial, not_fitting, rules):
        when = trial.when(idea.changed)
        if when is None or (idea.kind, when) in kinds or (idea.kind, "now") in kinds:
            continue
        kinds.add((idea.kind, when))
        found.append(Remedy(kind=idea.kind, value=idea.value, when=when, text=idea.text))
    found += _fewer_pods(trial, not_fitting)
    return tuple(sorted(found, key=lambda change: WHEN_ORDER.index(change.when)))


def _ideas(
    trial: Trial, not_fitting: Sequence[PodSetRequest], rules: Sequence[tuple[str, str]]
) -> Iterator[_Idea]:
    yield from _level_ideas(trial, not_fitting)
    taints = sorted({detail for rule, detail in rules if rule == "taint"})
    if taints:
        yield _Idea(
            "toleration",
            ", ".join(taints),
            f"tolerate {', '.join(taints)}",
            tuple(replace(p, tolerations=(*p.tolerations, _TOLERATE_ALL)) for p in not_fitting),
        )
    selectors = sorted({detail for rule, detail in rules if rule == "nodeSelector"})
    if selectors:
        yield _Idea(
            "nodeSelector",
            "; ".join(selectors),
            f"remove the nodeSelector {'; '.join(selectors)}",
            tuple(replace(p, node_selector={}) for p in not_fitting),
        )
    if any(rule == "affinity" for rule, _ in rules):
        yield _Idea(
            "affinity",
            "",
            "remove the required node affinity",
            tuple(replace(p, node_affinity=None) for p in not_fitting),
        )


def _level_ideas(trial: Trial, not_fitting: Sequence[PodSetRequest]) -> Iterator[_Idea]:
    levels = trial.levels
    required = next((p.topology.required for p in not_fitting if p.topology), None)
    if required not in levels:
        return
    for level in reversed(levels[: levels.index(required)]):
        changed = tuple(_with_request(p, required=level) for p in not_fitting)
        yield _Idea("coarserLevel", level, f"require the coarser level {level}", changed)
    changed = tuple(_with_request(p, preferred=required) for p in not_fitting)
    text = f"prefer {required} instead of requiring it"
    yield _Idea("preferred", required, text, changed)


def _with_request(
    podset: PodSetRequest, *, required: str | None = None, preferred: str | None = None
) -> PodSetRequest:
    slices = podset.topology.slices if podset.topology else ()
    topology = TopologyRequest(required=required, preferred=preferred, slices=slices)
    return replace(podset, topology=topology)


def _fewer_pods(trial: Trial, not_fitting: Sequence[PodSetRequest]) -> Iterator[Remedy]:
    """The largest number of pods that fits now, or else on an empty cluster."""
    workers = max(not_fitting, key=lambda podset: podset.count)
    slices = workers.topology.slices if workers.topology else ()
    size = slices[0].size if slices else 1
    if size <= 0 or len(not_fitting) > 2:
        return
    whens: tuple[tuple[When, bool], ...] = (("now", False), ("whenEmpty", True))
    for when, empty in whens:
        best, too_many = 0, -(-workers.count // size)
        while too_many - best > 1:
            middle = (best + too_many) // 2
            changed = tuple(
                replace(p, count=middle * size) if p is workers else p for p in not_fitting
            )
            best, too_many = (
                (middle, too_many) if trial.fits(changed, empty=empty) else (best, middle)
            )
        if best:
            pods = best * size
            pods_text = "1 pod" if pods == 1 else f"{pods} pods"
            text = f"request {pods_text} instead of {workers.count}"
            yield Remedy(kind="fewerPods", value=str(pods), when=when, text=text)
            return
