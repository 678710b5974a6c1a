"""Plain pods in the ungater: to which group they belong, and which gates one write removes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.jobframework.pod_group.membership import uid_of_group
from rackgate_ungater.state_machine.events import PodSeen, WorkloadSeen
from rackgate_ungater.state_machine.gated_objects import (
    ADMISSION,
    GANG,
    TOPOLOGY,
    GatedPod,
    decode_pod,
    decode_workload,
)
from rackgate_ungater.state_machine.state_machine import StateMachine
from rackgate_ungater.writer import patch_tail
from tests.unit.ungater.builders import R1, pod, podset, workload
from tests.unit.ungater.test_rows import pod_json, workload_json

GROUP = uid_of_group("team", "train")


def stored(**labels: str) -> GatedPod:
    document = pod_json(
        metadata__labels={names.PODSET_LABEL: "main", names.TAS_LABEL: "true", **labels},
        metadata__ownerReferences=[],
        spec__schedulingGates=[{"name": names.ADMISSION_GATE}],
    )
    return decode_pod(msgspec.json.encode(document))


def test_a_pod_says_by_reserved_labels_to_which_group_it_belongs() -> None:
    managed = {names.MANAGED_LABEL: "true"}
    assert stored().group_uid == ""
    assert stored(**managed).group_uid == "u1"
    assert stored(**managed, **{names.POD_GROUP_LABEL: "train"}).group_uid == GROUP
    assert stored(**managed).gates == ADMISSION


def test_the_workload_of_a_group_has_its_pods_as_owners() -> None:
    document = workload_json()
    document["metadata"] |= {
        "ownerReferences": [{"kind": "Pod", "apiVersion": "v1", "uid": "u1"}],
        "annotations": {names.GROUP_WORKLOAD_ANNOTATION: "true"},
        "labels": {names.JOB_UID_LABEL: GROUP},
    }
    found = decode_workload(msgspec.json.encode(document))
    assert (found.owner_uid, found.of_plain_pods) == (GROUP, True)
    document["metadata"]["ownerReferences"][0]["controller"] = True
    found = decode_workload(msgspec.json.encode(document))
    assert (found.owner_uid, found.of_plain_pods) == ("u1", True)


@pytest.mark.requirement("UNG-20")
@pytest.mark.parametrize(
    ("facts", "ungated"),
    [
        ({"owner_uid": "", "group_uid": GROUP}, True),
        ({"owner_uid": "statefulset", "group_uid": GROUP}, True),
        ({"owner_uid": GROUP, "group_uid": ""}, False),
        ({"owner_uid": "", "group_uid": "another"}, False),
    ],
    ids=["alone", "of a controller", "of a job", "of another group"],
)
def test_only_pods_of_the_group_get_its_domains(facts: dict[str, Any], ungated: bool) -> None:
    machine = StateMachine()
    group = msgspec.structs.replace(workload(podset((R1, 1)), of_plain_pods=True), owner_uid=GROUP)
    found = msgspec.structs.replace(pod().build(), gates=ADMISSION, **facts)
    machine.handle(WorkloadSeen(group))
    machine.handle(PodSeen(found))
    ungates = machine.propose(found.workload_key, 0.0).ungates
    assert [ungate.domain for ungate in ungates] == ([R1] if ungated else [])
    assert all(ungate.gates == TOPOLOGY | ADMISSION for ungate in ungates)


@pytest.mark.parametrize("gangs", [False, True])
def test_the_gate_of_gangs_is_another_one(gangs: bool) -> None:
    document = pod_json(
        metadata__labels={names.PODSET_LABEL: "main", names.MANAGED_LABEL: "true"},
        spec__schedulingGates=[{"name": names.ADMISSION_GATE}, {"name": names.GANG_GATE}],
    )
    found = decode_pod(msgspec.json.encode(document), gangs=gangs)
    assert found.gates == (ADMISSION | GANG if gangs else ADMISSION)
    assert found.group_uid == "u1"


def test_one_write_removes_both_gates() -> None:
    body = msgspec.json.decode(b"{" + patch_tail((), (), TOPOLOGY | ADMISSION)[1:])
    assert {gate["name"] for gate in body["spec"]["schedulingGates"]} == {
        names.ADMISSION_GATE,
        names.TOPOLOGY_GATE,
    }
