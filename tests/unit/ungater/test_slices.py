"""Elastic jobs: the number that may be released, whatever becomes of their slices."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from rackgate_ungater.state_machine.events import (
    Failure,
    PodGone,
    PodSeen,
    UngateFailed,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gated_objects import (
    ELASTIC,
    TOPOLOGY,
    GatedWorkload,
    WorkloadKey,
)
from rackgate_ungater.state_machine.state_machine import StateMachine
from tests.support.ungater_invariants import check_invariants
from tests.unit.ungater.builders import (
    INDEX,
    LEVELS,
    R1,
    R2,
    R3,
    PodBuilder,
    counted,
    elastic,
    pod,
    podset,
    slice_of,
    where,
    workload,
)

KEY = WorkloadKey("team/train")
BOTH = TOPOLOGY | ELASTIC
PARENT = elastic(counted(1))


def machine_with(*rows: GatedWorkload, pods: int = 0, gates: int = ELASTIC) -> StateMachine:
    machine = StateMachine()
    for row in rows:
        machine.handle(WorkloadSeen(row))
    for number in range(pods):
        machine.handle(PodSeen(pod(number).gates(gates).build()))
    return machine


def act(machine: StateMachine) -> list[str]:
    """Propose and commit, and let the watch show what was written; names of the released."""
    ungates = machine.propose(KEY, 0.0).ungates
    machine.expect_ungates(ungates, 0.0)
    check_invariants(machine)
    for ungate in ungates:
        selector = dict(zip(ungate.levels, ungate.domain, strict=True))
        version = ungate.pod.version + 1
        row = msgspec.structs.replace(
            ungate.pod,
            gates=ungate.pod.gates & ~ungate.gates,
            selector={**ungate.pod.selector, **selector},
            version=version,
            resource_version=str(version),
        )
        machine.handle(PodSeen(row))
    check_invariants(machine)
    return [ungate.pod.name for ungate in ungates]


def gone(machine: StateMachine, row: GatedWorkload) -> None:
    machine.handle(WorkloadGone(row.key, row.uid))
    check_invariants(machine)


@pytest.mark.requirement("SLC-14")
def test_a_podset_without_topology_is_released_by_its_number() -> None:
    machine = machine_with(elastic(counted(2)), pods=3)
    (first, second) = machine.propose(KEY, 0.0).ungates
    assert (first.levels, first.domain, first.gates) == ((), (), ELASTIC)
    assert act(machine) == [first.pod.name, second.pod.name]
    assert act(machine) == []
    assert machine.propose(KEY, 0.0).reports == [], "the others wait for slices: no surplus"


@pytest.mark.requirement("SLC-14", "SLC-30")
@pytest.mark.field_note("E1")
def test_pods_of_a_pending_slice_stay_gated() -> None:
    pending = slice_of(PARENT, counted(1), admitted=False)
    machine = machine_with(PARENT, pending, pods=2)
    assert act(machine) == ["pod-0"]
    assert act(machine) == []
    machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), uid="another")))
    assert act(machine) == ["pod-1"], "one that waits holds back no other"


@pytest.mark.requirement("SLC-14", "SLC-30")
def test_an_admitted_slice_wakes_its_parent() -> None:
    machine = machine_with(PARENT, slice_of(PARENT, counted(1), admitted=False), pods=3)
    act(machine)
    assert machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), version=2))) == KEY
    assert act(machine) == ["pod-1"]
    assert machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), version=3))) is None
    gone_bad = slice_of(PARENT, counted(1), version=4, admitted=False)
    assert machine.handle(WorkloadSeen(gone_bad)) == KEY, "a plan may have been refused for it"
    again = slice_of(PARENT, counted(1), version=5, admitted=False, unhealthy=("n",))
    assert machine.handle(WorkloadSeen(again)) is None


@pytest.mark.requirement("SLC-14")
@pytest.mark.field_note("E2")
def test_an_evicting_slice_admits_nothing() -> None:
    machine = machine_with(PARENT, slice_of(PARENT, counted(1)), pods=2)
    stands = machine.workload_states[KEY].admission_check()
    evicting = slice_of(PARENT, counted(1), version=2, admitted=False)
    machine.handle(WorkloadSeen(evicting))
    assert not stands()
    machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), version=1)))
    assert act(machine) == ["pod-0"], "the earlier version is told late, and changes nothing"


@pytest.mark.requirement("SLC-31", "UNG-11")
def test_slices_of_an_evicted_parent_admission_nothing() -> None:
    evicted = elastic(counted(1), version=5, admitted=False)
    assert act(machine_with(PARENT, slice_of(PARENT, counted(1)), evicted, pods=2)) == []


@pytest.mark.requirement("SLC-15", "SLC-18")
def test_a_folded_slice_that_is_still_there_counts_once() -> None:
    machine = machine_with(PARENT, slice_of(PARENT, counted(1)), pods=4)
    assert act(machine) == ["pod-0", "pod-1"]
    machine.handle(WorkloadSeen(elastic(counted(2), version=5, merged=("slice-0",))))
    assert act(machine) == []
    machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), version=6)))
    assert act(machine) == [], "another write to the slice on its way out"


@pytest.mark.requirement("SLC-15", "SLC-20")
@pytest.mark.parametrize("order", ["fds", "dfs", "fsd", "fps", "fpsd", "fpds"])
def test_fold_and_deletion_count_once_in_any_order(order: str) -> None:
    """f: merged; d: the slice is deleted; s: it is seen once more; p: its UID is pruned."""
    admitted = slice_of(PARENT, counted(1), version=2)
    machine = machine_with(PARENT, admitted, pods=5)
    assert act(machine) == ["pod-0", "pod-1"]
    for version, event in enumerate(order, start=10):
        if event == "d":
            gone(machine, admitted)
        elif event == "s":
            machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), version=version)))
        else:
            merged = ("slice-0",) if event == "f" else ()
            machine.handle(WorkloadSeen(elastic(counted(2), version=version, merged=merged)))
        assert act(machine) == [], f"after {event} of {order}"


@pytest.mark.requirement("SLC-15", "UNG-05", "UNG-07")
def test_an_expectation_holds_over_a_fold() -> None:
    machine = machine_with(PARENT, slice_of(PARENT, counted(1)), pods=3)
    ungates = machine.propose(KEY, 0.0).ungates
    stands = machine.workload_states[KEY].admission_check()
    machine.expect_ungates(ungates, 0.0)
    machine.handle(WorkloadSeen(elastic(counted(2), version=5, merged=("slice-0",))))
    gone(machine, slice_of(PARENT, counted(1)))
    assert stands(), "the batch goes on: as much is granted as before"
    proposal = machine.propose(KEY, 0.0)
    assert (proposal.ungates, proposal.awaiting_expectations) == ([], 3)
    for ungate in ungates:
        machine.handle(PodSeen(replace(pod(ungate.pod.name), version=2).free().build()))
    assert act(machine) == []


@pytest.mark.requirement("SLC-15", "UNG-14")
def test_a_lost_answer_of_a_release_by_number_is_settled_by_a_read() -> None:
    machine = machine_with(PARENT, pods=2)
    (ungate,) = machine.propose(KEY, 0.0).ungates
    machine.expect_ungates([ungate], 0.0)
    machine.handle(UngateFailed(ungate.pod.uid, "1", Failure.UNKNOWN_OUTCOME, 0.0))
    assert machine.propose(KEY, 1.0).reads == [ungate.pod]
    machine.handle(PodSeen(ungate.pod, live=True))
    assert machine.propose(KEY, 1.0).ungates == [ungate], "the same again, and no other"


@pytest.mark.requirement("SLC-16")
@pytest.mark.field_note("E5")
def test_a_recreated_pod_is_released_into_the_place_of_the_one_that_went() -> None:
    machine = machine_with(elastic(counted(2)), pods=2)
    act(machine)
    assert machine.handle(PodSeen(pod("again").gates(ELASTIC).build())) == KEY
    assert act(machine) == [], "the broken one still lives"
    assert machine.handle(PodGone(pod(0).build().uid)) == KEY
    assert act(machine) == ["again"]


@pytest.mark.requirement("SLC-17", "SLC-26")
def test_terminating_pods_hold_their_places_through_a_scale_down_and_up() -> None:
    machine = machine_with(elastic(counted(3)), pods=3)
    act(machine)
    for number in (1, 2):
        leaving = replace(pod(number), version=5).free().terminating()
        machine.handle(PodSeen(leaving.build()))
    machine.handle(WorkloadSeen(elastic(counted(1), version=6)))
    machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), version=7)))
    machine.handle(PodSeen(pod("new").gates(ELASTIC).build()))
    assert act(machine) == [], "three live, two granted"
    machine.handle(PodGone(pod(1).build().uid))
    assert act(machine) == [], "two live, two granted"
    machine.handle(PodGone(pod(2).build().uid))
    assert act(machine) == ["new"]


@pytest.mark.requirement("SLC-14", "SLC-24")
def test_a_shrink_below_what_lives_releases_nothing() -> None:
    machine = machine_with(elastic(counted(3)), pods=4)
    act(machine)
    machine.handle(WorkloadSeen(elastic(counted(1), version=6)))
    machine.handle(PodGone(pod(0).build().uid))
    assert act(machine) == []


@pytest.mark.requirement("SLC-32", "SLC-15")
@pytest.mark.field_note("E10")
def test_a_slice_counts_only_for_the_parent_that_owns_it() -> None:
    orphan = slice_of(PARENT, counted(5), owner_uid="the-parent-before")
    machine = machine_with(orphan, pods=3)
    assert act(machine) == [], "no parent yet"
    assert machine.handle(WorkloadSeen(PARENT)) == KEY
    assert act(machine) == ["pod-0"]
    gone(machine, PARENT)
    gone(machine, orphan)
    assert machine.workload_states[KEY].slices == {}


def test_a_slice_name_used_again_is_another_slice() -> None:
    first = slice_of(PARENT, counted(1), uid="a", name="train-main-0")
    again = slice_of(PARENT, counted(1), uid="b", name="train-main-0", version=9)
    machine = machine_with(PARENT, first, pods=5)
    machine.handle(WorkloadSeen(elastic(counted(2), version=5, merged=("a",))))
    gone(machine, first)
    machine.handle(WorkloadSeen(again))
    assert act(machine) == ["pod-0", "pod-1", "pod-2"]


@pytest.mark.requirement("SLC-34")
def test_worker_groups_grow_each_by_its_own_slices() -> None:
    parent = elastic(counted(1, "head"), counted(1, "a"), counted(0, "b"))
    grown = slice_of(parent, counted(2, "b"))
    machine = machine_with(parent, grown, slice_of(parent, counted(9, "no-such"), uid="s1"))
    for name in ("head", "a", "b"):
        for number in range(3):
            machine.handle(PodSeen(pod(f"{name}-{number}").of(name).gates(ELASTIC).build()))
    assert sorted(act(machine)) == ["a-0", "b-0", "b-1", "head-0"]


@pytest.mark.requirement("SLC-36")
def test_with_topology_domains_of_parent_and_slices_add_up() -> None:
    parent = elastic(podset((R1, 1), (R2, 1)))
    more = slice_of(parent, podset((R2, 1))), slice_of(parent, podset((R3, 1)), uid="slice-1")
    machine = machine_with(parent, *more, pods=5, gates=BOTH)
    assert where(machine.propose(KEY, 0.0).ungates) == {
        "pod-0": R1,
        "pod-1": R2,
        "pod-2": R2,
        "pod-3": R3,
    }
    act(machine)
    merged = elastic(podset((R1, 1), (R2, 2), (R3, 1)), version=5, merged=("slice-0", "slice-1"))
    machine.handle(WorkloadSeen(merged))
    assert act(machine) == []


@pytest.mark.requirement("SLC-36", "RNK-04")
def test_ranks_follow_slices_in_the_order_in_which_they_will_be_taken_in() -> None:
    parent = elastic(podset((R1, 1), requested=True, pod_index_label=INDEX))
    later = slice_of(parent, podset((R2, 1)), uid="a", name=f"{parent.name}-main-10")
    sooner = slice_of(parent, podset((R3, 1)), uid="b", name=f"{parent.name}-main-2")
    machine = machine_with(parent, later, sooner)
    for number in range(3):
        machine.handle(PodSeen(pod(number).rank(number).gates(BOTH).build()))
    released = where(machine.propose(KEY, 0.0).ungates)
    assert released == {"pod-0": R1, "pod-1": R3, "pod-2": R2}


@pytest.mark.requirement("SLC-36")
def test_a_podset_that_was_empty_takes_the_topology_of_its_first_slice() -> None:
    parent = elastic(counted(0))
    machine = machine_with(parent, slice_of(parent, podset((R1, 1))), pods=2, gates=BOTH)
    (ungate,) = machine.propose(KEY, 0.0).ungates
    assert (ungate.domain, ungate.levels, ungate.gates) == (R1, LEVELS, BOTH)


@pytest.mark.requirement("SLC-36")
def test_a_slice_that_does_not_go_with_its_parent_admits_nothing_and_is_reported() -> None:
    parent = elastic(podset((R1, 1)))
    odd = slice_of(parent, counted(1)), slice_of(parent, podset((R1, 1)), uid="slice-1")
    machine = machine_with(parent, *odd, pods=3, gates=BOTH)
    proposal = machine.propose(KEY, 0.0)
    assert len(proposal.ungates) == 2
    assert [report.reason for report in proposal.reports] == ["AssignmentUnreadable"]
    broken = msgspec.structs.replace(podset((R1, 1)), assignment=b'{"slices":7}')
    machine.handle(WorkloadSeen(slice_of(parent, broken, uid="slice-2")))
    assert len(machine.propose(KEY, 0.0).ungates) == 2


def partly(builder: PodBuilder, gates: int, **selector: str) -> PodBuilder:
    return builder.pinned(**selector).gates(gates)


@pytest.mark.requirement("UNG-20")
@pytest.mark.parametrize("left", [TOPOLOGY, ELASTIC])
def test_a_pod_that_lost_one_gate_is_picked_first(left: int) -> None:
    parent = elastic(podset((R1, 1)))
    machine = machine_with(parent, pods=2, gates=BOTH)
    machine.handle(PodSeen(pod("z").gates(left).build()))
    assert act(machine) == ["z"]
    assert act(machine) == []


@pytest.mark.requirement("UNG-20", "UNG-10")
def test_a_pod_that_lost_its_topology_gate_gets_the_domain_that_its_selector_names() -> None:
    parent = elastic(podset((R1, 1), (R2, 1)))
    machine = machine_with(parent, pods=1, gates=BOTH)
    half = partly(pod("z"), ELASTIC, block="b1", rack="r1")
    machine.handle(PodSeen(half.build()))
    assert where(machine.propose(KEY, 0.0).ungates) == {"z": R1, "pod-0": R2}


@pytest.mark.requirement("UNG-20")
@pytest.mark.field_note("E16")
def test_without_the_annotation_the_elastic_gate_is_nobodys() -> None:
    """A topology gate is served by its own rule; what else holds the pod is not waited for."""
    machine = machine_with(workload(podset((R1, 2))), pods=1, gates=BOTH)
    (ungate,) = machine.propose(KEY, 0.0).ungates
    assert ungate.gates == TOPOLOGY
    assert act(machine) == ["pod-0"]
    machine.handle(PodSeen(pod("only").gates(ELASTIC).build()))
    assert act(machine) == [], "nothing to take off, and it counts as released"
    assert machine.expectations == {}


@pytest.mark.field_note("E16")
def test_without_the_annotation_slices_and_folded_uids_change_nothing() -> None:
    plain = workload(podset((R1, 1)), merged=("x",))
    machine = machine_with(plain, slice_of(plain, podset((R2, 3))), pods=4, gates=TOPOLOGY)
    assert act(machine) == ["pod-0"]


@pytest.mark.field_note("E11")
def test_a_workload_that_is_no_slice_any_more_admits_no_longer() -> None:
    grown = slice_of(PARENT, counted(2))
    machine = machine_with(PARENT, grown, pods=3)
    machine.handle(WorkloadSeen(msgspec.structs.replace(grown, parent=None, version=9)))
    assert act(machine) == ["pod-0"]


@pytest.mark.field_note("E11")
def test_a_slice_that_was_given_to_another_parent_admits_no_longer() -> None:
    grown = slice_of(PARENT, counted(2))
    machine = machine_with(PARENT, grown, pods=3)
    other = msgspec.structs.replace(PARENT, name="other", uid="other", version=3)
    machine.handle(WorkloadSeen(slice_of(other, counted(2), name=grown.name, version=4)))
    assert act(machine) == ["pod-0"]
    gone(machine, grown)
    assert all(not group.slices for group in machine.workload_states.values())


@pytest.mark.requirement("SLC-14", "SLC-15", "UNG-11")
def test_a_live_list_that_admits_less_stops_the_plan() -> None:
    grown = slice_of(PARENT, counted(1))
    machine = machine_with(PARENT, grown, pods=4)
    less = slice_of(PARENT, counted(1), admitted=False)
    merged = elastic(counted(2), merged=("slice-0",))
    assert machine.is_still_admitted(KEY, [PARENT, grown])
    assert machine.is_still_admitted(KEY, [merged]), "merged and gone is as much"
    assert machine.is_still_admitted(KEY, [merged, grown])
    assert machine.is_still_admitted(KEY, [elastic(counted(9)), grown]), "more is no harm"
    assert not machine.is_still_admitted(KEY, [PARENT, less])
    machine.handle(WorkloadSeen(slice_of(PARENT, counted(1), uid="slice-1")))
    assert not machine.is_still_admitted(KEY, [merged, grown]), (
        "three are acted on, two are granted"
    )
    assert not machine.is_still_admitted(KEY, [PARENT])
    assert not machine.is_still_admitted(KEY, [grown])
    assert not machine.is_still_admitted(KEY, [elastic(counted(9), admitted=False), grown])


@pytest.mark.requirement("UNG-11", "UNG-15")
def test_a_parent_made_again_is_not_what_was_planned_for() -> None:
    """Its UID may be in another shard, so another replica may act on it by now."""
    machine = machine_with(PARENT, pods=2)
    anew = elastic(counted(9), uid="anew")
    assert not machine.is_still_admitted(KEY, [anew])
    assert not machine.is_still_admitted(KEY, [anew, slice_of(anew, counted(9))])


@pytest.mark.requirement("SLC-36", "UNG-11")
def test_a_live_list_is_compared_domain_by_domain() -> None:
    parent = elastic(podset((R1, 2), (R2, 1)))
    machine = machine_with(parent, pods=3, gates=BOTH)
    assert machine.is_still_admitted(KEY, [elastic(podset((R2, 1), (R3, 1), (R1, 2)))])
    assert not machine.is_still_admitted(KEY, [elastic(podset((R1, 1), (R2, 2)))])
    assert not machine.is_still_admitted(KEY, [elastic(counted(3))])
    swapped = elastic(podset((R1, 2), (R2, 1)), unhealthy=("node-7",))
    assert not machine.is_still_admitted(KEY, [swapped])
