"""Owners and labels of Jobs, pods and Workloads that refer to nothing; anybody may write them."""

from __future__ import annotations

from collections.abc import Iterator

from rackgate_invariants.cluster import ObjectGroup
from rackgate_invariants.rows.rows import PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach

# Kinds of jobs that Workloads are made of, and that are read.
KINDS = frozenset({"Job", "JobSet", "RayCluster"})


def check(group: ObjectGroup) -> Iterator[Breach]:
    """All rules about what leads nowhere."""
    yield from _forged_owner(group)
    for workload in group.workloads.values():
        yield from _foreign_owner(workload)
    if group.root:  # pods of nobody are there, too, where there is none
        yield from _pods(group)


def _pods(group: ObjectGroup) -> Iterator[Breach]:
    """Pods that nobody controls, and pods whose marks name somebody else's Workload."""
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
            text = f"released with marks, and {found}"
            yield Breach("stray-marks", pod.key, text, pod.created_at)


def _forged_owner(group: ObjectGroup) -> Iterator[Breach]:
    """A Job that Rackgate acts on names an owner that exists; it is a part then, and no job."""
    job = group.job
    if (
        job is None
        or not job.parent_uid
        or job.deleting
        or not (job.has_queue_label or job.injected)
    ):
        return
    found = f'names {job.parent_kind} "{job.parent_name}" as its controller, which is not there'
    yield Breach("forged-owner", job.key, found, job.suspend_changed_at)


def _foreign_owner(workload: WorkloadRow) -> Iterator[Breach]:
    """A Workload that holds quota belongs to the job that it was made for."""
    if not workload.holds:
        return
    found = ""
    if workload.owner == workload.uid and workload.uid:
        found = "is its own controller"
    elif not workload.is_slice and (workload.job_uid or workload.ours):
        if not workload.owner:
            found = "was made for a job and has no controller"
        elif workload.owner_kind not in KINDS:
            found = f"was made for a job, its controller is a {workload.owner_kind}"
        elif workload.job_uid and workload.owner != workload.job_uid:
            found = f"was made for a job of UID {workload.job_uid}, its controller is another"
    if found:
        text = f"{found}, and it holds quota of {workload.cluster_queue}"
        yield Breach("strange-owner", workload.key, text, workload.changed_at)


def _orphaned_pod(pod: PodRow, group: ObjectGroup) -> Iterator[Breach]:
    """A pod without a controller that takes what a managed job was given."""
    if pod.workload:
        theirs = f'it names Workload "{pod.workload}"'
    elif group.managed or any(not one.is_slice for one in group.workloads.values()):
        theirs = "it was made for a managed job"
    else:
        return
    place = f' on node "{pod.node}"' if pod.node else ""
    yield Breach("left-behind", pod.key, f"runs{place} without a controller; {theirs}")


def _foreign_pod(pod: PodRow, group: ObjectGroup) -> str:
    """Why a released pod with marks does not belong to the job whose Workload it names.

    What nobody reads cannot be missed: a controller of another kind is only known by the
    Workloads that name it.
    """
    if group.job is None and not group.workloads:
        if pod.owner_kind in KINDS or pod.workload:
            return f'its controller, {pod.owner_kind} "{pod.owner_name}", is not there'
        return ""
    own = group.own
    holding = [one for one in own if one.holds]
    if own and pod.workload and f"{pod.namespace}/{pod.workload}" not in group.workloads:
        return f'it names Workload "{pod.workload}", which is not that of its job'
    if holding and pod.workload and pod.podset and not _has(holding, pod.podset):
        return f'it names PodSet "{pod.podset}", which its Workload has not'
    return ""


def _has(workloads: list[WorkloadRow], podset: str) -> bool:
    return any(one.name == podset for workload in workloads for one in workload.podsets)
