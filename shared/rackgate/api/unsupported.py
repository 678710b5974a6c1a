"""Fields of the Kueue API that have no effect in Rackgate yet; an Event names them.

Cohorts, borrowing, preemption and the admission checks of a ClusterQueue are not listed: the
Active condition of the queue reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rackgate.api.names import GROUP

Manifest = Mapping[str, Any]

_FUNGIBILITY_DEFAULTS: Final = {
    "whenCanBorrow": "MayStopSearch",
    "preference": None,
}
_JOB_LABELS: Final = (f"{GROUP}/max-exec-time-seconds", f"{GROUP}/prebuilt-workload-name")
_JOB_ANNOTATIONS: Final = (
    f"{GROUP}/prebuilt-workload-name",
    f"{GROUP}/job-min-parallelism",
    f"{GROUP}/job-completions-equal-parallelism",
    f"{GROUP}/admission-gated-by",
    f"{GROUP}/elastic-job",
    f"{GROUP}/priority-boost",
    f"{GROUP}/safe-to-forcefully-delete",
)
_WORKLOAD_ANNOTATIONS: Final = (
    f"{GROUP}/admission-gated-by",
    f"{GROUP}/elastic-job",
    f"{GROUP}/priority-boost",
    f"{GROUP}/workload-slice-replacement-for",
)


def _object_at(obj: object, key: str) -> Manifest:
    """A nested object; empty when absent or of another type, which the schema rejects."""
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _set_paths(obj: Manifest, path: str, *keys: str) -> Iterator[str]:
    """Paths of the keys whose value is not null, an empty list or an empty object."""
    return (f"{path}.{key}" for key in keys if obj.get(key) not in (None, [], {}))


def _metadata_paths(obj: Manifest, part: str, keys: tuple[str, ...]) -> Iterator[str]:
    found = _object_at(_object_at(obj, "metadata"), part)
    return (f'metadata.{part}["{key}"]' for key in keys if key in found)


def _cluster_queue_paths(obj: Manifest) -> Iterator[str]:
    spec = _object_at(obj, "spec")
    yield from _set_paths(
        spec, "spec", "admissionScope", "concurrentAdmissionPolicy", "fairSharing"
    )
    fungibility = _object_at(spec, "flavorFungibility")
    for key, default in _FUNGIBILITY_DEFAULTS.items():
        if fungibility.get(key) not in (None, default):
            yield f"spec.flavorFungibility.{key}"


def _local_queue_paths(obj: Manifest) -> Iterator[str]:
    return _set_paths(_object_at(obj, "spec"), "spec", "fairSharing")


def _cohort_paths(obj: Manifest) -> Iterator[str]:
    return _set_paths(
        _object_at(obj, "spec"), "spec", "fairSharing", "parentName", "resourceGroups"
    )


def _workload_paths(obj: Manifest) -> Iterator[str]:
    yield from _metadata_paths(obj, "annotations", _WORKLOAD_ANNOTATIONS)
    spec = _object_at(obj, "spec")
    yield from _set_paths(spec, "spec", "maximumExecutionTimeSeconds")
    podsets = spec.get("podSets")
    for index, podset in enumerate(podsets if isinstance(podsets, list | tuple) else ()):
        if isinstance(podset, Mapping):
            yield from _set_paths(podset, f"spec.podSets[{index}]", "minCount")
    yield from _set_paths(spec, "spec", "preemptionGates")


def _job_paths(obj: Manifest) -> Iterator[str]:
    yield from _metadata_paths(obj, "labels", _JOB_LABELS)
    yield from _metadata_paths(obj, "annotations", _JOB_ANNOTATIONS)


def _raycluster_paths(obj: Manifest) -> Iterator[str]:
    # A RayCluster with an autoscaler is resized while it runs, with or without the annotation.
    return (path for path in _job_paths(obj) if not path.endswith('/elastic-job"]'))


_PATHS_BY_KIND: Final[Mapping[str, Callable[[Manifest], Iterator[str]]]] = {
    "ClusterQueue": _cluster_queue_paths,
    "Cohort": _cohort_paths,
    "Job": _job_paths,
    "JobSet": _job_paths,
    "LocalQueue": _local_queue_paths,
    "RayCluster": _raycluster_paths,
    "Workload": _workload_paths,
}


def unsupported_fields(kind: str, obj: Manifest) -> list[str]:
    """Paths that are set in a manifest and have no effect; empty for unknown kinds.

    Args:
        kind: such as `ClusterQueue` or `Job`.
        obj: the object as JSON data; malformed parts are skipped.
    """
    find_paths = _PATHS_BY_KIND.get(kind)
    return [] if find_paths is None else list(find_paths(obj))
