"""Mutations: managed jobs, pods that arrive without gates, defaults of Workloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rackgate.api.names import (
    ELASTIC_ANNOTATION,
    ELASTIC_GATE,
    GANG_GATE,
    GROUP,
    PODSET_GROUP,
    QUEUE_LABEL,
    SLICE_SIZE,
    TAS_LABEL,
    TAS_LABEL_VALUE,
    TOPOLOGY_ANNOTATIONS,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
)
from rackgate.jobframework.generic_job import SUSPEND, GenericJob, Manifest, TemplateEdits
from rackgate.jobframework.injection import keep_injection_ops, reinjection_ops
from rackgate.jobframework.jsonpatch import JsonPatchOp, pointer
from rackgate.jobframework.kai import RenderOptions, is_for_kai, render
from rackgate.jobframework.managed import (
    inject,
    is_cleanup_pod,
    is_managed,
    podset_of_pod,
    queue_of,
    remove_injection,
    with_defaults,
)
from rackgate.jobframework.podsets import PODSET
from rackgate.jobframework.registry import JOB, JOBSET
from rackgate.jobframework.templates import (
    annotations_of,
    gates_of,
    is_suspended,
    items,
    labels_of,
    section,
    strip_reserved,
    template_patch,
    with_entries,
    with_gate,
)
from rackgate.jobframework.topology_request import topology_request
from rackgate_webhook.admission.gangs import GANG_WORKLOAD, GangRules
from rackgate_webhook.admission.linked import linked_kind_of, mutate_linked, pass_link_on
from rackgate_webhook.admission.objects import name_errors
from rackgate_webhook.admission.plain_pods import is_plain_pod, plain_pod_created
from rackgate_webhook.admission.review import AdmissionResponse, Review, kind_of_review

_NO_GANGS: Final = GangRules()
# The users that create the pods of Jobs. Controllers may share one user.
_JOB_CONTROLLERS: Final = frozenset(
    {"system:serviceaccount:kube-system:job-controller", "system:kube-controller-manager"}
)
_REQUEST_FIELDS: Final = (
    "containers",
    "initContainers",
    "resources",
    "overhead",
    "runtimeClassName",
)
# With one of these, pods beyond the admitted ones stay gated. Late pods of a gang do not.
_KEEP_NEW_PODS: Final = (TOPOLOGY_GATE, ELASTIC_GATE)
_TOPOLOGY_REQUESTS: Final = (*TOPOLOGY_ANNOTATIONS, SLICE_SIZE, PODSET_GROUP)


def mutate(
    review: Review,
    *,
    elastic_kinds: Collection[str] = (),
    kai: RenderOptions | None = None,
    gangs: GangRules = _NO_GANGS,
    pod_groups: bool = False,
) -> AdmissionResponse:
    """The patch for one request; empty unless the object is managed.

    Args:
        review: the request.
        elastic_kinds: names of the job kinds that may be resized in slices, see
            `enabled_elastic_kinds`.
        kai: gate RackgateRenderForKAI: how to render Jobs that KAI schedules.
        gangs: rules of Workloads of gangs.
        pod_groups: gate RackgatePodGroups: plain pods with a queue label are managed.

    Raises:
        MalformedError: the API server never sends such an object.
    """
    kind, rule = kind_of_review(review), _RULES.get((review.kind, review.operation))
    if review.sub_resource:
        return AdmissionResponse()
    if review.kind == GANG_WORKLOAD:
        return gangs.mutate(review)
    if gangs.on and review.operation in ("CREATE", "UPDATE"):
        linked = linked_kind_of(review)
        if linked is not None:
            return mutate_linked(linked, review)
        if kind is JOBSET and review.operation == "CREATE" and not is_managed(review.object):
            return pass_link_on(review.object)
    if kai is not None and kind is JOB and is_for_kai(review.object, review.old_object):
        return _render_for_kai(review.object, kai)
    if kind is not None and review.operation == "CREATE":
        return _job_created(kind, review.object, kind.name in elastic_kinds)
    if kind is not None and review.operation == "UPDATE":
        return _job_updated(kind, review.object, review.old_object, kind.name in elastic_kinds)
    if (review.kind, review.operation) == ("/Pod", "CREATE"):
        if pod_groups and is_plain_pod(review.object):
            return plain_pod_created(review.object, gangs)
        return _pod_created(review, gangs)
    return AdmissionResponse() if rule is None else rule(review)


def _job_created(kind: GenericJob[Any], job: Manifest, elastic_enabled: bool) -> AdmissionResponse:
    if not is_managed(job):
        return AdmissionResponse()
    return AdmissionResponse(
        operations=inject(kind, job, elastic_enabled=elastic_enabled),
        warnings=list(_ignored_setting_warnings(kind, job)),
    )


def _render_for_kai(job: Manifest, kai: RenderOptions) -> AdmissionResponse:
    """A Job for KAI. Errors are found here: the rendered Job no longer shows that it is managed."""
    path = f"metadata.labels[{QUEUE_LABEL}]"
    errors = name_errors(queue_of(job) or "", path, "name an existing Queue of KAI")
    rendered = render(job, kai)
    if errors or rendered.errors:
        return AdmissionResponse(errors=[*errors, *rendered.errors])
    warnings = [*_ignored_setting_warnings(JOB, job), *rendered.warnings]
    return AdmissionResponse(operations=rendered.operations, warnings=warnings)


def _job_updated(
    kind: GenericJob[Any], job: Manifest, stored: Manifest, elastic_enabled: bool
) -> AdmissionResponse:
    """A job is rendered only when it becomes managed or unmanaged while it is suspended."""
    now, before = is_managed(job), is_managed(stored)
    if now and before:
        added, job = with_defaults(kind, job)
        edited = AdmissionResponse()
        if kind.template_edits is not TemplateEdits.AT_REST:
            edited = _reinject(kind, job, stored, elastic_enabled)
        edited = _suspend_if_scaled_up(kind, job, stored, edited)
        return replace(edited, operations=[*added, *edited.operations]) if added else edited
    if now == before or not (is_suspended(job) and is_suspended(stored)):
        return AdmissionResponse()
    if now:
        return _job_created(kind, job, elastic_enabled)
    operations = remove_injection(kind, job) if kind.can_remove_injection(stored) else []
    return AdmissionResponse(operations=operations)


def _reinject(
    kind: GenericJob[Any], job: Manifest, stored: Manifest, elastic_enabled: bool
) -> AdmissionResponse:
    """A managed job whose templates were written by a client.

    Tools that apply whole manifests replace lists and drop what was injected into them. The
    injection is written again if the job is suspended, and kept if it runs. A running job whose
    PodSets change is stopped in the same write, because the new PodSets were never admitted.
    """
    have = kind.injected_templates(job, elastic_enabled=elastic_enabled)
    had = kind.injected_templates(stored, elastic_enabled=elastic_enabled)
    if is_suspended(stored):
        if not is_suspended(job) or WORKLOAD_ANNOTATION in annotations_of(stored):
            # The assigner starts it, or is about to restore its templates.
            return AdmissionResponse()
        return AdmissionResponse(operations=reinjection_ops(have, had))
    frozen = kind.template_edits is TemplateEdits.SUSPENDED and not is_suspended(job)
    operations = keep_injection_ops(have, had, frozen=frozen)
    if is_suspended(job) or [pod_template.podset for pod_template in have] == [
        pod_template.podset for pod_template in had
    ]:
        return AdmissionResponse(operations=operations)
    warning = f"the podsets of a running {kind.name} change: it is stopped and queued again"
    return AdmissionResponse(operations=[dict(SUSPEND), *operations], warnings=[warning])


def _suspend_if_scaled_up(
    kind: GenericJob[Any], job: Manifest, stored: Manifest, edited: AdmissionResponse
) -> AdmissionResponse:
    """A running job that requests more pods or other resources, and whose new pods have no gate.

    It is suspended in the same write: when the assigner sees the change, new pods may be bound.
    """
    deleted = section(job, "metadata").get("deletionTimestamp")
    if deleted or is_suspended(job) or is_suspended(stored) or SUSPEND in edited.operations:
        return edited
    scaled_up = _find_scale_up(kind, job, stored)
    changed_podset = (
        _find_changed_podset(kind, job, stored)
        if kind.template_edits is TemplateEdits.ANY_TIME
        else None
    )
    if scaled_up:
        podset, (before, now) = min(scaled_up.items())
        warning = (
            f"podset {podset} of the running {kind.name} grows from {before} to {now} pods: it is"
            " suspended and queued again with its new size"
        )
    elif changed_podset is not None:
        warning = (
            f"the template of podset {changed_podset} of the running {kind.name} changes: it is"
            " suspended and queued again with the new template"
        )
    else:
        return edited
    return AdmissionResponse(
        operations=[dict(SUSPEND), *edited.operations], warnings=[*edited.warnings, warning]
    )


def _find_scale_up(
    kind: GenericJob[Any], job: Manifest, stored: Manifest
) -> dict[str, tuple[int, int]]:
    """PodSets that request more pods than before and whose pods have no gate.

    The stored templates decide: a client that applies a whole manifest drops our gates, but the
        same write adds them again.

    Returns:
        By name, the number of pods before and now.
    """
    gated_podsets = {
        pod_template.podset
        for pod_template in kind.templates(stored)
        if any(gate in _KEEP_NEW_PODS for gate in gates_of(pod_template.template))
    }
    before, now = kind.counts(stored), kind.counts(job)
    return {
        name: (before[name], count)
        for name, count in now.items()
        if name not in gated_podsets and count > before.get(name, count)
    }


def _find_changed_podset(kind: GenericJob[Any], job: Manifest, stored: Manifest) -> str | None:
    """The first PodSet whose new pods would request other resources than the admitted ones.

    A gate does not help: the ungater counts pods, not resources.
    """
    before = {
        pod_template.podset: _request_fields_of(pod_template.template)
        for pod_template in kind.templates(stored)
    }
    for pod_template in kind.templates(job):
        requests = _request_fields_of(pod_template.template)
        if before.get(pod_template.podset, requests) != requests:
            return pod_template.podset
    return None


def _request_fields_of(template: Manifest) -> list[Any]:
    """The fields of a template that determine the requests of its pods."""
    spec = section(template, "spec")
    return [spec.get(key) or None for key in _REQUEST_FIELDS]


def _ignored_setting_warnings(kind: GenericJob[Any], job: Manifest) -> Iterator[str]:
    """Warnings about settings that are ignored where they are set."""
    elsewhere = f"set it in {kind.templates_path}.metadata.annotations"
    holders = [("", job), *kind.job_templates(job)]
    for path, holder in holders:
        where = f"{path}.metadata" if path else "metadata"
        for key in _TOPOLOGY_REQUESTS:
            if key in annotations_of(holder, path):
                target = f"a {kind.name}" if not path else "a Job template"
                yield f"{where}.annotations[{key}] is ignored on {target}: {elsewhere}"
    inner = [
        *holders[1:],
        *((pod_template.path, pod_template.template) for pod_template in kind.templates(job)),
    ]
    for path, holder in inner:
        if QUEUE_LABEL in labels_of(holder, path):
            yield (
                f"{path}.metadata.labels[{QUEUE_LABEL}] is ignored: the queue is taken from"
                f" metadata.labels of the {kind.name}"
            )
    if annotations_of(job).get(ELASTIC_ANNOTATION, "false") != "false" and not kind.is_elastic(job):
        yield f"metadata.annotations[{ELASTIC_ANNOTATION}] is ignored: {kind.elastic_advice}"


def _pod_created(review: Review, gangs: GangRules) -> AdmissionResponse:
    """Add the gates and the label that a pod of a started PodSet, or of a gang, lacks.

    The ungater follows pods by that label: without it a gated pod would never be ungated (U8).
    """
    pod = review.object
    if is_cleanup_pod(pod):
        if review.username not in _JOB_CONTROLLERS:
            return AdmissionResponse()  # any user may write this: the admission policy rejects it
        # Created from the template of a head that no longer exists: it would stay gated forever.
        return AdmissionResponse(operations=template_patch(pod, strip_reserved(pod), ""))
    if podset_of_pod(annotations_of(pod), labels_of(pod)) is None:
        return AdmissionResponse(operations=template_patch(pod, gangs.with_gate(pod), ""))
    operations = template_patch(pod, gangs.with_gate(_with_gates(pod)), "")
    if operations and section(pod, "spec").get("nodeName"):
        return AdmissionResponse(
            warnings=[
                "spec.nodeName is set: the pod gets no topology assignment and counts as any other"
                " pod on that node"
            ]
        )
    return AdmissionResponse(operations=operations)


def _with_gates(pod: Manifest) -> Mapping[str, Any]:
    """A pod with all gates that its labels and annotations imply."""
    gates = gates_of(pod)
    elastic = annotations_of(pod).get(ELASTIC_ANNOTATION) == "true"
    placed = labels_of(pod).get(TAS_LABEL) == TAS_LABEL_VALUE or TOPOLOGY_GATE in gates
    gated_pod = pod
    # Only elastic jobs and gangs have pods without topology.
    if placed or not (elastic or ELASTIC_GATE in gates or GANG_GATE in gates):
        gated_pod = with_entries(gated_pod, "metadata", "labels", {TAS_LABEL: TAS_LABEL_VALUE})
        gated_pod = with_gate(gated_pod, TOPOLOGY_GATE)
    return with_gate(gated_pod, ELASTIC_GATE) if elastic else gated_pod


def _workload_created(review: Review) -> AdmissionResponse:
    spec = section(review.object, "spec")
    podsets = items(spec, "podSets", "spec")
    operations: list[JsonPatchOp] = []
    if "active" not in spec:
        operations.append(_add_operation(True, "spec", "active"))
    if len(podsets) == 1 and not podsets[0].get("name"):
        operations.append(_add_operation(PODSET, "spec", "podSets", "0", "name"))
    for index, podset in enumerate(podsets):
        if podset.get("topologyRequest") is not None:
            continue
        request = topology_request(section(podset, "template", f"spec.podSets[{index}]"))
        if request is not None:
            operations.append(
                _add_operation(request, "spec", "podSets", str(index), "topologyRequest")
            )
    return AdmissionResponse(operations=operations)


def _add_operation(value: object, *parts: str) -> JsonPatchOp:
    return {"op": "add", "path": pointer(*parts), "value": value}


_RULES: Final[dict[tuple[str, str], Callable[[Review], AdmissionResponse]]] = {
    (f"{GROUP}/Workload", "CREATE"): _workload_created,
}
