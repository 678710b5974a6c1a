"""The next action for the Workload of gangs of an object whose pods are linked. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from rackgate.gang.linked import LABELS, count_ops, has_another_form, linked_name
from rackgate.jobframework.errors import MalformedError
from rackgate.jobframework.jsonpatch import JsonPatchOp, map_patch
from rackgate.jobframework.linked_kind import LinkedGang, LinkedKind
from rackgate.jobframework.registry import is_linked_part
from rackgate.wire.core import Meta, MetadataOnly
from rackgate.wire.depth import tolerant
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.holds import is_owned_by


@dataclass(frozen=True, slots=True)
class LinkedObject:
    """What is kept of such an object.

    Attributes:
        metadata: without annotations, and with those labels that its Workload of gangs has, too.
        gang: which of its pods start together.
        is_linked: whether a pod template names the Workload of gangs that Rackgate makes for it.
        has_pods: whether it has pods now.
    """

    metadata: Meta
    gang: LinkedGang
    is_linked: bool
    has_pods: bool = False


@dataclass(frozen=True, slots=True)
class CreateLinked:
    """Create its Workload of gangs."""


@dataclass(frozen=True, slots=True)
class PatchLinked:
    """Make its Workload of gangs follow the object."""

    workload: GangWorkload
    operations: list[JsonPatchOp]


@dataclass(frozen=True, slots=True)
class DeleteLinked:
    """Delete its Workload of gangs, which is made again when it is needed."""

    workload: GangWorkload
    why: str


@dataclass(frozen=True, slots=True)
class NameTaken:
    """The name belongs to a Workload of gangs of another owner, or of none."""

    workload: GangWorkload


Action: TypeAlias = CreateLinked | PatchLinked | DeleteLinked | NameTaken

_decode_metadata = tolerant(msgspec.json.Decoder(MetadataOnly).decode)
_decode_manifest = tolerant(msgspec.json.Decoder(dict[str, Any]).decode)


def linked_decoder(kind: LinkedKind) -> Callable[[bytes | msgspec.Raw], LinkedObject]:
    """Decodes objects of a kind; all that is not needed is dropped."""

    def decode(raw: bytes | msgspec.Raw) -> LinkedObject:
        meta, manifest = _decode_metadata(raw).metadata, _decode_manifest(raw)
        labels = {key: meta.labels[key] for key in LABELS if key in meta.labels}
        kept = msgspec.structs.replace(meta, labels=labels, annotations={}, finalizers=())
        try:
            own = linked_name(kind, meta.name)
            links = {holder.link for holder in kind.holders(manifest)}
            is_linked = own in links and not is_linked_part(manifest)
            gang, has_pods = kind.gang(manifest), kind.has_pods(manifest)
            return LinkedObject(kept, gang, is_linked, has_pods)
        except MalformedError as error:
            # A definition of another version allows it; the gangs of its pods are unknown.
            return LinkedObject(kept, LinkedGang(alone=str(error)), is_linked=False)

    return decode


def plan_linked(kind: LinkedKind, found: LinkedObject, own: GangWorkload | None) -> Action | None:
    """The next action, None if there is none.

    Args:
        kind: of the object.
        found: the object.
        own: the Workload of gangs with the name that Rackgate gives, None if there is none.
    """
    if not found.is_linked or found.metadata.deletion_timestamp is not None:
        return None  # deleted with the object
    if own is None:
        return None if found.gang.is_empty else CreateLinked()
    if own.metadata.deletion_timestamp is not None:
        return None  # made again when it is gone
    if not is_owned_by(own, found.metadata.uid):
        if _is_of_former(kind, found, own):
            return DeleteLinked(own, "the object was deleted and created again")
        return NameTaken(own)
    if found.gang.is_empty or has_another_form(found.gang, own.spec):
        # Its pods count on it. When the next ones are created, they wait for one with their counts.
        why = "the object has no pods, and it is made again for the next ones"
        return None if found.has_pods else DeleteLinked(own, why)
    labels = own.metadata.labels
    others = {key: value for key, value in labels.items() if key not in LABELS}
    wanted = {**others, **found.metadata.labels}
    operations = [
        *map_patch("/metadata", "labels", {"labels": labels} if labels else {}, wanted),
        *count_ops(found.gang, own.spec),
    ]
    return PatchLinked(own, operations) if operations else None


def _is_of_former(kind: LinkedKind, found: LinkedObject, own: GangWorkload) -> bool:
    """Whether an object of the same kind and name owned it, which is gone since this one exists."""
    owner = own.metadata.controller
    return owner is not None and (
        (owner.kind, owner.name) == (kind.name, found.metadata.name)
        and owner.api_version.startswith(f"{kind.resource.group}/")
    )
