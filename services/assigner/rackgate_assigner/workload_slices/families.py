"""Which Workloads are slices of which, and the usage of a parent and its slices together.

The pods of slices have the name of the parent: an assignment of a slice covers pods of its parent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.indexes import discard
from rackgate_assigner.quota.queues import FlavorResource
from rackgate_assigner.workload.info import WorkloadInfo


class SliceFamilies:
    """Slices by the key of their parent, whether or not there is a Workload of that key."""

    __slots__ = ("_parents", "_slices")

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._slices: dict[str, set[str]] = {}

    def link(self, key: str, parent: str) -> str:
        """Record the parent of a Workload, "" for none; return the previous one."""
        before = self._parents.get(key, "")
        if before == parent:
            return before
        if before:
            discard(self._slices, before, key)
            del self._parents[key]
        if parent:
            self._parents[key] = parent
            self._slices.setdefault(parent, set()).add(key)
        return before

    def parent_or_self(self, key: str) -> str:
        """The key of its parent; its own for a Workload that is not a slice."""
        return self._parents.get(key, key)

    def slices_of(self, key: str) -> list[str]:
        """Keys of the slices of a Workload, in order."""
        found = self._slices.get(key)
        return sorted(found) if found else []


def is_orphan(info: WorkloadInfo, parent: WorkloadInfo | None) -> bool:
    """Whether the parent of a slice is gone, so that the slice has no usage.

    A parent is deleted only after its job has stopped.
    """
    return parent is None or parent.uid != info.owner_uid


def is_merged(info: WorkloadInfo, parent: WorkloadInfo | None) -> bool:
    """Whether the parent counts the pods of a slice.

    Both come from one watch and this function alone decides, so exactly one of them counts.
    """
    return parent is not None and not is_orphan(info, parent) and info.uid in parent.merged_slices


def merge_assignments(
    parts: Sequence[Mapping[str, TopologyAssignment]],
) -> Mapping[str, TopologyAssignment]:
    """Assignments by PodSet with domain counts added up; those with other levels are omitted."""
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


@dataclass(slots=True)
class SliceFamily:
    """The parent of slices, and the domains of its pods.

    Attributes:
        parent: as last seen; None if it does not exist.
        assignments: by PodSet, topology assignments of the parent and of slices not yet merged
            into it.
        excess: usage of pods beyond admission, which is charged already: an admitted slice takes
            it over first.
    """

    parent: WorkloadInfo | None = None
    assignments: dict[str, list[TopologyAssignment]] = field(default_factory=dict)
    excess: dict[FlavorResource, int] = field(default_factory=dict)

    def take_over_excess(self, pair: FlavorResource, amount: int) -> int:
        """Take over excess for an admitted slice; return how much of the amount was charged."""
        found = min(amount, self.excess.get(pair, 0))
        if found:
            self.excess[pair] -= found
        return found

    def near(self, podset: str) -> list[TopologyAssignment]:
        """Domains of the pods of a PodSet, and of those that must be in the same domain."""
        requests = [row.request for row in self.parent.podsets] if self.parent else []
        group = next((request.group for request in requests if request.name == podset), None)
        mates = [request.name for request in requests if group and request.group == group]
        return [found for name in mates or [podset] for found in self.assignments.get(name, ())]
