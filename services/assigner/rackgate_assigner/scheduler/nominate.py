"""Flavors and topology together: the assignment of one Workload in this cycle.

A flavor with the quota may still have no fitting domain. Then the next flavor of its resource group
is tried at once (Kueue does so over several cycles): each rejection removes one flavor from the
candidates of one PodSet, until a plan fits or no flavor is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from rackgate.api.names import PendingReason
from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.quota.quota import FlavorAssignmentMode
from rackgate_assigner.scheduler.flavor_assigner import (
    FlavorPlan,
    Inadmissible,
    Offer,
    PodSetPlan,
    RejectedFlavors,
    choose_flavors,
)
from rackgate_assigner.topology.model import NoFit, Placement, PodSetRequest
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment, TopologyNotFound
from rackgate_assigner.workload.info import Charge, quota_usage
from rackgate_assigner.workload.object_size import too_large
from rackgate_assigner.workload_slices.admission import (
    LeafRange,
    leaf_ranges_near_parent,
    levels_differ,
)
from rackgate_assigner.workload_slices.families import SliceFamily

# Called with a flavor's name; returns a context for the duration of one placement in it.
Timing: TypeAlias = Callable[[str], AbstractContextManager[object]]


def no_timing(_flavor: str) -> AbstractContextManager[object]:
    """A `Timing` that measures nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class _FailedPlacement:
    """A failed attempt in one flavor: its PodSets, and the one that did not fit."""

    flavor: str
    podsets: Sequence[PodSetPlan]
    found: NoFit

    @property
    def podset(self) -> str:
        return self.found.podset

    def rejections(self, fits_when_empty: bool | None = None) -> list[TopologyNotFound]:
        """The rejection of the PodSet; members of its group share it."""
        requests = [item.request for item in self.podsets]
        group = next(request.group for request in requests if request.name == self.podset)
        return [
            TopologyNotFound(request.name, self.flavor, self.found.message, fits_when_empty)
            for request in requests
            if request.name == self.podset or (group and request.group == group)
        ]


class _Attempts:
    """Flavors of one Workload: each failed placement rejects one for a PodSet."""

    def __init__(self, offer: Offer, podsets: Sequence[PodSetRequest]) -> None:
        self._offer, self._podsets = offer, podsets
        self.failed: list[_FailedPlacement] = []

    def choose_flavors(self) -> FlavorPlan:
        return choose_flavors(self._offer, self._podsets, _rejections_by_flavor(self.failed))

    def reject_flavor(self, failed: _FailedPlacement) -> bool:
        """Record a failed placement; whether there are flavors left to try."""
        self.failed.append(failed)
        return self.choose_flavors().mode is FlavorAssignmentMode.FIT


NO_FAMILY: Final = SliceFamily()

# Records a rejection and returns whether to go on.
RejectFlavor: TypeAlias = Callable[[_FailedPlacement], bool]


