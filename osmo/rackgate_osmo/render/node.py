"""One node of a task group's tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What kind of domain a node requests."""

    ROOT = "root"
    REQUIRED = "required"
    PREFERRED = "preferred"
    FILLER = "filler"


@dataclass(slots=True)
class Node:
    """Tasks that share a domain of one level.

    Attributes:
        level: index in the pool's `topology_keys`; -1 for the root.
        group: as users wrote it; empty for the root and for a filler.
        kind: what is requested.
        children: nodes of the next level in play, in the order of their names.
        tasks: names of the tasks; on leaves only.
        size: number of tasks below.
        gpus_milli: thousandths of GPUs that all tasks below request.
        requires: whether this node or one below requires a domain.
        part: distinguishes leaves of one group with several sizes; 0 if the group is one leaf.
        split_by_size: whether its preference moves to the nodes below, see `profiles`.
        name: of the subgroup; empty for the root and for levels that all tasks share.
    """

    level: int
    group: str
    kind: Kind
    children: tuple[Node, ...] = ()
    tasks: tuple[str, ...] = ()
    size: int = 0
    gpus_milli: int = 0
    requires: bool = False
    part: int = 0
    split_by_size: bool = False
    name: str = ""

    def below(self) -> Iterator[Node]:
        """All nodes below, parents first."""
        for child in self.children:
            yield child
            yield from child.below()

    def leaves(self) -> Iterator[Node]:
        """All nodes with tasks, here or below."""
        if not self.children:
            yield self
        for child in self.children:
            if child.children:
                yield from child.leaves()
            else:
                yield child
