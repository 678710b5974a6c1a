"""What one PodSet may release: its Workload's admission, and that of the slices. Pure.

A job that is not elastic has one admission. An elastic one grows by slices: each grants
its pods from its admission on until it is merged, and from then on the parent's counts say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from rackgate.api.names import slice_ordinal
from rackgate.topology.assignment import TopologyAssignment
from rackgate_ungater.state_machine.gated_objects import (
    ELASTIC,
    TOPOLOGY,
    GatedPodSet,
    GatedWorkload,
)
from rackgate_ungater.state_machine.plan import PodSetAdmission
from rackgate_ungater.state_machine.ranks import RankSource, rank_source

# Decodes an assignment once: name of a PodSet or UID of a slice, and the JSON.
Decode = Callable[[str, bytes], TopologyAssignment]


def podset_admission(
    workload: GatedWorkload, podset: GatedPodSet, slices: Iterable[GatedWorkload], decode: Decode
) -> PodSetAdmission | str:
    """What a PodSet may release, or why its assignment is unreadable.

    Args:
        workload: an admitted Workload.
        podset: one of its PodSets; with an assignment, unless the Workload is elastic.
        slices: of this Workload, those that are admitted and not merged.
        decode: assignments from JSON.
    """
    try:
        own_assignment = (
            decode(podset.name, podset.assignment) if podset.assignment is not None else None
        )
    except (ValueError, msgspec.MsgspecError) as error:
        return str(error)
    count = podset.count
    if count is None:
        count = own_assignment.count if own_assignment is not None else 0
    if workload.elastic:
        return _elastic_podset_admission(
            workload, podset, _ElasticTotals(count, own_assignment), slices, decode
        )
    return PodSetAdmission(
        podset=podset.name,
        count=count,
        assignment=own_assignment or _without_topology(count),
        ranks=rank_source(podset, workload.podsets),
        unhealthy=workload.unhealthy,
        reclaimable=podset.reclaimable,
    )


class _ElasticTotals:
    """The sum of a parent's part and those of its slices."""

    def __init__(self, count: int, own_assignment: TopologyAssignment | None) -> None:
        self.count = count
        # A PodSet of no pods has no assignment, whatever its flavor: the first slice says it.
        self.known = own_assignment is not None or count > 0
        self.levels = own_assignment.levels if own_assignment is not None else None
        self.domains = dict(own_assignment.domains) if own_assignment is not None else {}

    def add(self, count: int, slice_assignment: TopologyAssignment | None) -> bool:
        """Add a slice's part; False if it does not go with the others."""
        levels = slice_assignment.levels if slice_assignment is not None else None
        if self.known and levels != self.levels:
            return False
        self.known, self.levels = True, levels
        self.count += count
        for domain, pods in slice_assignment.domains if slice_assignment is not None else ():
            self.domains[domain] = self.domains.get(domain, 0) + pods
        return True

    def assignment(self) -> TopologyAssignment:
        """Where the pods go."""
        if self.levels is None:
            return _without_topology(self.count)
        return TopologyAssignment(self.levels, tuple(self.domains.items()))


def _elastic_podset_admission(
    workload: GatedWorkload,
    podset: GatedPodSet,
    totals: _ElasticTotals,
    slices: Iterable[GatedWorkload],
    decode: Decode,
) -> PodSetAdmission:
    unhealthy, read_error = set(workload.unhealthy), ""
    for slice_, slice_podset in _slice_podsets_of(slices, podset.name):
        try:
            slice_assignment = (
                decode(slice_.uid, slice_podset.assignment)
                if slice_podset.assignment is not None
                else None
            )
        except (ValueError, msgspec.MsgspecError) as error:
            read_error = f'that of slice "{slice_.name}": {error}'
            continue
        count = (
            slice_podset.count
            if slice_podset.count is not None
            else slice_assignment.count
            if slice_assignment is not None
            else 0
        )
        if count <= 0:
            continue
        if totals.add(count, slice_assignment):
            unhealthy.update(slice_.unhealthy)
        else:
            read_error = f'that of slice "{slice_.name}" has other levels than its parent\'s'
    return PodSetAdmission(
        podset=podset.name,
        count=totals.count,
        assignment=totals.assignment(),
        ranks=_elastic_rank_source(podset, workload) if totals.levels is not None else None,
        unhealthy=tuple(sorted(unhealthy)),
        gates=ELASTIC if totals.levels is None else TOPOLOGY | ELASTIC,
        read_error=read_error,
    )


def _slice_podsets_of(
    slices: Iterable[GatedWorkload], podset: str
) -> Iterator[tuple[GatedWorkload, GatedPodSet]]:
    """Slices in the order in which their parent takes them in: ranks follow the domains' order."""
    for slice_ in sorted(slices, key=lambda slice_: (slice_ordinal(slice_.name), slice_.uid)):
        for slice_podset in slice_.podsets:
            if slice_podset.name == podset:
                yield slice_, slice_podset


def _elastic_rank_source(podset: GatedPodSet, workload: GatedWorkload) -> RankSource | None:
    """Ranks hold as long as the counts do; the size of a subgroup is not kept up to date."""
    source = rank_source(podset, workload.podsets)
    return source if source is not None and source.sub_group_label is None else None


def _without_topology(count: int) -> TopologyAssignment:
    """No levels, so a single domain: only the number of pods is granted."""
    return TopologyAssignment((), (((), count),))


def admits_at_least(
    live: Mapping[str, PodSetAdmission | str], planned: Mapping[str, PodSetAdmission | str]
) -> bool:
    """Whether `live` grants at least what `planned` does, in every PodSet and domain.

    Args:
        live: by PodSet, as the server says now.
        planned: by PodSet, what a plan rests on.
    """
    for name, admission in planned.items():
        found = live.get(name)
        if isinstance(admission, str):
            continue  # nothing is released by it
        if not isinstance(found, PodSetAdmission) or found.gates != admission.gates:
            return False
        counts = dict(found.assignment.domains)
        if (
            found.count - found.reclaimable < admission.count - admission.reclaimable
            or found.assignment.levels != admission.assignment.levels
            or any(counts.get(domain, 0) < count for domain, count in admission.assignment.domains)
            or not set(found.unhealthy) <= set(admission.unhealthy)
        ):
            return False
    return True
