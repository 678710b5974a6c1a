"""What a job or its Workload sets and has no effect, for the condition UnsupportedFields."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from rackgate.api.unsupported import (
    Unsupported,
    unsupported_fields,
    unsupported_in_template,
)
from rackgate.jobframework.generic_job import JobLike
from rackgate.jobframework.registry import POD_KINDS, kind_of
from rackgate.jobframework.templates import items, section
from rackgate.wire import kueue

_PARTS: Final = ("requests", "limits")


class KnownTexts:
    """What `without_effect` said about each Workload, until the Workload, job or queue changes.

    Pending Workloads are evaluated in every cycle.
    """

    def __init__(self, *, elastic_kinds: Collection[str], excluded: Sequence[str]) -> None:
        """Start empty; the arguments are those of `without_effect`."""
        self._elastic_kinds, self._excluded = elastic_kinds, excluded
        self._known: dict[str, tuple[tuple[object, ...], str]] = {}

    def text(
        self, workload: kueue.Workload, job: JobLike | None, queue: kueue.ClusterQueue | None
    ) -> str:
        """As `without_effect`; "" for what cannot be read: no write may fail because of it."""
        versions = tuple(map(_version, (workload, job, queue)))
        key = workload.metadata.key
        known = self._known.get(key)
        if known is not None and known[0] == versions:
            return known[1]
        try:
            text = without_effect(
                workload,
                job,
                queue,
                elastic_kinds=self._elastic_kinds,
                excluded=self._excluded,
            )
        except (ValueError, TypeError, RecursionError):
            text = ""
        self._known[key] = versions, text
        return text

    def forget(self, key: str) -> None:
        """A Workload was deleted."""
        self._known.pop(key, None)


def _version(obj: kueue.Workload | JobLike | kueue.ClusterQueue | None) -> tuple[object, ...]:
    """What changes with all that `without_effect` reads of an object."""
    if obj is None:
        return ()
    meta = obj.metadata
    return meta.uid, meta.generation, meta.labels, meta.annotations


def without_effect(
    workload: kueue.Workload,
    job: JobLike | None,
    queue: kueue.ClusterQueue | None,
    *,
    elastic_kinds: Collection[str] = (),
    excluded: Sequence[str] = (),
) -> str:
    """Everything without effect, each with what happens instead; "" for nothing.

    Args:
        workload: as stored.
        job: that it was made for, if it is known.
        queue: the ClusterQueue that it is in, if it is known.
        elastic_kinds: kinds of jobs that may be resized while they run.
        excluded: prefixes of resources that count neither for quota nor for capacity.
    """
    found = _of_workload(workload) if job is None else _of_job(job, workload, elastic_kinds)
    return "; ".join(
        [
            *map(str, found),
            *map(str, unsupported_of_queue(queue)),
            *excluded_requests(workload, excluded),
        ]
    )


def _of_workload(workload: kueue.Workload) -> list[Unsupported]:
    podsets = [{"template": msgspec.json.decode(one.template)} for one in workload.spec.pod_sets]
    metadata = {"labels": workload.metadata.labels, "annotations": workload.metadata.annotations}
    spec = {"podSets": podsets, "preemptionGates": list(workload.spec.preemption_gates)}
    return unsupported_fields("Workload", {"metadata": metadata, "spec": spec})


def _of_job(
    job: JobLike, workload: kueue.Workload, elastic_kinds: Collection[str]
) -> Iterator[Unsupported]:
    kind = kind_of(job)
    if kind in POD_KINDS:
        yield from _of_workload(workload)
        return
    metadata = {"labels": job.metadata.labels, "annotations": job.metadata.annotations}
    yield from unsupported_fields(kind.name, {"metadata": metadata}, elastic_kinds=elastic_kinds)
    manifest = kind.manifest(job)
    templates = [(one.path, one.template) for one in kind.templates(manifest)]
    for path, template in (*kind.job_templates(manifest), *templates):
        yield from unsupported_in_template(template, path)


def unsupported_of_queue(queue: kueue.ClusterQueue | None) -> Iterator[Unsupported]:
    """What a ClusterQueue sets for its Workloads and has no effect, with its name."""
    policy = None if queue is None else queue.spec.concurrent_admission_policy
    if queue is not None and policy:
        manifest = {"spec": {"concurrentAdmissionPolicy": policy}}
        for one in unsupported_fields("ClusterQueue", manifest):
            yield Unsupported(f'ClusterQueue "{queue.metadata.name}": {one.path}', one.instead)


def excluded_requests(workload: kueue.Workload, prefixes: Sequence[str]) -> Iterator[str]:
    """Resources that pods request and that a setting excludes; each once."""
    if not prefixes:
        return
    requested: set[str] = set()
    for podset in workload.spec.pod_sets:
        requested |= _requested(section(msgspec.json.decode(podset.template), "spec"))
    for name in sorted(name for name in requested if name.startswith(tuple(prefixes))):
        yield (
            f'the request of "{name}" counts neither for quota nor for capacity: the setting'
            " resources.excludeResourcePrefixes of the assigner excludes it"
        )


def _requested(spec: Mapping[str, Any]) -> set[str]:
    holders = [*items(spec, "containers"), *items(spec, "initContainers"), spec]
    parts = [section(section(one, "resources"), part) for one in holders for part in _PARTS]
    return {str(name) for part in parts for name in part}
