"""Manifests and pod templates as plain JSON: read, change and compare the fields that we write.

Only five fields of a template are ever changed: labels, annotations, nodeSelector, tolerations
and schedulingGates. Everything else is passed on by reference, without reading it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rackgate.api.names import (
    ELASTIC_ANNOTATION,
    ELASTIC_GATE,
    GANG_GATE,
    GANG_RUN_ANNOTATION,
    PODSET_LABEL,
    TAS_LABEL,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
)
from rackgate.jobframework.errors import FieldError, MalformedError, shown
from rackgate.jobframework.jsonpatch import JsonPatchOp, map_patch, pointer, value_patch

RESERVED_LABELS: Final = (PODSET_LABEL, TAS_LABEL)
RESERVED_ANNOTATIONS: Final = (WORKLOAD_ANNOTATION, ELASTIC_ANNOTATION, GANG_RUN_ANNOTATION)
RESERVED_GATES: Final = (TOPOLOGY_GATE, ELASTIC_GATE, GANG_GATE)

Template = Mapping[str, Any]


def section(holder: Mapping[str, Any], key: str, path: str = "") -> Mapping[str, Any]:
    """The object under `key`; empty when absent or null.

    Raises:
        MalformedError: the value is not an object.
    """
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise MalformedError(_join_path(path, key), "an object", value)
    return value


def items(holder: Mapping[str, Any], key: str, path: str = "") -> Sequence[Mapping[str, Any]]:
    """The list of objects under `key`; empty when absent or null.

    Raises:
        MalformedError: it is not a list, or an entry is not an object.
    """
    value = holder.get(key)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MalformedError(_join_path(path, key), "a list", value)
    for index, entry in enumerate(value):
        if not isinstance(entry, Mapping):
            raise MalformedError(f"{_join_path(path, key)}[{index}]", "an object", entry)
    return value


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Whether `spec.suspend` of a job is true."""
    return section(job, "spec").get("suspend") is True


def int_or_default(value: object, default: int) -> int:
    """A whole number of a manifest; `default` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def labels_of(template: Template, path: str = "") -> Mapping[str, Any]:
    """The labels of an object or template."""
    metadata = section(template, "metadata", path)
    return section(metadata, "labels", _join_path(path, "metadata"))


def annotations_of(template: Template, path: str = "") -> Mapping[str, Any]:
    """The annotations of an object or template."""
    metadata = section(template, "metadata", path)
    return section(metadata, "annotations", _join_path(path, "metadata"))


def gates_of(template: Template, path: str = "") -> list[str]:
    """Names of the scheduling gates, in order."""
    spec = section(template, "spec", path)
    gates = items(spec, "schedulingGates", _join_path(path, "spec"))
    return [str(gate.get("name", "")) for gate in gates]


def validated_template(template: Template, path: str) -> Template:
    """The template itself, if all fields that are read have the expected shape.

    Raises:
        MalformedError: a field does not; the error names its path in the manifest.
    """
    labels_of(template, path)
    annotations_of(template, path)
    gates_of(template, path)
    spec, inside = section(template, "spec", path), _join_path(path, "spec")
    section(spec, "nodeSelector", inside)
    items(spec, "tolerations", inside)
    return template


def with_field(template: Template, part: str, field: str, value: object) -> dict[str, Any]:
    """A copy of the template whose `part.field` is `value`; None removes the field."""
    inner = {name: kept for name, kept in section(template, part).items() if name != field}
    if value is not None:
        inner[field] = value
    if not inner and part not in template:
        return dict(template)
    return {**template, part: inner}


def with_entries(
    template: Template, part: str, field: str, entries: Mapping[str, str]
) -> dict[str, Any]:
    """A copy in which the map `part.field` also has `entries`."""
    current = section(section(template, part), field)
    return with_field(template, part, field, {**current, **entries}) if entries else dict(template)


def without_entries(
    template: Template, part: str, field: str, keys: Sequence[str]
) -> dict[str, Any]:
    """A copy without `keys` in the map `part.field`; an empty map is removed."""
    current = section(section(template, part), field)
    if not any(key in current for key in keys):
        return dict(template)
    kept = {name: value for name, value in current.items() if name not in keys}
    return with_field(template, part, field, kept or None)


def with_gate(template: Template, gate: str) -> dict[str, Any]:
    """A copy with the scheduling gate; the order of others does not change."""
    if gate in gates_of(template):
        return dict(template)
    gates = [*items(section(template, "spec"), "schedulingGates"), {"name": gate}]
    return with_field(template, "spec", "schedulingGates", gates)


def without_gates(template: Template, names: Sequence[str]) -> dict[str, Any]:
    """A copy without these scheduling gates; an empty list is removed."""
    gates = items(section(template, "spec"), "schedulingGates")
    kept = [gate for gate in gates if gate.get("name") not in names]
    if len(kept) == len(gates):
        return dict(template)
    return with_field(template, "spec", "schedulingGates", kept or None)


def strip_reserved(template: Template) -> dict[str, Any]:
    """The template without Rackgate's labels, annotations and gates; nothing else changes."""
    plain = without_entries(template, "metadata", "labels", RESERVED_LABELS)
    plain = without_entries(plain, "metadata", "annotations", RESERVED_ANNOTATIONS)
    return without_gates(plain, RESERVED_GATES)


