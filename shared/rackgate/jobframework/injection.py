"""What is written into the pod templates of a job over its life; the same for every kind.

A template is the user's, then *created* (marks that the webhook sets), then *started* (marks and
flavor of an admission), then *restored* to the user's. Each form is a function of the template
alone, so every step can be repeated, and a crash between any two be resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from rackgate.api.names import (
    ELASTIC_ANNOTATION,
    ELASTIC_GATE,
    PODSET_LABEL,
    TAS_LABEL,
    TAS_LABEL_VALUE,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
)
from rackgate.jobframework.errors import shown
from rackgate.jobframework.jsonpatch import JsonPatchOp
from rackgate.jobframework.templates import (
    Template,
    annotations_of,
    items,
    labels_of,
    section,
    strip_reserved,
    template_patch,
    with_entries,
    with_field,
    with_gate,
)
from rackgate.jobframework.topology_request import requests_topology
from rackgate.wire.core import Toleration

TolerationLike = Mapping[str, Any] | Toleration

# Tells a pod of an elastic job from one of a topology job that lost its marks.
_ELASTIC: Final = {ELASTIC_ANNOTATION: "true"}


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One pod template of a job: the pods of one PodSet.

    Attributes:
        podset: name of the PodSet.
        path: in the manifest, for messages: `spec.replicatedJobs[0].template.spec.template`.
        pointer: the same as a JSON pointer: `/spec/replicatedJobs/0/template/spec/template`.
        template: as stored.
        elastic: the number of its pods may change while the job runs.
    """

    podset: str
    path: str
    pointer: str
    template: Template
    elastic: bool = False


@dataclass(frozen=True, slots=True)
class PodSetInfo:
    """What an admission gave one PodSet, as far as its template shows it.

    Attributes:
        tas: there is a topology assignment.
        node_labels: of the assigned flavors, merged into the nodeSelector.
        tolerations: of the assigned flavors, appended unless already there.
    """

    podset: str
    tas: bool
    node_labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[TolerationLike] = ()


@dataclass(frozen=True, slots=True)
class StartConflict:
    """A key of the user that a flavor wants to have another value: the job cannot start.

    Attributes:
        path: of the map in the manifest, `spec.template.spec.nodeSelector`.
        key: the label key.
        have: the user's value.
        want: the flavor's value.
    """

    path: str
    key: str
    have: str
    want: str

    def __str__(self) -> str:
        """The message of the FailedToStart condition."""
        return (
            f"{self.path}[{self.key}]: the job asks for {shown(self.have)}, the assigned flavor's"
            f" nodes have {shown(self.want)}; remove the key or use another queue"
        )


class StopPhase(StrEnum):
    """What the stop of a job needs next."""

    SUSPEND = "suspend"
    WAIT = "wait"
    RESTORE = "restore"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class StopAction:
    """One step of a stop; `operations` is empty while waiting and when done."""

    phase: StopPhase
    operations: list[JsonPatchOp]


def injected_template(template: Template, podset: str, *, elastic: bool = False) -> dict[str, Any]:
    """A template as the webhook leaves it at creation.

    One that asks for topology gets the topology gate and the podset label; one of an elastic
    job gets the elastic gate, the annotation that says so and the podset label, since pods that
    come later must be held, too.
    """
    topology = requests_topology(template)
    if not (topology or elastic):
        return dict(template)
    # A mark of the user's own stays as it is, so that it is refused and not papered over.
    marks = {} if PODSET_LABEL in labels_of(template) else {PODSET_LABEL: podset}
    created = with_entries(template, "metadata", "labels", marks)
    if topology:
        created = with_gate(created, TOPOLOGY_GATE)
    if not elastic:
        return created
    annotations = {} if ELASTIC_ANNOTATION in annotations_of(template) else _ELASTIC
    return with_gate(with_entries(created, "metadata", "annotations", annotations), ELASTIC_GATE)


