"""The fields of a Workload of gangs that ungating needs, expanded once. Pure.

Templates and topology requests are not decoded: they are the largest part of the object.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rackgate.gang.forms.expand import expand
from rackgate.gang.levels import Object
from rackgate.wire.core import Meta, View
from rackgate.wire.depth import tolerant


class GangWorkload(msgspec.Struct, frozen=True, gc=False):
    """A Workload of gangs.

    Attributes:
        spec: the canonical form, without templates.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    spec: Object

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def has_same_gangs(self, other: GangWorkload) -> bool:
        """Whether both allow the same ungating."""
        return self.uid == other.uid and self.spec == other.spec


class _SpecView(View, frozen=True, omit_defaults=True):
    """Base of the levels: what is not set stays out of the decoded spec."""


class _SelectorView(_SpecView, frozen=True):
    key: str
    values: list[str]


class _GroupView(_SpecView, frozen=True, kw_only=True):
    name: str
    selector: _SelectorView | None = None
    count: int | None = None
    min_count: int | None = None
    max_count: int | None = None


class _RankedGroupView(_GroupView, frozen=True, kw_only=True):
    eq_groups: list[_GroupView] | None = None


class _GangGroupView(_RankedGroupView, frozen=True, kw_only=True):
    gang_mode: str | None = None
    rescheduling_policy: str | None = None
    ranked_groups: list[_RankedGroupView] | None = None


class _ControllerView(_SpecView, frozen=True):
    api_group: str = ""
    kind: str = ""


class _LevelsView(_SpecView, frozen=True):
    controller_ref: _ControllerView | None = None
    replica_mode: str | None = None
    replica_key: str | None = None
    gang_groups: list[_GangGroupView] | None = None
    ranked_groups: list[_RankedGroupView] | None = None
    eq_groups: list[_GroupView] | None = None


class _GangWorkloadView(View, frozen=True):
    metadata: Meta = Meta()
    spec: _LevelsView = _LevelsView()


_decode = tolerant(msgspec.json.Decoder(_GangWorkloadView).decode)


def decode_gang_workload(data: bytes | msgspec.Raw) -> GangWorkload:
    """Decode the JSON of a Workload of gangs.

    Raises:
        msgspec.MsgspecError: the JSON is no Workload of gangs.
    """
    view = _decode(data)
    meta = view.metadata
    spec: dict[str, Any] = msgspec.to_builtins(view.spec)
    return GangWorkload(meta.namespace, meta.name, meta.uid, meta.resource_version, expand(spec))
