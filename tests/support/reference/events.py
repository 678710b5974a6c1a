"""The page of Events: the reasons that assigner and ungater record, with their meaning.

No enum lists them, so the table is here, and `gaps` compares it with the calls in the sources.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from rackgate.api import names
from tests.support.reference import ROOT, page, table

PURPOSE: Final = "This page lists the Events that Rackgate records."
INTRODUCTION: Final = """\
An Event is recorded once for each change. An equal Event about the same object is not recorded again
within 5 minutes. At most 25 different Events about one object with one reason are recorded at once, then one
every 10 s. Each service records at most 20 Events per second in the long run, and drops Events that
do not fit its queue (`rackgate_events_dropped_total`). Events about cluster-scoped objects are in the namespace
`default`. The reporting controller is `rackgate.dev/assigner` or `rackgate.dev/ungater`; the webhook records no
Events.

```sh
kubectl events -n team-a --for job/train
kubectl get events -A --field-selector reason=NodesReplaced
```"""
KINDS: Final = "Job, JobSet, RayCluster, RayJob"
RESIZED: Final = f"{KINDS}, Workload"
# Section -> rows of reason, object, type and meaning. `{...}` stands for a part that varies.
EVENTS: Final[dict[str, tuple[tuple[str, str, str, str], ...]]] = {
    "Admission": (
        (
            "Admitted",
            "Workload",
            "Normal",
            "The Workload is admitted. It has quota and, with a topology, its domains.",
        ),
        (
            "QuotaReserved",
            "Workload",
            "Normal",
            "The Workload has quota, and waits for its admission checks. The message names them.",
        ),
        (
            "AdmissionCheckRejected",
            "Workload",
            "Warning",
            "An admission check has rejected the Workload. It is deactivated.",
        ),
        (
            "{pending reason}",
            "Workload",
            "Warning",
            "The Workload is pending. The Event has reason and message of the condition `QuotaReserved`"
            " ([reasons](conditions-and-reasons.md#why-a-workload-is-pending)).",
        ),
        ("Preempted", "Workload", "Normal", "Another Workload preempts this one."),
        (
            "EvictedDueTo{eviction reason}",
            "Workload",
            "Warning",
            "The Workload is evicted ([reasons](conditions-and-reasons.md#why-a-workload-is-evicted)).",
        ),
        (
            "WorkloadUpdateRefused",
            "Workload",
            "Warning",
            "The API server rejected a change of the Workload. The change is repeated.",
        ),
    ),
    "Jobs": (
        ("Started", KINDS, "Normal", "The job was started with its admission."),
        (
            "Stopped",
            KINDS,
            "Normal",
            "The job was suspended, or the pods of a group were deleted. The message says why.",
        ),
        (
            "ExcessPodDeleted",
            "Pod",
            "Normal",
            "A group has more pods than it says. Those that did not start were deleted.",
        ),
        (
            "PodSetMismatch",
            "Pod",
            "Warning",
            "A pod of a running group requests something else than was admitted, and stays gated.",
        ),
        ("UpdatedWorkload", KINDS, "Normal", "The Workload was updated after a change of the job."),
        (
            "Deleted",
            KINDS,
            "Normal",
            "The job was deleted: Rackgate deactivated its Workload, and `objectRetentionPolicies` keeps it no longer.",
        ),
        ("DeletedWorkload", KINDS, "Normal", "The Workload was deleted. The message says why."),
        (
            "ErrWorkloadCompose",
            RESIZED,
            "Warning",
            "The Workload, or a workload slice, could not be created.",
        ),
        (
            "FailedToStart",
            KINDS,
            "Warning",
            "The job could not be started with its admission. Its Workload is finished.",
        ),
        (
            "{kind}UpdateRefused",
            KINDS,
            "Warning",
            "The API server or a policy rejected a change of the job.",
        ),
        (
            "{kind}NotFound",
            KINDS,
            "Warning",
            "The WorkloadPriorityClass or PriorityClass of the job does not exist. The Workload is created"
            " when the class exists.",
        ),
        (
            "OwnerNotFound",
            KINDS,
            "Warning",
            "The controller that the job names does not exist. The job is queued like any other.",
        ),
        (
            "StatusLate",
            KINDS,
            "Warning",
            "The job is suspended and has no pods, but its status does not say so within 10 s. Its quota"
            " is released. A user who changes a job all the time keeps its status from being written.",
        ),
        (
            "StopLate",
            "JobSet, RayCluster, RayJob",
            "Warning",
            "The job is suspended, and its controller has not stopped it within 10 s. Its pods were deleted,"
            " or its children suspended. The controller may be slow, down or reject it, or the job is changed"
            " all the time.",
        ),
        (
            "GangWorkloadRefused",
            KINDS,
            "Warning",
            "The API server rejected the Workload of gangs of the job, or of an object whose pods are linked. The message says why; it is tried again.",
        ),
        (
            "ResizeNotSupported",
            KINDS,
            "Warning",
            "The running job requests more pods than were admitted. The surplus stays gated.",
        ),
        (
            "OperatorReminded",
            KINDS,
            "Normal",
            "Not all pods are ready some time after a change of the job. Rackgate changed an annotation of the"
            " job, so that its operator reconciles it again.",
        ),
    ),
    "Elastic jobs": (
        (
            "ResizeRequested",
            RESIZED,
            "Normal, Warning",
            "The job requests another number of pods. A Warning says that slices are pending.",
        ),
        ("Resized", RESIZED, "Normal", "All requested pods are admitted."),
    ),
    "Nodes": (
        (
            "NodesReplaced",
            "Workload",
            "Normal",
            "Pods of unhealthy nodes were assigned to other nodes. The message names the unhealthy nodes.",
        ),
        (
            "SecondPassFailed",
            "Workload",
            "Warning",
            "Unhealthy nodes have no replacement for now. The message says why.",
        ),
        (
            "PodTerminatedByKueue",
            "Pod",
            "Normal",
            "The pod could only run on an unhealthy node. Its phase was set to Failed.",
        ),
        (
            "NodesWithoutLevels",
            "ResourceFlavor",
            "Warning",
            "Nodes of the flavor lack labels of the Topology's levels. They do not take part in the topology.",
        ),
        (
            "FlavorsShareNodes",
            "ResourceFlavor",
            "Warning",
            "Two flavors with a topology select the same nodes.",
        ),
    ),
    "Ungating": (
        (
            "AssignmentUnreadable",
            "Workload",
            "Warning",
            "The topology assignment, or a part of it, cannot be read. Pods without a domain stay gated.",
        ),
        (
            "RankOrderIgnored",
            "Workload",
            "Warning",
            "Pods of the PodSet are ungated in an order other than that of their ranks. The message says why.",
        ),
        (
            "NodeSelectorConflict",
            "Workload, Pod",
            "Warning",
            "The node selector of a pod contradicts every free domain of the assignment. The pod stays gated.",
        ),
        (
            "SurplusPods",
            "Workload",
            "Warning",
            "The PodSet has more pods than were admitted. The surplus stays gated.",
        ),
        (
            "WorkloadMissing",
            "Pod",
            "Warning",
            "The Workload that the pod names, of Kueue or of gangs, does not exist. The pod stays gated.",
        ),
        (
            "GangReleased",
            "Workload of gangs",
            "Normal",
            "A gang started: its pods are released. The message has their number and the run.",
        ),
        (
            "GangWaiting",
            "Workload of gangs, Workload",
            "Warning",
            "A gang of an admitted Workload has not started for 10 s. The message says why.",
        ),
        (
            "NativeGroupTaken",
            "Workload",
            "Warning",
            "The PodGroup of a gang exists and belongs to somebody else. Rackgate leaves it alone.",
        ),
        (
            "NativeGroupForeign",
            "Workload",
            "Warning",
            "Another controller has put pods of a gang into PodGroups. Rackgate makes none for them.",
        ),
        (
            "NativeGroupRejected",
            "Workload",
            "Warning",
            "The API server rejected the PodGroup of a gang. The pods stay gated; it is tried again.",
        ),
        (
            "NativeGroupFailed",
            "Workload",
            "Warning",
            "The PodGroup of an earlier run is not deleted yet. The pods stay gated; it is tried again.",
        ),
        (
            "PodNotMatched",
            "Workload of gangs",
            "Warning",
            "Pods belong to no gang, or are too many in theirs, and stay gated. At most once per minute."
            " Or pods run that differ from what the object says: `NotHeld`, `Ambiguous` or `ShapeDiffers`.",
        ),
    ),
    "Administration": (
        (
            "UnsupportedField",
            "ClusterQueue, AdmissionCheck, Workload, Job, JobSet, RayCluster, RayJob",
            "Warning",
            "The object has fields, labels or annotations without effect ([list](compatibility.md)). The message names"
            " them, and says what happens instead.",
        ),
        ("TopologyCreated", "Pool", "Normal", "KAI's Topology of the pool was created."),
        (
            "TopologyReplaced",
            "Pool",
            "Normal",
            "KAI's Topology was deleted and created with other levels.",
        ),
        ("TopologyMarked", "Pool", "Normal", "Label and owner of KAI's Topology were set."),
        ("TopologyRemoved", "Pool", "Normal", "KAI's Topology was deleted."),
        (
            "{pool reason}",
            "Pool",
            "Warning",
            "KAI's Topology differs from the pool ([reasons](conditions-and-reasons.md#osmo-pools)).",
        ),
    ),
    "Gangs": (
        (
            "DefaultCreated",
            "Workload of gangs",
            "Normal",
            "Rackgate made it for a job, or for an object whose pods are linked. It is deleted with that.",
        ),
        (
            "Adopted",
            "Workload of gangs",
            "Normal",
            "A job that deletes itself owns it now. It is deleted with the job.",
        ),
        (
            "{gang eviction}",
            "Workload of gangs",
            "Warning",
            "`GangTimeout`, `GangMemberLost`: its job is evicted"
            " ([reasons](conditions-and-reasons.md#why-a-workload-is-evicted)).",
        ),
        (
            "{gang hold}",
            f"{KINDS}, Workload of gangs",
            "Warning",
            "A job is not admitted because of its gangs. `InvalidTemplate`: its annotation is no valid spec."
            " `WorkloadNameTaken`: the Workload of gangs that it would get has another owner; also on objects"
            " whose pods are linked, which use that one. `Unreadable`: the"
            " spec has an unknown form. `SharedByTwoJobs`: another job uses it; also on the Workload of gangs."
            " `Unsatisfiable`: a gang needs more pods than the job has. `TopologyRequestInvalid`: its topology"
            " requests cannot be used.",
        ),
    ),
}
_RECORDS: Final = re.compile(
    r"(gang|report|tell|warn|record|event|workload|job|pod|pool|configuration)", re.IGNORECASE
)
_REASON: Final = re.compile(
    r"[A-Z][a-z]+(?:[A-Z][a-z]+)+|Admitted|Adopted|Started|Stopped|Preempted|Resized|Deleted"
)
# Words of that form in such calls that are not reasons of Events.
_OTHERS: Final = frozenset({"Background"})


def documented() -> set[str]:
    """The reasons of the table."""
    return {row[0] for rows in EVENTS.values() for row in rows}


def recorded() -> set[str]:
    """The reasons in calls of the sources that record Events."""
    found: set[str] = set()
    for service in ("assigner", "ungater"):
        for path in sorted((ROOT / "services" / service).rglob("*.py")):
            found.update(_reasons(ast.parse(path.read_text())))
    return found - _OTHERS


def _reasons(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _RECORDS.search(ast.unparse(node.func)):
            for argument in node.args:
                yield from _texts(argument)
        # Events about flavors are collected by flavor and reason before they are recorded.
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Tuple)
            and ast.unparse(node.value) != "Literal"
        ):
            for part in node.slice.elts:
                yield from _texts(part)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        if _REASON.fullmatch(node.value):
            yield node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
        if re.fullmatch(r"(\{\})?[A-Z][A-Za-z]+(\{\})?", text):
            yield text


def gaps() -> list[str]:
    """Reasons that the table lacks, and reasons that the sources no longer use."""
    listed = {re.sub(r"\{[^}]*\}", "{}", reason) for reason in documented()}
    # These come from enums: the table of conditions covers their values.
    enums = {"{}", "ResizeRequested", "Resized", str(names.FinishedReason.FAILED_TO_START)}
    found = recorded()
    return sorted((found - listed) | (listed - found - enums))


def text() -> str:
    """The page.

    Raises:
        ValueError: the table does not fit the sources.
    """
    if found := gaps():
        raise ValueError(f"Events: {', '.join(found)}")
    blocks = []
    for title, rows in EVENTS.items():
        shown = [(f"`{reason}`", *rest) for reason, *rest in rows]
        blocks.append(f"## {title}\n\n{table(('Reason', 'Object', 'Type', 'Meaning'), shown)}")
    return page("Events", PURPOSE, INTRODUCTION, *blocks)
