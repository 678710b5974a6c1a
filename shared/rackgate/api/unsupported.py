"""What users can write in Kueue's API that has no effect in Rackgate, with what happens instead.

The webhook warns about it when it is written, and an Event of the assigner names it in objects that
exist. docs/reference/compatibility.md lists it with all other fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rackgate.api.names import (
    COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION,
    ELASTIC_ANNOTATION,
    GROUP,
    GROUP_WORKLOAD_ANNOTATION,
    JOB_UID_LABEL,
    MANAGED_LABEL,
    MAX_EXECUTION_TIME_LABEL,
    MIN_PARALLELISM_ANNOTATION,
    MULTIKUEUE_CONTROLLER,
    POD_GROUP_FAST_ADMISSION,
    POD_GROUP_INDEX_ANNOTATION,
    POD_GROUP_INDEX_LABEL,
    POD_GROUP_LABEL,
    POD_GROUP_SERVING,
    POD_GROUP_TOTAL_ANNOTATION,
    POD_INDEX_OFFSET,
    PODSET_GROUP,
    PODSET_LABEL,
    PRIORITY_CLASS_LABEL,
    PROVISIONING_CONTROLLER,
    QUEUE_LABEL,
    RECONCILE_REQUESTED_ANNOTATION,
    RETRIABLE_ANNOTATION,
    SLICE_SIZE,
    TAS_LABEL,
    TOPOLOGY_ANNOTATIONS,
    WORKLOAD_ANNOTATION,
)
from rackgate.features import ELASTIC_INDEXED_JOBS

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field, label or annotation without effect.

    Attributes:
        path: in the manifest, such as `metadata.annotations[kueue.x-k8s.io/priority-boost]`.
        instead: what happens instead, or what to do.
    """

    path: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path} has no effect: {self.instead}"


USAGE_BASED: Final = "UsageBasedAdmissionFairSharing"
_FAIR_SHARING_OFF: Final = (
    "admission fair sharing is off; set admissionFairSharing.usageHalfLifeTime of the assigner, and"
    " leave the feature gate AdmissionFairSharing on"
)

