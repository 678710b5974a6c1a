"""Projection of watched objects to rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.jobframework.managed import is_tas_pod
from rackgate_ungater.state_machine.events import PodSeen, WorkloadSeen
from rackgate_ungater.state_machine.gated_objects import (
    ELASTIC,
    TOPOLOGY,
    decode_pod,
    decode_workload,
)
from rackgate_ungater.state_machine.state_machine import StateMachine
from tests.unit.ungater.builders import OWNER, R1, podset, workload

LONG = "job-" + "x" * 200


def pod_json(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "metadata": {
            "name": "train-0",
            "namespace": "team",
            "uid": "u1",
            "resourceVersion": "42",
            "labels": {names.PODSET_LABEL: "main", names.TAS_LABEL: "true", "rank": "7"},
            "annotations": {names.WORKLOAD_ANNOTATION: LONG},
            "ownerReferences": [
                {"uid": "other", "kind": "X", "name": "x"},
                {"uid": "job", "kind": "Job", "name": "train", "controller": True},
            ],
        },
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "schedulingGates": [{"name": "foreign"}, {"name": names.TOPOLOGY_GATE}],
            "nodeSelector": {"disk": "ssd"},
        },
        "status": {"phase": "Pending"},
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        document[section][key] = value
    return document


def row(**changes: Any) -> Any:
    return decode_pod(msgspec.json.encode(pod_json(**changes)))


@pytest.mark.requirement("UNG-02")
def test_a_pod_names_its_workload_by_an_annotation_longer_than_a_label() -> None:
    found = row()
    assert found.workload_key == f"team/{LONG}"
    assert (found.podset, found.owner_uid, found.version) == ("main", "job", 42)
    assert found.gated
    assert found.indices == {"rank": 7}
    assert found.selector == {"disk": "ssd"}


@pytest.mark.requirement("UNG-02")
@pytest.mark.field_note("U8")
@pytest.mark.parametrize("annotation", names.TOPOLOGY_ANNOTATIONS)
def test_a_pod_is_ours_by_its_marks_whichever_annotation_asked_for_topology(
    annotation: str,
) -> None:
    """One annotation alone, the slice one included, changes nothing of what is released."""
    annotations = {names.WORKLOAD_ANNOTATION: "train", annotation: "rack"}
    found = row(metadata__annotations=annotations)
    assert is_tas_pod(found.owner_uid, "job", assignment=b"{}")
    assert found.gated
    found = msgspec.structs.replace(found, workload="train", owner_uid=OWNER)
    machine = StateMachine()
    machine.handle(WorkloadSeen(workload(podset((R1, 1)))))
    machine.handle(PodSeen(found))
    (ungate,) = machine.propose(found.workload_key, 0.0).ungates
    assert ungate.domain == R1


def test_a_pod_with_only_foreign_gates_is_not_gated() -> None:
    assert not row(spec__schedulingGates=[{"name": "foreign"}]).gated


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_an_ended_pod_is_terminal(phase: str) -> None:
    assert row(status__phase=phase).terminal


def test_a_deletion_timestamp_makes_a_pod_terminating() -> None:
    assert row(metadata__deletionTimestamp="2026-01-01T00:00:00Z").terminating
    assert row(metadata__deletionGracePeriodSeconds=40).grace_s == 40.0


@pytest.mark.parametrize("value", ["-1", "1.0", "", "١", "9" * 30, "x"])
@pytest.mark.requirement("RNK-06")
def test_a_label_that_is_no_small_whole_number_is_no_index(value: str) -> None:
    assert row(metadata__labels={"rank": value}).indices == {}


def test_a_pod_without_owner_or_labels_is_read() -> None:
    bare = decode_pod(b'{"metadata":{"name":"x","uid":"u"},"spec":{}}')
    assert (bare.workload, bare.podset, bare.owner_uid, bare.gated) == ("", "", "", False)


def workload_json() -> dict[str, Any]:
    return {
        "metadata": {
            "name": "w",
            "namespace": "team",
            "uid": "wu",
            "resourceVersion": "9",
            "ownerReferences": [{"uid": "job", "controller": True}],
        },
        "spec": {
            "podSets": [
                {
                    "name": "main",
                    "count": 2,
                    "template": {"spec": {"containers": []}},
                    "topologyRequest": {"required": "rack", "podIndexLabel": "idx"},
                }
            ]
        },
        "status": {
            "conditions": [
                {
                    "type": "Admitted",
                    "status": "True",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            "admission": {
                "clusterQueue": "cq",
                "podSetAssignments": [
                    {"name": "main", "count": 2, "topologyAssignment": {"levels": ["rack"]}}
                ],
            },
        },
    }


def test_a_workload_row_keeps_the_assignment_as_bytes() -> None:
    found = decode_workload(msgspec.json.encode(workload_json()))
    assert found.admitted
    assert found.owner_uid == "job"
    assert found.cluster_queue == "cq"
    (podset,) = found.podsets
    assert podset.assignment == b'{"levels":["rack"]}'
    assert podset.pod_index_label == "idx"


@pytest.mark.requirement("UNG-11")
@pytest.mark.parametrize(
    "change",
    [
        {"status": {"conditions": []}},
        {"status": {"admission": None}},
        {"spec": {"active": False}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"evicted": "Evicted"},
        {"evicted": "Finished"},
    ],
)
def test_a_workload_that_is_not_running_admits_nothing(change: dict[str, Any]) -> None:
    document = workload_json()
    if kind := change.pop("evicted", None):
        document["status"]["conditions"].append({"type": kind, "status": "True"})
    for section, values in change.items():
        document[section].update(values)
    assert not decode_workload(msgspec.json.encode(document)).admitted


def test_a_missing_count_is_the_one_that_was_asked_for_and_zero_is_not_missing() -> None:
    document = workload_json()
    (assigned,) = document["status"]["admission"]["podSetAssignments"]
    assigned["count"] = 0
    assert decode_workload(msgspec.json.encode(document)).podsets[0].count == 0
    del assigned["count"]
    assert decode_workload(msgspec.json.encode(document)).podsets[0].count == 2
    document["spec"]["podSets"] = []
    assert decode_workload(msgspec.json.encode(document)).podsets[0].count is None


def test_a_podset_without_assignment_stays_without() -> None:
    document = workload_json()
    for value in (None, ...):
        assigned = document["status"]["admission"]["podSetAssignments"][0]
        if value is None:
            assigned["topologyAssignment"] = None
        else:
            del assigned["topologyAssignment"]
        found = decode_workload(msgspec.json.encode(document))
        assert found.podsets[0].assignment is None


def test_what_is_nested_without_end_hides_neither_a_workload_nor_a_pod() -> None:
    deep = msgspec.Raw(b"[" * 5000 + b"]" * 5000)
    document = workload_json()
    plain = decode_workload(msgspec.json.encode(document))
    document["spec"]["podSets"][0]["template"] = deep
    assert decode_workload(msgspec.json.encode(document)) == plain
    assert row(metadata__managedFields=deep) == row()


@pytest.mark.requirement("UNG-20")
@pytest.mark.parametrize(
    ("gates", "bits"),
    [
        ([names.TOPOLOGY_GATE], TOPOLOGY),
        ([names.ELASTIC_GATE], ELASTIC),
        (["foreign", names.ELASTIC_GATE, names.TOPOLOGY_GATE], TOPOLOGY | ELASTIC),
    ],
)
def test_each_gate_of_ours_is_known_by_itself(gates: list[str], bits: int) -> None:
    assert row(spec__schedulingGates=[{"name": name} for name in gates]).gates == bits


def elastic_json(**metadata: Any) -> bytes:
    document = workload_json()
    document["metadata"] |= {"annotations": {names.ELASTIC_ANNOTATION: "true"}, **metadata}
    document["status"]["foldedSlices"] = [{"uid": "b", "podSet": "main"}, {"uid": "a"}]
    return msgspec.json.encode(document)


@pytest.mark.requirement("SLC-18")
def test_an_elastic_workload_names_the_slices_it_has_folded() -> None:
    found = decode_workload(elastic_json(), elastic=True)
    assert (found.elastic, found.merged, found.parent) == (True, ("a", "b"), None)


@pytest.mark.requirement("SLC-05")
@pytest.mark.parametrize(
    ("api_version", "kind", "parent"),
    [
        (names.API_VERSION, "Workload", "team/train"),
        ("example.com/v1", "Workload", None),
        ("ray.io/v1", "RayCluster", None),
    ],
)
def test_a_workload_owned_by_a_workload_is_a_slice(
    api_version: str, kind: str, parent: str | None
) -> None:
    owner = {"apiVersion": api_version, "kind": kind, "name": "train", "uid": "p"}
    raw = elastic_json(ownerReferences=[{**owner, "controller": True}])
    found = decode_workload(raw, elastic=True)
    assert (found.parent, found.owner_uid) == (parent, "p")


@pytest.mark.requirement("SLC-01")
@pytest.mark.field_note("E16")
def test_without_the_gate_or_the_annotation_no_workload_is_elastic() -> None:
    plain = decode_workload(msgspec.json.encode(workload_json()))
    assert decode_workload(elastic_json()) == plain
    for value in ("false", "True", ""):
        raw = elastic_json(annotations={names.ELASTIC_ANNOTATION: value})
        assert decode_workload(raw, elastic=True) == plain


def test_pods_that_are_done_are_reported_by_podset() -> None:
    document = workload_json()
    name = document["status"]["admission"]["podSetAssignments"][0]["name"]
    document["status"]["reclaimablePods"] = [{"name": name, "count": 2}, {"name": "x", "count": 1}]
    first, *others = decode_workload(msgspec.json.encode(document)).podsets
    assert (first.reclaimable, [other.reclaimable for other in others]) == (2, [0] * len(others))


@pytest.mark.requirement("UNG-10")
@pytest.mark.parametrize(
    ("admitted", "done", "since"),
    [
        (4, 1, 1),
        # Preempted after one had succeeded, and admitted again with those that remain.
        (3, 1, 0),
        (3, 3, 2),
        (1, 3, 0),
        (4, 9, 4),
        (None, 1, 1),
    ],
)
def test_pods_that_were_done_before_the_admission_reduce_it_no_more(
    admitted: int | None, done: int, since: int
) -> None:
    document = workload_json()
    (requested, *_), (given, *_) = (
        document["spec"]["podSets"],
        document["status"]["admission"]["podSetAssignments"],
    )
    requested["count"], given["count"] = 4, admitted
    if admitted is None:
        del given["count"]
    document["status"]["reclaimablePods"] = [{"name": given["name"], "count": done}]
    found = decode_workload(msgspec.json.encode(document)).podsets[0]
    assert (found.count, found.reclaimable) == (4 if admitted is None else admitted, since)
