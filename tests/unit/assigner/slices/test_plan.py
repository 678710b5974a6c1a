from __future__ import annotations

from dataclasses import replace

import pytest

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.workload_slices.model import Asked, Folded, Phase, granted
from rackgate_assigner.workload_slices.plan import BATCH, NewSlice, Plan, plan_resize
from tests.unit.assigner.slices.builders import admitted, parent, part, places, waiting


def asked(pods: int, step: int = 1, **others: int) -> dict[str, Asked]:
    return {"a": Asked(pods, step), **{name: Asked(count) for name, count in others.items()}}


def names(plan: Plan) -> list[str]:
    return [new.name for new in plan.create]


@pytest.mark.requirement("SLC-06")
def test_growth_makes_one_slice_for_each_new_replica() -> None:
    plan = plan_resize(asked(8, step=2), parent(4), [])
    assert plan.create == (NewSlice("job-a-0", "a", 2), NewSlice("job-a-1", "a", 2))
    assert plan == Plan(create=plan.create)


@pytest.mark.requirement("SLC-06", "SLC-35")
def test_slices_that_are_there_count_and_nothing_is_made_twice() -> None:
    slices = [waiting(0), waiting(1)]
    assert names(plan_resize(asked(5), parent(2), slices)) == ["job-a-2"]
    assert plan_resize(asked(4), parent(2), slices) == Plan()


@pytest.mark.requirement("SLC-06")
def test_a_name_is_free_only_when_its_slice_is_gone() -> None:
    leaving = waiting(0, deleting=True)
    assert names(plan_resize(asked(3), parent(2), [leaving])) == ["job-a-1"]
    assert names(plan_resize(asked(3), parent(2), [], taken={"job-a-0", "job-a-1"})) == ["job-a-2"]


def test_very_many_slices_are_made_in_several_looks() -> None:
    assert len(plan_resize(asked(500), parent(1), []).create) == BATCH


@pytest.mark.requirement("SLC-18", "SLC-22", "SLC-29", "SLC-30")
def test_admitted_slices_are_folded_together_in_one_write() -> None:
    slices = [admitted(1), waiting(2), admitted(0)]
    settle = plan_resize(asked(5), parent(2), slices).settle
    assert settle is not None
    assert settle.grant is not None
    assert settle.grant.podsets == (part(4),)
    assert settle.folded == (Folded("u0", "a"), Folded("u1", "a"))


@pytest.mark.field_note("E6")
def test_slices_are_ordered_by_their_ordinals() -> None:
    slices = [admitted(10, topology=places(r1=1)), admitted(9, topology=places(r2=1))]
    settle = plan_resize(asked(3), parent(1, topology=places(r0=1)), slices).settle
    assert settle is not None
    assert settle.grant is not None
    assert settle.grant.podsets[0].topology == places(r0=1, r2=1, r1=1)


@pytest.mark.requirement("SLC-19", "SLC-20")
def test_a_settled_slice_is_only_deleted() -> None:
    grown = parent(3, asked_before=3, folded=("u0",))
    assert plan_resize(asked(3), grown, [admitted(0)]) == Plan(delete=(admitted(0),))
    going = admitted(0, deleting=True)
    assert plan_resize(asked(3), grown, [going]) == Plan(release=(going,))
    settle = plan_resize(asked(3), grown, []).settle
    assert settle is not None
    assert (settle.grant, settle.folded) == (grown.grant, ())


@pytest.mark.requirement("SLC-20", "SLC-29")
def test_slices_made_by_hand_are_folded_deleted_and_forgotten_without_any_growth() -> None:
    """Step by step, each from what the one before wrote; the job asks for nothing more."""
    before, slices = parent(2, asked_before=4), [admitted(0), admitted(1)]
    folding = plan_resize(asked(4), before, slices)
    assert folding == Plan(settle=folding.settle)
    assert folding.settle is not None
    grown = replace(before, grant=folding.settle.grant, folded=folding.settle.folded)
    assert plan_resize(asked(4), grown, slices) == Plan(delete=tuple(slices))
    leaving = [replace(piece, deleting=True) for piece in slices]
    assert plan_resize(asked(4), grown, leaving) == Plan(release=tuple(leaving))
    last = plan_resize(asked(4), grown, [])
    assert last == Plan(settle=last.settle)
    assert last.settle is not None
    assert (last.settle.grant, last.settle.folded) == (grown.grant, ())
    assert plan_resize(asked(4), replace(grown, folded=()), []) == Plan()