_JOB_LABELS: Final = frozenset({QUEUE_LABEL, PRIORITY_CLASS_LABEL, MAX_EXECUTION_TIME_LABEL})
_PARTIAL_ADMISSION: Final = frozenset(
    {MIN_PARALLELISM_ANNOTATION, COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION}
)
_TOPOLOGY: Final = frozenset({*TOPOLOGY_ANNOTATIONS, SLICE_SIZE, PODSET_GROUP})
# In a template. The queue label has a warning of its own, and the others are reserved.
_TEMPLATE_KEYS: Final = _TOPOLOGY | {
    POD_INDEX_OFFSET,
    QUEUE_LABEL,
    WORKLOAD_ANNOTATION,
    PODSET_LABEL,
    TAS_LABEL,
    ELASTIC_ANNOTATION,
}
# On a plain pod.
_POD_LABELS: Final = _JOB_LABELS | {POD_GROUP_LABEL, POD_GROUP_INDEX_LABEL, MANAGED_LABEL}
_POD_ANNOTATIONS: Final = _TOPOLOGY | {
    POD_INDEX_OFFSET,
    POD_GROUP_TOTAL_ANNOTATION,
    POD_GROUP_FAST_ADMISSION,
    POD_GROUP_INDEX_ANNOTATION,
    RETRIABLE_ANNOTATION,
}
# Kueue writes these on jobs and Workloads. They remain after a migration and do no harm.
WRITTEN_BY_KUEUE: Final = frozenset(
    f"{GROUP}/{name}"
    for name in (
        "cluster-queue-name",
        "component-workload-index",
        "job-owner-gvk",
        "job-owner-name",
        "local-queue-name",
        "multikueue-origin",
        "multikueue-origin-uid",
        "multikueue-worker-workload-pod",
        "pod-suspending-parent",
        "podset-replica-sizes",
        "raycluster-generation",
        "raycluster-podset-replica-sizes",
        "role-hash",
        "stopping",
        "workload-slice-name",
    )
)
RACKGATE_DOMAIN: Final = "rackgate.dev"
# As the policy rackgate-hints reads them, too.
_QUEUE_NAMES: Final = frozenset({"queuename", "queue", "localqueue", "localqueuename"})
# The assigner writes the first, and the simulated pods of a playground read the others.
WITHOUT_A_WARNING: Final = frozenset(
    {
        RECONCILE_REQUESTED_ANNOTATION,
        f"{RACKGATE_DOMAIN}/fail-after-seconds",
        f"{RACKGATE_DOMAIN}/run-seconds",
        f"{RACKGATE_DOMAIN}/terminate-seconds",
    }
)
_GROUPED: Final = "only plain pods form groups; the pods of a job are admitted with their job"
_SERVING: Final = (
    "a group ends when all its pods have succeeded, and a pod that was deleted is replaced by one"
    " that requests the same"
)
_CONCURRENT: Final = "a Workload is admitted in one flavor at a time"
# What happens instead, for keys of Kueue that users set.
_INSTEAD: Final[Mapping[str, str]] = {
    f"{GROUP}/prebuilt-workload-name": "Rackgate creates the Workload of the job itself",
    f"{GROUP}/admission-gated-by": "the Workload may be admitted at once; keep the job out of its"
    " queue until it may start, or use an AdmissionCheck",
    f"{GROUP}/priority-boost": "the priority is that of the label"
    f" {PRIORITY_CLASS_LABEL} or of the pods",
    f"{GROUP}/safe-to-forcefully-delete": "Rackgate does not delete pods that are stuck in"
    " termination; delete them yourself",
    f"{GROUP}/workload-slice-replacement-for": "workload slices of Rackgate have their parent as"
    " owner",
    f"{GROUP}/workload-allowed-resource-flavors": "use a node selector to exclude flavors",
    f"{GROUP}/concurrent-admission-parent": _CONCURRENT,
    POD_GROUP_LABEL: _GROUPED,
    POD_GROUP_TOTAL_ANNOTATION: _GROUPED,
    POD_GROUP_FAST_ADMISSION: _GROUPED,
    POD_GROUP_SERVING: _SERVING,
    POD_GROUP_INDEX_ANNOTATION: _GROUPED,
    RETRIABLE_ANNOTATION: _GROUPED,
    MIN_PARALLELISM_ANNOTATION: "only a Job can start with fewer pods",
    COMPLETIONS_EQUAL_PARALLELISM_ANNOTATION: "only a Job can start with fewer pods",
    PRIORITY_CLASS_LABEL: "set it in metadata.labels of the job",
    MAX_EXECUTION_TIME_LABEL: "set it in metadata.labels of the job",
    ELASTIC_ANNOTATION: "only an Indexed Job is resized by it, and only with feature gate"
    f" {ELASTIC_INDEXED_JOBS}",
}
_PROVISIONING_DOMAIN: Final = f"provreq.{GROUP}"
_CHECK_CONTROLLERS: Final[Mapping[str, str]] = {
    MULTIKUEUE_CONTROLLER: "MultiKueue",
    PROVISIONING_CONTROLLER: "ProvisioningRequests",
}


def _object_at(obj: object, key: str) -> Manifest:
    """A nested object; empty when absent or of another type, which the schema rejects."""
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _is_of_kueue(key: str) -> bool:
    """Whether a key is of Kueue or of Rackgate, or has a domain like that of Kueue."""
    domain, slash, _ = key.partition("/")
    return bool(slash) and (
        domain in (GROUP, RACKGATE_DOMAIN)
        or domain.endswith(f".{GROUP}")
        or domain.startswith("kueue.")
    )


