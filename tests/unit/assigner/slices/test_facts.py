from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.api.workload import Workload as Model
from rackgate.wire import kueue
from rackgate.wire.kueue import MergedSlice
from rackgate_assigner.workload.info import workload_info
from rackgate_assigner.workload_slices.model import (
    NewSlice,
    Phase,
    parent_of,
    phase_of,
    slice_body,
    slice_of,
)

TEMPLATE = {"metadata": {"labels": {"x": "y"}}, "spec": {"containers": [{"name": "c"}]}}
REQUEST = {"required": "rack", "subGroupIndexLabel": "i", "subGroupCount": 2}


def parsed(**changes: Any) -> kueue.Workload:
    """A parent, as a watch decodes it: templates are raw JSON."""
    found = {
        "metadata": {
            "name": "job",
            "namespace": "team",
            "uid": "p",
            "labels": {names.JOB_UID_LABEL: "ray-1", "other": "label"},
            "annotations": {names.ELASTIC_ANNOTATION: "true"},
        },
        "spec": {
            "queueName": "lq",
            "priority": 7,
            "priorityClassRef": {
                "group": names.GROUP,
                "kind": "WorkloadPriorityClass",
                "name": "high",
            },
            "podSets": [
                {"name": "head", "count": 1, "template": {}},
                {"name": "a", "count": 4, "template": TEMPLATE, "topologyRequest": REQUEST},
            ],
        },
    }
    return decoded({**found, **changes})


def decoded(body: dict[str, Any]) -> kueue.Workload:
    return msgspec.json.decode(msgspec.json.encode(body), type=kueue.Workload)


