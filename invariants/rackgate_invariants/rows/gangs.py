"""Converts the JSON of a Workload of gangs to a row."""

from __future__ import annotations

from sys import intern
from typing import Any

import msgspec

from rackgate.gang.forms.expand import expand
from rackgate.wire.core import View
from rackgate.wire.depth import tolerant
from rackgate_invariants.rows import rows
from rackgate_invariants.rows.projections import ManagedMeta, seconds

_TEMPLATES = ("template", "maxTemplate")


class _GangWorkload(View, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


_decode = tolerant(msgspec.json.Decoder(_GangWorkload).decode)


def gang_workload_row(raw: bytes | msgspec.Raw) -> rows.GangWorkloadRow:
    """A Workload of gangs."""
    found = _decode(raw)
    meta = found.metadata
    created_at = seconds(meta.creation_timestamp)
    written_at = max(
        (seconds(entry.time) for entry in meta.managed_fields if not entry.subresource),
        default=created_at,
    )
    return rows.GangWorkloadRow(
        namespace=intern(meta.namespace),
        name=intern(meta.name),
        uid=meta.uid,
        version=meta.resource_version,
        spec=expand(_without_templates(found.spec)),
        created_at=created_at,
        # A spec that was never changed has the first generation.
        spec_at=written_at if meta.generation > 1 else created_at,
    )


def _without_templates(value: Any) -> Any:
    """The spec without pod templates, which are the largest part and which no rule reads."""
    if isinstance(value, list):
        return [_without_templates(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_templates(one) for key, one in value.items() if key not in _TEMPLATES}
    return value
