"""When the batch of a Workload closes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from rackgate.gang.forms.expand import expand
from rackgate_ungater.state_machine.child_jobs import ChildJobOwners
from rackgate_ungater.state_machine.events import (
    Event,
    Failure,
    JobSeen,
    PodGone,
    PodSeen,
    UngateFailed,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gang_workloads import GangWorkload
from rackgate_ungater.state_machine.gated_objects import (
    ELASTIC,
    TOPOLOGY,
    GatedPod,
    GatedWorkload,
    PodUid,
    WorkloadKey,
)
from rackgate_ungater.state_machine.queue import (
    MAX_REMEMBERED,
    WINDOWS_OF_INCOMPLETE_GANGS,
    BatchTimer,
    missing_pods,
)
from rackgate_ungater.state_machine.state_machine import StateMachine
from tests.unit.ungater.builders import (
    R1,
    R2,
    PodBuilder,
    counted,
    elastic,
    gang_pod,
    pod,
    podset,
    slice_of,
    workload,
)

pytestmark = pytest.mark.requirement("UNG-04")
KEY = WorkloadKey("team/train")
JOB_INDEX = "jobset.sigs.k8s.io/job-index"


class Counted(ChildJobOwners):
    """Counts how often all pods are gone through."""

    counts = 0

    def pods_of(
        self, workload: GatedWorkload, pods: Iterable[GatedPod], *, assignment: object
    ) -> list[GatedPod]:
        self.counts += 1
        return super().pods_of(workload, pods, assignment=assignment)


class Room:
    """A machine, and how long each event lets the next look wait."""

    def __init__(self, row: GatedWorkload, window_s: float = 1.0) -> None:
        self.machine = StateMachine()
        self.batches: BatchTimer[WorkloadKey] = BatchTimer(window_s)
        self.now = 100.0
        self.hear(WorkloadSeen(row))

    def hear(self, event: Event) -> float | None:
        """Seconds until a look is due; None when the event brings no work."""
        self.now += 0.001
        if self.machine.handle(event) is None:
            return None
        one_pod = isinstance(event, PodSeen | PodGone)
        group, owners = self.machine.workload_states[KEY], self.machine.owners
        return self.batches.wait_s(KEY, group, owners, self.now, one_pod=one_pod)

    def comes(self, *pods: PodBuilder) -> list[float | None]:
        return [self.hear(PodSeen(one.build())) for one in pods]

    def comes_in_gang(self, *numbers: int) -> list[float | None]:
        members = [gang_pod(pod(number).rank(number).build()) for number in numbers]
        return [self.hear(PodSeen(member)) for member in members]

    @property
    def missing(self) -> int:
        return missing_pods(self.machine.workload_states[KEY], self.machine.owners)


def test_the_last_pod_that_may_be_released_closes_the_batch() -> None:
    room = Room(workload(podset((R1, 2), (R2, 1))))
    assert room.comes(pod(0), pod(1), pod(2)) == [1.0, 1.0, 0.0]


def test_pods_of_every_podset_are_waited_for() -> None:
    room = Room(workload(podset((R1, 1)), podset((R2, 2), name="workers"), counted(5, "free")))
    workers = [pod(number).of("workers") for number in (1, 2)]
    assert room.comes(*workers, pod(0)) == [1.0, 1.0, 0.0]


def test_a_pod_that_takes_the_place_of_one_that_went_waits_for_no_other() -> None:
    room = Room(workload(podset((R1, 3))))
    room.comes(*(pod(number).ungated(R1) for number in range(3)))
    room.hear(PodGone(PodUid("uid-pod-1")))
    assert room.comes(pod("again")) == [0.0]


def test_places_of_pods_that_end_are_taken_and_pods_that_are_done_leave_none() -> None:
    room = Room(workload(podset((R1, 4), reclaimable=1)))
    room.comes(pod(0).ungated(R1).terminating())
    assert room.comes(pod(1), pod(2)) == [1.0, 0.0]


def test_where_nothing_may_be_released_nothing_is_early() -> None:
    room = Room(workload(podset((R1, 2))))
    room.comes(pod(0).ungated(R1), pod(1).ungated(R1))
    assert room.comes(pod(2), pod(3)) == [1.0, 1.0]
    room = Room(workload(podset((R1, 2)), admitted=False))
    assert room.comes(pod(0), pod(1)) == [1.0, 1.0]


def test_gated_pods_that_are_being_deleted_are_not_those_that_are_waited_for() -> None:
    room = Room(workload(podset((R1, 2))))
    old = [pod(f"old-{number}").terminating() for number in range(2)]
    assert room.comes(*old, pod(0), pod(1)) == [1.0, 1.0, 1.0, 0.0]


def test_a_podset_with_requests_under_way_or_rejected_is_not_early() -> None:
    room = Room(workload(podset((R1, 2))))
    room.comes(pod(0), pod(1))
    group = room.machine.workload_states[KEY]
    room.machine.expect_ungates(room.machine.propose(KEY, room.now).ungates[:1], room.now)
    assert room.missing == 1
    state = group.podsets["main"]
    assert (len(state.expected), len(state.rejected)) == (1, 0)
    room.hear(UngateFailed(PodUid("uid-pod-0"), "1", Failure.REJECTED, room.now))
    assert (len(state.expected), len(state.rejected)) == (0, 1)
    assert room.missing == 1
    assert room.comes(pod(2)) == [1.0]


def test_pods_of_somebody_else_are_not_those_that_are_waited_for() -> None:
    room = Room(workload(podset((R1, 2))))
    assert room.comes(pod(0), pod("foreign").of(owner="other"), pod(1)) == [1.0, 1.0, 0.0]


def test_pods_of_a_jobset_are_waited_for_until_their_job_is_known() -> None:
    room = Room(workload(podset((R1, 2)), owned_by_jobset=True))
    child = [pod(number).of(owner="child").label(JOB_INDEX, 0) for number in range(2)]
    assert room.comes(*child) == [1.0, 1.0]
    owner = room.machine.workload_states[KEY].workload
    assert owner is not None
    assert room.hear(JobSeen("child", owner.owner_uid)) == 0.0


def test_an_elastic_job_waits_for_as_many_as_it_and_its_slices_were_admitted() -> None:
    parent = elastic(podset((R1, 2)))
    room = Room(parent)
    gated = [pod(number).gates(TOPOLOGY | ELASTIC) for number in range(4)]
    assert room.comes(gated[0], gated[1], gated[2]) == [1.0, 0.0, 0.0]
    room = Room(parent)
    room.hear(WorkloadSeen(slice_of(parent, podset((R2, 1)))))
    assert room.comes(*gated) == [1.0, 1.0, 0.0, 0.0]


def test_after_a_look_the_next_one_waits_for_the_rest_of_the_window() -> None:
    """Pods that change or fail again and again cost one look per window."""
    room = Room(workload(podset((R1, 1))))
    assert room.comes(pod(0)) == [0.0]
    looked = room.now
    room.batches.reconcile_started(KEY, looked)
    assert room.comes(*(pod(0).at(version) for version in range(2, 50))) == [None] * 48
    room.now += 0.8
    room.hear(PodGone(PodUid("uid-pod-0")))
    [rest_s] = room.comes(pod(1))
    assert rest_s == pytest.approx(looked + 1.0 - room.now)
    assert looked + 0.8 < room.now < looked + 0.9
    room.now = looked + 1.0
    room.hear(PodGone(PodUid("uid-pod-1")))
    assert room.comes(pod(2)) == [0.0]


def test_pods_are_counted_again_only_after_as_many_have_come_as_were_missing() -> None:
    """Else each of n pods would cost a look at n pods."""
    room = Room(workload(podset((R1, 1000))))
    room.comes(*(pod(f"old-{number}").terminating() for number in range(1000)))
    room.machine.owners = counted_owners = Counted()
    waits = room.comes(*(pod(number) for number in range(1000)))
    assert waits == [*[1.0] * 999, 0.0]
    assert counted_owners.counts <= 3


WAITS = WINDOWS_OF_INCOMPLETE_GANGS * 1.0


def room_of_gang(least: int) -> Room:
    room = Room(workload(podset((R1, 6)), admitted_at="2026-01-01T00:00:00Z"))
    spec = expand({"gangGroups": [{"name": "gg", "minCount": least}]})
    room.machine.set_gang_workload("team/train", GangWorkload("team", "train", "w", "1", spec))
    return room


def test_a_gang_that_is_missing_pods_waits_for_them_and_not_for_the_window() -> None:
    room = room_of_gang(4)
    assert room.comes_in_gang(0, 1, 2) == [WAITS] * 3
    room.batches.reconcile_started(KEY, room.now)
    room.hear(PodGone(PodUid("uid-pod-0")))
    assert room.comes_in_gang(3, 4) == [WAITS, 0.0]


def test_a_gang_that_is_complete_is_looked_at_once_in_a_window() -> None:
    room = room_of_gang(2)
    assert room.comes_in_gang(0, 1) == [WAITS, 0.0]
    room.batches.reconcile_started(KEY, room.now)
    [rest_s] = room.comes_in_gang(2)
    assert rest_s is not None
    assert rest_s < 1.0


def test_pods_outside_of_a_gang_that_is_missing_pods_wait_for_one_window() -> None:
    room = room_of_gang(4)
    assert room.comes_in_gang(0) == [WAITS]
    assert room.comes(pod(7)) == [1.0]
    assert room.comes_in_gang(1) == [1.0]


def test_what_is_not_about_one_pod_of_an_incomplete_gang_waits_for_one_window() -> None:
    """An admission, for example: PodGroups of the previous run are deleted soon."""
    room = room_of_gang(4)
    room.comes_in_gang(0)
    state, owners = room.machine.workload_states[KEY], room.machine.owners
    assert room.batches.wait_s(KEY, state, owners, room.now, one_pod=False) == 1.0


def test_a_request_under_way_of_an_incomplete_gang_waits_for_one_window() -> None:
    room = room_of_gang(4)
    room.comes_in_gang(0)
    room.machine.workload_states[KEY].podsets["main"].expected.add(PodUid("uid-pod-0"))
    assert room.comes_in_gang(1) == [1.0]


def test_what_is_remembered_has_a_limit() -> None:
    batches: BatchTimer[str] = BatchTimer(1.0)
    for number in range(3 * MAX_REMEMBERED):
        batches.reconcile_started(str(number), number / MAX_REMEMBERED)
    assert len(batches._reconciled_at) <= 2 * MAX_REMEMBERED
    batches.reconcile_started("last", 9.0)
    batches.forget("last")
    assert "last" not in batches._reconciled_at
