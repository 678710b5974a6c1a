"""Which Workloads are slices of which, and where the pods of a family may be.

The pods of slices carry the name of the parent: an assignment of a slice covers pods of its parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.queue_usage import WorkloadUsage
from rackgate_assigner.quota.queues import FlavorInfo
from rackgate_assigner.workload.info import HOST_LEVELS, WorkloadInfo


class SliceFamilies:
    """Slices by the key of their parent, whether or not there is a Workload of that key."""

    __slots__ = ("_parents", "_slices")

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._slices: dict[str, set[str]] = {}

    def link(self, key: str, parent: str) -> str:
        """Say whose slice a Workload is, "" for none; returns whose it was before."""
        before = self._parents.get(key, "")
        if before == parent:
            return before
        if before:
            known = self._slices[before]
            known.discard(key)
            if not known:
                del self._slices[before]
            del self._parents[key]
        if parent:
            self._parents[key] = parent
            self._slices.setdefault(parent, set()).add(key)
        return before

    def parent_or_self(self, key: str) -> str:
        """The key of its parent; its own for a Workload that is no slice."""
        return self._parents.get(key, key)

    def slices_of(self, key: str) -> list[str]:
        """Keys of the slices of a Workload, in order."""
        found = self._slices.get(key)
        return sorted(found) if found else []


def is_orphan(info: WorkloadInfo, parent: WorkloadInfo | None) -> bool:
    """Whether a slice has outlived its parent, which goes only when its job has stopped.

    Such a slice holds nothing, also if the entry that said so went with the parent.
    """
    return parent is None or parent.uid != info.owner_uid


def is_merged(info: WorkloadInfo, parent: WorkloadInfo | None) -> bool:
    """Whether what a slice was given is counted by its parent by now.

    This alone decides, and both are of one watch: whatever comes first, neither both count nor
    none.
    """
    return parent is not None and not is_orphan(info, parent) and info.uid in parent.merged_slices


def covering_assignments(
    usage: WorkloadUsage, flavors: Mapping[str, FlavorInfo]
) -> dict[str, TopologyAssignment]:
    """Assignments by PodSet that are charged to a tree, so that their pods need not be.

    One with other levels than its flavor has now (the Topology was deleted and made anew) fits no
    leaf of the tree: there its pods are charged to their nodes instead.
    """
    pairs = zip(usage.assignments.items(), usage.charges, strict=True)
    return {
        podset: assignment
        for (podset, assignment), charge in pairs
        if _fits_tree(flavors.get(charge.flavor), assignment.levels)
    }


def _fits_tree(flavor: FlavorInfo | None, levels: tuple[str, ...]) -> bool:
    if flavor is None or not flavor.levels or levels[-1:] == HOST_LEVELS:
        return True
    return levels == flavor.levels


def merge_assignments(
    parts: Sequence[Mapping[str, TopologyAssignment]],
) -> Mapping[str, TopologyAssignment]:
    """Assignments by PodSet, domain counts added up; of other levels than the first: left out."""
    if len(parts) == 1:
        return parts[0]
    levels: dict[str, tuple[str, ...]] = {}
    counts: dict[str, dict[Domain, int]] = {}
    for part in parts:
        for podset, assignment in part.items():
            if levels.setdefault(podset, assignment.levels) != assignment.levels:
                continue
            found = counts.setdefault(podset, {})
            for values, count in assignment.domains:
                found[values] = found.get(values, 0) + count
    return {
        podset: TopologyAssignment(levels[podset], tuple(found.items()))
        for podset, found in counts.items()
    }
