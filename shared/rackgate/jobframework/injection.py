"""What Rackgate writes into the pod templates of a job; the same for every kind.

A template has four forms. The user writes it. The webhook *injects* labels, an annotation and
gates at creation, so that no pod runs before it is assigned. A start adds `PodSetInfo`, the result
of the admission. A stop *restores* the user's template. Each form is a function of the template
alone, so every write can be repeated, and a crash between two writes can be resumed.

While a job is managed, other clients write its templates, too: tools that apply a whole manifest
remove what was injected. `keep_injection_ops` and `reinjection_ops` restore it in the same write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from rackgate.api.names import (
    ELASTIC_ANNOTATION,
    ELASTIC_GATE,
    GANG_GATE,
    GANG_LINK_ANNOTATION,
    GANG_TEMPLATE_KEYS,
    KUEUE_TEMPLATE_ANNOTATIONS,
    KUEUE_TEMPLATE_LABELS,
    PODSET_LABEL,
    TAS_LABEL,
    TAS_LABEL_VALUE,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
)
from rackgate.jobframework.errors import FieldError, shown
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
from rackgate.jobframework.topology_request import requests_topology
from rackgate.wire.core import Toleration

TolerationLike = Mapping[str, Any] | Toleration

# Distinguishes a pod of an elastic job from one of a topology job whose labels were removed.
_ELASTIC: Final = {ELASTIC_ANNOTATION: "true"}
_INJECTED_MAPS: Final = (
    ("labels", labels_of, RESERVED_LABELS),
    ("annotations", annotations_of, RESERVED_ANNOTATIONS),
)


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One pod template of a job: the pods of one PodSet.

    Attributes:
        podset: name of the PodSet.
        path: in the manifest, for messages: `spec.replicatedJobs[0].template.spec.template`.
        pointer: the same as a JSON pointer: `/spec/replicatedJobs/0/template/spec/template`.
        template: as stored.
        elastic: the number of its pods may change while the job runs.
        tests: operations of a JSON patch that hold while the pointer leads to this template; a
            template that is always in the same place needs none.
    """

    podset: str
    path: str
    pointer: str
    template: Template
    elastic: bool = False
    tests: tuple[JsonPatchOp, ...] = ()


@dataclass(frozen=True, slots=True)
class PodSetInfo:
    """What an admission adds to the template of one PodSet.

    Attributes:
        tas: there is a topology assignment.
        node_labels: of the assigned flavors and of admission checks, merged into the nodeSelector.
        tolerations: of both, appended unless already there.
        labels: of admission checks, merged into the labels.
        annotations: of admission checks, merged into the annotations.
        gang: name of the Workload of gangs of its pods; "" if they are in no gang.
        pod_group: annotations that say which native PodGroup its pods are in.
        complete: whether `node_labels` and `tolerations` are known to be what the start added.
    """

    podset: str
    tas: bool
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[TolerationLike] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gang: str = ""
    pod_group: Mapping[str, str] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class StartConflict:
    """A key that has two values in a template: the job cannot start.

    One is the user's, or of a flavor; the other is of an assigned flavor or an admission check.

    Attributes:
        path: path of the map in the manifest, `spec.template.spec.nodeSelector`.
        key: the label key.
        have: the one value, of the job unless `check` is set and a flavor has it.
        want: the other value.
        check: name of the admission check with the other value; "" if it is a flavor's.
    """

    path: str
    key: str
    have: str
    want: str
    check: str = ""

    def __str__(self) -> str:
        """The message of the FailedToStart condition."""
        if self.check:
            return (
                f'{self.path}[{self.key}]: AdmissionCheck "{self.check}" sets {shown(self.want)}, '
                f"but it is {shown(self.have)}; remove the key or use another queue"
            )
        return (
            f"{self.path}[{self.key}]: the job requests {shown(self.have)}, the nodes of the "
            f"assigned flavor have {shown(self.want)}; remove the key or use another queue"
        )


class StopPhase(StrEnum):
    """The next step of a stop."""

    SUSPEND = "suspend"
    WAIT = "wait"
    RESTORE = "restore"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class StopAction:
    """One write of a stop; `operations` is empty while waiting and when done."""

    phase: StopPhase
    operations: list[JsonPatchOp]


# At creation.


