"""Flavors and places together: what one Workload can be granted in this cycle.

A flavor with the quota may still have no place. Then the next flavor of its resource group is
tried at once, as the field does it over several cycles: each refusal takes one flavor from one
PodSet's choice, until a plan fits or no flavor is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from rackgate.api.names import PendingReason
from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.flavor_topologies import Grove
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.quota.quota import Mode
from rackgate_assigner.scheduler.flavor_assigner import (
    FlavorPlan,
    Offer,
    PodSetPlan,
    Refused,
    choose_flavors,
)
from rackgate_assigner.topology.model import NoFit, Placement, PodSetRequest
from rackgate_assigner.topology.placement.place import place
from rackgate_assigner.workload.decisions import Grant, PodSetGrant, TopologyRefusal
from rackgate_assigner.workload.inadmissible import Refusal
from rackgate_assigner.workload.info import Charge, quota_of
from rackgate_assigner.workload.object_size import too_large
from rackgate_assigner.workload_slices.admission import Family, Fence, fences, unlike

# Given a flavor's name, a context that lasts as long as one placement in it.
Timing: TypeAlias = Callable[[str], AbstractContextManager[object]]


def untimed(_flavor: str) -> AbstractContextManager[object]:
    """A `Timing` that measures nothing."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class _NoPlace:
    """A try that ended in one flavor: the PodSets it was to hold, and what was refused."""

    flavor: str
    podsets: Sequence[PodSetPlan]
    found: NoFit

    @property
    def podset(self) -> str:
        return self.found.podset

    def refusals(self, fits_when_empty: bool | None = None) -> list[TopologyRefusal]:
        """The refusal of the PodSet; members of its group share it."""
        requests = [item.request for item in self.podsets]
        group = next(request.group for request in requests if request.name == self.podset)
        return [
            TopologyRefusal(request.name, self.flavor, self.found.message, fits_when_empty)
            for request in requests
            if request.name == self.podset or (group and request.group == group)
        ]


NOBODY: Final = Family()

# Notes a refusal and says whether to go on.
Without: TypeAlias = Callable[[_NoPlace], bool]


