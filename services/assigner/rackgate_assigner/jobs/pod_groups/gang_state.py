"""What the pods of a gang need that no managed job owns, from them and their Workload. Pure.

As for groups of plain pods, with other answers to: what is requested, when the gang is over, who
owns its Workload. Pods that were not started wait for the next run, and decide nothing about this.
"""

from __future__ import annotations

from typing import Any, Final

from rackgate.api import names
from rackgate.api.names import WorkloadCondition
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.jobframework.generic_job import JobOutcome
from rackgate.jobframework.injection import StopAction
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer
from rackgate.jobframework.pod_group.gang_group import GangGroup
from rackgate.jobframework.pod_group.pods import GroupPod
from rackgate.jobframework.podsets import counts_of, stored_podsets
from rackgate.jobframework.registry import kind_of
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.jobs.pod_groups.state import (
    owner_references,
    pods_to_start,
    stop_phase,
    succeeded,
)
from rackgate_assigner.jobs.state import JobState, Priority
from rackgate_assigner.workload.elapsed import Elapsed

# Seconds for which the Workload of an evicted gang is kept without pods, beyond its backoff: it has
# the number of evictions.
KEPT_S: Final = 300.0
_RUN_SPEC_PATH: Final = "/metadata/annotations" + pointer(names.GANG_RUN_SPEC_ANNOTATION)


def read_gang_state(
    group: GangGroup,
    workload: Workload | None,
    priority: Priority,
    *,
    live_pods: int = 0,
    beyond_admission: int = 0,
    waits: bool = False,
) -> JobState:
    """Everything about a gang and its Workload that `plan_job` decides by.

    Args:
        group: as watched.
        workload: its Workload, if there is one.
        priority: as resolved.
        live_pods: bound pods that have not ended; 0 if no quota is kept for them.
        beyond_admission: see `JobState`.
        waits: its Workload is kept without pods, because its controller will create others.
    """
    kind, started = kind_of(group), group.has_started
    podsets = _requested_podsets(group, workload, waits=waits)
    runs_again = workload is not None and _runs_again(group, workload)
    ops = () if workload is None else (*_owner_ops(group, workload), *_run_ops(group, workload))
    return JobState(
        kind=kind.name,
        podsets=podsets,
        pod_count=sum(podset["count"] for podset in podsets),
        priority=priority if group.pods or workload is None else _priority_of(workload),
        suspended=not started,
        finished=None if runs_again else _outcome(group, workload),
        started=started,
        stop=StopAction(stop_phase(group), []),
        injection_lost=started and workload is not None and bool(pods_to_start(group, workload)),
        ready=workload is not None and kind.pods_ready(group, counts_of(workload)),
        reclaimable_pods=succeeded(group),
        live_pods=live_pods,
        beyond_admission=beyond_admission,
        gang=_job_gang(group, workload),
        workload_ops=ops,
        runs_again=runs_again,
    )


def kept_s(workload: Workload, elapsed: Elapsed, backoff_s: float | None) -> float:
    """Seconds for which its Workload is kept without pods; 0 if it need not be.

    Args:
        workload: of a gang.
        elapsed: its times.
        backoff_s: seconds until it is queued again, None without such a delay.
    """
    evicted = workload.condition(WorkloadCondition.EVICTED)
    if evicted is None or workload.status.requeue_state is None:
        return 0.0
    since_s = elapsed.since(evicted.last_transition_time)
    return max(0.0, backoff_s or 0.0, KEPT_S - (KEPT_S if since_s is None else since_s))


def _requested_podsets(
    group: GangGroup, workload: Workload | None, *, waits: bool
) -> list[dict[str, Any]]:
    """What its members request; what was admitted, while they run or are about to.

    A gang that lacks pods keeps what its pending Workload requests, and is held. A role that the
    Workload knows keeps its template: a start changes the pods.
    """
    kind = kind_of(group)
    wanted = kind.podsets(kind.manifest(group))
    if workload is None:
        return wanted
    stored = stored_podsets(workload)
    known = {one["name"]: one for one in stored}
    if workload.status.admission is not None:
        exist = {role.name: count for role, count in group.roles}
        enough = all(exist.get(name, 0) >= count for name, count in counts_of(workload).items())
        evicted = workload.is_true(WorkloadCondition.EVICTED)
        return stored if group.has_started or enough or evicted else []
    if not wanted:
        return stored if group.pods or waits else []
    return [
        {**one, "template": known[one["name"]]["template"]} if one["name"] in known else one
        for one in wanted
    ]


