"""What a scheduling cycle decides. The writer turns each decision into one write and one Event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from rackgate.topology.assignment import TopologyAssignment


@dataclass(frozen=True, slots=True)
class PodSetAssignment:
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
class Assignment:
    """Quota and topology for a whole Workload."""

    cluster_queue: str
    podsets: tuple[PodSetAssignment, ...]


@dataclass(frozen=True, slots=True)
class Admit:
    """Reserve quota and admit, in one status write."""

    workload: str
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class TopologyNotFound:
    """Why one flavor that has the quota has no place for a PodSet.

    Attributes:
        message: the fixed text of the placement engine.
        fits_when_empty: whether it would find a place with nothing placed by topology; pods of
            others, and what is wrong with the nodes themselves, still count. None where neither
            reason nor message of the hold depends on it: then it was not asked.
    """

    podset: str
    flavor: str
    message: str
    fits_when_empty: bool | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """Keep waiting: QuotaReserved=False with this reason and message.

    What is not written counts not when two of them are compared.

    Attributes:
        rejected_flavors: flavors that had the quota and no place, in the order they were tried.
        error: traceback of a defect of ours that kept the decision from being made, else "".
    """

    workload: str
    reason: str
    message: str
    rejected_flavors: tuple[TopologyNotFound, ...] = field(default=(), compare=False)
    error: str = field(default="", compare=False, repr=False)


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


@dataclass(frozen=True, slots=True)
class Preempt:
    """Evict a Workload so that another gets its quota.

    Attributes:
        by: key of the Workload that waits for it.
        cause: reason of the condition Preempted.
    """

    workload: str
    by: str
    cause: str
    message: str


Decision: TypeAlias = Admit | Requeue | Deactivate | Evict | Preempt


# What is decided about admitted Workloads with broken nodes.


@dataclass(frozen=True, slots=True)
class ReplaceNode:
    """Move what was on broken nodes, and take their names out, in one status write.

    Attributes:
        assignment: as held, but for some of its topology assignments.
        replaced: names to be taken out of `status.unhealthyNodes`.
    """

    workload: str
    assignment: Assignment
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearUnhealthyNodes:
    """Take names out of `status.unhealthyNodes`: nothing is to be replaced there."""

    workload: str
    names: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class ReplacementFailed:
    """No replacement was found; the Workload runs on with what is left, and is tried again."""

    workload: str
    message: str


SecondPassDecision: TypeAlias = ReplaceNode | ClearUnhealthyNodes | ReplacementFailed | Evict
