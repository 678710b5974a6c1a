"""A tree amended again and again is the tree of the nodes as they are, and older ones stay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.wire.core import Taint
from rackgate_assigner.topology.model import NodeInfo
from rackgate_assigner.topology.tree import TopologyTree, select_nodes
from rackgate_assigner.topology.update import NodeState, update_tree
from tests.support.naive_tree import HOST, members, picture, said

VALUES = ("a", "a-b", "a/b", "a,b", "")
NAMES = ("a", "b", "a/b", "n,1", "z")
POOL = {"pool": "gpu"}
LEVELS = [("block", "rack", HOST), ("block", "rack"), (HOST,), ("rack",), ("block", HOST, "rack")]

values = st.sampled_from(VALUES)
amounts = st.sampled_from([0, 1, 4, 2**45, 2**60, -3])


@st.composite
def node(draw: Any) -> NodeInfo:
    """A node that mostly takes part; labels may be missing and amounts absurd."""
    keys = draw(st.sets(st.sampled_from(["block", "rack", HOST, "pool"]), min_size=0, max_size=1))
    labels = {"block": draw(values), "rack": draw(values), HOST: draw(values), **POOL}
    for key in keys if draw(st.integers(0, 4)) == 0 else ():
        del labels[key]
    labels |= draw(st.dictionaries(st.just("other"), values, max_size=1))
    return NodeInfo(
        draw(st.sampled_from(NAMES)),
        labels,
        draw(st.dictionaries(st.sampled_from(["cpu", "gpu", "pods"]), amounts, max_size=3)),
        (Taint(key="k", effect="NoSchedule"),) if draw(st.booleans()) else (),
        unschedulable=draw(st.integers(0, 5)) == 0,
        ready=draw(st.integers(0, 5)) != 0,
    )


def states(
    nodes: dict[str, NodeInfo], levels: tuple[str, ...], names: set[str]
) -> dict[str, NodeState]:
    """Nodes as they are now. All names are given: whose hostname is whose may have changed."""
    taking, skipped = select_nodes(nodes.values(), POOL, levels)
    gone: dict[str, NodeState] = dict.fromkeys(names)
    return gone | skipped | {one.name: one for one in taking}


@pytest.mark.requirement("CAP-07", "TAS-04", "TAS-05", "TAS-22")
@pytest.mark.field_note("C14")
@settings(max_examples=60, deadline=None)
@given(
    levels=st.sampled_from(LEVELS),
    events=st.lists(
        st.lists(st.one_of(node(), st.sampled_from(NAMES)), min_size=1, max_size=3), max_size=12
    ),
)
def test_an_updated_tree_is_the_tree_of_the_nodes_as_they_are(
    levels: tuple[str, ...], events: list[list[NodeInfo | str]]
) -> None:
    nodes: dict[str, NodeInfo] = {}
    tree = TopologyTree.build(levels, [], node_labels=POOL)
    before: list[tuple[TopologyTree, dict[str, Any]]] = []
    for burst in events:
        for event in burst:
            if isinstance(event, str):
                nodes.pop(event, None)
            else:
                nodes[event.name] = event
        tree.column("other")
        tree.column(None)
        tree = update_tree(tree, states(nodes, levels, set(NAMES))).tree
        expected = picture(members(nodes.values(), levels, POOL), levels)
        assert said(tree, NAMES, VALUES) == expected
        built = TopologyTree.build(levels, nodes.values(), node_labels=POOL)
        assert said(built, NAMES, VALUES) == expected
        assert tree.skipped == built.skipped
        for column, key in ((tree.column("other"), "other"), (tree.column(None), None)):
            found = [column.values[code] for code in column.codes.tolist()]
            assert found == [
                (one.taints or None) if key is None else one.labels.get(key) for one in tree.nodes
            ]
        before.append((tree, said(tree, NAMES, VALUES)))
    assert all(said(old, NAMES, VALUES) == words for old, words in before)
