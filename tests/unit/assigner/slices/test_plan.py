from __future__ import annotations

from dataclasses import replace

import pytest

from rackgate.jobframework.generic_job import RequestedCount
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.kueue import MergedSlice
from rackgate_assigner.workload_slices.model import NewSlice, Phase, admitted_pods
from rackgate_assigner.workload_slices.resize_plan import BATCH, Plan, plan_resize
from tests.unit.assigner.slices.builders import admitted, parent, part, places, waiting


def asked(pods: int, step: int = 1, **others: int) -> dict[str, RequestedCount]:
    return {
        "a": RequestedCount(pods, step),
        **{name: RequestedCount(count) for name, count in others.items()},
    }


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
    merge = plan_resize(asked(5), parent(2), slices).merge
    assert merge is not None
    assert merge.assignment is not None
    assert merge.assignment.podsets == (part(4),)
    assert merge.merged == (MergedSlice("u0", "a"), MergedSlice("u1", "a"))


@pytest.mark.field_note("E6")
def test_slices_are_ordered_by_their_ordinals() -> None:
    slices = [admitted(10, topology=places(r1=1)), admitted(9, topology=places(r2=1))]
    merge = plan_resize(asked(3), parent(1, topology=places(r0=1)), slices).merge
    assert merge is not None
    assert merge.assignment is not None
    assert merge.assignment.podsets[0].topology == places(r0=1, r2=1, r1=1)


@pytest.mark.requirement("SLC-19", "SLC-20")
def test_a_settled_slice_is_only_deleted() -> None:
    grown = parent(3, asked_before=3, merged=("u0",))
    assert plan_resize(asked(3), grown, [admitted(0)]) == Plan(delete=(admitted(0),))
    going = admitted(0, deleting=True)
    assert plan_resize(asked(3), grown, [going]) == Plan(release=(going,))
    merge = plan_resize(asked(3), grown, []).merge
    assert merge is not None
    assert (merge.assignment, merge.merged) == (grown.assignment, ())


@pytest.mark.requirement("SLC-20", "SLC-29")
def test_slices_made_by_hand_are_folded_deleted_and_forgotten_without_any_growth() -> None:
    """Step by step, each from what the one before wrote; the job asks for nothing more."""
    before, slices = parent(2, asked_before=4), [admitted(0), admitted(1)]
    folding = plan_resize(asked(4), before, slices)
    assert folding == Plan(merge=folding.merge)
    assert folding.merge is not None
    grown = replace(before, assignment=folding.merge.assignment, merged=folding.merge.merged)
    assert plan_resize(asked(4), grown, slices) == Plan(delete=tuple(slices))
    leaving = [replace(piece, deleting=True) for piece in slices]
    assert plan_resize(asked(4), grown, leaving) == Plan(release=tuple(leaving))
    last = plan_resize(asked(4), grown, [])
    assert last == Plan(merge=last.merge)
    assert last.merge is not None
    assert (last.merge.assignment, last.merge.merged) == (grown.assignment, ())
    assert plan_resize(asked(4), replace(grown, merged=()), []) == Plan()


@pytest.mark.requirement("SLC-20")
def test_entries_are_forgotten_with_the_last_slice_or_along_with_another_write() -> None:
    grown = parent(4, merged=("u0", "u1"))
    assert plan_resize(asked(4), grown, [admitted(1)]).merge is None
    merge = plan_resize(asked(5), grown, [admitted(1), admitted(2)]).merge
    assert merge is not None
    assert merge.merged == (MergedSlice("u1", "a"), MergedSlice("u2", "a"))


@pytest.mark.requirement("SLC-23")
def test_spec_counts_follow_after_a_crash() -> None:
    plan = plan_resize(asked(5), parent(5, asked_before=2), [])
    assert plan == Plan(count_updates={"a": 5})
    plan = plan_resize(asked(5), parent(5, asked_before=7, others={"b": 1}), [])
    assert plan.count_updates == {"a": 5, "b": 1}


