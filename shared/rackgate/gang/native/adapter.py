"""What all generations of the API have in common: metadata, the policy, conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rackgate.api.resources import Resource
from rackgate.gang.native.model import (
    RUN_LABEL,
    ObservedPodGroup,
    Owner,
    PodGroup,
    condition_of,
)
from rackgate.wire.core import Condition, Meta, View
from rackgate.wire.depth import tolerant

_PROBE_COUNT: Final = 2


@dataclass(frozen=True, slots=True)
class Adapter:
    """One generation of the API.

    Attributes:
        resource: its PodGroups.
        spec_of: the spec of a PodGroup.
        is_tested: whether tests run it on a real control plane.
    """

    resource: Resource
    spec_of: Callable[[PodGroup], Mapping[str, Any]]
    is_tested: bool

    def body(self, group: PodGroup) -> bytes:
        """The JSON of a PodGroup to create; it belongs to the Workload and the run of its gang."""
        metadata: dict[str, Any] = {"name": group.name, "namespace": group.namespace}
        if group.run:
            metadata["labels"] = {RUN_LABEL: group.run}
        owner = group.owner
        if owner.uid:
            reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name}
            metadata["ownerReferences"] = [{**reference, "uid": owner.uid, "controller": True}]
        return msgspec.json.encode(
            {
                "apiVersion": self.resource.api_version,
                "kind": self.resource.kind,
                "metadata": metadata,
                "spec": dict(self.spec_of(group)),
            }
        )

    def probe(self, namespace: str) -> bytes:
        """A PodGroup for a dry run: its answer shows whether the API server keeps its fields."""
        owner = Owner("", "", "", "")
        group = PodGroup(namespace, "rackgate-probe", owner, "", _PROBE_COUNT)
        return self.body(group)

    def keeps_fields(self, answer: bytes) -> bool:
        """Whether the answer to `probe` has what was sent.

        Raises:
            msgspec.MsgspecError: it is not a PodGroup.
        """
        return decode_pod_group(answer).min_count == _PROBE_COUNT


def policy_of(group: PodGroup) -> dict[str, Any]:
    """The scheduling policy: all or none, or one by one."""
    return {"gang": {"minCount": group.min_count}} if group.min_count else {"basic": {}}


class _Gang(View, frozen=True):
    min_count: int = 0


class _Policy(View, frozen=True):
    gang: _Gang | None = None


class _Spec(View, frozen=True):
    scheduling_policy: _Policy = _Policy()


class _Status(View, frozen=True):
    conditions: tuple[Condition, ...] = ()


class _PodGroup(View, frozen=True):
    metadata: Meta = Meta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


_decode = tolerant(msgspec.json.Decoder(_PodGroup).decode)


def decode_pod_group(raw: bytes | msgspec.Raw) -> ObservedPodGroup:
    """A PodGroup of any generation.

    Raises:
        msgspec.MsgspecError: the JSON is not a PodGroup.
    """
    view = _decode(raw)
    meta, gang = view.metadata, view.spec.scheduling_policy.gang
    conditions = {one.type: (one.status, one.message) for one in view.status.conditions}
    scheduled, message = condition_of(conditions)
    return ObservedPodGroup(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        owner_uid=meta.controller.uid if meta.controller is not None else "",
        owner_name=meta.controller.name if meta.controller is not None else "",
        run=meta.labels.get(RUN_LABEL, ""),
        min_count=gang.min_count if gang is not None else 0,
        terminating=meta.deletion_timestamp is not None,
        scheduled=scheduled,
        message=message,
    )
