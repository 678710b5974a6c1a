"""A write that met a newer version of a Workload, bound to what it depends on. Pure.

A user may change labels and annotations of a Workload, and whether it is active, as often as the
API server allows. A write that is bound to a version would lose against that for ever.

1. The version that was met is compared with the one that was decided on: all that the write may
   depend on must be the same.
2. The write becomes a JSON patch whose `test`s hold for the values just read. The API server makes
   it on whatever version it has, and rejects it if one of these values is another one by then.

A status of a Workload with quota depends on the status alone: it may be written before or after any
change of the rest, and the object is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rackgate.api.names import FieldManager
from rackgate.jobframework.jsonpatch import JsonPatchOp, value_test
from rackgate.wire.kueue import Workload
from rackgate_assigner.workload.conditions import ADMISSION_TYPES, JOB_TYPES
from rackgate_assigner.workload.status import decode_workload

# The fields of a status that a manager writes beside its conditions, all of them with each write.
_FIELDS: Final[Mapping[FieldManager, Collection[str]]] = {
    FieldManager.ADMISSION: (
        "admission",
        "unhealthyNodes",
        "foldedSlices",
        "requeueState",
        "admissionChecks",
        "schedulingStats",
        "accumulatedPastExecutionTimeSeconds",
    ),
    FieldManager.JOB: (),
}
_TYPES: Final = {FieldManager.ADMISSION: ADMISSION_TYPES, FieldManager.JOB: JOB_TYPES}
_ANNOTATIONS_PATH: Final = "/metadata/annotations"


def status_ops(
    workload: Workload, newer: bytes, apply: bytes, manager: FieldManager
) -> list[JsonPatchOp]:
    """Operations that write a status to a newer version; none if its status is another one.

    There are none for a Workload without quota, either: why it is pending depends on its spec. And
    a status that does not exist yet cannot be tested for that.

    Args:
        workload: as decided on.
        newer: the version that the write met, as JSON.
        apply: the server-side apply that met it, complete for its manager.
        manager: of the apply.
    """
    live = decode_workload(newer)
    if live.metadata.uid != workload.metadata.uid or live.status != workload.status:
        return []
    if live.status.admission is None:
        return []
    stored = msgspec.json.decode(newer)["status"]
    desired = msgspec.json.decode(apply).get("status", {})
    status = {key: value for key, value in stored.items() if key not in _FIELDS[manager]}
    status.update(desired)
    status["conditions"] = _merged_conditions(
        stored.get("conditions", ()), desired.get("conditions", ()), _TYPES[manager]
    )
    return [value_test("/status", stored), {"op": "replace", "path": "/status", "value": status}]


def _merged_conditions(
    stored: Iterable[Mapping[str, Any]], desired: Iterable[Mapping[str, Any]], types: Sequence[str]
) -> list[Mapping[str, Any]]:
    """All conditions after an apply of `desired` by the manager of `types`."""
    wanted = {condition["type"]: condition for condition in desired}
    kept = [
        wanted.pop(condition["type"], condition)
        for condition in stored
        if condition["type"] in wanted or condition["type"] not in types
    ]
    return [*kept, *wanted.values()]


def unchanged_tests(
    workload: Workload, newer: bytes, ops: Iterable[JsonPatchOp]
) -> list[JsonPatchOp]:
    """Tests that bind operations on a Workload to all but its labels and annotations.

    None if something else has changed, or if an operation would replace all annotations. Without a
    status there are none, either: it may get one, with quota, and no patch can test for that.
    """
    live = decode_workload(newer)
    had, has = workload.metadata, live.metadata
    same = (
        (live.spec, live.status) == (workload.spec, workload.status)
        and (had.uid, had.deletion_timestamp) == (has.uid, has.deletion_timestamp)
        and had.owner_references == has.owner_references
        and had.finalizers == has.finalizers
    )
    if not same or any(op["path"] == _ANNOTATIONS_PATH for op in ops):
        return []
    stored = msgspec.json.decode(newer)
    if "status" not in stored:
        return []
    meta = stored["metadata"]
    kept = [key for key in ("ownerReferences", "finalizers") if key in meta]
    return [
        *(value_test(f"/{key}", stored[key]) for key in ("spec", "status")),
        *(value_test(f"/metadata/{key}", meta[key]) for key in kept),
    ]
