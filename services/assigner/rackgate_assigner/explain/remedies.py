"""What would help refused PodSets: requests near the asked one, put to the same engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rackgate.wire.core import Toleration
from rackgate_assigner.explain.explanation import Remedy, RemedyKind, When
from rackgate_assigner.explain.what_if import Trial
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest

_TOLERATE_ALL = Toleration(operator="Exists")


@dataclass(frozen=True, slots=True)
class _Idea:
    kind: RemedyKind
    value: str
    text: str
    unit: tuple[PodSetRequest, ...]


def remedies(
    trial: Trial, not_fitting: Sequence[PodSetRequest], rules: Sequence[tuple[str, str]]
) -> tuple[Remedy, ...]:
    """Changes to the refused PodSets that would each be enough alone, those that work now first.

    Args:
        trial: puts questions to the engine.
        not_fitting: the PodSets that the refusal speaks for.
        rules: (rule, detail) of the nodes that were excluded.
    """
    found: list[Remedy] = []
    kinds: set[tuple[RemedyKind, When]] = set()
    for idea in _ideas(trial, not_fitting, rules):
        when = trial.when(idea.unit)
        if when is None or (idea.kind, when) in kinds or (idea.kind, "now") in kinds:
            continue
        kinds.add((idea.kind, when))
        found.append(Remedy(kind=idea.kind, value=idea.value, when=when, text=idea.text))
    found += _fewer_pods(trial, not_fitting)
    order = ("now", "whenEmpty", "perhaps")
    return tuple(sorted(found, key=lambda change: order.index(change.when)))


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
            f"drop the nodeSelector {'; '.join(selectors)}",
            tuple(replace(p, node_selector={}) for p in not_fitting),
        )
    if any(rule == "affinity" for rule, _ in rules):
        yield _Idea(
            "affinity",
            "",
            "drop the required node affinity",
            tuple(replace(p, node_affinity=None) for p in not_fitting),
        )


def _level_ideas(trial: Trial, not_fitting: Sequence[PodSetRequest]) -> Iterator[_Idea]:
    levels = trial.levels
    required = next((p.topology.required for p in not_fitting if p.topology), None)
    if required not in levels:
        return
    for level in reversed(levels[: levels.index(required)]):
        unit = tuple(_with_request(p, required=level) for p in not_fitting)
        yield _Idea("coarserLevel", level, f"require the coarser level {level}", unit)
    unit = tuple(_with_request(p, preferred=required) for p in not_fitting)
    text = f"prefer {required} instead of requiring it"
    yield _Idea("preferred", required, text, unit)


def _with_request(
    podset: PodSetRequest, *, required: str | None = None, preferred: str | None = None
) -> PodSetRequest:
    slices = podset.topology.slices if podset.topology else ()
    topology = TopologyRequest(required=required, preferred=preferred, slices=slices)
    return replace(podset, topology=topology)


def _fewer_pods(trial: Trial, not_fitting: Sequence[PodSetRequest]) -> Iterator[Remedy]:
    """The largest smaller size that fits now, or else the largest in an empty cluster."""
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
            unit = tuple(
                replace(p, count=middle * size) if p is workers else p for p in not_fitting
            )
            best, too_many = (middle, too_many) if trial.fits(unit, empty=empty) else (best, middle)
        if best:
            pods = best * size
            pods_text = "1 pod" if pods == 1 else f"{pods} pods"
            text = f"ask for {pods_text} instead of {workers.count}"
            yield Remedy(kind="fewerPods", value=str(pods), when=when, text=text)
            return
