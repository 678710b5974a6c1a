"""What a group of plain pods needs, from its pods and its Workload. Pure.

`read_group_state` gives `plan_job` the same facts as about any other job. A group *runs* while a
started pod lives; it is stopped by deleting its started pods. Pods that were not started stay
gated, and wait for the next admission.

In addition, each pod has needs of its own, which no Workload decides (`pods_to_delete`,
`pods_to_release`).
"""

from __future__ import annotations

from typing import Any, Final

from rackgate.api import names
from rackgate.api.names import WorkloadCondition
from rackgate.jobframework.generic_job import JobOutcome
from rackgate.jobframework.injection import StopAction, StopPhase
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.pod_group.gang_group import GangGroup, is_held
from rackgate.jobframework.pod_group.pod_group import MAX_ROLES, PlainPod, PodGroup
from rackgate.jobframework.pod_group.pods import GroupPod
from rackgate.jobframework.podsets import counts_of, original_templates, stored_podsets
from rackgate.jobframework.registry import kind_of
from rackgate.wire.core import OwnerReference
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs.state import JobState, Priority

# Owners of a Workload: it is kept while one of them exists, and its size is limited.
MAX_OWNERS: Final = 64


def read_group_state(
    group: PodGroup,
    workload: Workload | None,
    priority: Priority,
    *,
    live_pods: int = 0,
    beyond_admission: int = 0,
) -> JobState:
    """Everything about a group and its Workload that `plan_job` decides by.

    Args:
        group: as watched.
        workload: its Workload, if there is one.
        priority: as resolved.
        live_pods: bound pods that have not ended; 0 if no quota is kept for them.
        beyond_admission: see `JobState`.
    """
    podsets = _requested_podsets(group, workload)
    started = any(pod.started and pod.active for pod in group.pods)
    return JobState(
        kind=kind_of(group).name,
        podsets=podsets,
        pod_count=sum(podset["count"] for podset in podsets),
        priority=priority,
        suspended=not started,
        finished=_outcome(group),
        started=started,
        stop=StopAction(stop_phase(group), []),
        injection_lost=started and workload is not None and bool(pods_to_start(group, workload)),
        ready=kind_of(group).pods_ready(group, {}),
        reclaimable_pods=succeeded(group),
        live_pods=live_pods,
        beyond_admission=beyond_admission,
        workload_ops=() if workload is None else owner_ops(group, workload),
    )


def _requested_podsets(group: PodGroup, workload: Workload | None) -> list[dict[str, Any]]:
    """The PodSets of a complete group; while it lacks pods those that were admitted, if any were.

    A role that the Workload knows keeps its template: a start changes the pods.
    """
    kind = kind_of(group)
    admitted = workload is not None and workload.status.admission is not None
    known = {} if workload is None else {one["name"]: one for one in stored_podsets(workload)}
    podsets = kind.podsets(kind.manifest(group))
    if admitted and (not podsets or any(pod.started and not pod.over for pod in group.pods)):
        return list(known.values())
    if len(podsets) > MAX_ROLES:
        return []
    return [
        {**known[one["name"]], "count": one["count"]} if one["name"] in known else one
        for one in podsets
    ]


def stop_phase(group: PodGroup) -> StopPhase:
    """The next step if its pods must stop."""
    running = [pod for pod in group.pods if pod.started and not pod.over]
    if any(not pod.terminating for pod in running):
        return StopPhase.SUSPEND
    return StopPhase.WAIT if running else StopPhase.DONE


def _outcome(group: PodGroup) -> JobOutcome | None:
    """How it ended: all pods succeeded, or one failed for good and none runs."""
    done = sum(pod.succeeded for pod in group.pods)
    if 0 < group.total <= done:
        return JobOutcome(failed=False, message=f"{done} of {group.total} pods succeeded")
    # Pods that are being deleted are on their way out, and do not say how the group ended.
    failed = [pod for pod in group.pods if pod.failed and not pod.terminating]
    final = isinstance(group, PlainPod) or not all(pod.retriable for pod in group.pods)
    if final and failed and not any(pod.active for pod in group.pods):
        return JobOutcome(
            failed=True,
            message=f"{done} of {group.total} pods succeeded, {len(failed)} failed for good",
        )
    return None


def succeeded(group: PodGroup) -> dict[str, int]:
    """Pods that have done their work, by role."""
    found: dict[str, int] = {}
    for pod in group.pods:
        if pod.started and pod.succeeded:
            found[pod.role.name] = found.get(pod.role.name, 0) + 1
    return found


