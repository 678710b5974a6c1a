"""A Workload of gangs as the watch keeps it: small, and expanded once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any, Final

import msgspec

from rackgate.gang.forms.expand import expand, quote_off
from rackgate.gang.levels import Object
from rackgate.gang.pod_shapes import ExpectedShape, expected_shape
from rackgate.gang.topology_requests import asks_nothing
from rackgate.wire.core import Condition, Meta, View
from rackgate.wire.depth import tolerant

# The largest fields of a spec; gangs do not depend on them.
_TEMPLATES: Final = ("template", "maxTemplate")
_EMPTY: Final[Object] = expand({})


@dataclass(frozen=True, slots=True)
class GangWorkload:
    """A Workload of gangs.

    Attributes:
        spec: as written, without templates.
        canonical: the expanded spec.
        readable: whether `canonical` is what was written. A definition of another version may have
            accepted what cannot be read.
        conditions: as last written.
        summary: the rest of the status, as JSON.
        shapes: what the templates of its eqGroups say about their pods, by the names of the gang
            group, the ranked group and the eqGroup.
        requests_topology: whether any level of it requests a topology, or says which ranks its pods
            have. It is kept, because it is asked for at each event of a job.
    """

    metadata: Meta
    spec: Object = field(default_factory=dict)
    canonical: Object = field(default_factory=lambda: _EMPTY)
    readable: bool = True
    conditions: tuple[Condition, ...] = ()
    summary: bytes = b"{}"
    shapes: Mapping[tuple[str, str, str], ExpectedShape] = field(default_factory=dict)
    requests_topology: bool = True

    @property
    def has_gangs(self) -> bool:
        """Whether any of its pods start together."""
        return any(min_count(group) for group in self.canonical["gangGroups"])


def min_count(group: Object) -> int:
    """Pods of a gang group that start together; 0 if it is no gang."""
    return int(group.get("minCount") or 0) if group["gangMode"] == "Gang" else 0


def without_templates(spec: Any) -> Any:
    """The spec without its pod templates."""
    if isinstance(spec, list):
        return [without_templates(entry) for entry in spec]
    if not isinstance(spec, Mapping):
        return spec
    return {key: without_templates(value) for key, value in spec.items() if key not in _TEMPLATES}


class _Status(View, frozen=True):
    conditions: tuple[Condition, ...] = ()


class _View(View, frozen=True):
    metadata: Meta = Meta()
    spec: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies empty defaults
    status: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies empty defaults


_decode = tolerant(msgspec.json.Decoder(_View).decode)


def decode_gang_workload(raw: bytes | msgspec.Raw) -> GangWorkload:
    """A Workload of gangs from its JSON.

    Raises:
        msgspec.DecodeError: it is not an object of this kind.
    """
    view = _decode(raw)
    written = quote_off(view.spec)
    spec, readable = without_templates(written), True
    shapes: dict[tuple[str, str, str], ExpectedShape] = {}
    try:
        canonical = expand(spec)
        for group in canonical["gangGroups"]:
            min_count(group)
        if spec != written:
            shapes = _shapes(expand(written))
    except (KeyError, TypeError, ValueError, AttributeError):
        canonical, readable = dict(_EMPTY), False
    status = dict(view.status)
    conditions = msgspec.convert({"conditions": status.pop("conditions", None) or ()}, _Status)
    return GangWorkload(
        view.metadata,
        spec,
        canonical,
        readable,
        tuple(map(_shared, conditions.conditions)),
        encode_summary(status),
        shapes,
        not asks_nothing(canonical),
    )


def _shared(condition: Condition) -> Condition:
    """The condition with texts that all objects share: most say the same."""
    return msgspec.structs.replace(
        condition,
        type=intern(condition.type),
        status=intern(condition.status),
        reason=intern(condition.reason),
        message=intern(condition.message),
    )


def _shapes(canonical: Object) -> dict[tuple[str, str, str], ExpectedShape]:
    found = {}
    for gang in canonical["gangGroups"]:
        for ranked in gang["rankedGroups"]:
            for equal in ranked["eqGroups"]:
                shape = expected_shape(equal)
                if shape is not None:
                    found[str(gang["name"]), str(ranked["name"]), str(equal["name"])] = shape
    return found


def encode_summary(status: Mapping[str, Any]) -> bytes:
    """A status without its conditions, so that two can be compared."""
    return msgspec.json.encode(status, order="deterministic")
