from __future__ import annotations

import pytest

from rackgate_ungater.state_machine.events import PodGone, PodSeen, WorkloadSeen
from rackgate_ungater.state_machine.gated_objects import ELASTIC, PodUid
from rackgate_ungater.state_machine.queue import Backlog
from rackgate_ungater.state_machine.records import Timeouts
from rackgate_ungater.state_machine.state_machine import StateMachine
from tests.unit.ungater.builders import R1, counted, elastic, pod, podset, workload


def machine_with(*pods: PodSeen, admitted: bool = True) -> StateMachine:
    machine = StateMachine(Timeouts())
    machine.handle(WorkloadSeen(workload(podset((R1, 4)), admitted=admitted)))
    for event in pods:
        machine.handle(event)
    return machine


@pytest.mark.requirement("OPS-09")
def test_the_longest_wait_is_that_of_the_pod_seen_first() -> None:
    machine, backlog = machine_with(PodSeen(pod(0).build())), Backlog()
    assert backlog.longest_s(5.0) == 0.0
    backlog.update(machine.workload_states.values(), machine.owners, 10.0)
    machine.handle(PodSeen(pod(1).build()))
    backlog.update(machine.workload_states.values(), machine.owners, 70.0)
    assert len(backlog.since) == 2
    assert backlog.longest_s(100.0) == 90.0
    machine.handle(PodGone(PodUid("uid-pod-0")))
    backlog.update(machine.workload_states.values(), machine.owners, 130.0)
    assert backlog.longest_s(130.0) == 60.0


def test_pods_that_nothing_waits_for_do_not_count() -> None:
    """Released, on their way out, or of a Workload that is not admitted."""
    backlog = Backlog()
    released = [PodSeen(pod(0).ungated(R1).build()), PodSeen(pod(1).terminating().build())]
    machine = machine_with(*released)
    backlog.update(machine.workload_states.values(), machine.owners, 1.0)
    assert backlog.since == {}
    machine = machine_with(PodSeen(pod(2).build()), admitted=False)
    backlog.update(machine.workload_states.values(), machine.owners, 1.0)
    assert backlog.since == {}


@pytest.mark.requirement("SLC-30")
def test_pods_that_wait_for_slices_are_not_late() -> None:
    machine, backlog = StateMachine(Timeouts()), Backlog()
    machine.handle(WorkloadSeen(elastic(counted(2))))
    machine.handle(PodSeen(pod(0).free().build()))
    for number in (1, 2, 3):
        machine.handle(PodSeen(pod(number).gates(ELASTIC).build()))
    backlog.update(machine.workload_states.values(), machine.owners, 1.0)
    assert len(backlog.since) == 1, "one place is free"
    (late,) = backlog.since
    machine.handle(WorkloadSeen(elastic(counted(3), version=2)))
    backlog.update(machine.workload_states.values(), machine.owners, 5.0)
    assert len(backlog.since) == 2
    assert backlog.since[late] == 1.0