def injected_template(template: Template, podset: str, *, elastic: bool = False) -> dict[str, Any]:
    """A template after injection at creation.

    A template that requests topology gets the topology gate and the podset label. A template of an
    elastic job gets the elastic gate, the elastic annotation and the podset label, because pods
    that are created later must be gated, too.
    """
    topology = requests_topology(template)
    if not (topology or elastic):
        return dict(template)
    # A label of the user is kept, so that validation rejects it.
    labels = {} if PODSET_LABEL in labels_of(template) else {PODSET_LABEL: podset}
    created = with_entries(template, "metadata", "labels", labels)
    if topology:
        created = with_gate(created, TOPOLOGY_GATE)
    if not elastic:
        return created
    annotations = {} if ELASTIC_ANNOTATION in annotations_of(template) else _ELASTIC
    return with_gate(with_entries(created, "metadata", "annotations", annotations), ELASTIC_GATE)


def injection_ops(pod_templates: Iterable[PodTemplate]) -> list[JsonPatchOp]:
    """Operations that inject into templates at creation."""
    return _patches(
        (one, injected_template(one.template, one.podset, elastic=one.elastic))
        for one in pod_templates
    )


def remove_injection_ops(pod_templates: Iterable[PodTemplate]) -> list[JsonPatchOp]:
    """Operations that remove all reserved keys from templates."""
    return _patches((one, strip_reserved(one.template)) for one in pod_templates)


def _patches(changed: Iterable[tuple[PodTemplate, Template]]) -> list[JsonPatchOp]:
    """Operations that replace templates, each by its new form."""
    return [op for one, new in changed for op in template_patch(one.template, new, one.pointer)]


def injection_errors(pod_template: PodTemplate) -> list[FieldError]:
    """Reject reserved keys that the webhook itself does not inject at creation.

    Args:
        pod_template: in its created form, or as written if no webhook was called.
    """
    plain = strip_reserved(pod_template.template)
    injected_form = injected_template(plain, pod_template.podset, elastic=pod_template.elastic)
    return reserved_errors(pod_template.template, pod_template.path, injected_form=injected_form)


# Templates that other clients write while the job is managed.


def keep_injection_ops(
    pod_templates: Iterable[PodTemplate], stored: Iterable[PodTemplate], *, frozen: bool = False
) -> list[JsonPatchOp]:
    """Operations that restore injected fields in templates that a client has just written.

    Args:
        pod_templates: the templates as written.
        stored: the templates before the write; the template of a new PodSet has nothing to keep.
        frozen: the templates cannot be changed now, so the fields that the flavor added, which
            the writer does not know, are kept, too.
    """
    return _patches(
        (one, _with_injection_of(one.template, injected, frozen=frozen))
        for one, injected in _pair_by_podset(pod_templates, stored)
    )


def reinjection_ops(
    pod_templates: Iterable[PodTemplate], stored: Iterable[PodTemplate]
) -> list[JsonPatchOp]:
    """Operations that restore the created form of templates that were edited while pending.

    Injected keys are computed again from what the templates request now. Keys that the writer
    added stay, so that validation rejects them.
    """
    plain = (
        (one, _without_injection_of(one.template, injected))
        for one, injected in _pair_by_podset(pod_templates, stored)
    )
    return _patches(
        (one, injected_template(template, one.podset, elastic=one.elastic))
        for one, template in plain
    )


def _pair_by_podset(
    pod_templates: Iterable[PodTemplate], stored: Iterable[PodTemplate]
) -> Iterator[tuple[PodTemplate, Template]]:
    before = {one.podset: one.template for one in stored}
    return ((one, before.get(one.podset, {})) for one in pod_templates)


def _with_injection_of(template: Template, injected: Template, *, frozen: bool) -> dict[str, Any]:
    """A template with our keys that it lacks and `injected` has."""
    kept = dict(template)
    for name, of, reserved in _INJECTED_MAPS:
        have, had = of(template), of(injected)
        lost = {key: had[key] for key in reserved if key in had and key not in have}
        kept = with_entries(kept, "metadata", name, lost)
    if GANG_GATE in gates_of(injected):
        # The other pods of the gang have it, and the gate without it holds a pod for ever.
        have, had = annotations_of(kept), annotations_of(injected)
        lost = {key: had[key] for key in GANG_TEMPLATE_KEYS if had.get(key) and key not in have}
        kept = with_entries(kept, "metadata", "annotations", lost)
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
    """A template without our keys that `injected` also has."""
    plain = dict(template)
    for name, of, reserved in _INJECTED_MAPS:
        have, had = of(template), of(injected)
        same = [key for key in reserved if key in had and have.get(key) == had[key]]
        plain = without_entries(plain, "metadata", name, same)
    return without_gates(plain, [gate for gate in gates_of(injected) if gate in RESERVED_GATES])


# At the start.


