"""What the planning of one head results in: flavors, quota, domains and preemption targets.

`PendingWorkload` is the question; `Nomination` is the answer for one state. Texts and reasons are
Kueue's.
Source: conformance/quota, section 6.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

from rackgate.api.names import PendingReason
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.preemption.targets import Target
from rackgate_assigner.quota.queues import ClusterQueueInfo, FlavorResource
from rackgate_assigner.topology.model import PodSetRequest
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment, TopologyNotFound
from rackgate_assigner.workload.info import Charge

# Severer reasons first; an empty reason is the least severe.
SEVERITY: Final[Mapping[str, int]] = {
    PendingReason.NO_MATCHING_FLAVOR: 4,
    PendingReason.EXCEEDS_MAX_QUOTA: 3,
    PendingReason.WAITING_FOR_QUOTA: 2,
    PendingReason.TOPOLOGY_PLACEMENT_FAILED: 1,
    "": 0,
}
# By PodSet and flavor.
RejectedFlavors: TypeAlias = Mapping[tuple[str, str], TopologyNotFound]


# What is available, and the level to borrow from, with whether that is below the root.
QuotaLook: TypeAlias = tuple[int, tuple[int, bool]]


class FlavorAssignmentMode(IntEnum):
    """How well a flavor meets a request; larger is better."""

    NO_FIT = 0
    PREEMPT = 1  # within its quota, but others use that
    FIT = 2


@dataclass(frozen=True, slots=True)
class PendingPodSet:
    """A PodSet of a pending Workload.

    Attributes:
        request: with the whole count.
        min_count: pods that are enough; None: all.
        reclaimable: pods that are done, and not created again.
    """

    request: PodSetRequest
    min_count: int | None = None
    reclaimable: int = 0


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """A Workload to admit.

    Attributes:
        key: `namespace/name`.
        cluster_queue: name of its ClusterQueue.
        queue_timestamp: seconds; orders equal priorities, larger is newer.
        shape: equal for Workloads that get the same answer from the same queue and state.
        rejected: flavors without a fitting domain: never chosen for the PodSet.
    """

    key: str
    uid: str
    namespace: str
    cluster_queue: str
    priority: int
    queue_timestamp: float
    podsets: tuple[PendingPodSet, ...]
    shape: Hashable = None
    rejected: RejectedFlavors = field(default_factory=dict)

    @property
    def across(self) -> str:
        """The Workload of gangs with whose other Workloads it shares a domain; "" for none."""
        shared = (one for podset in self.podsets for one in podset.request.shared[:1])
        return next((one.across for one in shared if one.across), "")

    @property
    def order(self) -> tuple[int, float, str]:
        """The order in its ClusterQueue."""
        return (-self.priority, self.queue_timestamp, self.uid)


@dataclass(slots=True)
class FlavorChoice:
    """The flavor of one resource.

    Attributes:
        tried: position of the last flavor that was looked at, -1 if that was the last there is.
    """

    flavor: str
    mode: FlavorAssignmentMode
    tried: int


@dataclass(slots=True)
class FlavorAttempt:
    """What looking at one flavor resulted in.

    Attributes:
        reason: why it does not fit, "" without a reason of its own.
    """

    mode: FlavorAssignmentMode
    reason: str = ""


@dataclass(slots=True)
class NominatedPodSet:
    """Flavors of one PodSet.

    Attributes:
        request: with the count that is admitted.
        amounts: of all its pods, with `pods` if the queue covers that.
        flavors: by resource; resources without a resource group are left out.
        texts: why it does not fit now.
        attempts: by flavor; shared by PodSets that get the same flavors.
        error: an internal error, "" without one.
        topology: domains of its pods.
    """

    request: PodSetRequest
    amounts: Mapping[str, int]
    flavors: dict[str, FlavorChoice] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    attempts: dict[str, FlavorAttempt] = field(default_factory=dict)
    error: str = ""
    topology: TopologyAssignment | None = None

    @property
    def mode(self) -> FlavorAssignmentMode:
        """The worst mode of its resources."""
        if self.error:
            return FlavorAssignmentMode.NO_FIT
        if not self.texts:
            return FlavorAssignmentMode.FIT
        if not self.flavors:
            return FlavorAssignmentMode.NO_FIT
        worst = FlavorAssignmentMode.FIT
        for choice in self.flavors.values():
            worst = min(worst, choice.mode)
        return worst

    def set_mode(self, mode: FlavorAssignmentMode) -> None:
        """Change the mode of all its resources."""
        for choice in self.flavors.values():
            choice.mode = mode


@dataclass(slots=True)
class Nomination:
    """The plan of one head.

    Attributes:
        podsets: in the Workload's order; those after one without flavors are left out.
        usage: by pair, of all PodSets with flavors.
        borrow_level: of the Cohorts that the Workload borrows from; 0: it need not borrow.
        targets: Workloads to preempt.
        mode_by_topology: the mode, if placing its pods decided that.
        rejected: PodSets that fit no domain of the flavor that has the quota.
        short_of_quota: no preemption could free the quota that it needs, whatever the domains.
        after_others: made without what other heads of the cycle took or hold.
        looks: what was read of quota for a pair and amount.
        searched: targets for one pair and amount alone, without regard to topology.
    """

    podsets: list[NominatedPodSet] = field(default_factory=list)
    usage: dict[FlavorResource, int] = field(default_factory=dict)
    borrow_level: int = 0
    targets: tuple[Target, ...] = ()
    mode_by_topology: FlavorAssignmentMode | None = None
    rejected: tuple[TopologyNotFound, ...] = ()
    short_of_quota: bool = False
    after_others: bool = False
    looks: dict[tuple[FlavorResource, int], QuotaLook] = field(default_factory=dict)
    searched: dict[tuple[FlavorResource, int], tuple[Target, ...]] = field(default_factory=dict)

    @property
    def mode(self) -> FlavorAssignmentMode:
        """The worst mode of its PodSets."""
        if self.mode_by_topology is not None:
            return self.mode_by_topology
        worst = FlavorAssignmentMode.FIT
        for podset in self.podsets:
            worst = min(worst, podset.mode)
        return worst

    @property
    def waits(self) -> bool:
        """Whether it needs preemption, and nothing can be preempted for it."""
        return self.mode is FlavorAssignmentMode.PREEMPT and not self.targets

    @property
    def message(self) -> str:
        """Why PodSets do not fit now."""
        return "; ".join(filter(None, map(_message, self.podsets)))

    @property
    def needed(self) -> frozenset[FlavorResource]:
        """Pairs that preemption must free."""
        return frozenset(
            (choice.flavor, resource)
            for podset in self.podsets
            for resource, choice in podset.flavors.items()
            if choice.mode is FlavorAssignmentMode.PREEMPT
        )

    @property
    def has_flavors_to_try(self) -> bool:
        """Whether the search for a flavor ended before the last flavor."""
        return any(
            choice.tried != -1 for podset in self.podsets for choice in podset.flavors.values()
        )

    def uses(self, rejected: RejectedFlavors) -> bool:
        """Whether a PodSet has a flavor that was rejected for it."""
        return any(
            (podset.request.name, choice.flavor) in rejected
            for podset in self.podsets
            for choice in podset.flavors.values()
        )

    @property
    def has_domains(self) -> bool:
        """Whether a PodSet has its domains."""
        return any(podset.topology is not None for podset in self.podsets)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """What it uses of topologies."""
        return tuple(
            Charge(podset_flavor(podset), podset.request.requests, podset.topology)
            for podset in self.podsets
            if podset.topology is not None
        )

    def assignment(self, queue: str) -> Assignment:
        """What is admitted."""
        return Assignment(queue, tuple(_podset_assignment(podset) for podset in self.podsets))

    def no_fit_reason(self, queue: ClusterQueueInfo) -> str:
        """Why it does not fit in any flavor; may be empty."""
        reasons = [
            _podset_reason(podset, queue)
            for podset in self.podsets
            if podset.mode is FlavorAssignmentMode.NO_FIT
        ]
        return max(reasons, key=SEVERITY.__getitem__, default="")


def podset_flavor(podset: NominatedPodSet) -> str:
    """The one flavor that places a PodSet."""
    return min((choice.flavor for choice in podset.flavors.values()), default="")


def _message(podset: NominatedPodSet) -> str:
    name = podset.request.name
    if podset.error:
        return f"failed to assign flavors to pod set {name}: {podset.error}"
    if not podset.texts:
        return ""
    return f"couldn't assign flavors to pod set {name}: {', '.join(sorted(podset.texts))}"


def _podset_reason(podset: NominatedPodSet, queue: ClusterQueueInfo) -> str:
    if not podset.attempts:
        return PendingReason.NO_MATCHING_FLAVOR
    of_groups = []
    for group in queue.groups:
        attempts = [podset.attempts[name] for name in group.flavors if name in podset.attempts]
        reasons = [
            attempt.reason for attempt in attempts if attempt.mode is FlavorAssignmentMode.NO_FIT
        ]
        of_groups.append(min(reasons, key=SEVERITY.__getitem__, default=""))
    return max(of_groups, key=SEVERITY.__getitem__, default="")


def _podset_assignment(podset: NominatedPodSet) -> PodSetAssignment:
    return PodSetAssignment(
        name=podset.request.name,
        flavors={resource: choice.flavor for resource, choice in podset.flavors.items()},
        usage={resource: podset.amounts[resource] for resource in podset.flavors},
        count=podset.request.count,
        topology=podset.topology,
    )
