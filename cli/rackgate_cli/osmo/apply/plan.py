"""Decides what `rackgate osmo apply` does with one object, from what is stored. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from rackgate.api.names import OSMO_GROUP
from rackgate.resources.quantity import QuantityError, amount
from rackgate_osmo.model.workflow import POD_GROUP_ANNOTATION

Object = dict[str, Any]

# Annotation of pods: a digest of what was applied.
APPLIED: Final = f"{OSMO_GROUP}/applied"
_DIGITS: Final = 16
# Fields of a PodGroup that `apply` owns; users and KAI own the others.
_GROUP_FIELDS: Final = ("queue", "minMember", "topologyConstraint", "subGroups")
_AMOUNTS: Final = ("requests", "limits")
_ENDED: Final = ("Succeeded", "Failed")
_NAMED: Final = 3  # pods, groups and labels named in a message


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The object is as desired."""


@dataclass(frozen=True, slots=True)
class Create:
    """The object does not exist."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The object is immutable: delete this version, then create it; the note is for its users."""

    preconditions: Mapping[str, str]
    note: str = ""


@dataclass(frozen=True, slots=True)
class MergePatch:
    """Merge-patch this version."""

    patch: Object = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class WaitForDeletion:
    """The object is being deleted: decide again when it is gone."""


@dataclass(frozen=True, slots=True)
class Reject:
    """The object stays unchanged."""

    message: str


Action: TypeAlias = Unchanged | Create | Replace | MergePatch | WaitForDeletion | Reject


def plan_topology(wanted: Object, stored: Object | None) -> Action:
    """Create it, or replace it if its levels differ: they are immutable (KAI: topology-immutable).

    Running pods are not affected, and pending groups continue when it exists again (KAI:
    topology-deleted).
    """
    if stored is None:
        return Create()
    if _is_deleted(stored):
        return WaitForDeletion()
    levels = labels_of(stored)
    if levels == labels_of(wanted):
        return Unchanged()
    before = ", ".join(levels) or "none"
    return Replace(preconditions_of(stored), f"levels were {before}; running pods are not affected")


def plan_pod_group(wanted: Object, stored: Object | None, live: Sequence[str]) -> Action:
    """Create it, or change it while it has no pods that could still run.

    `live` names the group's pods that have not ended; it is used only if the group differs.
    The label of a pod that names its subgroup never changes. If the group gets other subgroups,
    KAI silently ignores such a pod (KAI: unknown-subgroup-label). A running group with too few
    counted pods is stale for KAI, which evicts it.
    """
    if stored is None:
        return Create()
    if _is_deleted(stored):
        return WaitForDeletion()
    spec, current = wanted["spec"], stored.get("spec") or {}
    changed = [name for name in _GROUP_FIELDS if _value(spec, name) != _value(current, name)]
    labels = wanted["metadata"].get("labels", {})
    relabel = not _is_contained(labels, stored["metadata"].get("labels") or {})
    if not changed and not relabel:
        return Unchanged()
    if changed and live:
        return Reject(
            f"{', '.join(changed)} would change, but the group has pods that have not ended "
            f"({some_of(live)}): KAI would ignore or evict them; use --replace to delete them and "
            "create the group again, or give it another name with --names"
        )
    metadata = {**preconditions_of(stored), "labels": labels}
    patch: Object = {
        "metadata": metadata,
        "spec": {name: _replace_fields(current.get(name), spec.get(name)) for name in changed},
    }
    return MergePatch(patch, f"changed: {', '.join(changed) or 'labels'}")


def _value(spec: Mapping[str, Any], name: str) -> Any:
    """A field of a PodGroup; subgroups are sorted by name, because they are a set."""
    value = spec.get(name)
    if isinstance(value, list):
        return sorted(value, key=lambda subgroup: str(subgroup.get("name")))
    return value or None


def _replace_fields(stored: Any, wanted: Any) -> Any:
    """A merge patch that makes the stored value equal to the desired one."""
    if isinstance(stored, Mapping) and isinstance(wanted, Mapping):
        return {**dict.fromkeys(stored), **wanted}
    return wanted


def is_changed(wanted: Object, stored: Object | None) -> bool:
    """Whether a PodGroup exists and differs from the desired one."""
    return isinstance(plan_pod_group(wanted, stored, ()), MergePatch)


def with_hash_annotation(pod: Object) -> Object:
    """A pod with a digest of what is applied.

    Admission adds to a pod (amounts of a LimitRange, containers of a webhook), so the stored
    object does not show whether the same pod was applied.
    """
    metadata = pod["metadata"]
    others = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != APPLIED}
    plain = {**pod, "metadata": {**metadata, "annotations": others}}
    text = json.dumps(plain, sort_keys=True).encode()
    mark = {APPLIED: hashlib.sha256(text).hexdigest()[:_DIGITS]}
    return {**pod, "metadata": {**metadata, "annotations": {**others, **mark}}}


