"""Which pods go where."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from typing import Any

import pytest

from rackgate_ungater.state_machine.gated_objects import GatedPod
from rackgate_ungater.state_machine.ungating_plan import PodSetAdmission, plan_ungating
from tests.unit.ungater.builders import (
    HOST,
    INDEX,
    R1,
    R2,
    R3,
    RANKED,
    PodBuilder,
    admission,
    pod,
    ranked,
    where,
)


@pytest.mark.requirement("UNG-01", "UNG-09")
def test_gated_pods_fill_domains_in_list_order() -> None:
    plan = plan_ungating(admission((R2, 2), (R1, 1)), [pod(i).build() for i in range(3)])
    assert where(plan.ungates) == {"pod-0": R2, "pod-1": R2, "pod-2": R1}


@pytest.mark.requirement("UNG-01", "UNG-09")
def test_live_ungated_pods_hold_room_where_their_selector_says() -> None:
    running = pod("a").ungated(R1).build()
    plan = plan_ungating(
        admission((R1, 2), (R2, 1)), [running, *(pod(i).build() for i in range(5))]
    )
    assert where(plan.ungates) == {"pod-0": R1, "pod-1": R2}


@pytest.mark.requirement("UNG-09")
@pytest.mark.field_note("U12")
def test_an_ended_pod_leaves_its_domain_to_its_replacement() -> None:
    ended = pod("a").ungated(R1).terminal().build()
    running = pod("b").ungated(R2).build()
    plan = plan_ungating(admission((R1, 1), (R2, 1)), [ended, running, pod(0).build()])
    assert where(plan.ungates) == {"pod-0": R1}


@pytest.mark.requirement("UNG-10")
def test_a_terminating_pod_holds_its_room_until_it_is_gone() -> None:
    leaving = pod("a").ungated(R1).terminating().build()
    assert plan_ungating(admission((R1, 1)), [leaving, pod(0).build()]).ungates == ()


def test_a_terminating_gated_pod_is_not_released() -> None:
    plan = plan_ungating(admission((R1, 1)), [pod(0).terminating().build(), pod(1).build()])
    assert where(plan.ungates) == {"pod-1": R1}


@pytest.mark.requirement("UNG-10", "UNG-16")
@pytest.mark.field_note("U2")
def test_an_ungated_pod_of_no_assigned_domain_counts_against_the_total() -> None:
    stray = pod("a").ungated(R3).build()
    plan = plan_ungating(admission((R1, 1), (R2, 1)), [stray, pod(0).build(), pod(1).build()])
    assert where(plan.ungates) == {"pod-0": R1}


@pytest.mark.requirement("UNG-16")
def test_a_selector_of_an_earlier_run_fills_no_room_of_other_domains() -> None:
    old = pod("a").ungated(("h9",), levels=(HOST,)).terminating().build()
    plan = plan_ungating(admission((R1, 2)), [old, pod(0).build(), pod(1).build()])
    assert where(plan.ungates) == {"pod-0": R1}


@pytest.mark.requirement("UNG-12")
def test_surplus_pods_stay_gated_and_are_reported() -> None:
    plan = plan_ungating(admission((R1, 2)), [pod(i).build() for i in range(4)])
    assert len(plan.ungates) == 2
    assert [report.reason for report in plan.reports] == ["SurplusPods"]


def test_a_replacement_of_a_terminating_pod_is_no_surplus() -> None:
    leaving = pod("a").ungated(R1).terminating().build()
    assert plan_ungating(admission((R1, 1)), [leaving, pod(0).build()]).reports == ()


@pytest.mark.requirement("UNG-08")
def test_a_conflicting_selector_keeps_only_its_own_pod_gated() -> None:
    stubborn = pod("a").pinned(rack="r9").build()
    plan = plan_ungating(admission((R1, 3)), [stubborn, pod(0).build(), pod(1).build()])
    assert where(plan.ungates) == {"pod-0": R1, "pod-1": R1}
    (report,) = plan.reports
    assert report.reason == "NodeSelectorConflict"
    assert report.pod == stubborn
    assert '"rack" = "r9"' in report.message


@pytest.mark.requirement("UNG-08")
def test_a_pod_bound_to_one_rack_by_its_user_takes_that_rack_first() -> None:
    picky = pod("z").pinned(rack="r1", disk="ssd").build()
    plan = plan_ungating(admission((R1, 1), (R2, 2)), [pod(0).build(), pod(1).build(), picky])
    assert where(plan.ungates) == {"pod-0": R2, "pod-1": R2, "z": R1}


@pytest.mark.requirement("UNG-09")
def test_thousands_of_pods_that_their_user_bound_are_planned_in_no_time() -> None:
    racks = [((f"b{number // 10}", f"r{number}"), 4) for number in range(1000)]
    pods = [pod(number).pinned(block=f"b{number % 3}").build() for number in range(4000)]
    started = time.process_time()
    plan = plan_ungating(admission(*racks), pods)
    assert time.process_time() - started < 4, "pod by pod and rack by rack it takes many seconds"
    assert Counter(where(plan.ungates).values()) == Counter(dict(racks[:30]))


@pytest.mark.requirement("UNG-09")
def test_thousands_of_pods_each_bound_to_a_host_of_its_own_are_planned_in_no_time() -> None:
    hosts = [((f"b{number // 10}", f"h{number}"), 1) for number in range(4000)]
    pods = [pod(number).pinned(rack=f"h{number}").build() for number in range(4000)]
    started = time.process_time()
    plan = plan_ungating(admission(*hosts), pods)
    assert time.process_time() - started < 4, "each pod against each host takes many seconds"
    assert where(plan.ungates) == {f"pod-{number}": hosts[number][0] for number in range(4000)}


@pytest.mark.requirement("RNK-01", "RNK-04")
def test_ranks_map_to_domains_by_cumulative_counts() -> None:
    plan = plan_ungating(admission((R2, 4), (R1, 2), ranks=RANKED), ranked(*range(6)))
    assert where(plan.ungates) == {
        **{f"pod-{rank}": R2 for rank in range(4)},
        **{f"pod-{rank}": R1 for rank in (4, 5)},
    }
    first = plan_ungating(admission((R2, 4), (R1, 2), ranks=RANKED), ranked(3, 4, 5))
    assert where(first.ungates) == {"pod-3": R2, "pod-4": R1, "pod-5": R1}


@pytest.mark.requirement("RNK-07")
def test_ranks_hold_whatever_the_order_and_the_batches() -> None:
    pods = ranked(*range(12))
    wanted = where(plan_ungating(admission((R1, 5), (R2, 4), (R3, 3), ranks=RANKED), pods).ungates)
    rng = random.Random(7)
    for _ in range(20):
        rng.shuffle(pods)
        seen: dict[str, tuple[str, ...]] = {}
        present: list[GatedPod] = []
        for start in (0, 5, 7):
            present += pods[start : {0: 5, 5: 7, 7: 12}[start]]
            plan = plan_ungating(admission((R1, 5), (R2, 4), (R3, 3), ranks=RANKED), present)
            seen |= where(plan.ungates)
            done = where(plan.ungates)
            present = [
                pod(p.name).rank(p.indices[INDEX]).ungated(done[p.name]).build()
                if p.name in done
                else p
                for p in present
            ]
        assert seen == wanted


@pytest.mark.requirement("RNK-07")
def test_a_recreated_rank_returns_to_its_domain() -> None:
    running = [pod(i).rank(i).ungated(R1 if i < 2 else R2).build() for i in (0, 2)]
    for rank, place in ((1, R1), (3, R2)):
        pods = [*running, pod("new").rank(rank).build()]
        plan = plan_ungating(admission((R1, 2), (R2, 2), ranks=RANKED), pods)
        assert where(plan.ungates) == {"new": place}


def test_a_replacement_waits_for_its_terminating_twin_and_not_elsewhere() -> None:
    twin = pod("old").rank(0).ungated(R1).terminating().build()
    pods = [twin, pod("new").rank(0).build(), pod("b").rank(1).build()]
    plan = plan_ungating(admission((R1, 1), (R2, 1), ranks=RANKED), pods)
    assert where(plan.ungates) == {"b": R2}
    assert plan.reports == ()


@pytest.mark.requirement("RNK-06")
@pytest.mark.field_note("U4")
def test_a_live_pod_outside_its_ranks_domain_sends_all_to_greedy_filling() -> None:
    misplaced = pod("a").rank(0).ungated(R2).build()
    plan = plan_ungating(
        admission((R1, 1), (R2, 1), ranks=RANKED), [misplaced, pod("b").rank(1).build()]
    )
    assert where(plan.ungates) == {"b": R1}, "rank 1 belongs to R2, which is full"
    assert [report.reason for report in plan.reports] == ["RankOrderIgnored"]


@pytest.mark.requirement("RNK-06")
@pytest.mark.field_note("U4")
def test_a_replacement_whose_rank_a_live_pod_has_taken_gets_the_place_that_is_free() -> None:
    live = [pod("a").rank(0).ungated(R1).build(), pod("b").rank(0).ungated(R1).build()]
    plan = plan_ungating(
        admission((R1, 2), (R2, 1), ranks=RANKED), [*live, pod("c").rank(0).build()]
    )
    assert where(plan.ungates) == {"c": R2}
    assert '"a" and "b" both have rank 0' in plan.reports[0].message


@pytest.mark.requirement("UNG-09", "RNK-06")
@pytest.mark.field_note("U12")
def test_an_indexed_job_of_more_completions_than_parallelism_runs_to_its_end() -> None:
    """Indexes run to 9, the PodSet has 3 pods: later ones are beyond every rank."""
    spot = admission((R1, 2), (R2, 1), ranks=RANKED)
    running: dict[str, GatedPod] = {}
    for index in range(10):
        if len(running) == 3:
            running.pop(next(iter(running)))  # the oldest ends
        fresh = pod(index).rank(index)
        plan = plan_ungating(spot, [*running.values(), fresh.build()])
        (ungate,) = plan.ungates
        running[ungate.pod.name] = fresh.ungated(ungate.domain).build()
    assert list(running) == ["pod-7", "pod-8", "pod-9"]


@pytest.mark.requirement("RNK-06")
def test_a_fallback_never_exceeds_a_domain() -> None:
    pods = [*ranked(0, 1, 2), pod("double").rank(1).build()]
    plan = plan_ungating(admission((R1, 2), (R2, 2), ranks=RANKED), pods)
    assert where(plan.ungates) == {"pod-0": R1, "pod-1": R2, "double": R1, "pod-2": R2}
    assert '"double" and "pod-1" both have rank 1' in plan.reports[0].message


@pytest.mark.requirement("UNG-12")
@pytest.mark.field_note("U5")
def test_a_rank_beyond_the_assignment_skips_only_that_pod() -> None:
    # Slice size 2 of 5 pods: the assignment admits_at_least 4 of them.
    plan = plan_ungating(admission((R1, 2), (R2, 2), ranks=RANKED, count=5), ranked(*range(5)))
    assert where(plan.ungates) == {"pod-0": R1, "pod-1": R1, "pod-2": R2, "pod-3": R2}
    assert [report.reason for report in plan.reports] == ["SurplusPods"]
    early = plan_ungating(admission((R1, 2), (R2, 2), ranks=RANKED, count=5), ranked(0, 4))
    assert where(early.ungates) == {"pod-0": R1}, "the places of ranks to come stay free"


def hosts(*counts: tuple[str, int], **more: Any) -> PodSetAdmission:
    """The admission of a PodSet on hosts."""
    return admission(*(((name,), count) for name, count in counts), levels=(HOST,), **more)


def on(name: str, host: str) -> PodBuilder:
    return pod(name).ungated((host,), levels=(HOST,))


def test_a_pod_that_a_lost_node_never_ended_makes_way_once_its_host_is_given_up() -> None:
    dead = on("old", "h1").terminating().build()
    fresh = pod(0).build()
    moved, kept = hosts(("h2", 1)), hosts(("h1", 1))
    overdue_deletions = {dead.uid}
    assert where(
        plan_ungating(moved, [dead, fresh], overdue_deletions=overdue_deletions).ungates
    ) == {"pod-0": ("h2",)}
    assert plan_ungating(moved, [dead, fresh]).ungates == (), "still in its time"
    assert plan_ungating(kept, [dead, fresh], overdue_deletions=overdue_deletions).ungates == (), (
        "not given up"
    )


@pytest.mark.field_note("U2", "U4")
def test_after_a_replacement_new_pods_fill_what_is_free_and_the_others_stay() -> None:
    # h1 (ranks 0, 1) was replaced by h3; the assignment is in path order again.
    moved = hosts(("h2", 2), ("h3", 2), ranks=RANKED)
    stay = [on(f"p{rank}", "h2").rank(rank).build() for rank in (2, 3)]
    fresh = [pod(f"n{rank}").rank(rank).build() for rank in (0, 1)]
    plan = plan_ungating(moved, [*stay, *fresh])
    assert where(plan.ungates) == {"n0": ("h3",), "n1": ("h3",)}


@pytest.mark.field_note("U2")
def test_a_live_pod_on_a_host_that_was_given_up_keeps_its_successor_waiting() -> None:
    stay, stray = on("p1", "h2").rank(1).build(), on("p0", "h1").rank(0).build()
    moved = hosts(("h2", 1), ("h3", 1), ranks=RANKED)
    assert plan_ungating(moved, [stay, stray, pod(0).rank(0).build()]).ungates == ()


@pytest.mark.field_note("C14")
def test_a_rack_named_like_a_broken_host_takes_pods() -> None:
    spot = admission((R1, 1), unhealthy=(R1[-1],))
    assert where(plan_ungating(spot, [pod(0).build()]).ungates) == {"pod-0": R1}


@pytest.mark.requirement("STR-05")
@pytest.mark.field_note("U3")
def test_no_pod_is_sent_to_a_node_that_awaits_replacement() -> None:
    for ranks in (None, RANKED):
        spot = admission((("h1",), 1), (("h2",), 1), levels=(HOST,), unhealthy=("h1",), ranks=ranks)
        assert set(where(plan_ungating(spot, ranked(0, 1)).ungates).values()) == {("h2",)}


def test_a_pod_whose_write_may_still_arrive_gets_the_same_domain_again() -> None:
    pods = [pod(i).build() for i in range(3)]
    plan = plan_ungating(admission((R1, 1), (R2, 1)), pods, pinned={pods[2].uid: R1})
    assert where(plan.ungates) == {"pod-2": R1, "pod-0": R2}


def test_a_barred_pod_is_passed_over() -> None:
    pods = [pod(i).build() for i in range(2)]
    plan = plan_ungating(admission((R1, 1)), pods, backing_off={pods[0].uid})
    assert where(plan.ungates) == {"pod-1": R1}


def test_a_host_named_like_a_rack_is_another_domain() -> None:
    odd = admission((("a,b", "c"), 1), (("a", "b,c"), 1))
    running = pod("x").ungated(("a", "b,c")).build()
    assert where(plan_ungating(odd, [running, pod(0).build()]).ungates) == {"pod-0": ("a,b", "c")}


@pytest.mark.requirement("TAS-31")
@pytest.mark.parametrize("depth", [1, 2, 3, 8, 16])
def test_any_number_of_levels_is_ungated(depth: int) -> None:
    levels = tuple(f"level-{n}" for n in range(depth))
    first, second = tuple("a" * depth), (*tuple("a" * (depth - 1)), "b")
    plan = plan_ungating(
        admission((first, 1), (second, 1), levels=levels), [pod(0).build(), pod(1).build()]
    )
    assert where(plan.ungates) == {"pod-0": first, "pod-1": second}
    assert plan.ungates[0].levels == levels


def test_an_empty_assignment_is_legal_and_releases_nothing() -> None:
    assert plan_ungating(admission(), [pod(0).build()]).ungates == ()


@pytest.mark.requirement("UNG-10")
def test_pods_that_came_back_stay_gated() -> None:
    """What was given back as done may be others' by now."""
    given = dataclasses.replace(admission((R1, 2), (R2, 2)), reclaimable=2)
    running = [pod(name).ungated(R2).build() for name in ("a", "b")]
    assert plan_ungating(given, [*running, pod(0).build(), pod(1).build()]).ungates == ()
    plan = plan_ungating(given, [running[0], pod(0).build(), pod(1).build()])
    assert len(plan.ungates) == 1
