"""What the webhook changes: governed Jobs, the net below for Pods, defaults of Workloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from rackgate.api.names import (
    GROUP,
    PODSET_GROUP,
    SLICE_SIZE,
    TAS_LABEL,
    TAS_LABEL_VALUE,
    TOPOLOGY_ANNOTATIONS,
    TOPOLOGY_GATE,
)
from rackgate.govern.job import (
    PODSET,
    StopPhase,
    govern_job,
    is_suspended,
    release_job,
    stop_step,
    template_of,
)
from rackgate.govern.jsonpatch import JsonPatchOp, pointer
from rackgate.govern.predicates import is_governed, podset_of_pod
from rackgate.govern.templates import (
    annotations_of,
    gates_of,
    items,
    labels_of,
    section,
    template_patch,
    with_entries,
    with_gate,
)
from rackgate.govern.topology import topology_request
from rackgate_webhook.review import Review, Verdict

NODE_TYPE_LABEL: Final = "ray.io/node-type"
CLEANUP_NODE_TYPE: Final = "redis-cleanup"


def mutate(review: Review) -> Verdict:
    """The patch for one request; nothing for kinds, operations and objects of others.

    Raises:
        MalformedError: the object has a shape that the API server never sends.
    """
    rule = _RULES.get((review.kind, review.operation))
    if rule is None or review.sub_resource:
        return Verdict()
    return rule(review)


def _job_created(review: Review) -> Verdict:
    job = review.object
    if not is_governed(job):
        return Verdict()
    return Verdict(operations=govern_job(job), warnings=_misplaced(job))


def _job_updated(review: Review) -> Verdict:
    """Only a Job that enters or leaves while it stays suspended changes its form."""
    job, stored = review.object, review.old_object
    now, before = is_governed(job), is_governed(stored)
    if now == before or not (is_suspended(job) and is_suspended(stored)):
        return Verdict()
    if now:
        return Verdict(operations=govern_job(job), warnings=_misplaced(job))
    # A template that still waits for its pods to end may not be changed yet; the assigner's
    # stop restores it.
    waiting = stop_step(stored, template_of(stored)).phase is StopPhase.WAIT
    return Verdict() if waiting else Verdict(operations=release_job(job))


def _misplaced(job: Mapping[str, Any]) -> list[str]:
    keys = (*TOPOLOGY_ANNOTATIONS, SLICE_SIZE, PODSET_GROUP)
    annotations = annotations_of(job)
    return [
        f"metadata.annotations[{key}] has no effect on a Job: set it in"
        " spec.template.metadata.annotations"
        for key in keys
        if key in annotations
    ]


def _pod_created(review: Review) -> Verdict:
    """The net below: a pod of a started podset gets the gate and the label it came without.

    The ungater follows pods by that label: without it a gated pod would never be released (U8).
    """
    pod = review.object
    labels = labels_of(pod)
    complete = TOPOLOGY_GATE in gates_of(pod) and labels.get(TAS_LABEL) == TAS_LABEL_VALUE
    if complete or podset_of_pod(annotations_of(pod), labels) is None:
        return Verdict()
    if labels.get(NODE_TYPE_LABEL) == CLEANUP_NODE_TYPE:
        return Verdict()
    if section(pod, "spec").get("nodeName"):
        return Verdict(
            warnings=[
                "spec.nodeName is set: the pod is not placed by topology and counts as any other"
                " pod on that node"
            ]
        )
    marked = with_entries(pod, "metadata", "labels", {TAS_LABEL: TAS_LABEL_VALUE})
    return Verdict(operations=template_patch(pod, with_gate(marked, TOPOLOGY_GATE), ""))


def _workload_created(review: Review) -> Verdict:
    spec = section(review.object, "spec")
    podsets = items(spec, "podSets", "spec")
    operations: list[JsonPatchOp] = []
    if "active" not in spec:
        operations.append(_add(True, "spec", "active"))
    if len(podsets) == 1 and not podsets[0].get("name"):
        operations.append(_add(PODSET, "spec", "podSets", "0", "name"))
    for index, podset in enumerate(podsets):
        if podset.get("topologyRequest") is not None:
            continue
        request = topology_request(section(podset, "template", f"spec.podSets[{index}]"))
        if request is not None:
            operations.append(_add(request, "spec", "podSets", str(index), "topologyRequest"))
    return Verdict(operations=operations)


def _add(value: object, *parts: str) -> JsonPatchOp:
    return {"op": "add", "path": pointer(*parts), "value": value}


_RULES: Final[dict[tuple[str, str], Callable[[Review], Verdict]]] = {
    ("batch/Job", "CREATE"): _job_created,
    ("batch/Job", "UPDATE"): _job_updated,
    ("/Pod", "CREATE"): _pod_created,
    (f"{GROUP}/Workload", "CREATE"): _workload_created,
}
