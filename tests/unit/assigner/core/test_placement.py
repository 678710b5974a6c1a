"""Where pods go: the rules that the conformance data does not spell out by name."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import Any

import pytest

from rackgate.features import PLACEMENT_GATES
from rackgate_assigner.topology.capacity import Capacity
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.topology.tree import TopologyTree
from tests.unit.assigner.core.clusters import (
    BLOCK,
    HOST,
    RACK,
    ask,
    capacity,
    podset,
    refusal,
    spots,
)

# block    b1              b2
# rack     r1      r2      r1      r3
# host     x1      x2      x3      x4
FOUR = {"b1/r1/x1": 1, "b1/r2/x2": 1, "b2/r1/x3": 1, "b2/r3/x4": 1}


@pytest.mark.requirement("TAS-05", "TAS-17")
def test_racks_of_one_name_in_two_blocks_are_not_one_rack() -> None:
    answer = ask(capacity(FOUR), podset(2, required=RACK))
    assert refusal(answer) == 'topology "t" allows to fit only 1 out of 2 pod(s)'
    assert answer.failure is not None
    assert (answer.failure.podset, answer.failure.members) == ("main", ("main",))


@pytest.mark.requirement("TAS-07", "TAS-18", "TST-04")
def test_preferred_climbs_from_the_named_level_until_one_domain_is_enough() -> None:
    room = capacity(FOUR)
    assert spots(ask(room, podset(1, preferred=RACK))) == {"x1": 1}
    assert spots(ask(room, podset(2, preferred=RACK))) == {"x1": 1, "x2": 1}
    assert spots(ask(room, podset(3, preferred=RACK))) == {"x1": 1, "x2": 1, "x3": 1}


@pytest.mark.requirement("TAS-07", "TAS-18")
def test_preferred_leaves_no_level_out_on_its_way_up() -> None:
    # From the host to the rack: from there b2/r1 is the tightest, from the blocks b1 would be.
    rooms = {"b1/r1/x1": 1, "b1/r1/x2": 1, "b1/r1/x3": 1}
    rooms |= {"b2/r1/x4": 1, "b2/r1/x5": 1, "b2/r2/x6": 1, "b2/r2/x7": 1}
    assert spots(ask(capacity(rooms), podset(2, preferred=HOST))) == {"x4": 1, "x5": 1}


@pytest.mark.requirement("TAS-19", "TST-05")
def test_preferred_is_rejected_only_when_all_room_together_is_too_little() -> None:
    assert spots(ask(capacity(FOUR), podset(4, preferred=RACK)))
    text = refusal(ask(capacity(FOUR), podset(5, preferred=RACK)))
    assert text == 'topology "t" allows to fit only 4 out of 5 pod(s)'


@pytest.mark.requirement("TAS-21")
@pytest.mark.field_note("C10")
def test_podsets_do_not_share_room_and_those_after_a_rejection_have_no_entry() -> None:
    first, second, third = (podset(1, name=name, required=HOST, cpu=3) for name in "abc")
    room = capacity({"b1/r1/x1": 4, "b1/r1/x2": 4})
    answer = ask(room, first, second, third, podset(1, name="d"))
    assert [spots(answer, name) for name in "ab"] == [{"x1": 1}, {"x2": 1}]
    assert set(answer.assignments) == {"a", "b"}
    assert answer.failure is not None
    assert answer.failure.podset == "c"


@pytest.mark.requirement("RNK-05")
def test_domains_are_listed_by_path_whatever_their_counts() -> None:
    rooms = {"b1/r1/x1": 3, "b1/r2/x3": 2, "b1/r1/x2": 1, "b1/r2/x4": 4}
    answer = ask(capacity(rooms), podset(10, required=BLOCK)).assignments["main"]
    assert answer.domains == ((("x1",), 3), (("x2",), 1), (("x3",), 2), (("x4",), 4))


@pytest.mark.requirement("TAS-13", "TAS-14")
def test_assignments_go_down_to_the_lowest_level_and_name_only_the_host() -> None:
    hosts = ask(capacity(FOUR), podset(2, required=BLOCK)).assignments["main"]
    assert hosts.levels == (HOST,)
    assert hosts.domains == ((("x1",), 1), (("x2",), 1))
    racks = capacity({"b1/r1": 1, "b1/r2": 1}, levels=(BLOCK, RACK))
    answer = ask(racks, podset(2, required=BLOCK)).assignments["main"]
    assert answer.levels == (BLOCK, RACK)
    assert answer.domains == ((("b1", "r1"), 1), (("b1", "r2"), 1))


@pytest.mark.requirement("CAP-06")
def test_where_racks_are_lowest_a_pod_may_be_larger_than_any_node() -> None:
    nodes = [NodeInfo(f"n{i}", {RACK: "r1"}, {"cpu": 2, "pods": 9}) for i in range(3)]
    room = Capacity(TopologyTree.build((RACK,), nodes))
    assert spots(ask(room, podset(1, cpu=6))) == {"r1": 1}


@pytest.mark.field_note("C17")
def test_a_podset_of_no_pods_gets_an_empty_assignment() -> None:
    requests: list[dict[str, Any]] = [
        {},
        {"required": RACK},
        {"preferred": RACK},
        {"slices": {RACK: 4}},
    ]
    for request in requests:
        answer = ask(capacity(FOUR), podset(0, **request))
        assert answer.assignments["main"].domains == ()


@pytest.mark.requirement("CAP-05")
@pytest.mark.field_note("C8")
def test_pods_run_out_like_any_other_resource() -> None:
    room = capacity({"b1/r1/x1": 1000})
    assert spots(ask(room, podset(110))) == {"x1": 110}
    assert refusal(ask(room, podset(111))).startswith('topology "t" allows to fit only 110')
    full = capacity({"b1/r1/x1": 1000})
    full.charge_other(0, {}, 110)
    assert 'resource "pods": 1' in refusal(ask(full, podset(1)))


@pytest.mark.field_note("P1")
def test_leader_of_1_and_4_workers_of_2_cpu_fit_on_hosts_of_2_4_and_3() -> None:
    room = capacity({"b1/r1/x1": 2, "b1/r1/x2": 4, "b1/r1/x3": 3})
    workers = podset(4, cpu=2, name="workers", required=BLOCK, group="g")
    leader = podset(1, cpu=1, name="leader", required=BLOCK, group="g")
    for order in ((workers, leader), (leader, workers)):
        answer = ask(room, *order)
        assert spots(answer, "workers") == {"x1": 1, "x2": 2, "x3": 1}
        assert spots(answer, "leader") == {"x3": 1}


def test_a_rejected_group_speaks_for_all_its_members() -> None:
    workers = podset(9, name="workers", required=RACK, group="g")
    leader = podset(1, name="leader", required=RACK, group="g")
    answer = ask(capacity(FOUR), leader, workers)
    assert answer.failure is not None
    assert (answer.failure.podset, answer.failure.members) == ("leader", ("leader", "workers"))


@pytest.mark.field_note("P5", "P6")
@pytest.mark.parametrize(
    ("podsets", "says"),
    [
        ([podset(7, slices={RACK: 2})], "count 7 is not a multiple of the slice size 2"),
        ([podset(4, slices={RACK: 0})], "slice topology requested, but slice size not provided"),
        (
            [podset(4, slices={BLOCK: 4, RACK: 0})],
            "additional slice layer size 0 must evenly divide parent layer size 4",
        ),
        (
            [podset(3, group="g"), podset(2, name="lead", group="g")],
            'the leader podset "lead" has count 2, it can only be 1',
        ),
        (
            [podset(3, group="g", name=name) for name in "abc"],
            'podset group "g" has 3 podsets, at most 2',
        ),
        ([podset(1, required="topo/none")], "no requested topology level: topo/none"),
        (
            [podset(2, required=RACK, slices={BLOCK: 2})],
            "podset slice topology block is above the podset topology rack",
        ),
        ([changed(podset(1), topology=TopologyRequest())], "topology level not specified"),
    ],
)
def test_what_no_capacity_can_fix_is_rejected_in_words(
    podsets: list[PodSetRequest], says: str
) -> None:
    room = capacity(FOUR)
    answer = place(room.tree, room, podsets, topology_name="t")
    assert says in refusal(answer)
    assert not answer.assignments


@pytest.mark.field_note("C16")
def test_absurd_counts_and_sizes_are_rejected_and_do_not_overflow() -> None:
    for wants in (
        podset(2**80, required=RACK),
        podset(2**80),
        podset(2**80, slices={RACK: 2**79}),
        podset(2**80, slices={BLOCK: 2**79, RACK: 2**78}),
    ):
        assert ask(capacity(FOUR), wants).failure is not None
    assert ask(capacity(FOUR), podset(0, slices={RACK: 2**80})).failure is None


def test_callers_mistakes_are_errors() -> None:
    room, other = capacity(FOUR), capacity(FOUR)
    with pytest.raises(ValueError, match="count -1 is negative"):
        ask(room, podset(-1))
    with pytest.raises(ValueError, match='unknown feature gate "TASNothing"'):
        ask(room, podset(1), gates={"TASNothing": True})
    with pytest.raises(ValueError, match="another tree"):
        place(room.tree, other, [podset(1)], topology_name="t")


@pytest.mark.parametrize("gate", sorted(PLACEMENT_GATES))
def test_every_gate_can_be_set_either_way(gate: str) -> None:
    for on in (True, False):
        assert spots(ask(capacity(FOUR), podset(1, preferred=RACK), gates={gate: on}))


@pytest.mark.requirement("TAS-31")
@pytest.mark.parametrize("depth", [1, 2, 3, 8, 16])
def test_trees_of_any_depth_are_packed(depth: int) -> None:
    levels = (*(f"level-{i}" for i in range(depth - 1)), HOST)
    nodes = [
        NodeInfo(
            f"n{i}",
            {
                **{level: f"v{i >> (depth - 1 - at)}" for at, level in enumerate(levels)},
                HOST: f"n{i}",
            },
            {"cpu": 1, "pods": 5},
        )
        for i in range(4)
    ]
    room = Capacity(TopologyTree.build(levels, nodes))
    assert sum(spots(ask(room, podset(2, preferred=levels[-1]))).values()) == 2
    assert len(spots(ask(room, podset(4, preferred=levels[0])))) == 4


@pytest.mark.requirement("TAS-30")
def test_a_podset_may_be_spread_over_ten_thousand_hosts() -> None:
    room = capacity({f"b{i % 7}/r{i % 91}/x{i:05}": 1 for i in range(10_500)})
    answer = ask(room, podset(10_000, preferred=BLOCK)).assignments["main"]
    assert (len(answer.domains), answer.count) == (10_000, 10_000)


def test_least_free_takes_the_smallest_sufficient_host_and_best_fit_everywhere_is_a_gate() -> None:
    rooms = {"b1/r1/x1": 3, "b1/r1/x2": 2, "b1/r1/x3": 1}
    mixed_off = {"TASProfileMixed": False}
    least, best = (spots(ask(capacity(rooms), podset(4), gates=gates)) for gates in ({}, mixed_off))
    assert least == {"x1": 1, "x2": 2, "x3": 1}
    assert best == {"x1": 3, "x3": 1}
