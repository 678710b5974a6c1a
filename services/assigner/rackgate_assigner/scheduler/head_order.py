"""The order in which the heads of one cycle are processed.

Without fair sharing the order is fixed: heads that borrow less come first. With fair sharing the
next head depends on those before it: in each tree there is a tournament, from the leaves up, and
the head whose ClusterQueue and Cohorts would have the smallest shares wins.

Input: a state to which the usage of the heads processed so far was added.
Complexity: each head of a tree costs one tournament, O(heads x depth); ranks are computed again
only where usage changed.
Source: conformance/quota, section 13; `fair_sharing_iterator.go` of Kueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from rackgate_assigner.quota.fair_sharing import Share, borrowed_pairs, share_of
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaNode
from rackgate_assigner.scheduler.nomination.nomination import Nomination, PendingWorkload


@dataclass(slots=True, eq=False)
class NominatedHead:
    """A head and its nomination."""

    head: PendingWorkload
    nomination: Nomination


# What decides between two heads below one Cohort; the smaller one wins.
_Rank: TypeAlias = tuple[bool, Share, int, float, str]


def in_order(
    state: QuotaState, heads: Sequence[NominatedHead], first: AbstractSet[str] = frozenset()
) -> Iterator[NominatedHead]:
    """Yield all heads; the caller adds the usage of each before it asks for the next.

    Args:
        state: with the usage of the heads that were yielded before.
        heads: in any order.
        first: keys of heads that come before all others.
    """
    if first:
        yield from sorted(
            (found for found in heads if found.head.key in first), key=_classical_order
        )
        heads = [found for found in heads if found.head.key not in first]
    if state.fair_sharing is None:
        yield from sorted(heads, key=_classical_order)
        return
    trees: dict[QuotaNode, list[NominatedHead]] = {}
    for head in sorted(heads, key=lambda found: found.head.order):
        trees.setdefault(_path(state, head)[-1], []).append(head)
    for left in trees.values():
        yield from _by_share(state, left)


def _classical_order(found: NominatedHead) -> tuple[int, int, float, str]:
    head = found.head
    return (found.nomination.borrow_level, -head.priority, head.queue_timestamp, head.uid)


def _by_share(state: QuotaState, left: list[NominatedHead]) -> Iterator[NominatedHead]:
    """The heads of one tree, each the winner of a tournament."""
    ranks = {found: _ranks(state, found) for found in left}
    while left:
        winner = _winner(state, left, ranks)
        left.remove(winner)
        yield winner
        # The winner may use quota now: that changes the shares of these nodes.
        changed = set(_path(state, winner)[:-1])
        for found in left:
            if not changed.isdisjoint(_path(state, found)):
                ranks[found] = _ranks(state, found)


def _winner(
    state: QuotaState,
    heads: Iterable[NominatedHead],
    ranks: Mapping[NominatedHead, Mapping[QuotaNode, _Rank]],
) -> NominatedHead:
    """The best of all heads; of each Cohort only the best takes part in the Cohort above."""
    contenders: dict[QuotaNode, list[NominatedHead]] = {}
    for found in heads:
        above = _path(state, found)[1:]
        if not above:
            return found
        contenders.setdefault(above[0], []).append(found)
        for cohort in above[1:]:
            contenders.setdefault(cohort, [])
    while True:
        cohort = max(contenders, key=lambda known: len(known.path))
        winner = min(contenders.pop(cohort), key=lambda found: ranks[found][cohort])
        if cohort.parent is None:
            return winner
        contenders[cohort.parent].append(winner)


def _ranks(state: QuotaState, found: NominatedHead) -> dict[QuotaNode, _Rank]:
    """The rank of a head at each Cohort above it: that of the node right below, with its usage."""
    head, usage = found.head, found.nomination.usage
    path = _path(state, found)
    used = [pair for pair, amount in usage.items() if amount > 0]
    path[0].add(usage)
    ranks = {
        cohort: (
            not borrowed_pairs(node).isdisjoint(used),
            share_of(node),
            -head.priority,
            head.queue_timestamp,
            head.uid,
        )
        for node, cohort in pairwise(path)
    }
    path[0].remove(usage)
    return ranks


def _path(state: QuotaState, found: NominatedHead) -> tuple[QuotaNode, ...]:
    """The ClusterQueue of a head, and all Cohorts above it."""
    return state.tree.queues[found.head.cluster_queue].path