def misspelled_queue_label(metadata: Manifest) -> str:
    """The path of a label or annotation that was probably meant as the queue label; "" if none.

    Args:
        metadata: of an object without the queue label.
    """
    for part in ("labels", "annotations"):
        for key in _object_at(metadata, part):
            name = key.partition("/")[2].lower()
            if _is_of_kueue(key) and "".join(filter(str.isalnum, name)) in _QUEUE_NAMES:
                return f"metadata.{part}[{key}]"
    return ""


def _instead_of(key: str, known: Collection[str]) -> str:
    if key in _INSTEAD:
        return _INSTEAD[key]
    if key.startswith(f"{_PROVISIONING_DOMAIN}/"):
        return "Rackgate does not create ProvisioningRequests"
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.9)
    return f'did you mean "{near[0]}"?' if near else "Rackgate does not know it in this place"


def _unknown_keys(
    obj: Manifest, path: str, part: str, known: Collection[str]
) -> Iterator[Unsupported]:
    """Labels or annotations of Kueue other than the known ones."""
    found = _object_at(_object_at(obj, "metadata"), part)
    where = f"{path}.metadata" if path else "metadata"
    for key in sorted(key for key in found if isinstance(key, str) and _is_of_kueue(key)):
        if key not in known and key not in WRITTEN_BY_KUEUE and key not in WITHOUT_A_WARNING:
            yield Unsupported(f"{where}.{part}[{key}]", _instead_of(key, known))


def _is_set(obj: Manifest, key: str) -> bool:
    return obj.get(key) not in (None, [], {})


def _cluster_queue(obj: Manifest) -> Iterator[Unsupported]:
    if _is_set(_object_at(obj, "spec"), "concurrentAdmissionPolicy"):
        yield Unsupported(
            "spec.concurrentAdmissionPolicy", f"{_CONCURRENT}, and stays in it until it ends"
        )


def _admission_check(obj: Manifest) -> Iterator[Unsupported]:
    spec = _object_at(obj, "spec")
    feature = _CHECK_CONTROLLERS.get(str(spec.get("controllerName")))
    if feature is not None:
        yield Unsupported(
            f"spec.controllerName {spec['controllerName']}",
            f"Rackgate has no controller for {feature}, so Workloads wait for this check until"
            " another controller answers it",
        )
    if _is_set(spec, "retryDelayMinutes"):
        yield Unsupported(
            "spec.retryDelayMinutes",
            "the controller of the check sets requeueAfterSeconds in the state of the Workload",
        )


def _podset_templates(obj: Manifest) -> Iterator[tuple[int, Manifest]]:
    podsets = _object_at(obj, "spec").get("podSets")
    for index, podset in enumerate(podsets if isinstance(podsets, list) else []):
        yield index, _object_at(podset, "template")


def _workload(obj: Manifest) -> Iterator[Unsupported]:
    yield from _unknown_keys(obj, "", "labels", {JOB_UID_LABEL})
    yield from _unknown_keys(
        obj, "", "annotations", {ELASTIC_ANNOTATION, GROUP_WORKLOAD_ANNOTATION}
    )
    if _is_set(_object_at(obj, "spec"), "preemptionGates"):
        yield Unsupported("spec.preemptionGates", "the Workload may preempt others at once")
    for index, template in _podset_templates(obj):
        yield from _resource_claims(template, f"spec.podSets[{index}].template.spec")


def _job(obj: Manifest, annotations: Collection[str]) -> Iterator[Unsupported]:
    # Annotations of a topology on the job itself have a warning of their own, and the assigner
    # writes the name of the Workload.
    yield from _unknown_keys(obj, "", "labels", _JOB_LABELS)
    yield from _unknown_keys(
        obj, "", "annotations", {*annotations, *_TOPOLOGY, WORKLOAD_ANNOTATION}
    )


