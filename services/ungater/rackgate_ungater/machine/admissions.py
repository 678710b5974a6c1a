"""What one PodSet may release: its Workload's admission, and that of the slices. Pure.

A job that is not elastic has its own admission alone. An elastic one grows by slices: each grants
its pods from its admission on until it is folded, and from then on the parent's counts say it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from rackgate.api.workload_names import slice_ordinal
from rackgate.topology.assignment import TopologyAssignment
from rackgate_ungater.machine.plan import Grant
from rackgate_ungater.machine.ranks import RankSource, rank_source
from rackgate_ungater.machine.rows import ELASTIC, TOPOLOGY, PodSetRow, WorkloadRow

# Decodes an assignment once: name of a PodSet or UID of a slice, and the JSON.
Decode = Callable[[str, bytes], TopologyAssignment]


def grant_of(
    row: WorkloadRow, podset: PodSetRow, slices: Iterable[WorkloadRow], decode: Decode
) -> Grant | str:
    """What a PodSet may release, or why its assignment is unreadable.

    Args:
        row: a Workload that grants.
        podset: one of its PodSets; with an assignment, unless the Workload is elastic.
        slices: of this Workload, those that grant and are not folded.
        decode: assignments from JSON.
    """
    try:
        own = decode(podset.name, podset.assignment) if podset.assignment is not None else None
    except (ValueError, msgspec.MsgspecError) as error:
        return str(error)
    count = podset.count
    if count is None:
        count = own.count if own is not None else 0
    if row.elastic:
        return _elastic_grant(row, podset, _Parts(count, own), slices, decode)
    return Grant(
        podset=podset.name,
        count=count,
        assignment=own or _anywhere(count),
        ranks=rank_source(podset, row.podsets),
        unhealthy=row.unhealthy,
        done=podset.done,
    )


class _Parts:
    """The sum of a parent's part and those of its slices."""

    def __init__(self, count: int, own: TopologyAssignment | None) -> None:
        self.count = count
        # A PodSet of no pods has no assignment, whatever its flavor: the first slice says it.
        self.known = own is not None or count > 0
        self.levels = own.levels if own is not None else None
        self.domains = dict(own.domains) if own is not None else {}

    def add(self, count: int, more: TopologyAssignment | None) -> bool:
        """Add a slice's part; False if it does not go with the others."""
        levels = more.levels if more is not None else None
        if self.known and levels != self.levels:
            return False
        self.known, self.levels = True, levels
        self.count += count
        for domain, pods in more.domains if more is not None else ():
            self.domains[domain] = self.domains.get(domain, 0) + pods
        return True

    def assignment(self) -> TopologyAssignment:
        """Where the pods go."""
        if self.levels is None:
            return _anywhere(self.count)
        return TopologyAssignment(self.levels, tuple(self.domains.items()))


def _elastic_grant(
    row: WorkloadRow,
    podset: PodSetRow,
    parts: _Parts,
    slices: Iterable[WorkloadRow],
    decode: Decode,
) -> Grant:
    unhealthy, unread = set(row.unhealthy), ""
    for slice_, given in _parts_of(slices, podset.name):
        try:
            more = decode(slice_.uid, given.assignment) if given.assignment is not None else None
        except (ValueError, msgspec.MsgspecError) as error:
            unread = f'that of slice "{slice_.name}": {error}'
            continue
        count = given.count if given.count is not None else more.count if more is not None else 0
        if count <= 0:
            continue
        if parts.add(count, more):
            unhealthy.update(slice_.unhealthy)
        else:
            unread = f'that of slice "{slice_.name}" has other levels than its parent\'s'
    return Grant(
        podset=podset.name,
        count=parts.count,
        assignment=parts.assignment(),
        ranks=_order_of(podset, row) if parts.levels is not None else None,
        unhealthy=tuple(sorted(unhealthy)),
        gates=ELASTIC if parts.levels is None else TOPOLOGY | ELASTIC,
        unread=unread,
    )


def _parts_of(
    slices: Iterable[WorkloadRow], podset: str
) -> Iterator[tuple[WorkloadRow, PodSetRow]]:
    """Slices in the order in which their parent takes them in: ranks follow the domains' order."""
    for slice_ in sorted(slices, key=lambda slice_: (slice_ordinal(slice_.name), slice_.uid)):
        for given in slice_.podsets:
            if given.name == podset:
                yield slice_, given


def _order_of(podset: PodSetRow, row: WorkloadRow) -> RankSource | None:
    """Ranks hold as long as the counts do; the size of a subgroup is not kept up to date."""
    source = rank_source(podset, row.podsets)
    return source if source is not None and source.sub_group_label is None else None


def _anywhere(count: int) -> TopologyAssignment:
    """No levels, so a single domain: only the number of pods is granted."""
    return TopologyAssignment((), (((), count),))


def covers(live: Mapping[str, Grant | str], acted: Mapping[str, Grant | str]) -> bool:
    """Whether `live` grants at least what `acted` does, in every PodSet and domain.

    Args:
        live: by PodSet, as the server says now.
        acted: by PodSet, what a plan rests on.
    """
    for name, grant in acted.items():
        found = live.get(name)
        if isinstance(grant, str):
            continue  # nothing is released by it
        if not isinstance(found, Grant) or found.gates != grant.gates:
            return False
        counts = dict(found.assignment.domains)
        if (
            found.count - found.done < grant.count - grant.done
            or found.assignment.levels != grant.assignment.levels
            or any(counts.get(domain, 0) < count for domain, count in grant.assignment.domains)
            or not set(found.unhealthy) <= set(grant.unhealthy)
        ):
            return False
    return True
