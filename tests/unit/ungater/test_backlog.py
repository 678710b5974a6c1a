from __future__ import annotations

import pytest

from rackgate_ungater.machine.backlog import Backlog
from rackgate_ungater.machine.events import PodGone, PodSeen, WorkloadSeen
from rackgate_ungater.machine.machine import Machine
from rackgate_ungater.machine.rows import ELASTIC, PodUid
from rackgate_ungater.machine.state import Limits
from tests.unit.ungater.builders import R1, counted, elastic, pod, podset, workload


def machine_with(*pods: PodSeen, granting: bool = True) -> Machine:
    machine = Machine(Limits())
    machine.handle(WorkloadSeen(workload(podset((R1, 4)), granting=granting)))
    for event in pods:
        machine.handle(event)
    return machine


@pytest.mark.requirement("OPS-09")
def test_the_longest_wait_is_that_of_the_pod_seen_first() -> None:
    machine, backlog = machine_with(PodSeen(pod(0).row())), Backlog()
    assert backlog.longest_s(5.0) == 0.0
    backlog.look(machine.groups.values(), 10.0)
    machine.handle(PodSeen(pod(1).row()))
    backlog.look(machine.groups.values(), 70.0)
    assert len(backlog.since) == 2
    assert backlog.longest_s(100.0) == 90.0
    machine.handle(PodGone(PodUid("uid-pod-0")))
    backlog.look(machine.groups.values(), 130.0)
    assert backlog.longest_s(130.0) == 60.0


def test_pods_that_nothing_waits_for_do_not_count() -> None:
    """Released, on their way out, or of a Workload that is not admitted."""
    backlog = Backlog()
    released = [PodSeen(pod(0).ungated(R1).row()), PodSeen(pod(1).terminating().row())]
    backlog.look(machine_with(*released).groups.values(), 1.0)
    assert backlog.since == {}
    backlog.look(machine_with(PodSeen(pod(2).row()), granting=False).groups.values(), 1.0)
    assert backlog.since == {}


@pytest.mark.requirement("SLC-30")
def test_pods_that_wait_for_slices_are_not_late() -> None:
    machine, backlog = Machine(Limits()), Backlog()
    machine.handle(WorkloadSeen(elastic(counted(2))))
    machine.handle(PodSeen(pod(0).free().row()))
    for number in (1, 2, 3):
        machine.handle(PodSeen(pod(number).gates(ELASTIC).row()))
    backlog.look(machine.groups.values(), 1.0)
    assert len(backlog.since) == 1, "one place is free"
    (late,) = backlog.since
    machine.handle(WorkloadSeen(elastic(counted(3), version=2)))
    backlog.look(machine.groups.values(), 5.0)
    assert len(backlog.since) == 2
    assert backlog.since[late] == 1.0