def plan_pod(wanted: Object, stored: Object | None) -> Action:
    """Create it, or leave it: a pod is immutable.

    A stored pod without the annotation `APPLIED`, created by others, is compared by its fields.
    """
    if stored is None:
        return Create()
    if _is_deleted(stored):
        return WaitForDeletion()
    mine, its = _annotations(wanted), _annotations(stored)
    if APPLIED in its:
        same = True  # the annotation in the metadata decides
    else:
        mine.pop(APPLIED, None)
        same = _is_contained(wanted["spec"], stored.get("spec") or {})
    metadata = {**wanted["metadata"], "annotations": mine}
    if same and _is_contained(metadata, {**stored["metadata"], "annotations": its}):
        return Unchanged()
    return Reject(
        "another pod has this name: delete it first, use --replace to delete the pods of its group "
        "and create it again, or give the workflow another name"
    )


@dataclass(frozen=True, slots=True)
class PodDeletion:
    """Stored pods of a task group that are deleted before the group is created again."""

    pods: tuple[Object, ...]


def plan_pod_deletion(
    wanted: Object, stored: Object | None, mine: Sequence[Object], there: Sequence[Object]
) -> PodDeletion | Reject | None:
    """The pods to delete because a task group cannot be changed in place; None if there are none.

    A gang starts together, so all its pods are deleted, even unchanged ones. Ended pods stay,
    unless their names are needed. Only pods that `apply` created are deleted. `mine` are the pods
    as built, `there` all pods of the namespace.
    """
    group, names = wanted["metadata"]["name"], {pod["metadata"]["name"] for pod in mine}
    by_name = {pod["metadata"]["name"]: pod for pod in there}
    live = set(live_pods(there, group))
    rejected = isinstance(plan_pod_group(wanted, stored, sorted(live)), Reject) or any(
        isinstance(plan_pod(pod, by_name.get(pod["metadata"]["name"])), Reject) for pod in mine
    )
    if not rejected:
        return None
    to_delete = [pod for name, pod in sorted(by_name.items()) if name in live or name in names]
    foreign = [pod["metadata"]["name"] for pod in to_delete if not _applied(pod, group)]
    if foreign:
        return Reject(
            "--replace deletes only pods that rackgate osmo apply created for this group. "
            f"{some_of(foreign)} {'was' if len(foreign) == 1 else 'were'} not: delete what is "
            "not needed, or give the workflow another name"
        )
    return PodDeletion(tuple(to_delete))


def _applied(pod: Object, group: str) -> bool:
    """Whether `apply` created a pod for a PodGroup, and no controller owns it."""
    annotations = _annotations(pod)
    return (
        APPLIED in annotations
        and annotations.get(POD_GROUP_ANNOTATION) == group
        and not pod["metadata"].get("ownerReferences")
    )


def _annotations(item: Object) -> dict[str, str]:
    return dict(item["metadata"].get("annotations") or {})


def _is_deleted(stored: Object) -> bool:
    return bool(stored["metadata"].get("deletionTimestamp"))


def preconditions_of(stored: Object) -> dict[str, str]:
    """Preconditions that bind a write to the version that was read."""
    metadata = stored["metadata"]
    return {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}


def labels_of(topology: Object) -> list[str]:
    """Node labels of a Topology, coarsest first."""
    return [level["nodeLabel"] for level in topology.get("spec", {}).get("levels", ())]


def live_pods(pods: Sequence[Object], group: str) -> list[str]:
    """Names of the pods of a PodGroup that have not ended, sorted."""
    return sorted(
        pod["metadata"]["name"]
        for pod in pods
        if (pod["metadata"].get("annotations") or {}).get(POD_GROUP_ANNOTATION) == group
        and (pod.get("status") or {}).get("phase") not in _ENDED
    )


def with_missing_level(topology: Object, groups: Sequence[Object]) -> list[str]:
    """PodGroups of this Topology that name a level which it lacks, as `namespace/name`, sorted.

    KAI no longer schedules their pods (KAI: unknown-level); running ones are not affected.
    """
    name, levels = topology["metadata"]["name"], set(labels_of(topology))
    found = []
    for group in groups:
        spec = group.get("spec") or {}
        parts = [spec, *(spec.get("subGroups") or ())]
        constraints = [part.get("topologyConstraint") or {} for part in parts]
        asked = {
            constraint[field]
            for constraint in constraints
            if constraint.get("topology") == name
            for field in ("requiredTopologyLevel", "preferredTopologyLevel")
            if constraint.get(field)
        }
        if asked - levels:
            found.append(f"{group['metadata'].get('namespace')}/{group['metadata']['name']}")
    return sorted(found)


def some_of(names: Sequence[str], most: int = _NAMED) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _is_contained(wanted: Any, stored: Any) -> bool:
    """Whether the stored object has all desired values; defaults and quantity formats may vary."""
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(
            name in stored
            and (_equal_amounts if name in _AMOUNTS else _is_contained)(value, stored[name])
            for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(stored, list)
            and len(wanted) == len(stored)
            and all(_is_contained(mine, its) for mine, its in zip(wanted, stored, strict=True))
        )
    return bool(wanted == stored)


def _equal_amounts(wanted: Any, stored: Any) -> bool:
    try:
        return {name: amount(name, value) for name, value in wanted.items()} == {
            name: amount(name, value) for name, value in stored.items()
        }
    except (QuantityError, AttributeError, TypeError):
        return False