_FINDERS: Final[Mapping[str, Callable[[Manifest], Iterator[Unsupported]]]] = {
    "AdmissionCheck": _admission_check,
    "ClusterQueue": _cluster_queue,
    "Workload": _workload,
}
# Annotations of jobs that have an effect, by kind. A RayCluster with an autoscaler is resized while
# it runs, with or without the annotation of elastic jobs.
_JOB_ANNOTATIONS: Final[Mapping[str, frozenset[str]]] = {
    "Job": _PARTIAL_ADMISSION,
    "JobSet": frozenset(),
    "RayCluster": frozenset({ELASTIC_ANNOTATION}),
    "RayJob": frozenset(),
}


def unsupported_fields(
    kind: str, obj: Manifest, *, elastic_kinds: Collection[str] = ()
) -> list[Unsupported]:
    """What is set in an object and has no effect; empty for unknown kinds.

    Args:
        kind: such as `ClusterQueue` or `Job`.
        obj: the object as JSON data; malformed parts are skipped.
        elastic_kinds: names of the job kinds that may be resized while they run.
    """
    find = _FINDERS.get(kind)
    if find is not None:
        return list(find(obj))
    known = _JOB_ANNOTATIONS.get(kind)
    if known is None:
        return []
    return list(_job(obj, known | ({ELASTIC_ANNOTATION} if kind in elastic_kinds else set())))


def unsupported_in_template(template: Manifest, path: str) -> list[Unsupported]:
    """What is set in a pod template, or a Job template, and has no effect.

    Args:
        template: as JSON data; malformed parts are skipped.
        path: of the template in the manifest.
    """
    return [
        *_unknown_keys(template, path, "labels", _TEMPLATE_KEYS),
        *_unknown_keys(template, path, "annotations", _TEMPLATE_KEYS),
        *_resource_claims(template, f"{path}.spec"),
    ]


def unsupported_in_pod(pod: Manifest) -> list[Unsupported]:
    """What is set in a plain pod with a queue label, and has no effect.

    Args:
        pod: as JSON data; malformed parts are skipped.
    """
    return [
        *_unknown_keys(pod, "", "labels", _POD_LABELS),
        *_unknown_keys(pod, "", "annotations", _POD_ANNOTATIONS),
        *_resource_claims(pod, "spec"),
    ]


def unsupported_in_linked(obj: Manifest) -> list[Unsupported]:
    """What is set in the metadata of an object whose pods are linked, and has no effect.

    Args:
        obj: as JSON data; malformed parts are skipped.
    """
    annotations = _object_at(_object_at(obj, "metadata"), "annotations")
    misplaced = [
        Unsupported(f"metadata.annotations[{key}]", "set it in the metadata of the pod templates")
        for key in sorted(_TOPOLOGY)
        if key in annotations
    ]
    return [
        *_unknown_keys(obj, "", "labels", _JOB_LABELS),
        *misplaced,
        *_unknown_keys(obj, "", "annotations", _TOPOLOGY),
    ]


def _resource_claims(template: Manifest, path: str) -> Iterator[Unsupported]:
    if _is_set(_object_at(template, "spec"), "resourceClaims"):
        instead = (
            "Kubernetes allocates its devices, but they count neither for quota nor for capacity"
        )
        yield Unsupported(f"{path}.resourceClaims", instead)


def admission_fair_sharing_fields(kind: str, obj: Manifest) -> list[Unsupported]:
    """What is set in a queue and has an effect with admission fair sharing alone.

    Args:
        kind: such as `ClusterQueue`.
        obj: the object as JSON data; malformed parts are skipped.
    """
    spec = _object_at(obj, "spec")
    if kind == "ClusterQueue":
        if _object_at(spec, "admissionScope").get("admissionMode") == USAGE_BASED:
            return [Unsupported("spec.admissionScope", _FAIR_SHARING_OFF)]
    elif kind == "LocalQueue" and _is_set(_object_at(spec, "fairSharing"), "weight"):
        return [Unsupported("spec.fairSharing.weight", _FAIR_SHARING_OFF)]
    return []