class Granting:
    """Grants from one snapshot; each is charged to it, a refusal leaves nothing behind."""

    def __init__(self, snapshot: Snapshot, features: Features, timing: Timing) -> None:
        self._snapshot, self._features, self._timing = snapshot, features, timing
        # Whose slice is being looked at; an ordinary Workload is near nobody.
        self._family: Family = NOBODY

    def grant(
        self,
        offer: Offer,
        podsets: Sequence[PodSetRequest],
        spec_bytes: int = 0,
        family: Family | None = None,
    ) -> Grant | Refusal:
        """Flavors and places for all PodSets of a Workload, or why there are none.

        Args:
            offer: flavors and quota of its queue.
            podsets: what it asks for.
            spec_bytes: size of its templates and annotations.
            family: of a slice; told where the slice's pods go.
        """
        self._family = family or NOBODY
        attempts: list[_NoPlace] = []

        def without(refused: _NoPlace) -> bool:
            """Note a refusal; whether there are flavors left to try."""
            attempts.append(refused)
            return choose_flavors(offer, podsets, _refused(attempts)).mode is Mode.FIT

        while True:
            chosen = choose_flavors(offer, podsets, _refused(attempts))
            if chosen.mode is not Mode.FIT:
                return self._refusal(chosen, offer, podsets, attempts)
            tried = self._try(chosen, offer, spec_bytes, without)
            # A refused flavor is not chosen again, so this ends.
            if tried is not None:
                return tried

    def possible(
        self, offer: Offer, podsets: Sequence[PodSetRequest], family: Family | None = None
    ) -> bool:
        """Whether a Workload would be admitted if no other Workload held anything.

        Nodes are as they are, and pods that no Workload accounts for still count. A slice has its
        parent beside it, which holds quota as long as the slice has a meaning. Where two flavors
        share nodes the answer may be a yes too many.

        Args:
            offer: flavors of its queue; what is in use does not matter.
            podsets: what it asks for.
            family: of a slice.
        """
        self._family = family or NOBODY
        parent = self._family.parent.reserved if self._family.parent is not None else None
        empty = replace(offer, used=quota_of(parent) if parent is not None else {}, yields={})
        attempts: list[_NoPlace] = []

        def without(refused: _NoPlace) -> bool:
            attempts.append(refused)
            return choose_flavors(empty, podsets, _refused(attempts)).mode is Mode.FIT

        while True:
            chosen = choose_flavors(empty, podsets, _refused(attempts))
            if chosen.mode is not Mode.FIT:
                return False
            by_flavor = _by_topology_flavor(chosen.podsets, empty)
            if isinstance(by_flavor, Refusal) or self._unlike(chosen, by_flavor) is not None:
                return False
            if self._places(by_flavor, without, simulate_empty=True) is not None:
                return True

    def _refusal(
        self,
        chosen: FlavorPlan,
        offer: Offer,
        podsets: Sequence[PodSetRequest],
        attempts: Sequence[_NoPlace],
    ) -> Refusal:
        """Why there is no grant.

        An empty cluster is asked only where its answer changes the words: that costs as much as
        the placement itself, and most refusals say the same either way.
        """
        if not attempts:
            short = chosen if chosen.mode is Mode.PREEMPT else None
            return Refusal(chosen.reason, chosen.message, short=short)
        refused = _refused(attempts)
        never = choose_flavors(offer, podsets, _refused(attempts, [False] * len(attempts)))
        if (never.reason, never.message) != (chosen.reason, chosen.message):
            fits = [
                one.podset in self._place(one.flavor, one.podsets, simulate_empty=True).assignments
                for one in attempts
            ]
            refused = _refused(attempts, fits)
            chosen = choose_flavors(offer, podsets, refused)
        return Refusal(chosen.reason, chosen.message, tuple(refused.values()))

    def _try(
        self, chosen: FlavorPlan, offer: Offer, spec_bytes: int, without: Without
    ) -> Grant | Refusal | None:
        """The grant, charged; None if PodSets found no place in one of the flavors."""
        by_flavor = _by_topology_flavor(chosen.podsets, offer)
        if isinstance(by_flavor, Refusal):
            return by_flavor
        useless = self._unlike(chosen, by_flavor)
        if useless is not None:
            return useless
        charges = self._places(by_flavor, without)
        if charges is None:
            return None
        assignments = {name: charge.assignment for name, charge in charges.items()}
        text = too_large(assignments, spec_bytes)
        if text is not None:
            return Refusal(PendingReason.MISCONFIGURED, text)
        grant = Grant(
            offer.queue.name,
            tuple(_podset_grant(podset, assignments) for podset in chosen.podsets),
        )
        for charge in charges.values():
            self._snapshot.forest.charge(charge, 1)
        self._charge_quota(grant)
        if self._family is not NOBODY:
            for name, assignment in assignments.items():
                self._family.places.setdefault(name, []).append(assignment)
        return grant

    def _unlike(
        self, chosen: FlavorPlan, by_flavor: Mapping[str, Sequence[PodSetPlan]]
    ) -> Refusal | None:
        """Why a slice would be given places of another kind than its parent has."""
        if self._family is NOBODY:
            return None
        levels: dict[str, tuple[str, ...] | None] = dict.fromkeys(
            podset.request.name for podset in chosen.podsets
        )
        for flavor, podsets in by_flavor.items():
            tree = self._snapshot.forest.groves[flavor].tree
            levels.update((podset.request.name, tree.assignment_levels) for podset in podsets)
        flavors = {name for podset in chosen.podsets for name in podset.flavors.values()}
        return unlike(self._family, levels, ", ".join(sorted(flavors)))

    def _places(
        self,
        by_flavor: Mapping[str, Sequence[PodSetPlan]],
        without: Without,
        *,
        simulate_empty: bool = False,
    ) -> dict[str, Charge] | None:
        """What each PodSet would take; nothing is left charged.

        Flavors may share nodes: what one takes is charged meanwhile to those that come after it.
        """
        forest, flavors = self._snapshot.forest, sorted(by_flavor)
        charges: dict[str, Charge] = {}
        with ExitStack() as undo:
            for index, flavor in enumerate(flavors):
                placed = self._fill(
                    flavor, by_flavor[flavor], without, simulate_empty=simulate_empty
                )
                if placed is None:
                    return None
                for podset in by_flavor[flavor]:
                    name, requests = podset.request.name, podset.request.requests
                    charge = charges[name] = Charge(flavor, requests, placed[name])
                    for later in flavors[index + 1 :]:
                        grove = forest.groves[later]
                        forest.charge_grove(grove, charge, 1)
                        undo.callback(forest.charge_grove, grove, charge, -1)
        return charges

    def _fill(
        self,
        flavor: str,
        podsets: Sequence[PodSetPlan],
        without: Without,
        *,
        simulate_empty: bool = False,
    ) -> Mapping[str, TopologyAssignment] | None:
        """Places of all PodSets in one flavor; None if some have none.

        Those are found all at once, as every further try would place the others anew.
        """
        complete = True
        while True:
            placement = self._place(flavor, podsets, simulate_empty=simulate_empty)
            if placement.refused is None:
                return placement.assignments if complete else None
            refused = _NoPlace(flavor, podsets, placement.refused)
            if not without(refused):
                return None
            complete = False
            names = {refusal.podset for refusal in refused.refusals()}
            podsets = [podset for podset in podsets if podset.request.name not in names]

    def _charge_quota(self, grant: Grant) -> None:
        used = self._snapshot.used.setdefault(grant.cluster_queue, {})
        for pair, amount in quota_of(grant).items():
            used[pair] = used.get(pair, 0) + amount - self._family.taken_over(pair, amount)

    def _place(
        self, flavor: str, podsets: Sequence[PodSetPlan], *, simulate_empty: bool = False
    ) -> Placement:
        grove = self._snapshot.forest.groves[flavor]
        requests = [podset.request for podset in podsets]
        found: Placement | None = None
        for fence in self._fences(grove, requests):
            if isinstance(fence, NoFit):
                return Placement({}, fence)
            with nullcontext() if simulate_empty else self._timing(flavor):
                found = place(
                    grove.tree,
                    grove.capacity,
                    requests,
                    topology_name=grove.flavor.topology or "",
                    flavor_tolerations=grove.flavor.tolerations,
                    simulate_empty=simulate_empty,
                    features=self._features,
                    fence=fence,
                )
            if found.refused is None:
                break
        return found or Placement({})

    def _fences(
        self, grove: Grove, requests: Sequence[PodSetRequest]
    ) -> Sequence[Fence | NoFit | None]:
        """Where pods may go, the best first: of a slice, near those that are there."""
        if self._family is NOBODY or len(requests) != 1:
            return (None,)
        (request,) = requests
        found = fences(grove, request, self._family.near(request.name))
        return (NoFit(request.name, found, (request.name,)),) if isinstance(found, str) else found


def _refused(attempts: Sequence[_NoPlace], fits: Sequence[bool | None] = ()) -> Refused:
    """By PodSet and flavor; `fits` has for each try whether it would fit when empty."""
    known = fits or [None] * len(attempts)
    return {
        (refusal.podset, refusal.flavor): refusal
        for attempt, fit in zip(attempts, known, strict=True)
        for refusal in attempt.refusals(fit)
    }


def _by_topology_flavor(
    podsets: Sequence[PodSetPlan], offer: Offer
) -> dict[str, list[PodSetPlan]] | Refusal:
    """PodSets to place, by their one flavor (CH-28). PodSets without pods need no place (C17)."""
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
        return Refusal(PendingReason.NO_MATCHING_FLAVOR, message)
    return found


def _podset_grant(podset: PodSetPlan, placed: Mapping[str, TopologyAssignment]) -> PodSetGrant:
    name = podset.request.name
    return PodSetGrant(
        name=name,
        flavors=podset.flavors,
        usage={resource: podset.amounts[resource] for resource in podset.flavors},
        count=podset.request.count,
        topology=placed.get(name),
    )