def status(*true: str, count: int = 4) -> dict[str, Any]:
    given = {"name": "a", "count": count, "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "4"}}
    return {
        "conditions": [{"type": type_, "status": "True"} for type_ in true],
        "admission": {"clusterQueue": "cq", "podSetAssignments": [given]},
    }


@pytest.mark.requirement("SLC-05", "SLC-07", "SLC-08")
def test_a_slice_is_one_replica_of_its_parent_in_the_same_queue() -> None:
    parent = parsed()
    body = json.loads(msgspec.json.encode(slice_body(parent, NewSlice("job-a-0", "a", 2))))
    Model.model_validate(body)
    meta, spec = body["metadata"], body["spec"]
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Workload", "job", "p")
    assert meta["labels"] == {names.JOB_UID_LABEL: "ray-1"}
    assert meta["finalizers"] == [names.IN_USE_FINALIZER]
    assert (spec["queueName"], spec["priority"]) == ("lq", 7)
    assert spec["priorityClassRef"]["name"] == "high"
    (podset,) = spec["podSets"]
    assert (podset["name"], podset["count"], podset["template"]) == ("a", 2, TEMPLATE)
    assert podset["topologyRequest"] == {**REQUEST, "subGroupCount": 1}


def test_a_slice_as_made_is_read_as_one_that_fits() -> None:
    parent = parsed()
    made = decoded(slice_body(parent, NewSlice("job-a-3", "a", 2)))
    assert made.parent is not None
    found = slice_of(made, workload_info(made), parent)
    assert (found.ordinal, found.count, found.podset) == (3, 2, "a")
    assert found.matches_parent
    assert found.is_pending


@pytest.mark.requirement("SLC-08")
@pytest.mark.parametrize("field", ["template", "queue", "podset", "priority"])
def test_a_slice_that_asks_for_something_else_does_not_fit(field: str) -> None:
    parent = parsed()
    body = slice_body(parent, NewSlice("job-a-0", "a", 1))
    podset = body["spec"]["podSets"][0]
    changes: dict[str, Any] = {
        "template": {"template": {"spec": {"containers": []}}},
        "podset": {"name": "b"},
    }
    podset.update(changes.get(field, {}))
    body["spec"].update({"queue": {"queueName": "x"}, "priority": {"priority": 1}}.get(field, {}))
    other = decoded(body)
    assert not slice_of(other, workload_info(other), parent).matches_parent


def test_a_slice_of_a_parent_without_priority_fits_as_it_was_made() -> None:
    """Else it would be deleted and made anew for ever."""
    parent = parsed(spec={"podSets": [{"name": "a", "count": 4, "template": TEMPLATE}]})
    assert parent.spec.priority is None
    made = decoded(slice_body(parent, NewSlice("job-a-0", "a", 1)))
    assert slice_of(made, workload_info(made), parent).matches_parent


def test_an_admitted_slice_keeps_fitting_when_the_priority_of_its_parent_changes() -> None:
    parent = parsed()
    body = slice_body(parent, NewSlice("job-a-0", "a", 4))
    body["spec"]["priority"] = 1
    body["status"] = status("QuotaReserved", "Admitted")
    held = decoded(body)
    found = slice_of(held, workload_info(held), parent)
    assert found.matches_parent
    assert found.assignment is not None
    assert found.assignment.count == 4


@pytest.mark.requirement("SLC-22")
def test_only_an_admitted_slice_is_one_that_holds_something() -> None:
    parent = parsed()
    body = slice_body(parent, NewSlice("job-a-0", "a", 4))
    body["status"] = status("QuotaReserved")
    reserved = decoded(body)
    assert slice_of(reserved, workload_info(reserved), parent).assignment is None


@pytest.mark.parametrize(
    ("conditions", "changes", "phase"),
    [
        (("QuotaReserved", "Admitted"), {}, Phase.RUNNING),
        (("QuotaReserved", "Admitted", "Evicted"), {}, Phase.EVICTING),
        (("QuotaReserved", "Admitted"), {"deleting": True}, Phase.EVICTING),
        (("QuotaReserved", "Admitted"), {"active": False}, Phase.EVICTING),
        ((), {}, Phase.IDLE),
        ((), {"deleting": True}, Phase.FINISHED),
        (("QuotaReserved", "Admitted", "Finished"), {}, Phase.FINISHED),
    ],
)
def test_the_phase_follows_from_the_conditions(
    conditions: tuple[str, ...], changes: dict[str, bool], phase: Phase
) -> None:
    found = parsed(status=status(*conditions) if conditions else {})
    if changes.get("deleting"):
        meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        found = msgspec.structs.replace(found, metadata=meta)
    if "active" in changes:
        spec = msgspec.structs.replace(found.spec, active=False)
        found = msgspec.structs.replace(found, spec=spec)
    assert phase_of(workload_info(found), enabled=True) is phase


@pytest.mark.requirement("SLC-01")
def test_without_the_gate_slices_are_only_cleared_away() -> None:
    row = workload_info(parsed(status=status("QuotaReserved", "Admitted")))
    assert phase_of(row, enabled=False) is Phase.EVICTING


def test_a_parent_is_read_with_its_counts_its_admission_and_its_entries() -> None:
    folded = [{"uid": "u1", "podSet": "a"}]
    found = parsed(status={**status("QuotaReserved", "Admitted", count=5), "foldedSlices": folded})
    parent = parent_of(found, workload_info(found), enabled=True)
    assert (parent.name, parent.counts) == ("job", {"head": 1, "a": 4})
    assert parent.assignment is not None
    assert parent.assignment.podsets[0].count == 5
    assert parent.merged == (MergedSlice("u1", "a"),)


@pytest.mark.requirement("SLC-11")
@pytest.mark.field_note("E16")
def test_a_workload_without_the_annotation_is_neither_parent_nor_slice() -> None:
    plain = {
        "name": "w",
        "ownerReferences": [
            {"kind": "Workload", "apiVersion": names.API_VERSION, "uid": "p", "controller": True}
        ],
    }
    found = parsed(metadata=plain)
    assert not found.elastic
    assert found.parent is None
