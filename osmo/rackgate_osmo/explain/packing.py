"""Exact packing: a node for every pod, where pods of several shapes share nodes.

A lot is a number of equal pods that may use one run of nodes. Lots are taken one after another,
those with fewest nodes first, and node by node as many pods as fit, fewer where that leads
nowhere. Nodes that are alike get pods in descending numbers, since other orders are the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate_assigner.topology.tree import PODS
from rackgate_osmo.explain.room import Room, Shape
from rackgate_osmo.explain.search import Budget

# Pods that take most of these are placed first.
_WEIGHTY: Final = ("nvidia.com/gpu", "cpu", "memory", "ephemeral-storage")


@dataclass(frozen=True, slots=True)
class Lot:
    """Equal pods.

    Attributes:
        start: first node that they may use.
        end: end of these nodes, exclusive.
    """

    shape: Shape
    pods: int
    start: int
    end: int


@dataclass(slots=True)
class _Choice:
    """Pods of one lot on one node: how many now, and the fewest that leave room for the rest."""

    node: int
    pods: int
    least: int


class Packing:
    """Nodes for lots; made for one question."""

    def __init__(self, room: Room, lots: Sequence[Lot], budget: Budget) -> None:
        """Prepare; `lots` in any order."""
        order = sorted(range(len(lots)), key=lambda at: _hardest_first(lots[at]))
        self.order = order
        self.lots = [lots[at] for at in order]
        self.budget = budget
        names = sorted({PODS, *(name for lot in lots for name, _ in lot.shape.requests)})
        self.free = [list(row) for row in zip(*(room.free(name) for name in names), strict=True)]
        self.amounts = []
        for lot in self.lots:
            requests = dict(lot.shape.requests)
            requests[PODS] = requests.get(PODS, 0) + 1
            self.amounts.append([requests.get(name, 0) for name in names])
        self.banned = [
            {room.tree.leaf_of_node(name) for name in lot.shape.excluded} for lot in self.lots
        ]
        self.borders = sorted({edge for lot in lots for edge in (lot.start, lot.end)})

    def run(self) -> list[Mapping[int, int]] | None:
        """Pods by node for every lot, in the order given; None where there is no way.

        Raises:
            UndecidedError: the budget is used up.
        """
        taken: list[list[_Choice]] = [[]]
        while True:
            if len(taken) > len(self.lots):
                taken.pop()
                return self._answer(taken)
            if not self._fill(taken) and not self._back(taken):
                return None

    def _answer(self, taken: list[list[_Choice]]) -> list[Mapping[int, int]]:
        found: list[Mapping[int, int]] = [{}] * len(taken)
        for at, choices in zip(self.order, taken, strict=True):
            found[at] = {choice.node: choice.pods for choice in choices if choice.pods}
        return found

    def _fill(self, taken: list[list[_Choice]]) -> bool:
        """Give the pods of the last lot to its nodes; False where they do not fit."""
        at = len(taken) - 1
        lot, choices = self.lots[at], taken[-1]
        nodes = self._nodes(at)
        room = [self._fits(at, node) for node in nodes]
        # Choices made already are charged; what they left is what counts from there on.
        left = lot.pods - sum(choice.pods for choice in choices)
        after = sum(room[len(choices) :])
        for index in range(len(choices), len(nodes)):
            self.budget.spend()
            after -= room[index]
            most = min(room[index], left)
            if index and self._alike(nodes[index - 1], nodes[index], at, choices[-1].pods):
                most = min(most, choices[-1].pods)
            least = max(0, left - after)
            if most < least:
                return False
            choices.append(_Choice(nodes[index], most, least))
            self._charge(at, nodes[index], most)
            left -= most
        if left:
            return False
        taken.append([])
        return True

    def _back(self, taken: list[list[_Choice]]) -> bool:
        """Take the last choice that can be smaller one smaller; False where none can."""
        while taken:
            at = len(taken) - 1
            while taken[-1]:
                choice = taken[-1].pop()
                self._charge(at, choice.node, -choice.pods)
                if choice.pods > choice.least:
                    choice.pods -= 1
                    taken[-1].append(choice)
                    self._charge(at, choice.node, choice.pods)
                    return True
            taken.pop()
        return False

    def _nodes(self, at: int) -> list[int]:
        lot = self.lots[at]
        return [node for node in range(lot.start, lot.end) if node not in self.banned[at]]

    def _fits(self, at: int, node: int) -> int:
        pairs = zip(self.free[node], self.amounts[at], strict=True)
        counts: list[int] = [have // need for have, need in pairs if need]
        return max(0, min(counts))

    def _charge(self, at: int, node: int, pods: int) -> None:
        free = self.free[node]
        for index, need in enumerate(self.amounts[at]):
            free[index] -= need * pods

    def _alike(self, before: int, node: int, at: int, pods: int) -> bool:
        """Whether two nodes were the same to every lot before this one had pods on the first."""
        amounts = self.amounts[at]
        if any(
            have + need * pods != other
            for have, need, other in zip(self.free[before], amounts, self.free[node], strict=True)
        ):
            return False
        if any((before in banned) != (node in banned) for banned in self.banned):
            return False
        return bisect_right(self.borders, before) == bisect_right(self.borders, node)


def _hardest_first(lot: Lot) -> tuple[int, ...]:
    requests = dict(lot.shape.requests)
    return (lot.end - lot.start, *(-requests.get(name, 0) for name in _WEIGHTY))
