"""Which domains to use together: a dynamic program over number, leader and pods left.

Conformance text, section 12, `select`. Used by even spread alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rackgate_assigner.topology.placement.count import DomainCounts, LevelCounts
from rackgate_assigner.topology.tree import IntVector

# Steps after which even spread is given up, so that a huge request cannot hold up a cycle.
STEP_LIMIT = 2_000_000


class _State(NamedTuple):
    leaders_left: int
    pods_left: int


class _Predecessor(NamedTuple):
    """How a state was reached first: the domain added last, and the state before."""

    domain: int
    before: _State


def select_domains(
    counts: DomainCounts, level: int, ids: IntVector, number: int, *, by_evenness: bool
) -> list[int] | None:
    """Choose `number` domains that together take everything with least to spare.

    Args:
        counts: numbers that may be pruned.
        level: of the domains.
        ids: candidates in path order.
        number: how many to use.
        by_evenness: consider evenly filled domains first, instead of path order.

    Returns:
        Chosen ids, or None when no choice works or the search is too large.
    """
    request = counts.request
    numbers = counts.level(level)
    ordered = _by_evenness(counts, level, ids) if by_evenness else ids.tolist()
    first = _State(int(counts.has_leader), request.need * request.size)
    predecessors: list[dict[_State, _Predecessor | None]] = [{} for _ in range(number + 1)]
    predecessors[0][first] = None
    steps = 0
    for domain in ordered:
        for used in range(number - 1, -1, -1):
            steps += len(predecessors[used])
            if steps > STEP_LIMIT:
                return None
            for state in sorted(predecessors[used]):
                for after in _next_states(numbers, domain, state):
                    predecessors[used + 1].setdefault(after, _Predecessor(domain, state))
    return _reconstruct(predecessors, number)


def _next_states(numbers: LevelCounts, domain: int, state: _State) -> list[_State]:
    """States after using one more domain, with the leader and without."""
    if state.leaders_left <= 0 and state.pods_left <= 0:
        return []
    after = []
    if state.leaders_left > 0 and numbers.leader_fits is not None and numbers.leader_fits[domain]:
        after.append(
            _State(
                state.leaders_left - int(numbers.leader_fits[domain]),
                state.pods_left - int(numbers.pods_with_leader[domain]),
            )
        )
    if numbers.slices[domain] > 0:
        after.append(_State(state.leaders_left, state.pods_left - int(numbers.pods[domain])))
    return after


def _reconstruct(
    predecessors: list[dict[_State, _Predecessor | None]], number: int
) -> list[int] | None:
    ends = [s for s in predecessors[number] if s.leaders_left == 0 and s.pods_left <= 0]
    if not ends:
        return None
    state = max(ends)
    chosen: list[int] = []
    for used in range(number, 0, -1):
        predecessor = predecessors[used][state]
        if predecessor is None:
            break
        chosen.append(predecessor.domain)
        state = predecessor.before
    return chosen


def _by_evenness(counts: DomainCounts, level: int, ids: IntVector) -> list[int]:
    numbers = counts.level(level)
    offsets = counts.tree.children[level]
    below = counts.level(level + 1).pods

    def key(domain: int) -> tuple[int, int, float, int]:
        leader_fits = 0 if numbers.leader_fits is None else int(numbers.leader_fits[domain])
        pods = below[offsets[domain] : offsets[domain + 1]]
        return (-leader_fits, -int(numbers.slices_with_leader[domain]), -entropy(pods), domain)

    return sorted(ids.tolist(), key=key)


def entropy(pods: IntVector) -> float:
    """Base 2 entropy of how pods are spread; 0 when there are none."""
    total = int(np.sum(pods))
    if total <= 0:
        return 0.0
    shares = [count / total for count in pods.tolist() if count > 0]
    return -math.fsum(part * math.log2(part) for part in shares)
