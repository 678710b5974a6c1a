"""Our marks in templates that somebody else writes: what is right there, and what stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rackgate.jobframework.errors import FieldError
from rackgate.jobframework.injection import (
    PodSetInfo,
    PodTemplate,
    has_podset_info,
    injected_template,
)
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
    reserved_errors,
    section,
    strip_reserved,
    template_patch,
    with_entries,
    with_field,
    with_gate,
    without_entries,
    without_gates,
)

_INJECTED_MAPS = (
    ("labels", labels_of, RESERVED_LABELS),
    ("annotations", annotations_of, RESERVED_ANNOTATIONS),
)


def injection_errors(pod_template: PodTemplate) -> list[FieldError]:
    """Refuse reserved keys that are not the marks which the webhook itself sets at creation.

    Args:
        pod_template: in its created form, or as it came when no webhook answered.
    """
    plain = strip_reserved(pod_template.template)
    injected_form = injected_template(plain, pod_template.podset, elastic=pod_template.elastic)
    return reserved_errors(pod_template.template, pod_template.path, injected_form=injected_form)


def has_template_lost_flavor(template: Template, original: Template, info: PodSetInfo) -> bool:
    """Whether a running job's template lost what its flavor had brought into a field of it.

    A field that holds more than its user wrote may show an earlier form of the flavor, and is
    left alone.

    Args:
        template: as stored, of a job that was started.
        original: the user's, as the Workload keeps it.
        info: what the admission brings now.
    """
    spec, before = section(template, "spec"), section(original, "spec")
    known = section(before, "nodeSelector")
    plain = all(key in known for key in section(spec, "nodeSelector"))
    if plain and not has_podset_info(template, replace(info, tolerations=())):
        return True
    was = items(before, "tolerations")
    plain = all(entry in was for entry in items(spec, "tolerations"))
    return plain and not has_podset_info(template, replace(info, node_labels={}))


def keep_injection_ops(
    pod_templates: Iterable[PodTemplate], stored: Iterable[PodTemplate], *, frozen: bool = False
) -> list[JsonPatchOp]:
    """Operations that keep the marks which templates had before somebody wrote them.

    Args:
        pod_templates: the templates as written.
        stored: as they were; a template of a new PodSet has no marks to keep.
        frozen: nobody may change these templates now, so that what the flavor brought, and the
            writer does not know of, is kept, too.
    """
    return [
        op
        for pod_template, injected in _pair_by_podset(pod_templates, stored)
        for op in template_patch(
            pod_template.template,
            _with_injection_of(pod_template.template, injected, frozen=frozen),
            pod_template.pointer,
        )
    ]


def reinjection_ops(
    pod_templates: Iterable[PodTemplate], stored: Iterable[PodTemplate]
) -> list[JsonPatchOp]:
    """Operations that bring templates edited while they wait to their created form again.

    Marks as they were before are made anew from what the templates ask now; others, which the
    writer came with, stay, to be refused.
    """
    return [
        op
        for pod_template, injected in _pair_by_podset(pod_templates, stored)
        for op in template_patch(
            pod_template.template,
            injected_template(
                _without_injection_of(pod_template.template, injected),
                pod_template.podset,
                elastic=pod_template.elastic,
            ),
            pod_template.pointer,
        )
    ]


def _pair_by_podset(
    pod_templates: Iterable[PodTemplate], stored: Iterable[PodTemplate]
) -> Iterator[tuple[PodTemplate, Template]]:
    before = {pod_template.podset: pod_template.template for pod_template in stored}
    return ((pod_template, before.get(pod_template.podset, {})) for pod_template in pod_templates)


def _with_injection_of(template: Template, injected: Template, *, frozen: bool) -> dict[str, Any]:
    """A template with those of our marks that it lacks and `injected` has."""
    kept = dict(template)
    for name, of, reserved in _INJECTED_MAPS:
        have, had = of(template), of(injected)
        lost = {key: had[key] for key in reserved if key in had and key not in have}
        kept = with_entries(kept, "metadata", name, lost)
    for gate in gates_of(injected):
        if gate in RESERVED_GATES:
            kept = with_gate(kept, gate)
    return _with_placement_of(kept, injected) if frozen else kept


def _with_placement_of(template: Template, running: Template) -> dict[str, Any]:
    """A template with the selector keys and tolerations that it lacks and `running` has."""
    spec, before = section(template, "spec"), section(running, "spec")
    have = section(spec, "nodeSelector")
    lost = {key: value for key, value in section(before, "nodeSelector").items() if key not in have}
    kept = with_entries(template, "spec", "nodeSelector", lost)
    known = items(spec, "tolerations")
    missing = [entry for entry in items(before, "tolerations") if entry not in known]
    return with_field(kept, "spec", "tolerations", [*known, *missing]) if missing else kept


def _without_injection_of(template: Template, injected: Template) -> dict[str, Any]:
    """A template without those of our marks that `injected` has, too."""
    plain = dict(template)
    for name, of, reserved in _INJECTED_MAPS:
        have, had = of(template), of(injected)
        same = [key for key in reserved if key in had and have.get(key) == had[key]]
        plain = without_entries(plain, "metadata", name, same)
    return without_gates(plain, [gate for gate in gates_of(injected) if gate in RESERVED_GATES])