def template_patch(have: Template, want: Template, prefix: str) -> list[JsonPatchOp]:
    """Operations that change the five writable fields from `have` to `want`.

    Args:
        have: the template as stored.
        want: a template that differs from it in those fields at most.
        prefix: JSON pointer of the template in its owner, `/spec/template` for a Job.
    """
    return [
        *_section_patch(have, want, prefix, "metadata", maps=("labels", "annotations"), lists=()),
        *_section_patch(have, want, prefix, "spec", maps=("nodeSelector",), lists=_LISTS),
    ]


_LISTS: Final = ("tolerations", "schedulingGates")


def _section_patch(
    have: Template,
    want: Template,
    prefix: str,
    part: str,
    *,
    maps: tuple[str, ...],
    lists: tuple[str, ...],
) -> list[JsonPatchOp]:
    before, after = section(have, part), section(want, part)
    inside = prefix + pointer(part)
    operations: list[JsonPatchOp] = []
    for field in maps:
        wanted = section(after, field) if after.get(field) is not None else None
        operations += map_patch(inside, field, before, wanted)
    for field in lists:
        operations += value_patch(inside, field, before, after.get(field))
    if operations and have.get(part) is None:
        # The parent is absent (or null), so no pointer into it would resolve: add it whole.
        return [{"op": "add", "path": inside, "value": dict(after)}]
    if operations and part not in want and set(before) <= {*maps, *lists}:
        return [{"op": "remove", "path": inside}]
    return operations


def reserved_errors(
    template: Template, path: str, *, injected_form: Template | None = None
) -> list[FieldError]:
    """Reject Rackgate's own keys in what a user writes.

    template: a pod template or a pod.
    path: its path in the manifest, empty for a pod itself.
    injected_form: the same template after the webhook's injection: reserved keys that it has
        are allowed. None: no reserved key is allowed.
    """
    wanted: Template = injected_form or {}
    fields = (
        ("labels", labels_of(template, path), labels_of(wanted), RESERVED_LABELS),
        (
            "annotations",
            annotations_of(template, path),
            annotations_of(wanted),
            RESERVED_ANNOTATIONS,
        ),
    )
    errors = [
        _reserved_error(_join_path(path, "metadata"), field, key, value)
        for field, found, allowed, reserved in fields
        for key, value in found.items()
        if key in reserved and not (key in allowed and allowed[key] == value)
    ]
    allowed_gates = gates_of(wanted)
    errors += [
        FieldError(
            f"{_join_path(path, 'spec')}.schedulingGates[{index}].name",
            f"gate {shown(gate)} is reserved: only Rackgate sets it",
            "remove this gate",
        )
        for index, gate in enumerate(gates_of(template, path))
        if gate in RESERVED_GATES and gate not in allowed_gates
    ]
    return errors


def _reserved_error(parent: str, field: str, key: str, value: object) -> FieldError:
    kind = "label" if field == "labels" else "annotation"
    return FieldError(
        f"{parent}.{field}[{key}]",
        f"this {kind} is reserved: only Rackgate sets it, found {shown(value)}",
        f"remove this {kind}",
    )