def started_template(
    template: Template, info: PodSetInfo, *, workload: str, path: str, elastic: bool = False
) -> dict[str, Any] | StartConflict:
    """What a template looks like once its job runs.

    Args:
        template: in its created or restored form.
        info: what its PodSet was given.
        workload: name of the Workload that was admitted.
        path: of the template in the manifest, for messages.
        elastic: new pods wait for a grant of their own behind the elastic gate.

    Returns:
        The workload annotation always: it tells whose pods these are, whatever becomes of their
        controller. With a topology assignment, or elastic, also the podset label, and the label,
        annotation and gates that go with each. Or the key that stands in the way.
    """
    selector = section(section(template, "spec"), "nodeSelector")
    for key, want in sorted(info.node_labels.items()):
        if selector.get(key, want) != want:
            return StartConflict(f"{path}.spec.nodeSelector", key, str(selector[key]), want)
    started = strip_reserved(template)
    annotations = {WORKLOAD_ANNOTATION: workload, **(_ELASTIC if elastic else {})}
    started = with_entries(started, "metadata", "annotations", annotations)
    if info.tas or elastic:
        marks = {PODSET_LABEL: info.podset}
        if info.tas:
            marks[TAS_LABEL] = TAS_LABEL_VALUE
        started = with_entries(started, "metadata", "labels", marks)
        started = _with_gates(started, template, tas=info.tas, elastic=elastic)
    started = with_entries(started, "spec", "nodeSelector", info.node_labels)
    return _with_tolerations(started, info.tolerations)


def _with_gates(
    started: dict[str, Any], template: Template, *, tas: bool, elastic: bool
) -> dict[str, Any]:
    """The gates of a started template: one set at creation keeps its place in the list."""
    wanted = [gate for gate, on in ((TOPOLOGY_GATE, tas), (ELASTIC_GATE, elastic)) if on]
    gates_to_remove = {TOPOLOGY_GATE, ELASTIC_GATE} - set(wanted)
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
        entry = _toleration_json(toleration)
        if entry not in have and entry not in missing:
            missing.append(entry)
    if not missing:
        return dict(template)
    return with_field(template, "spec", "tolerations", [*have, *missing])


def _toleration_json(toleration: TolerationLike) -> dict[str, Any]:
    if isinstance(toleration, Toleration):
        toleration = {
            "key": toleration.key,
            "operator": toleration.operator,
            "value": toleration.value,
            "effect": toleration.effect,
            "tolerationSeconds": toleration.toleration_seconds,
        }
    return {key: value for key, value in toleration.items() if value not in ("", None)}


def injection_ops(pod_templates: Iterable[PodTemplate]) -> list[JsonPatchOp]:
    """Operations that bring templates to their created form."""
    return [
        op
        for pod_template in pod_templates
        for op in template_patch(
            pod_template.template,
            injected_template(
                pod_template.template, pod_template.podset, elastic=pod_template.elastic
            ),
            pod_template.pointer,
        )
    ]


def remove_injection_ops(pod_templates: Iterable[PodTemplate]) -> list[JsonPatchOp]:
    """Operations that take all our own keys out of templates."""
    return [
        op
        for pod_template in pod_templates
        for op in template_patch(
            pod_template.template, strip_reserved(pod_template.template), pod_template.pointer
        )
    ]


def start_ops(
    pod_templates: Iterable[PodTemplate], podset_infos: Mapping[str, PodSetInfo], *, workload: str
) -> list[JsonPatchOp] | StartConflict:
    """Operations that bring templates to their started form.

    Args:
        pod_templates: all templates of the job, each in its created or restored form.
        podset_infos: by PodSet name; a template whose PodSet was given nothing stays as it is.
        workload: name of the Workload that was admitted.

    Returns:
        Nothing for templates that are started already; or the key that stands in the way.
    """
    operations: list[JsonPatchOp] = []
    for pod_template in pod_templates:
        if pod_template.podset not in podset_infos:
            continue
        started = started_template(
            pod_template.template,
            podset_infos[pod_template.podset],
            workload=workload,
            path=pod_template.path,
            elastic=pod_template.elastic,
        )
        if isinstance(started, StartConflict):
            return started
        operations += template_patch(pod_template.template, started, pod_template.pointer)
    return operations


