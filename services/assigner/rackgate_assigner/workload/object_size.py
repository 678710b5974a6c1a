"""Whether an assignment can be stored: the API server limits the size of an object (C23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rackgate.topology.assignment import TopologyAssignment, encoded_size
from rackgate.topology.assignment_slices import common_prefix

STORE_BYTES: Final = 1_572_864  # of one object in etcd, by default
RESERVE_BYTES: Final = 65_536  # for metadata, conditions and the rest of the status
STEP_BYTES: Final = 65_536
# No smaller assignment is ever rejected: the estimate of the rest may be too high.
ALWAYS_BYTES: Final = 65_536
_AROUND: Final = 3  # quotes and comma of a value
_FRAME: Final = 16_384  # level keys, and constant text


def rounded(size: int) -> int:
    """Bytes rounded up, so that Workloads of one shape rarely differ."""
    return -(-size // STEP_BYTES) * STEP_BYTES


def assignment_room(spec_bytes: int) -> int:
    """Bytes available for all topology assignments of a Workload.

    Args:
        spec_bytes: of its templates and annotations. They count twice: the API server stores
            the manager of every field.
    """
    return max(STORE_BYTES - RESERVE_BYTES - 2 * spec_bytes, ALWAYS_BYTES)


def too_large(assignments: Mapping[str, TopologyAssignment], spec_bytes: int) -> str | None:
    """Why a Workload with these assignments, by PodSet, cannot be stored; None if it can.

    Source: etcd, `--max-request-bytes`.
    """
    room = assignment_room(spec_bytes)
    for bound in (_at_most, _in_one_slice):
        if sum(map(bound, assignments.values())) <= room:
            return None
    size = sum(map(encoded_size, assignments.values()))
    if size <= room:
        return None
    domains = sum(len(assignment.domains) for assignment in assignments.values())
    parts = ", ".join(sorted(assignments))
    return (
        f"the topology assignment of pod set {parts} names {domains} domains in {size} bytes, and "
        f"this Workload has {room} bytes left: use fewer and larger pods, several jobs, shorter "
        "node names or a coarser lowest level"
    )


def _at_most(assignment: TopologyAssignment) -> int:
    """An upper bound of the encoded size that is cheap to compute: label values are ASCII."""
    digits = len(str(max((count for _, count in assignment.domains), default=0)))
    around = _AROUND * len(assignment.levels) + digits + 1
    values = sum(sum(map(len, values)) for values, _ in assignment.domains)
    return values + around * len(assignment.domains) + _FRAME


def _in_one_slice(assignment: TopologyAssignment) -> int:
    """As `_at_most`, without the common prefixes of all values of a level."""
    count = len(assignment.domains)
    columns = zip(*(values for values, _ in assignment.domains), strict=True)
    common = sum(len(common_prefix(column)) for column in columns)
    return _at_most(assignment) - common * (count - 1)
