"""Taints, selectors and node affinity."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rackgate.wire.core import PodSpec, Taint, Toleration
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest
from rackgate_assigner.topology.placement.node_matching import (
    MAX_SELECTORS,
    expression_holds,
    match_expression,
    match_nodes,
    node_affinity,
    selector_problem,
    tolerates,
)
from rackgate_assigner.topology.tree import TopologyTree
from tests.unit.assigner.core.clusters import LEVELS, ask, node, podset, refusal, spots

GEN3 = Taint("gen", "3", "NoSchedule")


@pytest.mark.requirement("CAP-06")
@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration("gen", "Equal", "3"), True),
        (Toleration("gen", "", "3"), True),
        (Toleration("gen", "", "4"), False),
        (Toleration("gen", "Exists", "ignored"), True),
        (Toleration("", "Exists"), True),
        (Toleration("", "", "3"), True),
        (Toleration("", "", "4"), False),
        (Toleration("gen", "Exists", effect="NoExecute"), False),
        (Toleration("gen", "Exists", effect="NoSchedule"), True),
        (Toleration("other", "Exists"), False),
        (Toleration("gen", "Gt", "2"), True),
        (Toleration("gen", "Gt", "3"), False),
        (Toleration("gen", "Lt", "10"), True),
        (Toleration("gen", "Lt", "ten"), False),
        (Toleration("gen", "Lt", str(2**64)), False),
        (Toleration("gen", "Near", "3"), False),
    ],
)
def test_tolerations(toleration: Toleration, covers: bool) -> None:
    assert tolerates(toleration, GEN3) is covers


@pytest.mark.parametrize(
    ("operator", "values", "present", "absent"),
    [
        ("In", ["7", "8"], True, False),
        ("In", ["8"], False, False),
        ("NotIn", ["7"], False, True),
        ("NotIn", ["8"], True, True),
        ("Exists", [], True, False),
        ("DoesNotExist", [], False, True),
        ("Gt", ["6"], True, False),
        ("Gt", ["7"], False, False),
        ("Gt", ["x"], False, False),
        ("Lt", ["10"], True, False),
        ("Lt", ["10", "11"], False, False),
        ("Around", ["7"], False, False),
    ],
)
def test_node_selector_expressions(
    operator: str, values: list[str], present: bool, absent: bool
) -> None:
    expression = {"key": "gen", "operator": operator, "values": values}
    assert expression_holds(expression, "7") is present
    assert expression_holds(expression, None) is absent


def three() -> Capacity:
    nodes = [
        node("b1/r1/x1", labels={"gen": "1"}),
        node("b1/r1/x2", labels={"gen": "2"}, taints=(GEN3,)),
        node("b1/r1/x3", taints=(Taint("soft", "", "PreferNoSchedule"),)),
    ]
    return Capacity(TopologyTree.build(LEVELS, nodes))


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}


def expressions(*parts: tuple[str, str, list[str]]) -> dict[str, Any]:
    return {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in parts]}


FIRST = expressions(("gen", "In", ["1"]))
NAMED_X3 = {"key": "metadata.name", "operator": "In", "values": ["x3"]}


@pytest.mark.field_note("C9")
@pytest.mark.parametrize(
    ("affinity", "hosts"),
    [
        (required(FIRST), {"x1"}),
        (required(FIRST, expressions(("gen", "DoesNotExist", []))), {"x1", "x3"}),
        (required(expressions(("gen", "Exists", []), ("gen", "NotIn", ["1"]))), {"x2"}),
        (required({}), set()),
        (required(), set()),
        (required({"matchFields": [NAMED_X3]}), {"x3"}),
        ({}, {"x1", "x2", "x3"}),
    ],
)
def test_required_affinity_limits_hosts(affinity: dict[str, Any], hosts: set[str]) -> None:
    tolerant = (Toleration("gen", "Exists"),)
    every = podset(12, required="rack", node_affinity=affinity, tolerations=tolerant)
    some = podset(4 * len(hosts), required="rack", node_affinity=affinity, tolerations=tolerant)
    if len(hosts) < 3:
        assert f"affinity: {3 - len(hosts)}" in refusal(ask(three(), every))
    assert set(spots(ask(three(), some))) == hosts


def test_the_first_reason_counts_taints_before_selector_before_affinity() -> None:
    wants = podset(
        1,
        node_selector={"gen": "2"},
        node_affinity=required(expressions(("gen", "In", ["9"]))),
    )
    assert refusal(ask(three(), wants)).endswith(
        'Total nodes: 3; excluded: nodeSelector: 2, taint "gen=3:NoSchedule": 1'
    )


@pytest.mark.requirement("CAP-06")
def test_a_flavors_tolerations_count_like_the_pods_own() -> None:
    wants = podset(12, required="rack")
    assert ask(three(), wants).failure is not None
    flavor = (Toleration("gen", "Exists"),)
    assert spots(ask(three(), wants, flavor_tolerations=flavor)) == {"x1": 4, "x2": 4, "x3": 4}


@pytest.mark.requirement("CAP-06")
def test_without_a_host_level_nothing_is_matched() -> None:
    tree = TopologyTree.build(LEVELS[:2], three().tree.nodes)
    wants = podset(12, required="rack", node_selector={"gen": "none"})
    assert spots(ask(Capacity(tree), wants)) == {"r1": 12}


def test_soft_preference_goes_before_the_best_fit_where_the_gate_is_on() -> None:
    nodes = [
        node("b1/r1/x1", offers={"cpu": 2}),
        node("b1/r1/x2", offers={"cpu": 9}, labels={"gen": "2"}),
    ]
    room = Capacity(TopologyTree.build(LEVELS, nodes))
    preference = expressions(("gen", "In", ["2"]))
    affinity = {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 5, "preference": preference},
            {"weight": 50, "preference": {}},
        ]
    }
    wants = podset(2, required=LEVELS[-1], node_affinity=affinity)
    assert spots(ask(room, wants)) == {"x1": 2}
    gates = {"TASRespectNodeAffinityPreferred": True}
    assert spots(ask(room, wants, gates=gates)) == {"x2": 2}


@pytest.mark.field_note("P5")
@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize(
    "garbage",
    [
        7,
        "terms",
        [1],
        {"nodeSelectorTerms": 3},
        {"nodeSelectorTerms": [4, {"matchExpressions": "x"}]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": [], "operator": {}, "values": 1}]}]},
    ],
)
def test_an_affinity_that_is_none_matches_nothing_and_breaks_nothing(
    garbage: object, soft: bool
) -> None:
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": garbage,
        "preferredDuringSchedulingIgnoredDuringExecution": [garbage, {"weight": "1"}],
    }
    gates = {"TASRespectNodeAffinityPreferred": soft}
    answer = ask(three(), podset(1, node_affinity=affinity), gates=gates)
    assert "affinity: 2" in refusal(answer)


VALUES = st.sampled_from(
    [
        "",
        "1",
        "+1",
        "7",
        "07",
        "-8",
        "x",
        "1e3",
        str(2**63 - 1),
        str(2**63),
        str(-(2**63)),
        "9" * 5000,
    ]
)
EXPRESSIONS = st.fixed_dictionaries(
    {
        "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Near"]),
        "values": st.lists(VALUES, max_size=3) | st.none(),
    }
)


@pytest.mark.requirement("CAP-06")
@example(labels=["x", "1"], expression={"operator": "Gt", "values": ["-8"]})
@given(labels=st.lists(st.none() | VALUES, min_size=1, max_size=8), expression=EXPRESSIONS)
def test_expressions_match_all_nodes_as_they_match_one(
    labels: list[str | None], expression: dict[str, Any]
) -> None:
    nodes = [
        node(f"b1/r1/x{number}", labels={} if value is None else {"gen": value})
        for number, value in enumerate(labels)
    ]
    tree = TopologyTree.build(LEVELS, nodes)
    found = match_expression(tree.column("gen"), expression).tolist()
    assert found == [expression_holds(expression, one.labels.get("gen")) for one in tree.nodes]


def many(count: int, field: str = "matchExpressions") -> dict[str, Any]:
    """Affinity with as many terms, each about another name or another label."""
    return required(
        *(
            {field: [{"key": f"k-{number}", "operator": "In", "values": [f"x{number}"]}]}
            if field == "matchExpressions"
            else {field: [{"key": "metadata.name", "operator": "In", "values": [f"x{number}"]}]}
            for number in range(count)
        )
    )


@pytest.mark.requirement("CAP-06")
def test_labels_that_no_node_has_are_not_looked_up_in_each_node() -> None:
    """A tenant may write as many keys as fit into an object."""
    looked_up = 0

    class Counted(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal looked_up
            looked_up += 1
            return super().get(key, default)

    def counted(**more: str) -> list[NodeInfo]:
        plain = (node(f"b1/r1/x{number}") for number in range(100))
        return [
            NodeInfo(one.name, Counted({**one.labels, **more}), one.allocatable, one.taints)
            for one in plain
        ]

    nodes = counted()
    tree = TopologyTree.build(LEVELS, nodes)
    before = looked_up
    request = PodSetRequest("p", 1, {}, node_affinity=many(500), node_selector={"none": "1"})
    eligible = match_nodes(tree, request, (), soft_affinity=True)
    assert (eligible.reasons, eligible.numbers) == (("nodeSelector", "affinity"), (100, 0))
    assert looked_up == before
    # Labels that nodes have are read once, however many a template asks for in turns.
    nodes = counted(**{f"known-{number}": "x" for number in range(200)})
    tree = TopologyTree.build(LEVELS, nodes)
    before = looked_up
    terms = [expressions((f"known-{number % 200}", "In", ["y"])) for number in range(1000)]
    in_turns = PodSetRequest("p", 1, {}, node_affinity=required(*terms))
    match_nodes(tree, in_turns, (), soft_affinity=True)
    assert looked_up - before <= 200 * len(nodes)
    named = PodSetRequest("p", 1, {}, node_affinity=many(50, "matchFields"))
    assert match_nodes(tree, named, (), soft_affinity=True).numbers == (50,)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"nodeSelector": {str(n): "x" for n in range(MAX_SELECTORS)}}, None),
        ({"nodeSelector": {str(n): "x" for n in range(MAX_SELECTORS + 1)}}, "nodeSelector: 1001"),
        ({"tolerations": [{"key": "a"}] * (MAX_SELECTORS + 1)}, "tolerations: 1001"),
        ({"affinity": {"nodeAffinity": many(MAX_SELECTORS)}}, None),
        ({"affinity": {"nodeAffinity": many(1001)}}, "affinity.nodeAffinity: 1001"),
        ({"affinity": {"nodeAffinity": many(1001, "matchFields")}}, "affinity.nodeAffinity: 1001"),
        ({"affinity": {"nodeAffinity": required(*[{}] * 1001)}}, "affinity.nodeAffinity: 1001"),
    ],
)
def test_selectors_beyond_a_limit_are_not_matched_with_nodes(
    spec: dict[str, Any], problem: str | None
) -> None:
    read = msgspec.convert(spec, PodSpec)
    found = selector_problem("spec", read, node_affinity(read) or {})
    wanted = problem and f"spec.{problem} entries; at most 1000 are matched with nodes"
    assert found == wanted
