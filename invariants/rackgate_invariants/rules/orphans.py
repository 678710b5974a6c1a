"""Owner references and labels that refer to nothing, or to another job; any user may write them."""

from __future__ import annotations

from collections.abc import Iterator

from rackgate_invariants.cluster import ObjectGroup
from rackgate_invariants.rows.rows import PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach

# Kinds of jobs that have Workloads.
KINDS = frozenset({"Job", "JobSet", "RayCluster", "RayJob"})
# And the owners of those of plain pods.
_POD_OWNERS = frozenset({"Pod", "PodGroup"})


def check(group: ObjectGroup) -> Iterator[Breach]:
    """All rules about references."""
    yield from _forged_owner(group)
    for workload in group.workloads.values():
        yield from _foreign_owner(workload)
    if group.root:
        yield from _pods(group)


def _pods(group: ObjectGroup) -> Iterator[Breach]:
    """`left-behind`, and `stray-marks` once for all pods with the same labels and owner."""
    known: dict[tuple[str, str, bool, str], str] = {}
    for pod in group.pods.values():
        if pod.gates or pod.terminating:
            continue
        if not pod.owner:
            yield from _orphaned_pod(pod, group)
            continue
        injected = (pod.workload, pod.podset, pod.tas, pod.owner)
        found = known.get(injected)
        if found is None:
            marked = pod.workload or pod.podset or pod.tas
            found = known[injected] = _foreign_pod(pod, group) if marked else ""
        if found:
            text = f"ungated with labels of Rackgate, and {found}"
            yield Breach("stray-marks", pod.key, text, pod.created_at)


def _forged_owner(group: ObjectGroup) -> Iterator[Breach]:
    """`forged-owner`: if the owner existed, this would be a child Job and not a job by itself."""
    job = group.job
    if (
        job is None
        or not job.parent_uid
        or job.deleting
        or not (job.has_queue_label or job.injected)
    ):
        return
    found = f'names {job.parent_kind} "{job.parent_name}" as its controller, which does not exist'
    yield Breach("forged-owner", job.key, found, job.suspend_changed_at)


def _foreign_owner(workload: WorkloadRow) -> Iterator[Breach]:
    """`strange-owner`."""
    if not workload.holds:
        return
    found = ""
    if workload.owner == workload.uid and workload.uid:
        found = "is its own controller"
    elif not workload.is_slice and (workload.job_uid or workload.ours):
        if not workload.owner:
            found = "was created for a job and has no controller"
        elif workload.owner_kind not in KINDS | _POD_OWNERS:
            found = f"was created for a job, its controller is a {workload.owner_kind}"
        elif workload.job_uid and workload.owner != workload.job_uid:
            found = f"was created for a job of UID {workload.job_uid}, its controller is another"
    if found:
        text = f"{found}, and it holds quota of {workload.cluster_queue}"
        yield Breach("strange-owner", workload.key, text, workload.changed_at)


def _orphaned_pod(pod: PodRow, group: ObjectGroup) -> Iterator[Breach]:
    """A pod without a controller that uses what was admitted for a managed job."""
    if pod.workload:
        theirs = f'it names Workload "{pod.workload}"'
    elif group.managed or any(not one.is_slice for one in group.workloads.values()):
        theirs = "it was created for a managed job"
    else:
        return
    place = f' on node "{pod.node}"' if pod.node else ""
    yield Breach("left-behind", pod.key, f"runs{place} without a controller; {theirs}")


def _foreign_pod(pod: PodRow, group: ObjectGroup) -> str:
    """Why an ungated pod with labels of Rackgate does not belong to the Workload it names, or "".

    Controllers of other kinds are not read; only the Workloads that name them show that they exist.
    """
    if group.job is None and not group.workloads:
        if pod.owner_kind in KINDS or pod.workload:
            return f'its controller, {pod.owner_kind} "{pod.owner_name}", does not exist'
        return ""
    own = group.own
    holding = [one for one in own if one.holds]
    if own and pod.workload and f"{pod.namespace}/{pod.workload}" not in group.workloads:
        return f'it names Workload "{pod.workload}", which is not that of its job'
    podsets = {podset.name for one in holding for podset in one.podsets}
    if holding and pod.workload and pod.podset and pod.podset not in podsets:
        return f'it names PodSet "{pod.podset}", which its Workload does not have'
    return ""
