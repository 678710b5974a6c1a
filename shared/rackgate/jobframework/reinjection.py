"""Our marks in templates that somebody else writes: what is right there, and what stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.injection import Given, PodTemplate, created_template, shows
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.templates import (
    RESERVED_ANNOTATIONS,
    RESERVED_GATES,
    RESERVED_LABELS,
    Template,
    annotations_of,
    gates_of,
    items,
    labels_of,
    replaced,
    reserved_errors,
    section,
    strip_reserved,
    template_patch,
    with_entries,
    with_gate,
    without_entries,
    without_gates,
)

_MAPS = (
    ("labels", labels_of, RESERVED_LABELS),
    ("annotations", annotations_of, RESERVED_ANNOTATIONS),
)


def wrong_marks(part: PodTemplate) -> list[FieldError]:
    """Refuse reserved keys that are not the marks which the webhook itself sets at creation.

    Args:
        part: in its created form, or as it came when no webhook answered.
    """
    plain = strip_reserved(part.template)
    right = created_template(plain, part.podset, elastic=part.elastic)
    return reserved_errors(part.template, part.path, right=right)


def lost_flavor(template: Template, original: Template, given: Given) -> bool:
    """Whether a running job's template lost what its flavor had brought into a field of it.

    A field that holds more than its user wrote may show an earlier form of the flavor, and is
    left alone.

    Args:
        template: as stored, of a job that was started.
        original: the user's, as the Workload keeps it.
        given: what the admission brings now.
    """
    spec, before = section(template, "spec"), section(original, "spec")
    known = section(before, "nodeSelector")
    plain = all(key in known for key in section(spec, "nodeSelector"))
    if plain and not shows(template, replace(given, tolerations=())):
        return True
    was = items(before, "tolerations")
    plain = all(entry in was for entry in items(spec, "tolerations"))
    return plain and not shows(template, replace(given, node_labels={}))


def kept_marks_ops(
    parts: Iterable[PodTemplate], stored: Iterable[PodTemplate], *, frozen: bool = False
) -> list[JsonPatchOp]:
    """Operations that keep the marks which templates had before somebody wrote them.

    Args:
        parts: the templates as written.
        stored: as they were; a template of a new PodSet has no marks to keep.
        frozen: nobody may change these templates now, so that what the flavor brought, and the
            writer does not know of, is kept, too.
    """
    return [
        op
        for part, marked in _pairs(parts, stored)
        for op in template_patch(
            part.template, _marked_like(part.template, marked, frozen=frozen), part.pointer
        )
    ]


def remade_ops(parts: Iterable[PodTemplate], stored: Iterable[PodTemplate]) -> list[JsonPatchOp]:
    """Operations that bring templates edited while they wait to their created form again.

    Marks as they were before are made anew from what the templates ask now; others, which the
    writer came with, stay, to be refused.
    """
    return [
        op
        for part, marked in _pairs(parts, stored)
        for op in template_patch(
            part.template,
            created_template(
                _unmarked_like(part.template, marked), part.podset, elastic=part.elastic
            ),
            part.pointer,
        )
    ]


def _pairs(
    parts: Iterable[PodTemplate], stored: Iterable[PodTemplate]
) -> Iterator[tuple[PodTemplate, Template]]:
    before = {part.podset: part.template for part in stored}
    return ((part, before.get(part.podset, {})) for part in parts)


def _marked_like(template: Template, marked: Template, *, frozen: bool) -> dict[str, Any]:
    """A template with those of our marks that it lacks and `marked` has."""
    kept = dict(template)
    for name, of, reserved in _MAPS:
        have, had = of(template), of(marked)
        lost = {key: had[key] for key in reserved if key in had and key not in have}
        kept = with_entries(kept, "metadata", name, lost)
    for gate in gates_of(marked):
        if gate in RESERVED_GATES:
            kept = with_gate(kept, gate)
    return _placed_like(kept, marked) if frozen else kept


def _placed_like(template: Template, placed: Template) -> dict[str, Any]:
    """A template with the selector keys and tolerations that it lacks and `placed` has."""
    spec, before = section(template, "spec"), section(placed, "spec")
    have = section(spec, "nodeSelector")
    lost = {key: value for key, value in section(before, "nodeSelector").items() if key not in have}
    kept = with_entries(template, "spec", "nodeSelector", lost)
    known = items(spec, "tolerations")
    missing = [entry for entry in items(before, "tolerations") if entry not in known]
    return replaced(kept, "spec", "tolerations", [*known, *missing]) if missing else kept


def _unmarked_like(template: Template, marked: Template) -> dict[str, Any]:
    """A template without those of our marks that `marked` has, too."""
    plain = dict(template)
    for name, of, reserved in _MAPS:
        have, had = of(template), of(marked)
        same = [key for key in reserved if key in had and have.get(key) == had[key]]
        plain = without_entries(plain, "metadata", name, same)
    return without_gates(plain, [gate for gate in gates_of(marked) if gate in RESERVED_GATES])
