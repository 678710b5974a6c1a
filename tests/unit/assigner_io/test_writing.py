from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.jobframework.injection import StartConflict
from rackgate.topology.assignment import TopologyAssignment, decode
from rackgate.wire.kueue import Admission, QueueStatus, RequeueState, ResourceFlavor
from rackgate_assigner.jobs.state import merge_node_labels
from rackgate_assigner.queues.status import status_body, status_differs
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload.status import (
    NO_REQUEUE,
    admission_of,
    current_admission,
    leftover_ops,
)
from tests.unit.assigner_io.builders import workload

WANTED: dict[str, Any] = {
    "conditions": [{"type": "Active", "status": "True", "reason": "Ready", "message": "ok"}],
    "pendingWorkloads": 1,
    "reservingWorkloads": 2,
    "admittedWorkloads": 2,
    "flavorsReservation": [{"name": "tas", "resources": [{"name": "cpu", "total": "4"}]}],
    "flavorsUsage": [],
}


@pytest.mark.requirement("TAS-11", "TAS-16")
def test_an_admission_is_written_with_amounts_as_quantities_and_domains_in_order() -> None:
    places = TopologyAssignment(("kubernetes.io/hostname",), ((("n2",), 3), (("n1",), 1)))
    usage = {"cpu": 1500, "memory": 2**30}
    assignment = Assignment("cq", (PodSetAssignment("main", {"cpu": "tas"}, usage, 4, places),))
    written = admission_of(assignment)
    assert written["clusterQueue"] == "cq"
    part = written["podSetAssignments"][0]
    assert part["resourceUsage"] == {"cpu": "1500m", "memory": "1Gi"}
    assert decode(part["topologyAssignment"]) == places


def test_an_admission_is_stated_again_as_it_is() -> None:
    for topology in (False, True):
        own = workload(admitted=True, topology=topology)
        stated = current_admission(own)
        assert msgspec.convert(stated, Admission) == own.status.admission
        assert ("topologyAssignment" in str(stated)) is topology
    assert current_admission(workload()) is None


@pytest.mark.parametrize(
    ("written", "admission", "requeue", "left"),
    [
        (("Evicted",), True, None, ["conditions/2"]),
        (("Evicted", "Requeued"), True, None, []),
        ((), True, None, ["conditions/2", "conditions/0"]),
        (("Evicted", "Requeued"), False, None, ["admission"]),
        (("Evicted", "Requeued"), True, RequeueState(2), ["requeueState/requeueAt"]),
        (("Evicted", "Requeued"), True, RequeueState(2, "2026-08-01T12:00:00Z"), []),
        (("Evicted", "Requeued"), True, NO_REQUEUE, ["requeueState"]),
    ],
)
def test_what_an_apply_leaves_out_and_is_still_there_is_removed(
    written: tuple[str, ...], admission: bool, requeue: RequeueState | None, left: list[str]
) -> None:
    told = ("True", "R")
    own = workload(admitted=True, conditions={"Evicted": told, "PodsReady": told, "Requeued": told})
    tries = RequeueState(1, "2026-08-01T12:00:00Z")
    own = msgspec.structs.replace(
        own, status=msgspec.structs.replace(own.status, requeue_state=tries)
    )
    applied = [{"type": type_} for type_ in written]
    types = ("Evicted", "Requeued")
    found = leftover_ops(own, types, applied, admission=admission, requeue=requeue)
    assert found == [{"op": "remove", "path": f"/status/{path}"} for path in left]
    bare = leftover_ops(workload(), types, [], admission=False, requeue=NO_REQUEUE)
    assert bare == []


def test_a_queue_is_written_only_when_its_status_says_something_else() -> None:
    present = msgspec.convert(WANTED, QueueStatus)
    assert not status_differs(present, WANTED)
    assert status_differs(QueueStatus(), WANTED)
    for field in ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads"):
        assert status_differs(present, {**WANTED, field: 9})
    assert status_differs(present, {**WANTED, "flavorsReservation": []})
    stopped = {**WANTED["conditions"][0], "status": "False", "reason": "Stopped"}
    assert status_differs(present, {**WANTED, "conditions": [stopped]})


def test_the_time_of_a_queues_condition_moves_only_with_its_status() -> None:
    old = {**WANTED["conditions"][0], "lastTransitionTime": "2026-08-01T12:00:00Z"}
    present = msgspec.convert({**WANTED, "conditions": [old]}, QueueStatus)
    renamed = {**WANTED, "conditions": [{**WANTED["conditions"][0], "message": "new"}]}
    body = status_body(present, renamed, 5, "2026-08-02T00:00:00Z")
    assert body["conditions"][0]["lastTransitionTime"] == old["lastTransitionTime"]
    assert body["conditions"][0]["observedGeneration"] == 5


def test_flavors_that_disagree_about_a_label_cannot_start_a_job() -> None:
    def flavor(**labels: str) -> ResourceFlavor:
        return msgspec.convert({"spec": {"nodeLabels": labels}}, ResourceFlavor)

    assert merge_node_labels([flavor(a="1"), flavor(b="2")]) == {"a": "1", "b": "2"}
    assert isinstance(merge_node_labels([flavor(a="1"), flavor(a="2")]), StartConflict)