@pytest.mark.requirement("SLC-24", "SLC-25", "SLC-26")
def test_shrinking_is_one_write_and_needs_no_slice() -> None:
    plan = plan_resize(
        asked(3), parent(5, topology=places(r0=3, r1=2)), [], live=lambda _: {("r0",): 3}
    )
    assert plan.merge is not None
    assert plan.merge.assignment is not None
    assert plan.merge.assignment.podsets == (part(3, places(r0=3)),)
    assert plan.merge.scaled_down == {"a": 2}
    assert plan == Plan(merge=plan.merge)


@pytest.mark.requirement("SLC-24", "SLC-25")
def test_a_single_pod_is_given_back_like_many() -> None:
    merge = plan_resize(asked(4), parent(5), []).merge
    assert merge is not None
    assert merge.assignment is not None
    assert merge.assignment.podsets == (part(4),)
    assert merge.scaled_down == {"a": 1}


@pytest.mark.requirement("SLC-27")
def test_what_waits_is_withdrawn_first_the_highest_ordinal_before_the_others() -> None:
    slices = [waiting(0), waiting(1), waiting(2)]
    plan = plan_resize(asked(3), parent(2), slices)
    assert plan == Plan(delete=(waiting(1), waiting(2)))


@pytest.mark.requirement("SLC-27")
def test_then_what_is_admitted_goes_and_the_parent_keeps_its_own() -> None:
    slices = [admitted(0), admitted(1), waiting(2)]
    plan = plan_resize(asked(3), parent(2), slices)
    assert plan.merge is not None
    assert plan.merge.assignment is not None
    assert plan.merge.assignment.podsets == (part(3),)
    assert plan.merge.merged == (MergedSlice("u0", "a"), MergedSlice("u1", "a"))
    assert plan.delete == (waiting(2),)


@pytest.mark.requirement("SLC-17", "SLC-35")
def test_below_what_runs_the_counts_follow_the_job_at_once() -> None:
    plan = plan_resize(asked(0), parent(2, topology=places(r0=2)), [], live=lambda _: {("r0",): 2})
    assert plan.merge is not None
    assert plan.merge.assignment is not None
    assert plan.merge.assignment.podsets == (part(0),)


@pytest.mark.requirement("SLC-14")
@pytest.mark.field_note("E2")
def test_an_evicted_slice_is_withdrawn_and_asked_for_again() -> None:
    lost = admitted(0, evicted_or_finished=True)
    plan = plan_resize(asked(3), parent(2), [lost])
    assert plan.merge is not None
    assert plan.merge.assignment == parent(2).assignment
    assert plan.merge.withdrawn == (lost,)
    assert names(plan) == ["job-a-1"]


@pytest.mark.requirement("SLC-31")
@pytest.mark.field_note("E2", "E15")
def test_an_evicted_parent_takes_its_slices_in_and_admits_nothing() -> None:
    slices = [admitted(0), waiting(1), admitted(2, evicted_or_finished=True)]
    leaving = parent(2, phase=Phase.EVICTING)
    plan = plan_resize(asked(1), leaving, slices)
    assert plan.merge is not None
    assert plan.merge.assignment is not None
    assert plan.merge.assignment.podsets == (part(4),)
    assert plan.delete == (waiting(1),)
    assert plan.create == ()
    assert plan.count_updates is None
    assert admitted_pods(leaving, slices) == {"a": 0}


@pytest.mark.requirement("SLC-31", "SLC-32")
@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.FINISHED])
def test_slices_of_a_parent_that_holds_nothing_go_whatever_they_hold(phase: Phase) -> None:
    slices = [admitted(0), waiting(1), admitted(2, deleting=True)]
    plan = plan_resize(asked(9), parent(2, phase=phase), slices)
    deleted = (admitted(0), waiting(1))
    assert plan == Plan(delete=deleted, release=(slices[2],), no_slice_is_needed=True)
    assert not plan_resize(asked(1), parent(2), [waiting(1)]).no_slice_is_needed


def test_a_slice_deleted_by_hand_keeps_its_place_until_its_parent_has_it() -> None:
    going = admitted(0, deleting=True)
    plan = plan_resize(asked(3), parent(2), [going])
    assert plan.merge is not None
    assert plan.merge.newly_merged == (going,)
    assert plan.release == ()