def started_template(
    template: Template, info: PodSetInfo, *, workload: str, path: str, elastic: bool = False
) -> dict[str, Any] | StartConflict:
    """A template after the start of its job.

    Args:
        template: in its created or restored form.
        info: what the admission gave its PodSet.
        workload: name of the admitted Workload.
        path: of the template in the manifest, for messages.
        elastic: new pods stay behind the elastic gate until a slice for them is admitted.

    Returns:
        Always with the workload annotation: it names the Workload of the pods even if their
        controller is gone. With a topology assignment, elastic, or in a gang, also the podset
        label, and the label, annotations and gates of each. Or the key on which user and flavor
        disagree.
    """
    selector = section(section(template, "spec"), "nodeSelector")
    for key, want in sorted(info.node_labels.items()):
        if selector.get(key, want) != want:
            return StartConflict(f"{path}.spec.nodeSelector", key, str(selector[key]), want)
    started = strip_reserved(template)
    started = with_entries(started, "metadata", "labels", info.labels)
    annotations = {
        **info.annotations,
        WORKLOAD_ANNOTATION: workload,
        **(_ELASTIC if elastic else {}),
        **({GANG_LINK_ANNOTATION: info.gang} if info.gang else {}),
    }
    if not any(key in annotations_of(template) for key in info.pod_group):
        annotations |= info.pod_group
    started = with_entries(started, "metadata", "annotations", annotations)
    if info.tas or elastic or info.gang:
        labels = {PODSET_LABEL: info.podset}
        if info.tas:
            labels[TAS_LABEL] = TAS_LABEL_VALUE
        started = with_entries(started, "metadata", "labels", labels)
        wanted = ((TOPOLOGY_GATE, info.tas), (ELASTIC_GATE, elastic), (GANG_GATE, bool(info.gang)))
        started = _with_gates(started, template, [gate for gate, is_wanted in wanted if is_wanted])
    started = with_entries(started, "spec", "nodeSelector", info.node_labels)
    return _with_tolerations(started, info.tolerations)


def start_ops(
    pod_templates: Iterable[PodTemplate], podset_infos: Mapping[str, PodSetInfo], *, workload: str
) -> list[JsonPatchOp] | StartConflict:
    """Operations that inject what a start adds into templates.

    Args:
        pod_templates: all templates of the job, each in its created or restored form.
        podset_infos: by PodSet name; a template whose PodSet is not in it is not changed.
        workload: name of the admitted Workload.

    Returns:
        No operations for templates that are already started; or the key on which user and
        flavor disagree.
    """
    operations: list[JsonPatchOp] = []
    for one in pod_templates:
        if one.podset not in podset_infos:
            continue
        started = started_template(
            one.template,
            podset_infos[one.podset],
            workload=workload,
            path=one.path,
            elastic=one.elastic,
        )
        if isinstance(started, StartConflict):
            return started
        operations += template_patch(one.template, started, one.pointer)
    return operations


def _with_gates(
    started: dict[str, Any], template: Template, wanted: Sequence[str]
) -> dict[str, Any]:
    """The gates of a started template: a gate set at creation keeps its position in the list."""
    gates_to_remove = set(RESERVED_GATES) - set(wanted)
    gates = items(section(template, "spec"), "schedulingGates")
    kept = [gate for gate in gates if gate.get("name") not in gates_to_remove]
    started = with_field(started, "spec", "schedulingGates", kept or None)
    for gate in wanted:
        started = with_gate(started, gate)
    return started


def _with_tolerations(template: Template, tolerations: Sequence[TolerationLike]) -> dict[str, Any]:
    have = [dict(entry) for entry in items(section(template, "spec"), "tolerations")]
    missing: list[dict[str, Any]] = []
    for toleration in tolerations:
        entry = toleration_json(toleration)
        if entry not in have and entry not in missing:
            missing.append(entry)
    if not missing:
        return dict(template)
    return with_field(template, "spec", "tolerations", [*have, *missing])


def toleration_json(toleration: TolerationLike) -> dict[str, Any]:
    """A toleration as on the wire, without empty fields."""
    if isinstance(toleration, Toleration):
        toleration = {
            "key": toleration.key,
            "operator": toleration.operator,
            "value": toleration.value,
            "effect": toleration.effect,
            "tolerationSeconds": toleration.toleration_seconds,
        }
    return {key: value for key, value in toleration.items() if value not in ("", None)}


def has_podset_info(template: Template, info: PodSetInfo) -> bool:
    """Whether a template has everything that an admission adds to its spec."""
    spec = section(template, "spec")
    selector = section(spec, "nodeSelector")
    have = [dict(entry) for entry in items(spec, "tolerations")]
    return all(selector.get(key) == value for key, value in info.node_labels.items()) and all(
        toleration_json(toleration) in have for toleration in info.tolerations
    )


