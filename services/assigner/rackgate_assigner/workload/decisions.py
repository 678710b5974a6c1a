"""Decisions of a scheduling cycle. The writer turns each into one write and one Event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rackgate.topology.assignment import TopologyAssignment

# Values of `delayedTopologyRequest`.
DELAYED_PENDING: Final = "Pending"
DELAYED_READY: Final = "Ready"


@dataclass(frozen=True, slots=True)
class PodSetAssignment:
    """Flavors, quota and topology of one PodSet.

    Attributes:
        flavors: resource name to flavor name.
        usage: resource name to whole-PodSet amount (cpu in millicores, else base units).
        count: admitted pods.
        topology: None when the flavor has no topology, or there are no pods to place.
        delayed: "Pending" while it is to be placed after the admission checks, "Ready" afterwards,
            "" if it is placed when quota is reserved.
    """

    name: str
    flavors: Mapping[str, str]
    usage: Mapping[str, int]
    count: int
    topology: TopologyAssignment | None = None
    delayed: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Quota and topology for a whole Workload.

    Attributes:
        checks: names of the admission checks that it must pass before it is admitted; only of an
            assignment that was just made.
    """

    cluster_queue: str
    podsets: tuple[PodSetAssignment, ...]
    checks: tuple[str, ...] = ()

    @property
    def awaits_topology(self) -> bool:
        """Whether PodSets are to be placed after the admission checks."""
        return any(podset.delayed == DELAYED_PENDING for podset in self.podsets)


@dataclass(frozen=True, slots=True)
class Admit:
    """Reserve quota, and admit in the same status write unless there are admission checks.

    Attributes:
        ahead_of: uid of the head of its StrictFIFO queue, if it is admitted ahead of it.
    """

    workload: str
    assignment: Assignment
    ahead_of: str = ""


@dataclass(frozen=True, slots=True)
class AssignTopology:
    """Place the PodSets of a Workload that has passed its checks, and admit it, in one write."""

    workload: str
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Inadmissible:
    """Why a Workload is not admitted in this cycle: reason and message of its condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class TopologyNotFound:
    """Why a PodSet fits no domain of a flavor that has the quota.

    Attributes:
        message: the fixed text of the placement engine.
        fits_when_empty: whether it would fit without any pods placed by TAS; other pods and the
            state of the nodes still count. None if it was not computed, because neither reason nor
            message of the requeue depends on it.
    """

    podset: str
    flavor: str
    message: str
    fits_when_empty: bool | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """The Workload stays pending: QuotaReserved=False with this reason and message.

    Fields that are not written are ignored in comparisons.

    Attributes:
        rejected_flavors: flavors that had the quota and no fitting domain, in the order tried.
        error: traceback of an internal error, else "".
    """

    workload: str
    reason: str
    message: str
    rejected_flavors: tuple[TopologyNotFound, ...] = field(default=(), compare=False)
    error: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Deactivate:
    """Set spec.active to false: the request can never be satisfied."""

    workload: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict a Workload: its job is stopped first, then quota and capacity are released.

    Attributes:
        underlying_cause: why, if the reason is more general; else "".
    """

    workload: str
    reason: str
    message: str
    underlying_cause: str = ""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Evict a Workload so that another gets its quota.

    Attributes:
        by: key of the preemptor.
        cause: reason of the condition Preempted.
    """

    workload: str
    by: str
    cause: str
    message: str


Decision: TypeAlias = Admit | AssignTopology | Requeue | Deactivate | Evict | Preempt


# Decisions about admitted Workloads with unhealthy nodes.


@dataclass(frozen=True, slots=True)
class ReplaceNode:
    """Replace unhealthy nodes in the assignment and remove their names, in one status write.

    Attributes:
        assignment: the current one, with some topology assignments replaced.
        replaced: names to remove from `status.unhealthyNodes`.
    """

    workload: str
    assignment: Assignment
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClearUnhealthyNodes:
    """Remove names from `status.unhealthyNodes` without a replacement."""

    workload: str
    names: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class ReplacementFailed:
    """No replacement was found; the Workload keeps running and is retried."""

    workload: str
    message: str


SecondPassDecision: TypeAlias = ReplaceNode | ClearUnhealthyNodes | ReplacementFailed | Evict