def restored_template(
    template: Template, original: Template | None, info: PodSetInfo | None = None
) -> dict[str, Any]:
    """What a template looks like once its job has stopped: as its user wrote it.

    Args:
        template: in its started form, perhaps edited by its user since.
        original: the user's, as the Workload keeps it; None when it keeps none.
        info: what the admission gave. With it, all node selectors and tolerations that the user
            wrote while the job ran are kept; without, changes of those that `original` has,
            since what came besides may be the flavor's.

    Returns:
        The template without our own keys and, with an original, without what the flavor brought.
    """
    plain = strip_reserved(template)
    if original is None:
        return plain
    spec, before = section(plain, "spec"), section(original, "spec")
    kept: dict[str, object]
    if info is None:
        kept = {
            "nodeSelector": _original_labels(spec, before),
            "tolerations": _original_tolerations(spec, before),
        }
    else:
        kept = {
            "nodeSelector": _without_injected_labels(spec, before, info.node_labels),
            "tolerations": _without_injected_tolerations(spec, before, info.tolerations),
        }
    for field_name, value in kept.items():
        # An empty value that the user wrote comes back as it was.
        plain = with_field(
            plain, "spec", field_name, value or _keep_if_empty(before.get(field_name))
        )
    for field_name in ("labels", "annotations"):
        plain = _restore_empty(plain, original, "metadata", field_name)
    plain = _restore_empty(plain, original, "spec", "schedulingGates")
    if "metadata" not in original and not section(plain, "metadata"):
        plain.pop("metadata", None)
    return plain


def _keep_if_empty(value: object) -> object:
    """The value if it holds nothing, else nothing at all."""
    return None if value else value


def has_podset_info(template: Template, info: PodSetInfo) -> bool:
    """Whether a template has all that an admission brings into its spec."""
    spec = section(template, "spec")
    selector = section(spec, "nodeSelector")
    have = [dict(entry) for entry in items(spec, "tolerations")]
    return all(selector.get(key) == value for key, value in info.node_labels.items()) and all(
        _toleration_json(toleration) in have for toleration in info.tolerations
    )


def _original_labels(spec: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    now = section(spec, "nodeSelector")
    return {key: now[key] for key in section(before, "nodeSelector") if key in now}


def _original_tolerations(
    spec: Mapping[str, Any], before: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    was = [_toleration_json(entry) for entry in items(before, "tolerations")]
    return [entry for entry in items(spec, "tolerations") if _toleration_json(entry) in was]


def _without_injected_labels(
    spec: Mapping[str, Any], before: Mapping[str, Any], brought: Mapping[str, str]
) -> dict[str, Any]:
    was = section(before, "nodeSelector")
    return {
        key: value
        for key, value in section(spec, "nodeSelector").items()
        if key in was or brought.get(key) != value
    }


def _without_injected_tolerations(
    spec: Mapping[str, Any], before: Mapping[str, Any], brought: Sequence[TolerationLike]
) -> list[Mapping[str, Any]]:
    was = items(before, "tolerations")
    injected_entries = [_toleration_json(toleration) for toleration in brought]
    have = items(spec, "tolerations")
    return [entry for entry in have if entry in was or entry not in injected_entries]


def _restore_empty(
    template: dict[str, Any], original: Template, pod_template: str, name: str
) -> dict[str, Any]:
    """With the empty map or list of the original where stripping left nothing."""
    empty = section(original, pod_template).get(name)
    if name in section(template, pod_template) or empty is None or empty:
        return template
    return with_field(template, pod_template, name, empty)


def restore_ops(
    pod_templates: Iterable[PodTemplate],
    originals: Mapping[str, Template],
    podset_infos: Mapping[str, PodSetInfo] | None = None,
) -> list[JsonPatchOp]:
    """Operations that bring templates back to their user's form.

    Args:
        pod_templates: all templates of the job.
        originals: by PodSet name, as the Workload keeps them; a template without one loses our
            own keys only.
        podset_infos: by PodSet name, what the admission gave, where it is still known; see
            `restored_template`.
    """
    known = podset_infos or {}
    return [
        op
        for pod_template in pod_templates
        for op in template_patch(
            pod_template.template,
            restored_template(
                pod_template.template,
                originals.get(pod_template.podset),
                known.get(pod_template.podset),
            ),
            pod_template.pointer,
        )
    ]