def _outcome(group: GangGroup, workload: Workload | None) -> JobOutcome | None:
    """How its run ended: all pods succeeded, or one failed that no controller replaces."""
    if workload is None or group.has_started:
        return None
    started = [pod for pod in group.pods if pod.started]
    done, total = sum(pod.succeeded for pod in started), sum(counts_of(workload).values())
    if 0 < total <= done:
        return JobOutcome(failed=False, message=f"{done} of {total} pods succeeded")
    failed = [pod for pod in started if pod.failed and not pod.terminating]
    if failed and not any(pod.metadata.controller is not None for pod in started):
        return JobOutcome(
            failed=True,
            message=f"{done} of {total} pods succeeded, {len(failed)} failed for good",
        )
    return None


def _runs_again(group: GangGroup, workload: Workload) -> bool:
    """Whether a whole gang waits that was created after the last run had ended."""
    finished = workload.condition(WorkloadCondition.FINISHED)
    if finished is None or finished.status != "True" or group.has_started or not group.complete:
        return False
    waiting = group.waiting
    since = finished.last_transition_time or ""
    new = [pod for pod in waiting if (pod.metadata.creation_timestamp or "") >= since]
    return bool(new) and len(new) == len(waiting) and len(new) >= group.least


def _job_gang(group: GangGroup, workload: Workload | None) -> JobGang:
    """Its numbers: of this run those that its Workload has.

    Without any, no one looks whether all of its pods are bound.
    """
    if workload is None:
        return JobGang(nesting=group.nesting)
    run_spec = workload.metadata.annotations.get(names.GANG_RUN_SPEC_ANNOTATION, "")
    admitted = workload.status.admission is not None
    if not run_spec or not group.is_evictable:
        return JobGang(nesting=group.nesting, started=admitted)
    links = {podset.name: group.instance.workload for podset in workload.spec.pod_sets}
    return JobGang(links, run_spec, nesting=group.nesting, started=admitted)


def _run_ops(group: GangGroup, workload: Workload) -> tuple[JsonPatchOp, ...]:
    """Operations that update the numbers of the next run, until it is admitted."""
    present = workload.metadata.annotations.get(names.GANG_RUN_SPEC_ANNOTATION, "")
    if not group.complete or workload.status.admission is not None or present == group.run_spec:
        return ()
    return ({"op": "add", "path": _RUN_SPEC_PATH, "value": group.run_spec},)


def gang_owner_references(group: GangGroup) -> list[dict[str, Any]]:
    """Its Workload of gangs, and its oldest pods: it is deleted with the last of them.

    None is its controller, so that the quota of running pods outlives the Workload of gangs.
    """
    instance = group.instance
    own = {
        "apiVersion": GANG_WORKLOADS.api_version,
        "kind": GANG_WORKLOADS.kind,
        "name": instance.workload,
        "uid": instance.workload_uid,
    }
    return [*([own] if instance.workload_uid else []), *owner_references(group)]


def _owner_ops(group: GangGroup, workload: Workload) -> tuple[JsonPatchOp, ...]:
    """Operations that make its Workload of gangs, and pods that came later, owners of its Workload.

    Owners that are gone are removed on that occasion.
    """
    owners = gang_owner_references(group)
    known = {owner.uid for owner in workload.metadata.owner_references}
    if all(owner["uid"] in known for owner in owners):
        return ()
    return ({"op": "add", "path": "/metadata/ownerReferences", "value": owners},)


def _priority_of(workload: Workload) -> Priority:
    """What its Workload has: without pods, nothing else says it."""
    ref = workload.spec.priority_class_ref
    found = None if ref is None else {"group": ref.group, "kind": ref.kind, "name": ref.name}
    return Priority(workload.spec.priority or 0, found)


def late_pods(group: GangGroup, workload: Workload | None, *, apart: int = 0) -> list[GroupPod]:
    """Pods that wait although the gang runs, and that are not needed in it.

    Only as many as may be members. While the gang lacks a pod, those that wait may take its place.

    Args:
        group: as watched.
        workload: its Workload, if there is one.
        apart: pods that were found to be late before.
    """
    if workload is None or workload.status.admission is None or not group.has_started:
        return []
    if workload.is_true(WorkloadCondition.EVICTED) or workload.is_true(WorkloadCondition.FINISHED):
        return []
    present = sum(pod.started and (pod.active or pod.succeeded) for pod in group.pods)
    if present < sum(counts_of(workload).values()):
        return []
    waiting = group.waiting
    return waiting if group.most is None else waiting[: max(0, group.most - present - apart)]
