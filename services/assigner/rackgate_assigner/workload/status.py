"""Bodies of status writes: each is complete for its field manager and bound to one version."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rackgate.api.resources import WORKLOADS, Resource
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.resources.quantity import format_amount
from rackgate.topology.assignment import encode
from rackgate.wire.core import Meta
from rackgate.wire.depth import tolerant
from rackgate.wire.kueue import (
    AdmissionCheckState,
    EvictionCount,
    MergedSlice,
    RequeueState,
    SchedulingStats,
    Workload,
)
from rackgate_assigner.workload.decisions import Assignment

# The response to a read or a write.
decode_workload = tolerant(msgspec.json.Decoder(Workload).decode)

NO_REQUEUE: Final = RequeueState()
NO_STATS: Final = SchedulingStats()
_MAX_COUNT: Final = 2**31 - 1  # an int32 on the wire


def admission_of(decided: Assignment) -> dict[str, Any]:
    """An assignment in the form of `status.admission`."""
    assignments = []
    for podset in decided.podsets:
        usage = {name: format_amount(name, amount) for name, amount in podset.usage.items()}
        assignment: dict[str, Any] = {
            "name": podset.name,
            "flavors": dict(podset.flavors),
            "resourceUsage": usage,
            "count": podset.count,
        }
        if podset.topology is not None:
            assignment["topologyAssignment"] = encode(podset.topology)
        if podset.delayed:
            assignment["delayedTopologyRequest"] = podset.delayed
        assignments.append(assignment)
    return {"clusterQueue": decided.cluster_queue, "podSetAssignments": assignments}


def current_admission(workload: Workload) -> dict[str, Any] | None:
    """The current admission of a Workload, as it is written; None without one."""
    if workload.status.admission is None:
        return None
    stated: dict[str, Any] = msgspec.to_builtins(workload.status.admission)
    for assignment in stated["podSetAssignments"]:
        for name in ("topologyAssignment", "delayedTopologyRequest"):
            if assignment[name] is None:
                del assignment[name]
    stated["podSetAssignments"] = list(stated["podSetAssignments"])
    return stated


def admission_with_topology(workload: Workload, decided: Assignment) -> dict[str, Any] | None:
    """The current admission of a Workload, with the topology assignments of an assignment."""
    stated = current_admission(workload)
    parts = {part.name: part for part in decided.podsets}
    for assignment in stated["podSetAssignments"] if stated is not None else ():
        part = parts.get(assignment["name"])
        if part is None:
            continue
        if part.topology is not None:
            assignment["topologyAssignment"] = encode(part.topology)
        if part.delayed:
            assignment["delayedTopologyRequest"] = part.delayed
    return stated


def path_of(workload: Workload, sub: str | None = None) -> str:
    """URL path of a Workload, or of a subresource of it."""
    return WORKLOADS.path(workload.metadata.namespace, workload.metadata.name, sub)


def status_apply(resource: Resource, meta: Meta, status: Mapping[str, Any]) -> bytes:
    """Body of a server-side apply of a status, bound to the version it was decided on."""
    metadata = {"name": meta.name, "resourceVersion": meta.resource_version}
    if resource.namespaced:
        metadata["namespace"] = meta.namespace
    return msgspec.json.encode(
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "status": status,
        }
    )


def status_body(
    workload: Workload,
    written: list[dict[str, Any]],
    admission: dict[str, Any] | None,
    unhealthy: Sequence[str] = (),
    *,
    merged_slices: Sequence[MergedSlice] | None = None,
    requeue: RequeueState | None = None,
    checks: Sequence[AdmissionCheckState] | None = None,
    stats: SchedulingStats | None = None,
    past_execution_s: int | None = None,
) -> bytes:
    """An apply of all fields of the admission manager, bound to one version.

    Args:
        workload: as decided on.
        written: all conditions of the manager.
        admission: the desired admission; None for none.
        unhealthy: names of unhealthy nodes.
        merged_slices: None does not change them, also if the admission is cleared: otherwise they
            would be merged into the next one.
        requeue: earlier evictions for pods that were not ready; None does not change them.
        checks: states of the admission checks; None does not change them.
        stats: counts of evictions; None does not change them.
        past_execution_s: execution time in earlier admissions; None does not change it.
    """
    status: dict[str, Any] = {"conditions": written} if written else {}
    if admission is not None:
        status["admission"] = admission
    if unhealthy:
        status["unhealthyNodes"] = [{"name": name} for name in unhealthy]
    settled = workload.status.folded_slices if merged_slices is None else merged_slices
    if settled:
        status["foldedSlices"] = [msgspec.to_builtins(entry) for entry in settled]
    tries = workload.status.requeue_state if requeue is None else requeue
    if tries is not None and tries != NO_REQUEUE:
        pause = {} if tries.requeue_at is None else {"requeueAt": tries.requeue_at}
        status["requeueState"] = {"count": tries.count, **pause}
    states = workload.status.admission_checks if checks is None else checks
    if states:
        status["admissionChecks"] = [_check_json(state) for state in states]
    counts = workload.status.scheduling_stats if stats is None else stats
    if counts is not None and counts != NO_STATS:
        status["schedulingStats"] = msgspec.to_builtins(counts)
    past = workload.status.accumulated_past_execution_time_seconds
    past = past if past_execution_s is None else past_execution_s
    if past:
        status["accumulatedPastExecutionTimeSeconds"] = past
    return status_apply(WORKLOADS, workload.metadata, status)


def _check_json(state: AdmissionCheckState) -> dict[str, Any]:
    # The schema requires a message, also an empty one.
    return {"message": state.message, **msgspec.to_builtins(state)}


def conditions_body(workload: Workload, written: list[dict[str, Any]]) -> bytes:
    """An apply of all fields of a manager that owns only conditions."""
    return status_apply(WORKLOADS, workload.metadata, {"conditions": written} if written else {})


def count_eviction(workload: Workload, reason: str, cause: str) -> tuple[SchedulingStats, bool]:
    """`status.schedulingStats` after one more eviction, and whether it is the first of its sort."""
    stats = workload.status.scheduling_stats or NO_STATS
    counts = {(found.reason, found.underlying_cause): found for found in stats.evictions}
    before = counts.get((reason, cause))
    count = min(max(0, before.count if before is not None else 0) + 1, _MAX_COUNT)
    counts[reason, cause] = EvictionCount(reason, cause, count)
    return SchedulingStats(tuple(counts.values())), before is None


def leftover_ops(
    stored: Workload,
    types: Collection[str],
    written: Iterable[Mapping[str, Any]],
    *,
    admission: bool,
    requeue: RequeueState | None,
    checks: Sequence[AdmissionCheckState] | None = None,
    past_execution_s: int | None = None,
) -> list[JsonPatchOp]:
    """JSON patch that removes omitted fields that are still there; empty if there are none.

    A field that another manager has applied, too, survives an apply without it: Kueue's managers
    own fields of Workloads that were taken over from Kueue.

    Args:
        stored: the response to the apply.
        types: of all conditions that the manager may own.
        written: the conditions that were applied.
        admission: whether an admission may stay.
        requeue: the tries that were applied, `NO_REQUEUE` for none; None when they may stay.
        checks: the states that were applied; None when all may stay.
        past_execution_s: what was applied, 0 for none; None when it may stay.
    """
    kept = {condition["type"] for condition in written}
    status = stored.status
    gone = [
        index
        for index, condition in enumerate(status.conditions)
        if condition.type in types and condition.type not in kept
    ]
    paths = [f"/status/conditions/{index}" for index in reversed(gone)]
    if status.admission is not None and not admission:
        paths.append("/status/admission")
    tries = status.requeue_state
    if requeue is not None and tries is not None and tries != requeue:
        if requeue == NO_REQUEUE:
            paths.append("/status/requeueState")
        elif tries.requeue_at is not None and requeue.requeue_at is None:
            paths.append("/status/requeueState/requeueAt")
    if checks is not None:
        paths += _leftover_checks(status.admission_checks, checks)
    if past_execution_s == 0 and status.accumulated_past_execution_time_seconds:
        paths.append("/status/accumulatedPastExecutionTimeSeconds")
    return [{"op": "remove", "path": path} for path in paths]


def _leftover_checks(
    stored: Sequence[AdmissionCheckState], applied: Sequence[AdmissionCheckState]
) -> list[str]:
    """Paths in states that the controllers of checks have written, too; last index first."""
    wanted = {state.name: state for state in applied}
    paths: list[str] = []
    for index, state in reversed(list(enumerate(stored))):
        path, want = f"/status/admissionChecks/{index}", wanted.get(state.name)
        if want is None:
            paths.append(path)
            continue
        if state.pod_set_updates and not want.pod_set_updates:
            paths.append(f"{path}/podSetUpdates")
        if state.requeue_after_seconds is not None and want.requeue_after_seconds is None:
            paths.append(f"{path}/requeueAfterSeconds")
    return paths


def reclaimable_body(workload: Workload, done: Mapping[str, int]) -> bytes:
    """An apply of `status.reclaimablePods`."""
    listed = [{"name": name, "count": count} for name, count in sorted(done.items())]
    return status_apply(WORKLOADS, workload.metadata, {"reclaimablePods": listed})
