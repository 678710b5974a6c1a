"""Jobs and Workloads as the watches decode them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rackgate.api import names
from rackgate.jobframework.registry import JOB
from rackgate.wire.batch import Job
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.state import JobState, Priority, read_job_state, workload_name_of
from rackgate_assigner.watches import decode_workload

UID = "11111111-2222-3333-4444-555555555555"
AT = "2026-08-01T12:00:00Z"
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "train"}},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
}


def template(**spec: Any) -> dict[str, Any]:
    """The user's template with changes to its spec."""
    return {**TEMPLATE, "spec": {**TEMPLATE["spec"], **spec}}


def job(
    *,
    suspend: bool = True,
    count: int = 4,
    started: bool = False,
    active: int | None = None,
    rest: bool | None = None,
    finished: str = "",
    queue: str | None = "queue",
    pod: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    meta: Mapping[str, Any] | None = None,
    ready: int = 0,
    **spec: Any,
) -> Job:
    """A Job; `started` marks it, `rest` is its Suspended condition (as `suspend` by default)."""
    at_rest = suspend if rest is None else rest
    conditions = [{"type": "Suspended", "status": "True" if at_rest else "False"}]
    if finished:
        conditions.append({"type": finished, "status": "True", "message": "so it ended"})
    mark = {names.WORKLOAD_ANNOTATION: "job-train"} if started else {}
    body = {
        "metadata": {
            "name": "train",
            "namespace": "ns",
            "uid": UID,
            "resourceVersion": "7",
            "labels": {**({names.QUEUE_LABEL: queue} if queue else {}), **(labels or {})},
            "annotations": mark,
            **(meta or {}),
        },
        "spec": {
            "suspend": suspend,
            "parallelism": count,
            "completions": count,
            "template": dict(pod or TEMPLATE),
            **spec,
        },
        "status": {
            "active": (0 if suspend else count) if active is None else active,
            "ready": ready,
            "startTime": None if at_rest else AT,
            "conditions": conditions,
        },
    }
    return JOB.decode(json.dumps(body).encode())


def workload(
    of: Job | None = None,
    *,
    admitted: bool = False,
    topology: bool = False,
    active: bool = True,
    deleted: bool = False,
    finalizer: bool = True,
    name: str | None = None,
    queue: str = "queue",
    count: int = 4,
    pod: Mapping[str, Any] | None = None,
    priority: int = 0,
    labels: Mapping[str, str] | None = None,
    conditions: Mapping[str, tuple[str, str]] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> Workload:
    """The Workload of a Job (none: nobody's). `conditions` maps types to status and reason."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": UID}
    assignment: dict[str, Any] = {"name": "main", "flavors": {"cpu": "tas"}, "count": count}
    if topology:
        assignment["topologyAssignment"] = {"levels": [], "slices": []}
    shown = dict(conditions or {})
    if admitted:
        shown.setdefault("Admitted", ("True", "Admitted"))
    status: dict[str, Any] = {"conditions": _conditions(shown)}
    if admitted:
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    body = {
        "metadata": {
            "name": name or (workload_name_of(of) if of is not None else "alone"),
            "namespace": "ns",
            "uid": "w",
            "resourceVersion": "9",
            "generation": 3,
            "labels": dict(labels or {}),
            "finalizers": [names.IN_USE_FINALIZER] if finalizer else [],
            "deletionTimestamp": AT if deleted else None,
            "ownerReferences": [{**owner, "controller": True}] if of is not None else [],
            **(meta or {}),
        },
        "spec": {
            "queueName": queue,
            "active": active,
            "priority": priority,
            "podSets": [{"name": "main", "count": count, "template": dict(pod or TEMPLATE)}],
        },
        "status": status,
    }
    return decode_workload(json.dumps(body).encode())


def _conditions(states: Mapping[str, tuple[str, str]]) -> list[dict[str, str]]:
    return [
        {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": f"{reason} it is",
            "lastTransitionTime": AT,
        }
        for type_, (status, reason) in states.items()
    ]


def facts(of: Job, own: Workload | None = None, priority: Priority | None = None) -> JobState:
    """What `jobs` finds out about both before it asks for a step."""
    return read_job_state(of, own, priority or Priority())
