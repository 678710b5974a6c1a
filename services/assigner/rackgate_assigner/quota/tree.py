"""Quota as a tree: ClusterQueues are leaves, Cohorts are inner nodes.

Each node has quota (nominal, limits, and the sum below it) and usage, by pair of flavor and
resource. A child lends what its lending limit allows: the rest of its quota is local to it. Usage
beyond the local quota is usage of the parent, too.

- `QuotaTree.build` computes all that depends on quota alone. A changed quota needs another tree.
- `add` and `remove` change the usage of a ClusterQueue and of the Cohorts above it.
- `available`, `potential`, `borrows` and `borrow_level` read one pair.

Input: ClusterQueues and Cohorts without a circle of parents (`cohort_circles`).
Invariants: the usage of a Cohort is the sum over its children of their usage beyond local quota, so
it depends on the usage of ClusterQueues alone; `remove` is the inverse of `add`.
Complexity: O(depth) for each pair; `build` is linear in nodes, pairs and depth.
Source: conformance/quota, section 4; `resource_node.go` of Kueue's scheduler cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from rackgate_assigner.quota.queues import (
    ClusterQueueInfo,
    CohortInfo,
    FlavorResource,
    Quota,
    ResourceGroupInfo,
)


@dataclass(slots=True, eq=False)
class QuotaNode:
    """A ClusterQueue or a Cohort.

    Attributes:
        parent: the Cohort above, None for a root.
        nominal: its own quota.
        borrowing_limit: by pair; without a pair there is no limit.
        lending_limit: by pair; without a pair there is no limit.
        subtree: quota of the node and what is lent to it from below.
        local: part of `subtree` that is never lent; without a pair 0.
        usage: without a pair 0.
        path: the node and all Cohorts above it, the root last.
        queues: ClusterQueues right below a Cohort, without stopped ones.
        cohorts: Cohorts right below a Cohort.
        height: levels below a Cohort; 0 for a ClusterQueue.
        lendable: by resource, what a Cohort can lend its children at most; filled when it is read.
    """

    name: str
    is_queue: bool
    fair_weight: float = 1.0
    parent: QuotaNode | None = None
    nominal: dict[FlavorResource, int] = field(default_factory=dict)
    borrowing_limit: dict[FlavorResource, int] = field(default_factory=dict)
    lending_limit: dict[FlavorResource, int] = field(default_factory=dict)
    subtree: dict[FlavorResource, int] = field(default_factory=dict)
    local: dict[FlavorResource, int] = field(default_factory=dict)
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    path: tuple[QuotaNode, ...] = ()
    queues: list[QuotaNode] = field(default_factory=list)
    cohorts: list[QuotaNode] = field(default_factory=list)
    height: int = 0
    lendable: dict[str, int] = field(default_factory=dict)

    @property
    def root(self) -> QuotaNode:
        """The highest Cohort above, or the node itself."""
        return self.path[-1]

    def local_free(self, pair: FlavorResource) -> int:
        """Local quota that is not in use."""
        return max(0, self.local.get(pair, 0) - self.usage.get(pair, 0))

    def borrows(self, pair: FlavorResource, amount: int = 0) -> bool:
        """Whether usage exceeds the quota of the node, with so much more usage."""
        return self.usage.get(pair, 0) + amount > self.subtree.get(pair, 0)

    def within_nominal(self, pairs: Iterable[FlavorResource]) -> bool:
        """Whether the node borrows none of these."""
        return not any(self.borrows(pair) for pair in pairs)

    def available(self, pair: FlavorResource) -> int:
        """What can be used in addition; negative if usage exceeds quota or limits."""
        free = 0
        for node in reversed(self.path):
            usage, quota = node.usage.get(pair, 0), node.subtree.get(pair, 0)
            if node.parent is None:
                free = quota - usage
                continue
            local = node.local.get(pair, 0)
            limit = node.borrowing_limit.get(pair)
            if limit is not None:
                free = min(free, quota - local - max(0, usage - local) + limit)
            free += max(0, local - usage)
        return free

    def potential(self, pair: FlavorResource) -> int:
        """What could be used if no one else used anything."""
        most = 0
        for node in reversed(self.path):
            quota = node.subtree.get(pair, 0)
            if node.parent is None:
                most = quota
                continue
            most += node.local.get(pair, 0)
            limit = node.borrowing_limit.get(pair)
            if limit is not None:
                most = min(most, quota + limit)
        return most

    def borrow_level(self, pair: FlavorResource, amount: int) -> tuple[int, bool]:
        """Height of the lowest Cohort with quota for a request, and whether it is below the root.

        Height 0: the ClusterQueue need not borrow. If every Cohort has to borrow, the height is
        that of the root.
        """
        if not self.borrows(pair, amount) or self.parent is None:
            return 0, self.parent is not None
        rest = amount - self.local_free(pair)
        for cohort in self.path[1:]:
            if not cohort.borrows(pair, rest):
                return cohort.height, cohort.parent is not None
            rest -= cohort.local_free(pair)
        return self.root.height, False

    def add(self, usage: Quota) -> None:
        """Add usage of a ClusterQueue."""
        for pair, amount in usage.items():
            left = amount
            for node in self.path:
                free = node.local_free(pair)
                node.usage[pair] = node.usage.get(pair, 0) + left
                left -= free
                if left <= 0:
                    break

    def remove(self, usage: Quota) -> None:
        """Remove usage of a ClusterQueue: the inverse of `add`."""
        for pair, amount in usage.items():
            left = amount
            for node in self.path:
                used = node.usage.get(pair, 0)
                node.usage[pair] = used - left
                beyond_local = used - node.local.get(pair, 0)
                if beyond_local <= 0:
                    break
                left = min(left, beyond_local)


class QuotaTree:
    """All ClusterQueues and Cohorts, of all trees.

    Attributes:
        queues: by name, with stopped ones.
        cohorts: by name, with those that are only named.
    """

    __slots__ = ("cohorts", "queues")

    def __init__(self) -> None:
        self.queues: dict[str, QuotaNode] = {}
        self.cohorts: dict[str, QuotaNode] = {}

    @classmethod
    def build(
        cls,
        queues: Iterable[ClusterQueueInfo],
        cohorts: Iterable[CohortInfo],
        stopped: Collection[str] = (),
    ) -> QuotaTree:
        """Build the tree without any usage.

        Args:
            queues: ClusterQueues.
            cohorts: Cohorts that have an object.
            stopped: ClusterQueues whose quota counts although they take no part in scheduling.

        Raises:
            ValueError: Cohorts are above themselves.
        """
        tree = cls()
        known = {cohort.name: cohort for cohort in cohorts}
        if circles := cohort_circles(known):
            raise ValueError(f"Cohorts are above themselves: {', '.join(sorted(circles))}")
        for cohort in known.values():
            node = tree._cohort(cohort.name)
            node.fair_weight = cohort.fair_weight
            _set_quota(node, cohort.groups)
            if cohort.parent:
                node.parent = tree._cohort(cohort.parent)
                node.parent.cohorts.append(node)
        for queue in queues:
            node = QuotaNode(queue.name, is_queue=True, fair_weight=queue.fair_weight)
            _set_quota(node, queue.groups)
            tree.queues[queue.name] = node
            if queue.cohort:
                node.parent = tree._cohort(queue.cohort)
                if queue.name not in stopped:
                    node.parent.queues.append(node)
        tree._compute()
        return tree

    def _cohort(self, name: str) -> QuotaNode:
        found = self.cohorts.get(name)
        if found is None:
            found = self.cohorts[name] = QuotaNode(name, is_queue=False)
        return found

    def _compute(self) -> None:
        """Paths from the roots down; then quota and heights from the leaves up."""
        order = [cohort for cohort in self.cohorts.values() if cohort.parent is None]
        for cohort in order:
            above = cohort.parent.path if cohort.parent is not None else ()
            cohort.path = (cohort, *above)
            order += cohort.cohorts  # the list grows while it is read: breadth first
        for queue in self.queues.values():
            above = queue.parent.path if queue.parent is not None else ()
            queue.path = (queue, *above)
        for node in (*self.queues.values(), *reversed(order)):
            for pair, quota in node.nominal.items():
                node.subtree[pair] = node.subtree.get(pair, 0) + quota
            for pair, limit in node.lending_limit.items():
                node.local[pair] = max(0, node.subtree.get(pair, 0) - limit)
            if node.cohorts or node.queues:
                node.height = 1 + max((child.height for child in node.cohorts), default=0)
            if node.parent is not None:
                lent = node.parent.subtree
                for pair, quota in node.subtree.items():
                    lent[pair] = lent.get(pair, 0) + quota - node.local.get(pair, 0)


def _set_quota(node: QuotaNode, groups: Iterable[ResourceGroupInfo]) -> None:
    for group in groups:
        node.nominal.update(group.nominal)
        node.borrowing_limit.update(group.borrowing_limit)
        node.lending_limit.update(group.lending_limit)


def cohort_circles(cohorts: Mapping[str, CohortInfo]) -> AbstractSet[str]:
    """Names of Cohorts that are above themselves, or below such a one."""
    ends: set[str] = set()
    circles: set[str] = set()
    for start in cohorts:
        walked: dict[str, None] = {}
        name = start
        while name in cohorts and name not in ends and name not in circles and name not in walked:
            walked[name] = None
            name = cohorts[name].parent
        (circles if name in walked or name in circles else ends).update(walked)
    return circles
