"""Usage that is added and removed step by step is the usage counted from scratch."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackgate_assigner.quota.queues import (
    ClusterQueueInfo,
    CohortInfo,
    FlavorResource,
    ResourceGroupInfo,
)
from rackgate_assigner.quota.tree import QuotaNode, QuotaTree, cohort_circles

PAIRS: tuple[FlavorResource, ...] = (("f", "cpu"), ("f", "gpu"))

quotas = st.fixed_dictionaries({}, optional={pair: st.integers(0, 6) for pair in PAIRS})


@st.composite
def groups(draw: st.DrawFn) -> tuple[ResourceGroupInfo, ...]:
    limits = (draw(quotas), draw(quotas))
    return (ResourceGroupInfo(("cpu", "gpu"), ("f",), draw(quotas), *limits),)


@st.composite
def trees(draw: st.DrawFn) -> tuple[tuple[ClusterQueueInfo, ...], tuple[CohortInfo, ...]]:
    """Up to five Cohorts, each below one of those before it, and up to five ClusterQueues."""
    cohorts: list[CohortInfo] = []
    for index in range(draw(st.integers(0, 5))):
        above = draw(st.integers(-1, index - 1))
        parent = f"c{above}" if above >= 0 else ""
        cohorts.append(CohortInfo(f"c{index}", parent, draw(groups())))
    names = ["", *(cohort.name for cohort in cohorts)]
    queues = tuple(
        ClusterQueueInfo(f"q{index}", cohort=draw(st.sampled_from(names)), groups=draw(groups()))
        for index in range(draw(st.integers(1, 5)))
    )
    return queues, tuple(cohorts)


def check_sums(tree: QuotaTree) -> None:
    """The definitions of usage and quota, read literally."""
    children: dict[str, list[QuotaNode]] = {name: [] for name in tree.cohorts}
    for node in (*tree.queues.values(), *tree.cohorts.values()):
        if node.parent is not None:
            children[node.parent.name].append(node)
    for name, cohort in tree.cohorts.items():
        for pair in PAIRS:
            local = [(child, child.local.get(pair, 0)) for child in children[name]]
            assert cohort.usage.get(pair, 0) == sum(
                max(0, child.usage.get(pair, 0) - kept) for child, kept in local
            )
            assert cohort.subtree.get(pair, 0) == cohort.nominal.get(pair, 0) + sum(
                child.subtree.get(pair, 0) - kept for child, kept in local
            )


@pytest.mark.requirement("STR-07")
@given(trees(), st.data())
def test_usage_step_by_step_is_usage_from_scratch(
    drawn: tuple[tuple[ClusterQueueInfo, ...], tuple[CohortInfo, ...]], data: st.DataObject
) -> None:
    tree = QuotaTree.build(*drawn)
    held: dict[str, list[dict[FlavorResource, int]]] = {name: [] for name in tree.queues}
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(sorted(held)))
        removes = data.draw(st.booleans())
        if removes and held[name]:
            tree.queues[name].remove(held[name].pop())
        else:
            held[name].append(data.draw(quotas))
            tree.queues[name].add(held[name][-1])
        check_sums(tree)
    scratch = QuotaTree.build(*drawn)
    for name, amounts in held.items():
        for usage in amounts:
            scratch.queues[name].add(usage)
    for known, found in ((tree.queues, scratch.queues), (tree.cohorts, scratch.cohorts)):
        for name, node in known.items():
            for pair in PAIRS:
                assert node.usage.get(pair, 0) == found[name].usage.get(pair, 0)


@pytest.mark.requirement("STR-07")
@given(trees(), st.data())
def test_usage_within_what_is_available_stays_within_every_limit(
    drawn: tuple[tuple[ClusterQueueInfo, ...], tuple[CohortInfo, ...]], data: st.DataObject
) -> None:
    tree = QuotaTree.build(*drawn)
    for _ in range(data.draw(st.integers(1, 8))):
        node = tree.queues[data.draw(st.sampled_from(sorted(tree.queues)))]
        pair = data.draw(st.sampled_from(PAIRS))
        amount = data.draw(st.integers(0, max(0, node.available(pair))))
        node.add({pair: amount})
        assert node.usage[pair] <= node.potential(pair)
        for child, cohort in pairwise(node.path):
            limit = child.borrowing_limit.get(pair)
            used, quota = child.usage.get(pair, 0), child.subtree.get(pair, 0)
            assert limit is None or used <= quota + limit
            assert cohort.parent is not None or not cohort.borrows(pair)


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", *"abcdef"])))
def test_a_circle_of_cohorts_is_found_where_the_walk_to_the_root_does_not_end(
    parents: dict[str, str],
) -> None:
    endless = set()
    for start in parents:
        name = start
        for _ in range(len(parents) + 1):
            name = parents.get(name, "")
        if name:
            endless.add(start)
    cohorts = {name: CohortInfo(name, parent) for name, parent in parents.items()}
    assert cohort_circles(cohorts) == endless
