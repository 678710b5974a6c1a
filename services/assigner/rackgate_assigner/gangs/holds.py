"""Why a job may not be admitted because of its gangs. Pure.

Its Workload of gangs must exist before its first pod, must be used by no other job at the same
time, and must not ask for more pods than the job has. All of that is known before the admission, so
no quota is held meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from rackgate.gang.levels import Object
from rackgate.gang.lifecycle import GangChoice
from rackgate.gang.membership import NAME_LABELS, Mismatch, part_of, replica_key
from rackgate.gang.topology_requests import GangPodSet, Rejected, Requests
from rackgate_assigner.gangs.gang_workload import GangWorkload, min_count


class HoldReason(StrEnum):
    """Reasons of conditions of a Workload of gangs, and of Events."""

    INVALID_TEMPLATE = "InvalidTemplate"
    WORKLOAD_MISSING = "WorkloadMissing"
    NAME_TAKEN = "WorkloadNameTaken"
    UNREADABLE = "Unreadable"
    SHARED = "SharedByTwoJobs"
    UNSATISFIABLE = "Unsatisfiable"
    TOPOLOGY = "TopologyRequestInvalid"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a job is not admitted."""

    reason: HoldReason
    message: str


NO_REQUESTS: Final = Requests()
REMOVE_LINK: Final = "remove the annotation from the pod template"


def find_hold(
    choice: GangChoice,
    workload: GangWorkload | None,
    podsets: Sequence[GangPodSet],
    *,
    job_uid: str,
    holder: str,
    topology: Requests | Rejected = NO_REQUESTS,
) -> Hold | None:
    """Why a job is not admitted; None if its gangs allow it.

    Args:
        choice: its Workload of gangs.
        workload: that object, None if it does not exist.
        podsets: of the job.
        job_uid: of the job.
        holder: name of another job that uses the same Workload of gangs now; "" if none does.
        topology: what it gets from the topology requests of its Workload of gangs.
    """
    if choice.problem:
        return Hold(HoldReason.INVALID_TEMPLATE, choice.problem)
    if not choice.name:
        return None
    name = f'Workload of gangs "{choice.name}"'
    if workload is None or workload.metadata.deletion_timestamp is not None:
        advice = "it is made soon" if choice.is_own else f"create it, or {REMOVE_LINK}"
        return Hold(HoldReason.WORKLOAD_MISSING, f"the {name} does not exist: {advice}")
    if choice.is_own and not is_owned_by(workload, job_uid):
        message = f"the {name} has another owner: delete it, and it is made again for this job"
        return Hold(HoldReason.NAME_TAKEN, message)
    if not workload.readable:
        return Hold(HoldReason.UNREADABLE, f"the spec of the {name} cannot be read: correct it")
    if holder and workload.has_gangs:
        message = (
            f'the {name} is used by the job "{holder}": the gangs of two jobs would be counted as '
            "one; wait for it, or create a Workload of gangs for each"
        )
        return Hold(HoldReason.SHARED, message)
    missing = unsatisfiable(workload.canonical, podsets)
    if missing:
        return Hold(HoldReason.UNSATISFIABLE, f"{missing} of the {name}")
    if isinstance(topology, Rejected):
        problem = f"{topology.path}: {topology.message}"
        return Hold(HoldReason.TOPOLOGY, f"the {name} cannot be placed: {problem}")
    return None


def find_child_hold(
    choice: GangChoice, podsets: Sequence[GangPodSet], topology: Requests | Rejected
) -> Hold | None:
    """As `find_hold`, of a job whose child Jobs have Workloads of gangs of their own.

    These are made when the child Jobs exist, so the job does not wait for them.
    """
    for podset in podsets:
        one = choice.children[podset.name]
        missing = unsatisfiable(one.canonical, [replace(podset, count=one.pods)])
        if missing:
            return Hold(HoldReason.UNSATISFIABLE, f"{one.path}, for each child Job: {missing}")
    if isinstance(topology, Rejected):
        return Hold(HoldReason.TOPOLOGY, f"{topology.path}: {topology.message}")
    return None


def is_owned_by(workload: GangWorkload, uid: str) -> bool:
    """Whether the controller of a Workload of gangs is the object with this uid."""
    owner = workload.metadata.controller
    return owner is not None and owner.uid == uid


def unsatisfiable(canonical: Object, podsets: Iterable[GangPodSet]) -> str:
    """Which gang needs more pods than the job can have; "" if there is none.

    A pod may have labels that its template does not show, so all pods count for each gang that
    they may be in.
    """
    known = tuple(podsets)
    for group in canonical["gangGroups"]:
        least = min_count(group)
        possible = sum(one.count for one in known if may_be_in(canonical, group, one.labels))
        if possible < least:
            return (
                f"gang {group['name']} needs {least} pods, and the job has {possible} for it: add "
                "pods, or lower minCount"
            )
    return ""


def may_be_in(canonical: Object, group: Object, labels: Mapping[str, str]) -> bool:
    """Whether pods that have these labels, and maybe others, may be in a gang group."""
    groups = canonical["gangGroups"]
    keys = {one["selector"]["key"] for one in groups if "selector" in one}
    if len(groups) > 1 and not keys:
        keys = set() if any(label in labels for label in NAME_LABELS) else set(NAME_LABELS)
    if keys - labels.keys():
        return True
    if replica_key(canonical):
        return True  # there is only one group
    part = part_of(canonical, labels)
    return not isinstance(part, Mismatch) and part.gang.group == group["name"]