@pytest.mark.requirement("SLC-20")
def test_entries_are_forgotten_with_the_last_slice_or_along_with_another_write() -> None:
    grown = parent(4, folded=("u0", "u1"))
    assert plan_resize(asked(4), grown, [admitted(1)]).settle is None
    settle = plan_resize(asked(5), grown, [admitted(1), admitted(2)]).settle
    assert settle is not None
    assert settle.folded == (Folded("u1", "a"), Folded("u2", "a"))


@pytest.mark.requirement("SLC-23")
def test_spec_counts_follow_after_a_crash() -> None:
    plan = plan_resize(asked(5), parent(5, asked_before=2), [])
    assert plan == Plan(follow={"a": 5})
    plan = plan_resize(asked(5), parent(5, asked_before=7, others={"b": 1}), [])
    assert plan.follow == {"a": 5, "b": 1}


@pytest.mark.requirement("SLC-24", "SLC-25", "SLC-26")
def test_shrinking_is_one_write_and_needs_no_slice() -> None:
    plan = plan_resize(
        asked(3), parent(5, topology=places(r0=3, r1=2)), [], live=lambda _: {("r0",): 3}
    )
    assert plan.settle is not None
    assert plan.settle.grant is not None
    assert plan.settle.grant.podsets == (part(3, places(r0=3)),)
    assert plan.settle.shrunk == {"a": 2}
    assert plan == Plan(settle=plan.settle)


@pytest.mark.requirement("SLC-24", "SLC-25")
def test_a_single_pod_is_given_back_like_many() -> None:
    settle = plan_resize(asked(4), parent(5), []).settle
    assert settle is not None
    assert settle.grant is not None
    assert settle.grant.podsets == (part(4),)
    assert settle.shrunk == {"a": 1}


@pytest.mark.requirement("SLC-27")
def test_what_waits_is_withdrawn_first_the_highest_ordinal_before_the_others() -> None:
    slices = [waiting(0), waiting(1), waiting(2)]
    plan = plan_resize(asked(3), parent(2), slices)
    assert plan == Plan(delete=(waiting(1), waiting(2)))


@pytest.mark.requirement("SLC-27")
def test_then_what_is_admitted_goes_and_the_parent_keeps_its_own() -> None:
    slices = [admitted(0), admitted(1), waiting(2)]
    plan = plan_resize(asked(3), parent(2), slices)
    assert plan.settle is not None
    assert plan.settle.grant is not None
    assert plan.settle.grant.podsets == (part(3),)
    assert plan.settle.folded == (Folded("u0", "a"), Folded("u1", "a"))
    assert plan.delete == (waiting(2),)


@pytest.mark.requirement("SLC-17", "SLC-35")
def test_below_what_runs_the_counts_follow_the_job_at_once() -> None:
    plan = plan_resize(asked(0), parent(2, topology=places(r0=2)), [], live=lambda _: {("r0",): 2})
    assert plan.settle is not None
    assert plan.settle.grant is not None
    assert plan.settle.grant.podsets == (part(0),)


@pytest.mark.requirement("SLC-14")
@pytest.mark.field_note("E2")
def test_an_evicted_slice_is_withdrawn_and_asked_for_anew() -> None:
    lost = admitted(0, lost=True)
    plan = plan_resize(asked(3), parent(2), [lost])
    assert plan.settle is not None
    assert plan.settle.grant == parent(2).grant
    assert plan.settle.withdrawn == (lost,)
    assert names(plan) == ["job-a-1"]


@pytest.mark.requirement("SLC-31")
@pytest.mark.field_note("E2", "E15")
def test_an_evicted_parent_takes_its_slices_in_and_grants_nothing() -> None:
    slices = [admitted(0), waiting(1), admitted(2, lost=True)]
    leaving = parent(2, phase=Phase.LEAVING)
    plan = plan_resize(asked(1), leaving, slices)
    assert plan.settle is not None
    assert plan.settle.grant is not None
    assert plan.settle.grant.podsets == (part(4),)
    assert plan.delete == (waiting(1),)
    assert plan.create == ()
    assert plan.follow is None
    assert granted(leaving, slices) == {"a": 0}


@pytest.mark.requirement("SLC-31", "SLC-32")
@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.OVER])
def test_slices_of_a_parent_that_holds_nothing_go_whatever_they_hold(phase: Phase) -> None:
    slices = [admitted(0), waiting(1), admitted(2, deleting=True)]
    plan = plan_resize(asked(9), parent(2, phase=phase), slices)
    assert plan == Plan(delete=(admitted(0), waiting(1)), release=(slices[2],))