class Nominator:
    """Assignments from one snapshot, each charged to it; a rejection leaves no charge."""

    def __init__(self, snapshot: Snapshot, features: Features, timing: Timing) -> None:
        self._snapshot, self._features, self._timing = snapshot, features, timing
        # Of the nominated slice.
        self._family: SliceFamily = NO_FAMILY

    def nominate(
        self,
        offer: Offer,
        podsets: Sequence[PodSetRequest],
        spec_bytes: int = 0,
        family: SliceFamily | None = None,
    ) -> Assignment | Inadmissible:
        """Flavors and topology assignments for all PodSets of a Workload, or why there are none.

        Args:
            offer: flavors and quota of its queue.
            podsets: its requests.
            spec_bytes: size of its templates and annotations.
            family: of a slice; gets the assignment of the slice.
        """
        self._family = family or NO_FAMILY
        attempts = _Attempts(offer, podsets)
        while True:
            chosen = attempts.choose_flavors()
            if chosen.mode is not FlavorAssignmentMode.FIT:
                return self._inadmissible(chosen, offer, podsets, attempts.failed)
            result = self._assign(chosen, offer, spec_bytes, attempts.reject_flavor)
            # A rejected flavor is not chosen again, so this ends.
            if result is not None:
                return result

    def could_ever_fit(
        self, offer: Offer, podsets: Sequence[PodSetRequest], family: SliceFamily | None = None
    ) -> bool:
        """Whether a Workload would be admitted if no other Workload used any quota or capacity.

        Nodes do not change, and pods without a Workload still count. For a slice, its parent still
        counts, because a slice is useful only while its parent holds quota. If two flavors share
        nodes, the result may be a false yes.

        Args:
            offer: flavors of its queue; the quota in use does not matter.
            podsets: its requests.
            family: of a slice.
        """
        self._family = family or NO_FAMILY
        parent = self._family.parent.reserved if self._family.parent is not None else None
        empty = replace(
            offer, used=quota_usage(parent) if parent is not None else {}, preemptible={}
        )
        attempts = _Attempts(empty, podsets)
        while True:
            chosen = attempts.choose_flavors()
            if chosen.mode is not FlavorAssignmentMode.FIT:
                return False
            by_flavor = _by_topology_flavor(chosen.podsets, empty)
            if (
                isinstance(by_flavor, Inadmissible)
                or self._levels_differ(chosen, by_flavor) is not None
            ):
                return False
            found = self._find_assignments(by_flavor, attempts.reject_flavor, simulate_empty=True)
            if found is not None:
                return True

    def _inadmissible(
        self,
        chosen: FlavorPlan,
        offer: Offer,
        podsets: Sequence[PodSetRequest],
        attempts: Sequence[_FailedPlacement],
    ) -> Inadmissible:
        """Why there is no assignment.

        An empty cluster is simulated only if the result changes the message: it costs as much
        as the placement itself, and most messages do not depend on it.
        """
        if not attempts:
            preemption_plan = chosen if chosen.mode is FlavorAssignmentMode.PREEMPT else None
            return Inadmissible(chosen.reason, chosen.message, preemption_plan=preemption_plan)
        rejected = _rejections_by_flavor(attempts)
        never = choose_flavors(
            offer, podsets, _rejections_by_flavor(attempts, [False] * len(attempts))
        )
        if (never.reason, never.message) != (chosen.reason, chosen.message):
            fits = [
                one.podset in self._place(one.flavor, one.podsets, simulate_empty=True).assignments
                for one in attempts
            ]
            rejected = _rejections_by_flavor(attempts, fits)
            chosen = choose_flavors(offer, podsets, rejected)
        return Inadmissible(chosen.reason, chosen.message, tuple(rejected.values()))

    def _assign(
        self, chosen: FlavorPlan, offer: Offer, spec_bytes: int, reject_flavor: RejectFlavor
    ) -> Assignment | Inadmissible | None:
        """The assignment, charged; None if PodSets do not fit in one of the flavors."""
        by_flavor = _by_topology_flavor(chosen.podsets, offer)
        if isinstance(by_flavor, Inadmissible):
            return by_flavor
        inadmissible = self._levels_differ(chosen, by_flavor)
        if inadmissible is not None:
            return inadmissible
        charges = self._find_assignments(by_flavor, reject_flavor)
        if charges is None:
            return None
        assignments = {name: charge.assignment for name, charge in charges.items()}
        text = too_large(assignments, spec_bytes)
        if text is not None:
            return Inadmissible(PendingReason.MISCONFIGURED, text)
        workload_assignment = Assignment(
            offer.queue.name,
            tuple(_podset_assignment(podset, assignments) for podset in chosen.podsets),
        )
        for charge in charges.values():
            self._snapshot.flavor_topologies.charge(charge, 1)
        self._charge_quota(workload_assignment)
        if self._family is not NO_FAMILY:
            for name, assignment in assignments.items():
                self._family.assignments.setdefault(name, []).append(assignment)
        return workload_assignment

    def _levels_differ(
        self, chosen: FlavorPlan, by_flavor: Mapping[str, Sequence[PodSetPlan]]
    ) -> Inadmissible | None:
        """Why the domains of a slice would have other levels than its parent has."""
        if self._family is NO_FAMILY:
            return None
        levels: dict[str, tuple[str, ...] | None] = dict.fromkeys(
            podset.request.name for podset in chosen.podsets
        )
        for flavor, podsets in by_flavor.items():
            tree = self._snapshot.flavor_topologies.by_flavor[flavor].tree
            levels.update((podset.request.name, tree.assignment_levels) for podset in podsets)
        flavors = {name for podset in chosen.podsets for name in podset.flavors.values()}
        return levels_differ(self._family, levels, ", ".join(sorted(flavors)))

    def _find_assignments(
        self,
        by_flavor: Mapping[str, Sequence[PodSetPlan]],
        reject_flavor: RejectFlavor,
        *,
        simulate_empty: bool = False,
    ) -> dict[str, Charge] | None:
        """The domains for each PodSet; nothing stays charged.

        Flavors may share nodes: the usage in one is charged meanwhile to those that come after it.
        """
        flavor_topologies, flavors = self._snapshot.flavor_topologies, sorted(by_flavor)
        charges: dict[str, Charge] = {}
        with ExitStack() as undo:
            for index, flavor in enumerate(flavors):
                placed = self._place_in_flavor(
                    flavor, by_flavor[flavor], reject_flavor, simulate_empty=simulate_empty
                )
                if placed is None:
                    return None
                for podset in by_flavor[flavor]:
                    name, requests = podset.request.name, podset.request.requests
                    charge = charges[name] = Charge(flavor, requests, placed[name])
                    for later in flavors[index + 1 :]:
                        flavor_topology = flavor_topologies.by_flavor[later]
                        flavor_topologies.charge_flavor_topology(flavor_topology, charge, 1)
                        undo.callback(
                            flavor_topologies.charge_flavor_topology, flavor_topology, charge, -1
                        )
        return charges

    def _place_in_flavor(
        self,
        flavor: str,
        podsets: Sequence[PodSetPlan],
        reject_flavor: RejectFlavor,
        *,
        simulate_empty: bool = False,
    ) -> Mapping[str, TopologyAssignment] | None:
        """Domains for all PodSets in one flavor; None if some do not fit.

        All failures are collected at once, as every further try would place the others again.
        """
        complete = True
        while True:
            placement = self._place(flavor, podsets, simulate_empty=simulate_empty)
            if placement.failure is None:
                return placement.assignments if complete else None
            failed = _FailedPlacement(flavor, podsets, placement.failure)
            if not reject_flavor(failed):
                return None
            complete = False
            names = {rejection.podset for rejection in failed.rejections()}
            podsets = [podset for podset in podsets if podset.request.name not in names]

    def _charge_quota(self, assignment: Assignment) -> None:
        used = self._snapshot.used.setdefault(assignment.cluster_queue, {})
        for pair, amount in quota_usage(assignment).items():
            used[pair] = used.get(pair, 0) + amount - self._family.take_over_excess(pair, amount)

    def _place(
        self, flavor: str, podsets: Sequence[PodSetPlan], *, simulate_empty: bool = False
    ) -> Placement:
        flavor_topology = self._snapshot.flavor_topologies.by_flavor[flavor]
        requests = [podset.request for podset in podsets]
        found: Placement | None = None
        for leaf_range in self._leaf_ranges(flavor_topology, requests):
            if isinstance(leaf_range, NoFit):
                return Placement({}, leaf_range)
            with nullcontext() if simulate_empty else self._timing(flavor):
                found = place(
                    flavor_topology.tree,
                    flavor_topology.capacity,
                    requests,
                    topology_name=flavor_topology.flavor.topology or "",
                    flavor_tolerations=flavor_topology.flavor.tolerations,
                    simulate_empty=simulate_empty,
                    features=self._features,
                    leaf_range=leaf_range,
                )
            if found.failure is None:
                break
        return found or Placement({})

    def _leaf_ranges(
        self, flavor_topology: FlavorTopology, requests: Sequence[PodSetRequest]
    ) -> Sequence[LeafRange | NoFit | None]:
        """Leaf ranges for the pods, best first: those of a slice are near its parent's."""
        if self._family is NO_FAMILY or len(requests) != 1:
            return (None,)
        (request,) = requests
        found = leaf_ranges_near_parent(flavor_topology, request, self._family.near(request.name))
        return (NoFit(request.name, found, (request.name,)),) if isinstance(found, str) else found


