"""What KAI does with each of a workflow's task groups, whichever comes first.

KAI takes PodGroups one after another, older ones first. How old they are is not known here: those
of one submission are created one after another, and one that is added to a workflow later is
younger than those that wait, whatever its name. So each group is judged as if it came first, and
then again with all others before it that KAI may place. What rules every place out rules it out
beside others, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rackgate_osmo.explain import reasons
from rackgate_osmo.explain.certainty import Certainty, PodBatch
from rackgate_osmo.explain.nodes import KaiView
from rackgate_osmo.explain.prediction import KaiPodGroup, Prediction, predict
from rackgate_osmo.explain.room import Shape


@dataclass(frozen=True, slots=True)
class GroupState:
    """A task group.

    Attributes:
        objects: what KAI is given.
        running: its pods that are on nodes.
        alone: whether it fits without the other groups, once the pods that terminate are gone;
            None: not decided.
    """

    objects: KaiPodGroup
    running: int
    alone: bool | None

    @property
    def pods(self) -> int:
        """Number of its pods."""
        return len(self.objects.top.tasks)


def predict_all(
    view: KaiView, certain: Certainty, groups: Sequence[GroupState], steps: int
) -> list[Prediction]:
    """What KAI does with each PodGroup of a workflow.

    Args:
        view: without the workflow's pending pods.
        certain: of the view.
        groups: the PodGroups; their order does not matter.
        steps: as for `predict`.
    """
    first = [_first(view, certain, one, steps) for one in groups]
    pod_batches = [_pod_batches_of(one, found) for one, found in zip(groups, first, strict=True)]
    return [
        found if one.running else _with_others_before(found, one.objects, certain, others)
        for one, found, others in zip(groups, first, _others(pod_batches), strict=True)
    ]


def _first(view: KaiView, certain: Certainty, one: GroupState, steps: int) -> Prediction:
    """What KAI does with a group that comes first."""
    if not one.running:
        return predict(view, one.objects, certain, one.alone, steps)
    if one.running < one.pods:
        return Prediction("unknown", (reasons.partly(one.running, one.pods),))
    return Prediction("scheduled")


def _pod_batches_of(one: GroupState, found: Prediction) -> list[PodBatch]:
    """The pods of a group that KAI may place before another one."""
    if one.running:
        return one.objects.not_running(one.running)
    return [] if found.result == "pending" else one.objects.pod_batches()


def _others(pod_batches: Sequence[Sequence[PodBatch]]) -> Iterator[list[PodBatch]]:
    """For each group the pieces of all others; those that are bound to no domain as one."""
    for mine in range(len(pod_batches)):
        theirs = [piece for at, some in enumerate(pod_batches) if at != mine for piece in some]
        loose: Counter[Shape] = Counter()
        for piece in theirs:
            if not piece.level:
                loose.update(piece.kinds)
        bound = [piece for piece in theirs if piece.level]
        yield [*bound, PodBatch(0, loose)] if loose else bound


def _with_others_before(
    first: Prediction, objects: KaiPodGroup, certain: Certainty, others: Sequence[PodBatch]
) -> Prediction:
    """What KAI does with a group if others may come before it, wherever it puts them."""
    if not others or first.result == "pending":
        return first
    if first.result == "scheduled" and certain.places(objects.top, objects.shapes, others):
        return first
    return Prediction("unknown", (*first.reasons, reasons.groups_before()))
