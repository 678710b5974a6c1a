"""Writes that met a newer version: what they write, and what they are bound to (ADR 75)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rackgate.api.names import FieldManager
from rackgate.wire.kueue import Workload
from rackgate_assigner.watches import decode_workload
from rackgate_assigner.workload.newer_version import status_ops, unchanged_tests

pytestmark = pytest.mark.requirement("OPS-07")

Manifest = dict[str, Any]


def condition(type_: str, status: str = "True") -> Manifest:
    return {
        "type": type_,
        "status": status,
        "reason": "Any",
        "message": "",
        "observedGeneration": 1,
    }


ADMISSION = {"clusterQueue": "cq", "podSetAssignments": []}
STORED: Manifest = {
    "metadata": {
        "name": "w",
        "namespace": "team",
        "uid": "u",
        "resourceVersion": "7",
        "annotations": {"example.com/note": "1"},
        "finalizers": ["kueue.x-k8s.io/resource-in-use"],
    },
    "spec": {"queueName": "queue", "active": True, "podSets": [{"name": "main", "template": {}}]},
    "status": {
        "conditions": [condition("Admitted"), condition("Other"), condition("PodsReady")],
        "admission": ADMISSION,
        "unhealthyNodes": [{"name": "n1"}],
        "clusterName": "elsewhere",
    },
}


def changed(**parts: Any) -> bytes:
    """The stored Workload with other parts of its metadata, spec or status."""
    newer = json.loads(json.dumps(STORED))
    for part, values in parts.items():
        newer[part].update(values)
    newer["metadata"]["resourceVersion"] = "8"
    return msgspec.json.encode(newer)


def decided() -> Workload:
    return decode_workload(msgspec.json.encode(STORED))


def apply(**status: Any) -> bytes:
    return msgspec.json.encode({"metadata": {"resourceVersion": "7"}, "status": status})


def written(newer: bytes, body: bytes, manager: FieldManager) -> Manifest:
    """The status that the operations write."""
    test, write = status_ops(decided(), newer, body, manager)
    assert test == {"op": "test", "path": "/status", "value": json.loads(newer)["status"]}
    assert (write["op"], write["path"]) == ("replace", "/status")
    found: Manifest = json.loads(msgspec.json.encode(write["value"]))
    return found


def test_a_manager_writes_all_that_it_owns_and_nothing_else() -> None:
    newer = changed(metadata={"annotations": {"example.com/note": "2"}}, spec={"active": False})
    body = apply(conditions=[condition("Evicted"), condition("Admitted")], admission=ADMISSION)
    status = written(newer, body, FieldManager.ADMISSION)
    types = [found["type"] for found in status["conditions"]]
    assert types == ["Admitted", "Other", "PodsReady", "Evicted"]
    assert "unhealthyNodes" not in status
    assert (status["clusterName"], status["admission"]) == ("elsewhere", ADMISSION)
    ended = written(newer, apply(conditions=[condition("Evicted")]), FieldManager.ADMISSION)
    assert "admission" not in ended
    assert [found["type"] for found in ended["conditions"]] == ["Other", "PodsReady", "Evicted"]


def test_the_manager_of_jobs_owns_conditions_alone() -> None:
    body = apply(conditions=[condition("Finished")])
    status = written(changed(), body, FieldManager.JOB)
    types = [found["type"] for found in status["conditions"]]
    assert types == ["Admitted", "Other", "Finished"]
    assert status["unhealthyNodes"] == [{"name": "n1"}]


@pytest.mark.parametrize(
    "newer",
    [
        changed(status={"admission": {**ADMISSION, "clusterQueue": "another"}}),
        changed(status={"conditions": [condition("Finished")]}),
        changed(metadata={"uid": "another"}),
    ],
)
def test_another_status_and_another_object_are_left_alone(newer: bytes) -> None:
    body = apply(conditions=[condition("Evicted")], admission=ADMISSION)
    assert status_ops(decided(), newer, body, FieldManager.ADMISSION) == []


@pytest.mark.parametrize("status", [None, {"conditions": [condition("QuotaReserved", "False")]}])
def test_why_a_workload_is_pending_is_not_written_to_another_version(
    status: Manifest | None,
) -> None:
    """It is about the spec; and that there is no status yet, no patch can test."""
    pending = json.loads(changed())
    pending["status"] = status
    newer = msgspec.json.encode({key: value for key, value in pending.items() if value is not None})
    body = apply(conditions=[condition("QuotaReserved", "False")])
    assert status_ops(decode_workload(newer), newer, body, FieldManager.ADMISSION) == []


OP = {"op": "add", "path": "/spec/priority", "value": 1}


def test_a_patch_is_bound_to_all_but_notes() -> None:
    newer = changed(metadata={"annotations": {}, "labels": {"example.com/a": "b"}})
    paths = [test["path"] for test in unchanged_tests(decided(), newer, [OP])]
    assert paths == ["/spec", "/status", "/metadata/finalizers"]


@pytest.mark.parametrize(
    "newer",
    [
        changed(spec={"active": False}),
        changed(spec={"podSets": [{"name": "main", "template": {"metadata": {}}}]}),
        changed(status={"admission": None}),
        changed(metadata={"finalizers": []}),
        changed(metadata={"deletionTimestamp": "2026-08-01T12:00:00Z"}),
        changed(metadata={"ownerReferences": [{"kind": "Job", "name": "j", "uid": "v"}]}),
        changed(metadata={"uid": "another"}),
    ],
)
def test_a_patch_of_what_has_changed_is_not_repeated(newer: bytes) -> None:
    assert unchanged_tests(decided(), newer, [OP]) == []


def test_a_patch_of_a_workload_that_may_get_quota_meanwhile_is_not_repeated() -> None:
    bare = json.loads(changed())
    del bare["status"]
    newer = msgspec.json.encode(bare)
    assert unchanged_tests(decode_workload(newer), newer, [OP]) == []


def test_a_patch_does_not_replace_annotations_that_came_meanwhile() -> None:
    whole = {"op": "add", "path": "/metadata/annotations", "value": {}}
    assert unchanged_tests(decided(), changed(), [whole]) == []
