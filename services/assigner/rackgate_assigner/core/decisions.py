"""What a scheduling cycle decides. The writer turns each decision into one write and one Event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from rackgate.domains import TopologyAssignment


@dataclass(frozen=True, slots=True)
class PodSetGrant:
    """What one PodSet is given.

    Attributes:
        flavors: resource name to flavor name.
        usage: resource name to whole-PodSet amount (cpu in millicores, else base units).
        count: pods granted.
        topology: None when the flavor has no topology, or there are no pods to place.
    """

    name: str
    flavors: Mapping[str, str]
    usage: Mapping[str, int]
    count: int
    topology: TopologyAssignment | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """Quota and topology for a whole Workload."""

    cluster_queue: str
    podsets: tuple[PodSetGrant, ...]


@dataclass(frozen=True, slots=True)
class Admit:
    """Reserve quota and admit, in one status write."""

    workload: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep waiting: QuotaReserved=False with this reason and message."""

    workload: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Deactivate:
    """Set spec.active to false: the request can never be met as it stands."""

    workload: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Take an admission back: the job is stopped first, then quota and room are released."""

    workload: str
    reason: str
    message: str


Decision: TypeAlias = Admit | Hold | Deactivate | Evict
