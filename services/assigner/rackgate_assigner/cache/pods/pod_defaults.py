"""What LimitRanges and RuntimeClasses add to the requests of Workloads.

A `WorkloadInfo` keeps the fields of its templates that defaults may change. So a change of a
LimitRange or a RuntimeClass decodes no template, and a change of a Workload reads no LimitRange.
If there is neither, a Workload costs two lookups.
"""

from __future__ import annotations

from operator import is_

from rackgate.resources.pod_defaults import LimitRangeSummary, summarize_limit_ranges
from rackgate.wire import core as wire
from rackgate_assigner.cache.indexes import discard
from rackgate_assigner.workload.info import WorkloadInfo, with_podsets
from rackgate_assigner.workload.podsets import (
    NO_POD_DEFAULTS,
    PodDefaults,
    PodSetResources,
    with_defaults,
)


class PodDefaultsIndex:
    """LimitRanges by namespace, RuntimeClasses by name, and the Workloads that have them.

    Attributes:
        ranges: LimitRanges by namespace and name.
        classes: RuntimeClasses by name; only the fields that pods get from them.
    """

    def __init__(self) -> None:
        self.ranges: dict[str, dict[str, wire.LimitRange]] = {}
        self.classes: dict[str, wire.RuntimeClass] = {}
        self._limits: dict[str, LimitRangeSummary] = {}
        self._in_namespace: dict[str, set[str]] = {}
        self._of_class: dict[str, set[str]] = {}

    def set_limit_range(self, item: wire.LimitRange) -> set[str]:
        """A LimitRange was added or changed; keys of the Workloads that it may affect."""
        meta = item.metadata
        ranges = self.ranges.setdefault(meta.namespace, {})
        known = ranges.get(meta.name)
        if known is not None and known.spec == item.spec:
            return set()
        named = wire.Meta(name=meta.name, namespace=meta.namespace)
        ranges[meta.name] = wire.LimitRange(metadata=named, spec=item.spec)
        self._limits[meta.namespace] = summarize_limit_ranges(ranges.values())
        return self._in_namespace.get(meta.namespace, set())

    def drop_limit_range(self, key: str) -> set[str]:
        """A LimitRange is gone; keys of the Workloads that it may have affected."""
        namespace, _, name = key.partition("/")
        ranges = self.ranges.get(namespace, {})
        if ranges.pop(name, None) is None:
            return set()
        if ranges:
            self._limits[namespace] = summarize_limit_ranges(ranges.values())
        else:
            del self.ranges[namespace], self._limits[namespace]
        return self._in_namespace.get(namespace, set())

    def set_runtime_class(self, item: wire.RuntimeClass) -> set[str]:
        """A RuntimeClass was added or changed; keys of the Workloads that name it."""
        name = item.metadata.name
        kept = wire.RuntimeClass(
            metadata=wire.Meta(name=name), overhead=item.overhead, scheduling=item.scheduling
        )
        if self.classes.get(name) == kept:
            return set()
        self.classes[name] = kept
        return self._of_class.get(name, set())

    def drop_runtime_class(self, name: str) -> set[str]:
        """A RuntimeClass is gone; keys of the Workloads that name it."""
        if self.classes.pop(name, None) is None:
            return set()
        return self._of_class.get(name, set())

    def with_pod_defaults(self, row: WorkloadInfo) -> WorkloadInfo:
        """The Workload with the defaults that apply now; itself if nothing changes."""
        limits = self._limits.get(row.namespace)
        podsets = tuple(self._with_pod_defaults(podset, limits) for podset in row.podsets)
        if all(map(is_, podsets, row.podsets)):
            return row
        return with_podsets(row, podsets)

    def _with_pod_defaults(
        self, podset: PodSetResources, limits: LimitRangeSummary | None
    ) -> PodSetResources:
        name = podset.runtime_class
        found = self.classes.get(name) if name else None
        pod_defaults = podset.pod_defaults
        if pod_defaults.limits is limits and pod_defaults.runtime_class is found:
            return podset
        return with_defaults(podset, PodDefaults(limits, found))

    def track(self, old: WorkloadInfo | None, row: WorkloadInfo) -> None:
        """A Workload was added or changed."""
        names = _runtime_classes(row)
        if old is None:
            self._in_namespace.setdefault(row.namespace, set()).add(row.key)
        elif _runtime_classes(old) != names:
            for name in _runtime_classes(old):
                discard(self._of_class, name, row.key)
        for name in names:
            self._of_class.setdefault(name, set()).add(row.key)

    def untrack(self, row: WorkloadInfo) -> None:
        """A Workload is gone."""
        discard(self._in_namespace, row.namespace, row.key)
        for name in _runtime_classes(row):
            discard(self._of_class, name, row.key)


def without_pod_defaults(row: WorkloadInfo) -> WorkloadInfo:
    """The Workload without any defaults."""
    return with_podsets(
        row, tuple(with_defaults(podset, NO_POD_DEFAULTS) for podset in row.podsets)
    )


def _runtime_classes(row: WorkloadInfo) -> set[str]:
    return {podset.runtime_class for podset in row.podsets} - {""}
