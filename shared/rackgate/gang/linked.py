"""The Workload of gangs of an object whose pods are linked: its name, its spec, and its counts.

Its name follows from the object without its UID, so that the webhook can write it into the pod
templates before the object exists. Its counts follow the object; all else of it may be edited.

Source: GNG-18, GNG-21, GNG-24, GNG-27, GNG-31, rows 1, 2, 4, 10, 11 and 12 of the settings.
"""

from __future__ import annotations

from typing import Any, Final

from rackgate.api.names import (
    MAX_EXECUTION_TIME_LABEL,
    PRIORITY_CLASS_LABEL,
    QUEUE_LABEL,
    workload_name,
)
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.gang.forms.expand import DEFAULT_TIMEOUT_S
from rackgate.gang.levels import Object
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.linked_kind import LinkedGang, LinkedKind
from rackgate.wire.core import Meta

GROUP: Final = "gg"
# Labels of an object that its Workload of gangs has, too, for pods that do not have them.
LABELS: Final = (QUEUE_LABEL, PRIORITY_CLASS_LABEL, MAX_EXECUTION_TIME_LABEL)
_REPLICATED: Final = "ReplicatedGangs"
_ALONE: Final = "ReplicatedPods"


def linked_name(kind: LinkedKind, name: str) -> str:
    """Name of the Workload of gangs that Rackgate makes for an object."""
    return workload_name(kind.resource.kind, kind.resource.group, name, "")


def linked_spec(kind: LinkedKind, name: str, gang: LinkedGang, *, rev_n: bool) -> dict[str, Any]:
    """What Rackgate writes into the Workload of gangs of an object.

    Args:
        kind: of the object.
        name: of the object.
        gang: which of its pods start together.
        rev_n: whether the feature gate WorkloadRevN is on. Without it, all gangs are one.
    """
    reference = {"apiGroup": kind.resource.group, "kind": kind.name, "name": name}
    spec: dict[str, Any] = {"controllerRef": reference}
    if gang.alone:
        return {**spec, "replicaMode": _ALONE}
    if not rev_n:
        count = gang.size * gang.gangs
        group = {"name": GROUP, "minCount": count, "scheduleTimeoutSeconds": DEFAULT_TIMEOUT_S}
        return {**spec, "gangGroups": [group]}
    rank = {"valueFrom": {"fieldRef": {"fieldPath": kind.rank_path}}}
    group = {"name": GROUP, "minCount": gang.size, "maxCount": gang.size, "podRank": rank}
    if kind.replica_key:
        spec |= {"replicaMode": _REPLICATED, "replicaKey": kind.replica_key}
    return {**spec, "gangGroups": [group]}


def linked_body(kind: LinkedKind, meta: Meta, gang: LinkedGang, *, rev_n: bool) -> dict[str, Any]:
    """The Workload of gangs that Rackgate makes for an object, owned by it.

    Args:
        kind: of the object.
        meta: of the object, with no other labels than those of `LABELS`.
        gang: which of its pods start together.
        rev_n: see `linked_spec`.
    """
    owner = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.name,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": GANG_WORKLOADS.api_version,
        "kind": GANG_WORKLOADS.kind,
        "metadata": {
            "name": linked_name(kind, meta.name),
            "namespace": meta.namespace,
            "labels": dict(meta.labels),
            "ownerReferences": [owner],
        },
        "spec": linked_spec(kind, meta.name, gang, rev_n=rev_n),
    }


def has_another_form(gang: LinkedGang, spec: Object) -> bool:
    """Whether a Workload of gangs was made when the object had gangs, and has none, or reverse.

    Its `replicaMode` is immutable, so it must be made again.
    """
    return bool(gang.alone) != (spec.get("replicaMode") == _ALONE)


def count_ops(gang: LinkedGang, spec: Object) -> list[JsonPatchOp]:
    """Operations after which a Workload of gangs has the counts of its object.

    There are none if its user has rewritten its groups: then the user counts the pods.

    Args:
        gang: which pods of the object start together.
        spec: of its Workload of gangs, of the same form.
    """
    groups: list[Object] = spec.get("gangGroups") or []
    if gang.alone or len(groups) != 1 or groups[0].get("name") != GROUP:
        return []
    count = gang.size if spec.get("replicaMode") == _REPLICATED else gang.size * gang.gangs
    return [
        {"op": "replace", "path": f"/spec/gangGroups/0/{field}", "value": count}
        for field in ("minCount", "maxCount")
        if field in groups[0] and groups[0][field] != count
    ]
