"""The quota of ClusterQueues and of the Cohorts above them, counted from the objects alone.

A node has its own quota, and what its children lend. What a child uses beyond what it never lends
is usage of its parent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rackgate_invariants.cluster import SLACK_S
from rackgate_invariants.rows.rows import QueueRow

Total = Counter[tuple[str, str]]


@dataclass(slots=True)
class QuotaNode:
    """A ClusterQueue, or a Cohort; a Cohort that is only named has no quota of its own.

    Attributes:
        subject: as in a breach.
        row: None for a Cohort without an object.
        parent: None at a root.
    """

    subject: str
    row: QueueRow | None = None
    parent: QuotaNode | None = None
    children: list[QuotaNode] = field(default_factory=list)

    def subtree_quota(self, pair: tuple[str, str]) -> int:
        """Nominal quota, and what the children lend."""
        own = self.row.nominal.get(pair, 0) if self.row is not None else 0
        return own + sum(
            child.subtree_quota(pair) - child.unlent_quota(pair) for child in self.children
        )

    def unlent_quota(self, pair: tuple[str, str]) -> int:
        """What it never lends: 0 without a lending limit."""
        lends = self.row.lending_limit.get(pair) if self.row is not None else None
        return 0 if lends is None else max(0, self.subtree_quota(pair) - lends)

    def limit(self, pair: tuple[str, str]) -> int | None:
        """The most that it may use; None if only the nodes above it limit it."""
        if self.parent is None:
            return self.subtree_quota(pair)
        borrows = self.row.borrowing_limit.get(pair) if self.row is not None else None
        return None if borrows is None else self.subtree_quota(pair) + borrows

    def usage(self, pair: tuple[str, str], used: Mapping[str, Total]) -> int:
        """Usage of a queue; of a Cohort, what its children use beyond what they never lend.

        Args:
            pair: flavor and resource.
            used: by name of the queue.
        """
        if self.row is not None and not self.is_cohort:
            return used[self.row.key][pair]
        return sum(
            max(0, child.usage(pair, used) - child.unlent_quota(pair)) for child in self.children
        )

    @property
    def is_cohort(self) -> bool:
        """Whether it is a Cohort."""
        return self.subject.startswith(COHORT)

    def queues(self) -> Iterator[QueueRow]:
        """The ClusterQueues below it, or itself."""
        if self.row is not None and not self.is_cohort:
            yield self.row
        for child in self.children:
            yield from child.queues()

    def users(self, pair: tuple[str, str], used: Mapping[str, Total]) -> Iterator[QueueRow]:
        """The queues that its usage comes from; one that uses only what it never lends is none."""
        if self.row is not None and not self.is_cohort:
            yield self.row
        for child in self.children:
            if child.usage(pair, used) > child.unlent_quota(pair):
                yield from child.users(pair, used)

    def lowered_at(self) -> float:
        """Until when the assigner may admit by an earlier spec of a node of this subtree."""
        row = self.row
        own = row.spec_at if row is not None else 0.0
        if row is not None and row.spec_at > row.created_at:
            own += SLACK_S
        return max([own, *(child.lowered_at() for child in self.children)])


COHORT = "Cohort/"


def quota_nodes(queues: Iterable[QueueRow], cohorts: Iterable[QueueRow]) -> list[QuotaNode]:
    """All nodes of all trees; nothing above or below Cohorts whose parents form a circle.

    The queues of such Cohorts are not active, and nothing says what they may use.
    """
    found: dict[str, QuotaNode] = {}
    rows = {f"{COHORT}{row.key}": row for row in cohorts}
    rows |= {row.key: row for row in queues}
    for subject, row in rows.items():
        found.setdefault(subject, QuotaNode(subject)).row = row
        if row.cohort:
            name = f"{COHORT}{row.cohort}"
            found.setdefault(name, QuotaNode(name, rows.get(name)))
    for node in found.values():
        if node.row is not None and node.row.cohort:
            node.parent = found[f"{COHORT}{node.row.cohort}"]
    sound = [node for node in found.values() if _has_root(node)]
    for node in sound:
        if node.parent is not None:
            node.parent.children.append(node)
    return sound


def _has_root(node: QuotaNode) -> bool:
    seen: set[str] = set()
    above: QuotaNode | None = node
    while above is not None:
        if above.subject in seen:
            return False
        seen.add(above.subject)
        above = above.parent
    return True