def test_a_slice_deleted_by_hand_keeps_its_place_until_its_parent_has_it() -> None:
    going = admitted(0, deleting=True)
    plan = plan_resize(asked(3), parent(2), [going])
    assert plan.settle is not None
    assert plan.settle.taken_in == (going,)
    assert plan.release == ()


@pytest.mark.requirement("SLC-34")
def test_worker_groups_are_resized_each_by_its_name() -> None:
    slices = [waiting(1, podset="b"), admitted(0, podset="a")]
    plan = plan_resize(asked(4, b=1, c=3), parent(5, others={"b": 1, "c": 2}), slices)
    assert plan.settle is not None
    assert plan.settle.grant is not None
    assert [found.count for found in plan.settle.grant.podsets] == [4, 1, 2]
    assert names(plan) == ["job-c-0"]
    assert plan.delete == (slices[0],)


@pytest.mark.requirement("SLC-03")
@pytest.mark.field_note("E13")
def test_another_podset_is_no_resize() -> None:
    """The job controller answers by evicting; until then what was granted is taken in."""
    slices = [admitted(0), waiting(1)]
    plan = plan_resize(None, parent(2), slices)
    assert plan.settle is not None
    assert plan.settle.shrunk == {}
    assert plan == Plan(settle=plan.settle)


@pytest.mark.requirement("SLC-08")
@pytest.mark.field_note("E10")
def test_a_slice_of_another_template_is_refused() -> None:
    foreign, holding = waiting(0, fits=False), admitted(1, fits=False)
    plan = plan_resize(asked(4), parent(2), [foreign, holding])
    assert plan.delete == (foreign,)
    assert plan.settle is not None
    assert plan.settle.grant == parent(2).grant
    assert plan.settle.withdrawn == (holding,)
    assert names(plan) == ["job-a-2", "job-a-3"]


@pytest.mark.requirement("SLC-14", "SLC-21")
def test_a_slice_of_other_levels_gives_back_what_it_holds() -> None:
    useless = admitted(0)
    held = parent(2, topology=places(r0=2))
    plan = plan_resize(asked(3), held, [useless])
    assert plan.settle is not None
    assert (plan.settle.grant, plan.settle.withdrawn) == (held.grant, (useless,))
    assert names(plan) == ["job-a-1"]


def test_slices_of_different_levels_are_not_both_taken_into_a_podset_without_pods() -> None:
    blocks = TopologyAssignment(("block",), ((("b",), 1),))
    first, second = admitted(0, topology=places(r0=1)), admitted(1, topology=blocks)
    settle = plan_resize(asked(2), parent(0), [first, second]).settle
    assert settle is not None
    assert settle.grant is not None
    assert settle.grant.podsets[0].topology == places(r0=1)
    assert (settle.taken_in, settle.withdrawn) == ((first,), (second,))


def test_a_slice_of_another_flavor_stays_beside_its_parent() -> None:
    """Its pods run: what they take is given back only when they have stopped."""
    beside = admitted(0, flavor="other")
    assert plan_resize(asked(3), parent(2), [beside]) == Plan()
    assert granted(parent(2), [beside]) == {"a": 3}
    plan = plan_resize(asked(2), parent(2), [beside])
    assert plan.settle is not None
    assert plan.settle.withdrawn == (beside,)
    assert plan_resize(asked(3), parent(2, phase=Phase.LEAVING), [beside]) == Plan()
    assert plan_resize(asked(3), parent(2, phase=Phase.IDLE), [beside]).delete == (beside,)


@pytest.mark.requirement("SLC-14", "SLC-15")
def test_a_slice_is_granted_once_and_only_while_it_stands() -> None:
    slices = [
        admitted(0),
        admitted(1),
        waiting(2),
        admitted(3, lost=True),
        admitted(4, deleting=True),
    ]
    assert granted(parent(2, folded=("u1",)), slices) == {"a": 3}


@pytest.mark.requirement("SLC-15", "SLC-21")
def test_what_is_granted_is_the_same_before_and_after_a_fold() -> None:
    before, slices = parent(2), [admitted(0), admitted(1)]
    settle = plan_resize(asked(4), before, slices).settle
    assert settle is not None
    after = type(before)("job", Phase.RUNNING, before.counts, settle.grant, settle.folded)
    assert granted(before, slices) == granted(after, slices) == granted(after, []) == {"a": 4}
