"""Fair sharing: how much a ClusterQueue or Cohort borrows, in proportion to its weight.

The share of a node is that of its dominant resource: what it borrows of the resource, in
thousandths of all that its tree can lend, divided by the weight of the node.

Source: conformance/quota, section 9; `fair_sharing.go` of Kueue's scheduler cache.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.quota.tree import QuotaNode

# Compares as shares do: those of nodes that borrow with weight 0 are the largest, by their ratio.
Share: TypeAlias = tuple[int, float]

NO_SHARE: Final[Share] = (0, -1.0)  # smaller than any share
_NOTHING_BORROWED: Final[Share] = (0, 0.0)


def borrowed_pairs(node: QuotaNode) -> frozenset[FlavorResource]:
    """Pairs with quota of which a node uses more than its own; none for a root."""
    if node.parent is None:
        return frozenset()
    usage = node.usage
    return frozenset(pair for pair, quota in node.subtree.items() if usage.get(pair, 0) > quota)


def share_of(node: QuotaNode) -> Share:
    """The share of a node now."""
    if node.parent is None:
        return _NOTHING_BORROWED
    borrowed: dict[str, int] = {}
    usage = node.usage
    for pair, quota in node.subtree.items():
        over = usage.get(pair, 0) - quota
        if over > 0:
            borrowed[pair[1]] = borrowed.get(pair[1], 0) + over
    if not borrowed:
        return _NOTHING_BORROWED
    ratio = 0.0
    for resource, over in borrowed.items():
        lendable = _lendable(node.parent, resource)
        if lendable > 0:
            ratio = max(ratio, over * 1000 / lendable)
    if ratio == 0:
        return _NOTHING_BORROWED
    return (1, ratio) if node.fair_weight == 0 else (0, ratio / node.fair_weight)


def _lendable(parent: QuotaNode, resource: str) -> int:
    found = parent.lendable.get(resource)
    if found is None:
        pairs = [pair for pair in parent.root.subtree if pair[1] == resource]
        found = parent.lendable[resource] = sum(parent.potential(pair) for pair in pairs)
    return found
