"""The quota tree, and who holds what in it (section 4).

A `Node` is a queue or a cohort and never changes. A `State` is the list of holders; usage is summed
up from it whenever it is asked for, and removing or adding a holder gives another state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.support.oracle.amounts import whole

Json = dict[str, Any]
# A flavor and a resource.
Fr = tuple[str, str]


@dataclass(frozen=True)
class Quota:
    """What a node has of one flavor and resource; None is no limit."""

    nominal: int = 0
    borrow: int | None = None
    lend: int | None = None


NOTHING = Quota()


@dataclass(eq=False)
class Node:
    """A queue, with its `spec`, or a cohort, without."""

    name: str
    spec: Json | None = None
    parent: Node | None = None
    stopped: bool = False
    weight: float = 1.0
    quotas: dict[Fr, Quota] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)

    @property
    def rules(self) -> Json:
        assert self.spec is not None
        return self.spec

    def policy(self, name: str) -> str:
        return str((self.rules.get("preemption") or {}).get(name) or "Never")

    @property
    def borrow_within_cohort(self) -> Json:
        return dict((self.rules.get("preemption") or {}).get("borrowWithinCohort") or {})

    @property
    def preempts_to_borrow(self) -> bool:
        """Whether it may evict others and borrow nevertheless."""
        return bool(self.borrow_within_cohort.get("policy", "Never") != "Never")

    @property
    def groups(self) -> list[Json]:
        return list(self.rules.get("resourceGroups") or [])

    @property
    def path(self) -> list[Node]:
        """The node, its parent, and so on to the root."""
        return [self] if self.parent is None else [self, *self.parent.path]

    @property
    def root(self) -> Node:
        return self.path[-1]

    @property
    def below(self) -> Iterator[Node]:
        """The node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.below

    @property
    def queues(self) -> list[Node]:
        """All queues at or below the node."""
        return [node for node in self.below if node.spec is not None]

    @property
    def cohorts(self) -> list[Node]:
        """Child cohorts."""
        return [child for child in self.children if child.spec is None]

    def quota(self, fr: Fr) -> Quota:
        return self.quotas.get(fr, NOTHING)


@dataclass(frozen=True)
class Placed:
    """Pods of one size in one domain of a topology flavor."""

    flavor: str
    values: tuple[str, ...]
    requests: Mapping[str, int]
    count: int


@dataclass(frozen=True)
class Held:
    """Quota and nodes that are held in a queue; `workload` only of a running one."""

    key: str
    queue: Node
    usage: Mapping[Fr, int]
    placed: tuple[Placed, ...] = ()
    workload: Json | None = None


@cache
def frs(node: Node) -> list[Fr]:
    """What the node or a node below has a quota for."""
    return sorted({fr for other in node.below for fr in other.quotas})


@cache
def sub(node: Node, fr: Fr) -> int:
    lent = sum(sub(child, fr) - local(child, fr) for child in node.children)
    return node.quota(fr).nominal + lent


@cache
def local(node: Node, fr: Fr) -> int:
    """What is never lent."""
    lend = node.quota(fr).lend
    return 0 if lend is None else max(0, sub(node, fr) - lend)


@cache
def potential(node: Node, fr: Fr) -> int:
    if node.parent is None:
        return sub(node, fr)
    most = local(node, fr) + potential(node.parent, fr)
    borrow = node.quota(fr).borrow
    return most if borrow is None else min(most, sub(node, fr) + borrow)


def height(cohort: Node) -> int:
    if all(child.stopped for child in cohort.children):
        return 0
    return 1 + max((height(child) for child in cohort.cohorts), default=0)


class State:
    """Who holds what."""

    def __init__(self, held: tuple[Held, ...]) -> None:
        self.held = held
        self._usage: dict[tuple[Node, Fr], int] = {}

    def without(self, keys: Collection[str]) -> State:
        return State(tuple(held for held in self.held if held.key not in keys))

    def plus(self, held: Held) -> State:
        return State((*self.held, held))

    def usage(self, node: Node, fr: Fr) -> int:
        if (node, fr) not in self._usage:
            self._usage[node, fr] = self._sum(node, fr)
        return self._usage[node, fr]

    def _sum(self, node: Node, fr: Fr) -> int:
        if node.spec is not None:
            return sum(held.usage.get(fr, 0) for held in self.held if held.queue is node)
        return sum(max(0, self.usage(child, fr) - local(child, fr)) for child in node.children)

    def local_free(self, node: Node, fr: Fr) -> int:
        return max(0, local(node, fr) - self.usage(node, fr))

    def available(self, queue: Node, fr: Fr) -> int:
        return max(0, self._available(queue, fr))

    def _available(self, node: Node, fr: Fr) -> int:
        own, used = sub(node, fr), self.usage(node, fr)
        if node.parent is None:
            return own - used
        above = self._available(node.parent, fr)
        borrow = node.quota(fr).borrow
        if borrow is not None:
            kept = local(node, fr)
            above = min(above, own - kept - max(0, used - kept) + borrow)
        return self.local_free(node, fr) + above

    def borrows(self, node: Node, fr: Fr, more: int = 0) -> bool:
        limit = node.quota(fr).nominal if node.spec is not None else sub(node, fr)
        return self.usage(node, fr) + more > limit

    def within_nominal(self, node: Node, need: Collection[Fr]) -> bool:
        return all(self.usage(node, fr) <= sub(node, fr) for fr in need)

    def low(self, queue: Node, fr: Fr, amount: int) -> tuple[int, bool]:
        """The height of the lowest subtree with room, and whether there is a larger one."""
        if queue.parent is None or not self.borrows(queue, fr, amount):
            return 0, queue.parent is not None
        rest = amount - self.local_free(queue, fr)
        for cohort in queue.parent.path:
            if not self.borrows(cohort, fr, rest):
                return height(cohort), cohort.parent is not None
            rest -= self.local_free(cohort, fr)
        return height(queue.root), False


def quotas_of(groups: list[Json]) -> dict[Fr, Quota]:
    def amount(resource: str, quota: Json, name: str) -> int | None:
        return whole(resource, quota[name]) if quota.get(name) is not None else None

    return {
        (flavor["name"], resource): Quota(
            amount(resource, quota, "nominal") or 0,
            amount(resource, quota, "borrowingLimit"),
            amount(resource, quota, "lendingLimit"),
        )
        for group in groups
        for flavor in group["flavors"]
        for resource, quota in flavor["quotas"].items()
    }