@pytest.mark.requirement("SLC-34")
def test_worker_groups_are_resized_each_by_its_name() -> None:
    slices = [waiting(1, podset="b"), admitted(0, podset="a")]
    plan = plan_resize(asked(4, b=1, c=3), parent(5, others={"b": 1, "c": 2}), slices)
    assert plan.merge is not None
    assert plan.merge.assignment is not None
    assert [found.count for found in plan.merge.assignment.podsets] == [4, 1, 2]
    assert names(plan) == ["job-c-0"]
    assert plan.delete == (slices[0],)


@pytest.mark.requirement("SLC-03")
@pytest.mark.field_note("E13")
def test_another_podset_is_no_resize() -> None:
    """The job controller answers by evicting; until then what was admitted_pods is taken in."""
    slices = [admitted(0), waiting(1)]
    plan = plan_resize(None, parent(2), slices)
    assert plan.merge is not None
    assert plan.merge.scaled_down == {}
    assert plan == Plan(merge=plan.merge)


@pytest.mark.requirement("SLC-08")
@pytest.mark.field_note("E10")
def test_a_slice_of_another_template_is_rejected() -> None:
    foreign, holding = waiting(0, matches_parent=False), admitted(1, matches_parent=False)
    plan = plan_resize(asked(4), parent(2), [foreign, holding])
    assert plan.delete == (foreign,)
    assert plan.merge is not None
    assert plan.merge.assignment == parent(2).assignment
    assert plan.merge.withdrawn == (holding,)
    assert names(plan) == ["job-a-2", "job-a-3"]


@pytest.mark.requirement("SLC-14", "SLC-21")
def test_a_slice_of_other_levels_gives_back_what_it_holds() -> None:
    useless = admitted(0)
    held = parent(2, topology=places(r0=2))
    plan = plan_resize(asked(3), held, [useless])
    assert plan.merge is not None
    assert (plan.merge.assignment, plan.merge.withdrawn) == (held.assignment, (useless,))
    assert names(plan) == ["job-a-1"]


def test_slices_of_different_levels_are_not_both_taken_into_a_podset_without_pods() -> None:
    blocks = TopologyAssignment(("block",), ((("b",), 1),))
    first, second = admitted(0, topology=places(r0=1)), admitted(1, topology=blocks)
    merge = plan_resize(asked(2), parent(0), [first, second]).merge
    assert merge is not None
    assert merge.assignment is not None
    assert merge.assignment.podsets[0].topology == places(r0=1)
    assert (merge.newly_merged, merge.withdrawn) == ((first,), (second,))


def test_a_slice_of_another_flavor_stays_beside_its_parent() -> None:
    """Its pods run: what they take is given back only when they have stopped."""
    beside = admitted(0, flavor="other")
    assert plan_resize(asked(3), parent(2), [beside]) == Plan()
    assert admitted_pods(parent(2), [beside]) == {"a": 3}
    plan = plan_resize(asked(2), parent(2), [beside])
    assert plan.merge is not None
    assert plan.merge.withdrawn == (beside,)
    assert plan_resize(asked(3), parent(2, phase=Phase.EVICTING), [beside]) == Plan()
    assert plan_resize(asked(3), parent(2, phase=Phase.IDLE), [beside]).delete == (beside,)


@pytest.mark.requirement("SLC-14", "SLC-15")
def test_a_slice_is_admitted_once_and_only_while_it_stands() -> None:
    slices = [
        admitted(0),
        admitted(1),
        waiting(2),
        admitted(3, evicted_or_finished=True),
        admitted(4, deleting=True),
    ]
    assert admitted_pods(parent(2, merged=("u1",)), slices) == {"a": 3}


@pytest.mark.requirement("SLC-15", "SLC-21")
def test_what_is_admitted_is_the_same_before_and_after_a_fold() -> None:
    before, slices = parent(2), [admitted(0), admitted(1)]
    merge = plan_resize(asked(4), before, slices).merge
    assert merge is not None
    after = type(before)("job", Phase.RUNNING, before.counts, merge.assignment, merge.merged)
    assert (
        admitted_pods(before, slices)
        == admitted_pods(after, slices)
        == admitted_pods(after, [])
        == {"a": 4}
    )