def pods_to_start(group: PodGroup, workload: Workload) -> list[GroupPod]:
    """The pods that were not started and whose PodSet has room, the oldest first.

    A pod that is being deleted keeps its room until it is over, and one that succeeded keeps it.
    The name of a role is a short hash, and two pods may have been made to share it: a pod starts
    only if it requests exactly what its PodSet does.
    """
    room, templates = counts_of(workload), original_templates(workload)
    for pod in group.pods:
        if pod.started and (pod.succeeded or not pod.over):
            room[pod.role.name] = room.get(pod.role.name, 0) - 1
    found = []
    for pod in group.pods:
        if pod.started or not pod.active or not _is_held(group, pod):
            continue
        if room.get(pod.role.name, 0) > 0 and templates.get(pod.role.name) == pod.role.template:
            room[pod.role.name] -= 1
            found.append(pod)
    return found


def _is_held(group: PodGroup, pod: GroupPod) -> bool:
    """Whether a gate keeps it from running: pods of gangs need no other one than theirs."""
    return is_held(pod) if isinstance(group, GangGroup) else names.ADMISSION_GATE in pod.gates


def pods_without_podset(group: PodGroup, workload: Workload) -> list[GroupPod]:
    """The pods of an admitted group that request something else than any of its PodSets.

    While others of the group run, such a pod cannot replace one of them.
    """
    if workload.status.admission is None or not any(pod.started for pod in group.pods):
        return []
    templates = original_templates(workload)
    return [
        pod
        for pod in group.pods
        if pod.active and not pod.started and templates.get(pod.role.name) != pod.role.template
    ]


def pods_to_stop(group: PodGroup) -> list[GroupPod]:
    """The started pods that have not ended and are not being deleted."""
    return [pod for pod in group.pods if pod.started and pod.active]


def pods_to_delete(group: PodGroup) -> list[GroupPod]:
    """Surplus pods that were not started, the newest first."""
    if group.total == 0:
        return []
    surplus = group.members[group.total :]
    gated = [pod for pod in surplus if not pod.started and pod.active]
    return sorted(gated, key=lambda pod: pod.age_order, reverse=True)


def pods_to_release(group: PodGroup, workload: Workload | None) -> list[GroupPod]:
    """The pods that our finalizer need not keep any more.

    It keeps a pod that succeeded, so that it counts until the group has finished, even if somebody
    deletes it.
    """
    # Nothing counts pods for a Workload that has finished, or is being deleted.
    finished = workload is not None and (
        workload.is_true(WorkloadCondition.FINISHED)
        or workload.metadata.deletion_timestamp is not None
    )
    gone = all(pod.terminating for pod in group.pods)
    past = group.past if isinstance(group, GangGroup) else ()
    kept = [pod for pod in group.pods if pod.kept and pod.over]
    return [
        *(pod for pod in past if pod.kept),
        *(pod for pod in kept if finished or (pod.terminating and (gone or not pod.succeeded))),
    ]


def owner_references(group: PodGroup) -> list[dict[str, Any]]:
    """The owners of the Workload of a group: its oldest pods. A pod alone is its controller."""
    alone = isinstance(group, PlainPod)
    pods = group.pods if alone else _owners(group)
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod.metadata.name,
            "uid": pod.metadata.uid,
            **({"controller": True} if alone else {}),
        }
        for pod in pods
    ]


def _owners(group: PodGroup) -> list[GroupPod]:
    return [pod for pod in group.pods if pod.active or pod.succeeded][:MAX_OWNERS]


def owner_ops(group: PodGroup, workload: Workload) -> tuple[JsonPatchOp, ...]:
    """Operations that make pods which came later owners of the Workload.

    Without them, the garbage collector deletes it with the last of the first pods.
    """
    if isinstance(group, PlainPod):
        return ()
    owners = owner_references(group)
    known = {owner.uid for owner in workload.metadata.owner_references}
    if all(owner["uid"] in known for owner in owners):
        return ()
    here = {pod.metadata.uid for pod in group.pods}
    kept = [_reference(owner) for owner in workload.metadata.owner_references if owner.uid in here]
    uids = {owner["uid"] for owner in kept}
    value = [*kept, *(owner for owner in owners if owner["uid"] not in uids)]
    return ({"op": "add", "path": "/metadata/ownerReferences", "value": value},)


def _reference(owner: OwnerReference) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}