def has_template_lost_flavor(template: Template, original: Template, info: PodSetInfo) -> bool:
    """Whether the template of a running job lost values that its flavor added to a field.

    A field with more values than its user wrote may have them from an earlier version of the
    flavor, so it is not changed.

    Args:
        template: as stored, of a job that was started.
        original: the user's, as stored in the Workload.
        info: what the admission adds now.
    """
    spec, before = section(template, "spec"), section(original, "spec")
    known = section(before, "nodeSelector")
    plain = all(key in known for key in section(spec, "nodeSelector"))
    if plain and not has_podset_info(template, replace(info, tolerations=())):
        return True
    was = items(before, "tolerations")
    plain = all(entry in was for entry in items(spec, "tolerations"))
    return plain and not has_podset_info(template, replace(info, node_labels={}))


# After the stop.


def restored_template(
    template: Template, original: Template | None, info: PodSetInfo | None = None
) -> dict[str, Any]:
    """A template after the stop of its job: as its user wrote it.

    Args:
        template: in its started form, which its user may have edited.
        original: the user's, as stored in the Workload; None if it has none.
        info: the result of the admission. If given, all node selectors and tolerations that the
            user wrote while the job ran are kept. If not, only changes of those that `original`
            has are kept, because others may be the flavor's.

    Returns:
        The template without reserved keys and, with an original, without what the flavor added.
    """
    plain = strip_reserved(template)
    if original is None:
        return plain
    keys = (*GANG_TEMPLATE_KEYS, *KUEUE_TEMPLATE_ANNOTATIONS)
    added = [key for key in keys if key not in annotations_of(original)]
    plain = without_entries(plain, "metadata", "annotations", added)
    added = [key for key in KUEUE_TEMPLATE_LABELS if key not in labels_of(original)]
    plain = without_entries(plain, "metadata", "labels", added)
    if info is not None:
        plain = _without_check_entries(plain, original, info)
    if info is not None and not info.complete:
        info = None
    spec, before = section(plain, "spec"), section(original, "spec")
    for name, value in (
        ("nodeSelector", _users_labels(spec, before, info)),
        ("tolerations", _users_tolerations(spec, before, info)),
    ):
        plain = with_field(
            plain, "spec", name, value or (None if before.get(name) else before.get(name))
        )
    for part, name in (
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("spec", "schedulingGates"),
    ):
        # An empty value that the user wrote is restored as an empty value.
        empty = section(original, part).get(name)
        if name not in section(plain, part) and empty is not None and not empty:
            plain = with_field(plain, part, name, empty)
    if "metadata" not in original and not section(plain, "metadata"):
        plain.pop("metadata", None)
    return plain


def restore_ops(
    pod_templates: Iterable[PodTemplate],
    originals: Mapping[str, Template],
    podset_infos: Mapping[str, PodSetInfo] | None = None,
) -> list[JsonPatchOp]:
    """Operations that restore the templates that the user wrote.

    Args:
        pod_templates: all templates of the job.
        originals: by PodSet name, as stored in the Workload; a template without an original loses
            the reserved keys only.
        podset_infos: by PodSet name, the result of the admission, if it is still known; see
            `restored_template`.
    """
    known = podset_infos or {}
    return _patches(
        (one, restored_template(one.template, originals.get(one.podset), known.get(one.podset)))
        for one in pod_templates
    )


def _without_check_entries(
    template: Template, original: Template, info: PodSetInfo
) -> dict[str, Any]:
    """A template without labels and annotations of admission checks that its user did not write."""
    plain = dict(template)
    for name, of, added in (
        ("labels", labels_of, info.labels),
        ("annotations", annotations_of, info.annotations),
    ):
        theirs = [key for key in added if key not in of(original)]
        plain = without_entries(plain, "metadata", name, theirs)
    return plain


def _users_labels(
    spec: Mapping[str, Any], before: Mapping[str, Any], info: PodSetInfo | None
) -> dict[str, Any]:
    """Entries of the nodeSelector that are not the flavor's; see `restored_template`."""
    now, was = section(spec, "nodeSelector"), section(before, "nodeSelector")
    if info is None:
        return {key: now[key] for key in was if key in now}
    injected = info.node_labels
    return {key: value for key, value in now.items() if key in was or injected.get(key) != value}


def _users_tolerations(
    spec: Mapping[str, Any], before: Mapping[str, Any], info: PodSetInfo | None
) -> list[Mapping[str, Any]]:
    """Tolerations that are not the flavor's; see `restored_template`."""
    now, was = items(spec, "tolerations"), items(before, "tolerations")
    if info is None:
        known = [toleration_json(entry) for entry in was]
        return [entry for entry in now if toleration_json(entry) in known]
    injected = [toleration_json(toleration) for toleration in info.tolerations]
    return [entry for entry in now if entry in was or entry not in injected]