def _rejections_by_flavor(
    attempts: Sequence[_FailedPlacement], fits: Sequence[bool | None] = ()
) -> RejectedFlavors:
    """By PodSet and flavor; `fits` has for each try whether it would fit when empty."""
    known = fits or [None] * len(attempts)
    return {
        (rejection.podset, rejection.flavor): rejection
        for attempt, fit in zip(attempts, known, strict=True)
        for rejection in attempt.rejections(fit)
    }


def _by_topology_flavor(
    podsets: Sequence[PodSetPlan], offer: Offer
) -> dict[str, list[PodSetPlan]] | Inadmissible:
    """PodSets to place, by their one flavor (CH-28). PodSets without pods are skipped (C17)."""
    found: dict[str, list[PodSetPlan]] = {}
    for podset in podsets:
        request = podset.request
        placed = request.topology is not None or offer.implies_topology
        if not placed or request.count == 0:
            continue
        flavors = sorted({name for name in podset.flavors.values() if offer.has_topology(name)})
        if len(flavors) == 1:
            found.setdefault(flavors[0], []).append(podset)
            continue
        text = "no TAS flavor assigned"
        if flavors:
            text = f"more than one TAS flavor assigned: {', '.join(flavors)}"
        message = f"failed to assign flavors to pod set {request.name}: {text}"
        return Inadmissible(PendingReason.NO_MATCHING_FLAVOR, message)
    return found


def _podset_assignment(
    podset: PodSetPlan, placed: Mapping[str, TopologyAssignment]
) -> PodSetAssignment:
    name = podset.request.name
    return PodSetAssignment(
        name=name,
        flavors=podset.flavors,
        usage={resource: podset.amounts[resource] for resource in podset.flavors},
        count=podset.request.count,
        topology=placed.get(name),
    )
