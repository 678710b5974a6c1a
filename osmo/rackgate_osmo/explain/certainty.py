"""Whether KAI places a PodGroup for certain: true only where no choice of its can prevent it.

KAI's own way of choosing is not followed. Relied upon are a few facts, each observed:

1. KAI places the parts of a group one after another and does not move one that is placed. A part
   is tried in every domain of its level inside its parent's, until one takes all its pods; with a
   mere preference, in the whole of its parent's domain at last.
2. A part that names a level is offered only nodes that carry every label of the Topology.
3. Whether a domain has room for a part, KAI counts by sums; or, where all pods of the part use
   GPUs or none does, as if each pod were as large as the largest, resource by resource.
4. Pods are put on nodes one by one, each on some node that has room for it.

From these it follows, whatever order of domains and nodes KAI takes:

- A *slot* is room on one node for a pod as large as the largest of a part. A domain with a slot
  for each pod of a leaf takes the leaf: by 3 it is counted as large enough, and by 4, while pods
  are left, a node with an empty slot is left.
- A pod of another part takes a bounded number of slots (`_weight`), wherever it is put. So earlier
  parts can block a domain for a leaf only at a price, and only as many domains as they have
  pieces; if more domains are large enough than they can block, one is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rackgate_osmo.explain.room import MISSING, Room, Shape
from rackgate_osmo.explain.search import Budget, UndecidedError
from rackgate_osmo.model.model import KaiVersion
from rackgate_osmo.model.sizes import counted_by_largest
from rackgate_osmo.render.subgroups import SubGroup, hides_level

# Looks at a domain: some seconds.
STEPS: Final = 3_000_000


@dataclass(frozen=True, slots=True)
class PodBatch:
    """Pods of an earlier part.

    Attributes:
        level: they share one domain of this level of the `Room`; 0: they may be anywhere.
        kinds: their number by shape.
    """

    level: int
    kinds: Mapping[Shape, int]


def largest(shapes: Sequence[Shape]) -> Shape:
    """As large as the largest by resource, and kept from each node that any is kept from."""
    most: dict[str, int] = {}
    for shape in shapes:
        for name, amount in shape.requests:
            most[name] = max(amount, most.get(name, 0))
    excluded = frozenset().union(*(shape.excluded for shape in shapes))
    return Shape(tuple(sorted(most.items())), excluded)


def pod_batches_of(
    subgroup: SubGroup, shapes: Mapping[str, Shape], level: int = 0
) -> Iterator[PodBatch]:
    """The pods of a part, as pieces that are in one domain each."""
    if subgroup.required is not None:
        level = max(level, subgroup.required + 1)
    if not subgroup.children:
        yield PodBatch(level, Counter(shapes[task] for task in subgroup.tasks))
    for below in subgroup.children:
        yield from pod_batches_of(below, shapes, level)


class Certainty:
    """What KAI places for certain on the room that there is."""

    def __init__(
        self,
        room: Room,
        kai: KaiVersion,
        counted: Sequence[tuple[str, ...]],
    ) -> None:
        """Prepare; good for many questions.

        Args:
            room: does not change; its levels are those of the Topology.
            kai: the scheduler.
            counted: label values of every node with all labels that KAI counts, whether or not
                pods may use it.
        """
        self.kai = kai
        self._room, self._counted = room, counted
        self._shapes: Mapping[str, Shape] = {}
        self._budget = Budget(STEPS)
        everywhere = range(room.tree.leaf_count)
        self._bare = [leaf for leaf in everywhere if MISSING in room.path_of_leaf(leaf)]
        self._slots: dict[tuple[Shape, bool, int], list[int]] = {}
        self._single: dict[int, dict[tuple[str, ...], bool]] = {}

    def places(
        self, top: SubGroup, shapes: Mapping[str, Shape], before: Sequence[PodBatch]
    ) -> bool:
        """Whether KAI places a PodGroup wherever it puts those before it; False: cannot know.

        Args:
            top: the PodGroup.
            shapes: of its tasks, by name.
            before: pods that are placed earlier.
        """
        self._shapes, self._budget = shapes, Budget(STEPS)
        try:
            return self._placed(top, 0, 0, before, bound=False)
        except UndecidedError:
            return False

    def may_hide(
        self, subgroup: SubGroup, *, level: int = 0, domain: int = 0, nested: bool
    ) -> bool:
        """Whether KAI may not see the level of a part among the nodes of a domain."""
        if not hides_level(subgroup, self._room.depth - 1, self.kai, nested=nested):
            return False
        own = subgroup.required if subgroup.required is not None else subgroup.preferred
        finer = (own or 0) + 2
        if finer not in self._single:
            inside: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
            for path in self._counted:
                for depth in range(finer):
                    inside.setdefault(path[:depth], set()).add(path[:finer])
            self._single[finer] = {path: len(found) == 1 for path, found in inside.items()}
        return self._single[finer].get(self._room.path(level, domain), True)

    def _placed(
        self,
        subgroup: SubGroup,
        level: int,
        domain: int,
        before: Sequence[PodBatch],
        *,
        bound: bool,
    ) -> bool:
        """Whether a part finds a place inside a domain that its parent got."""
        constrained = bound or subgroup.constrained
        if self.may_hide(subgroup, level=level, domain=domain, nested=bound):
            return False
        if subgroup.required is None or subgroup.required + 1 <= level:
            return self._fits(subgroup, level, domain, before, bound=constrained)
        target = subgroup.required + 1
        inside = self._room.within(level, domain, target)
        self._budget.spend(len(inside))
        if not subgroup.children:
            return self._leaf(subgroup, target, inside, before)
        free = [d for d in inside if self._fits(subgroup, target, d, (), bound=True)]
        big = self._big(subgroup)
        if len(free) > self._max_blocked(before, big, target)[0]:
            return True
        return any(self._fits(subgroup, target, d, before, bound=True) for d in free)

    def _leaf(
        self, subgroup: SubGroup, level: int, inside: range, before: Sequence[PodBatch]
    ) -> bool:
        """Whether more domains are large enough than can be blocked."""
        pods, big = len(subgroup.tasks), self._big(subgroup)
        slots = self._slots_of(big, level, bound=True)
        prices = sorted(slots[d] - pods + 1 for d in inside if slots[d] >= pods)
        pod_batches, left = self._max_blocked(before, big, level)
        for blocked, price in enumerate(prices):
            left -= price
            if blocked == pod_batches or left < 0:
                return True
        return False

    def _fits(
        self,
        subgroup: SubGroup,
        level: int,
        domain: int,
        before: Sequence[PodBatch],
        *,
        bound: bool,
    ) -> bool:
        """Whether a domain takes a part for certain, wherever in it the pods before are."""
        self._budget.spend(1 + len(subgroup.children))
        shapes = [self._shapes[task] for task in subgroup.tasks]
        # Not only leaves: KAI counts every part that names a level, and a part of a part.
        if not subgroup.children or (
            bound and counted_by_largest([shape.requests for shape in shapes])
        ):
            big = self._big(subgroup)
            taken = self._max_blocked(before, big, level)[1]
            if self._slots_of(big, level, bound=bound)[domain] - taken < len(shapes):
                return False
        earlier = list(before)
        for below in subgroup.order():
            if not self._placed(below, level, domain, earlier, bound=bound):
                return False
            earlier += pod_batches_of(below, self._shapes)
        return True

    def _big(self, subgroup: SubGroup) -> Shape:
        return largest([self._shapes[task] for task in subgroup.tasks])

    def _slots_of(self, shape: Shape, level: int, *, bound: bool) -> list[int]:
        key = (shape, bound, level)
        if key not in self._slots:
            counts = self._room.fits(shape)
            self._budget.spend(len(counts))
            if bound:
                for leaf in self._bare:
                    counts[leaf] = 0
            self._slots[key] = self._room.sums(level, counts)
        return self._slots[key]

    def _max_blocked(
        self, pod_batches: Sequence[PodBatch], shape: Shape, level: int
    ) -> tuple[int, int]:
        """In how many domains of a level pieces may be, and how many slots they take at most."""
        number = total = 0
        self._budget.spend(len(pod_batches))
        for piece in pod_batches:
            number += 1 if piece.level >= level > 0 else sum(piece.kinds.values())
            total += sum(_weight(other, shape) * pods for other, pods in piece.kinds.items())
        return number, total


def _weight(other: Shape, shape: Shape) -> int:
    """Slots of a shape that another pod takes on its node at most."""
    theirs = dict(other.requests)
    return max([1, *(-(-theirs.get(name, 0) // need) for name, need in shape.requests if need)])
