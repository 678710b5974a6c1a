"""The search for flavors in a tree of quota: `flavorFungibility` with borrowing and preemption.

1. PodSets that get the same flavors form a unit; units are searched in the Workload's order, and
   each sees the requests of those before it.
2. For each resource group that a unit needs, `_UnitSearch` looks at its flavors in order. A
   flavor's mode is that of its worst resource: it fits, it needs preemption, or neither.
3. `flavorFungibility` says whether a flavor is taken at once; otherwise the best one is.

Inputs: a state, which is the same when the search ends.
Invariant: a unit has one flavor for all resources of a group.
Complexity: O(flavors x resources) looks at quota; each that is short may cost a search for
preemption targets.
Source: conformance/quota, sections 6 and 7; `flavorassigner.go` of Kueue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from rackgate.api.names import PendingReason
from rackgate_assigner.preemption.preemption import find_targets
from rackgate_assigner.preemption.targets import Preemptor
from rackgate_assigner.quota.amounts import quantity
from rackgate_assigner.quota.queues import (
    NEVER,
    PREEMPTION_OVER_BORROWING,
    TRY_NEXT_FLAVOR,
    ClusterQueueInfo,
    FlavorResource,
    ResourceGroupInfo,
)
from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota.tree import QuotaNode
from rackgate_assigner.scheduler.nomination.nomination import (
    SEVERITY,
    FlavorAssignmentMode,
    FlavorAttempt,
    FlavorChoice,
    NominatedPodSet,
    Nomination,
    PendingWorkload,
    QuotaLook,
)
from rackgate_assigner.scheduler.nomination.offer import (
    Offer,
    flavor_problem,
    resource_rank,
    units_of,
)
from rackgate_assigner.topology.model import PodSetRequest


class _Kind(IntEnum):
    """How a request can be met; larger is better."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


class _Mode(NamedTuple):
    """A kind, and the level of the Cohorts that are borrowed from."""

    kind: _Kind
    borrow_level: int


_NO_FIT: Final = _Mode(_Kind.NO_FIT, 0)
_BEST: Final = _Mode(_Kind.FIT, 0)


class _ResourceCheck(NamedTuple):
    """One resource in one flavor: its mode, and why it does not fit now."""

    mode: _Mode
    text: str = ""
    reason: str = ""


def assign_flavors(
    state: QuotaState,
    head: PendingWorkload,
    podsets: Sequence[PodSetRequest],
    only: Nomination | None = None,
    queue: ClusterQueueInfo | None = None,
) -> Nomination:
    """Choose flavors for all resources of all PodSets; no domains yet.

    Args:
        state: the same when the call returns.
        head: the Workload.
        podsets: its requests, with the counts to admit.
        only: restrict the search to the flavors of this nomination.
        queue: its ClusterQueue as it is offered to this Workload; None: as it is.
    """
    found = Nomination()
    queue = queue or state.queues[head.cluster_queue]
    search = _FlavorSearch(state, head, queue, only, found)
    for unit in units_of(podsets):
        members = [NominatedPodSet(podset, _amounts(search.offer, podset)) for podset in unit]
        found.podsets += members
        if not search.search_unit(members, found):
            break
    order = {podset.name: index for index, podset in enumerate(podsets)}
    found.podsets.sort(key=lambda podset: order[podset.request.name])
    return found


def _amounts(offer: Offer, podset: PodSetRequest) -> dict[str, int]:
    amounts = {name: amount * podset.count for name, amount in podset.requests.items()}
    if offer.group_of("pods") is not None:
        amounts["pods"] = podset.count
    return amounts


class _FlavorSearch:
    """What all units of one head have in common."""

    def __init__(
        self,
        state: QuotaState,
        head: PendingWorkload,
        queue: ClusterQueueInfo,
        only: Nomination | None,
        found: Nomination,
    ) -> None:
        self.state, self.head, self.queue = state, head, queue
        self._looks, self._searched = found.looks, found.searched
        self.node: QuotaNode = state.tree.queues[queue.name]
        self.offer = Offer(queue, state.flavors)
        self._only = None
        if only is not None:
            self._only = {podset.request.name: podset.flavors for podset in only.podsets}

    def search_unit(self, members: Sequence[NominatedPodSet], found: Nomination) -> bool:
        """Flavors for PodSets that get the same ones; whether there are any."""
        unit = _UnitSearch(self, members, found.usage)
        complete = unit.run()
        for podset in members:
            podset.texts = list(unit.texts)
            podset.attempts = unit.attempts
            if complete:
                podset.flavors = {
                    resource: FlavorChoice(choice.flavor, choice.mode, choice.tried)
                    for resource, choice in unit.choices.items()
                    if resource in podset.amounts
                }
        if complete:
            for resource, choice in unit.choices.items():
                pair = (choice.flavor, resource)
                found.usage[pair] = found.usage.get(pair, 0) + unit.total[resource]
            found.borrow_level = max(found.borrow_level, unit.borrow_level)
        found.short_of_quota |= not complete
        return complete

    def is_excluded(self, members: Iterable[NominatedPodSet], resource: str, flavor: str) -> bool:
        """Whether a second search may not use a flavor."""
        if self._only is None:
            return False
        chosen = (self._only.get(podset.request.name, {}).get(resource) for podset in members)
        return not any(choice is not None and choice.flavor == flavor for choice in chosen)

    def check(self, pair: FlavorResource, amount: int, before: int) -> _ResourceCheck:
        """One resource in one flavor."""
        flavor, resource = pair
        requested = before + amount
        potential = self.node.potential(pair)
        if requested > potential:
            text = (
                f"insufficient quota for {resource} in flavor {flavor}, previously considered "
                f"podsets requests ({quantity(resource, before)}) + current podset request "
                f"({quantity(resource, amount)}) > maximum capacity "
                f"({quantity(resource, potential)})"
            )
            return _ResourceCheck(_NO_FIT, text, PendingReason.EXCEEDS_MAX_QUOTA)
        look = quota_look(self.node, pair, requested)
        available, (level, below_root) = self._looks[pair, requested] = look
        if requested <= available:
            return _ResourceCheck(_Mode(_Kind.FIT, level))
        more = quantity(resource, requested - available)
        text = f"insufficient unused quota for {resource} in flavor {flavor}, {more} more needed"
        within_nominal = requested <= self.node.nominal.get(pair, 0)
        if within_nominal or below_root or self._may_preempt_while_borrowing():
            return _ResourceCheck(self._preemption_mode(pair, requested, level), text)
        return _ResourceCheck(_NO_FIT, text, PendingReason.WAITING_FOR_QUOTA)

    def _may_preempt_while_borrowing(self) -> bool:
        if self.queue.borrow_within_cohort.policy != NEVER:
            return True
        return self.state.fair_sharing is not None and self.queue.reclaim_within_cohort != NEVER

    def _preemption_mode(self, pair: FlavorResource, requested: int, level: int) -> _Mode:
        """What preemption for this pair alone would do, without regard to topology."""
        preemptor = preemptor_of(self.head, self.queue, {pair: requested}, frozenset({pair}))
        targets = self._searched[pair, requested] = find_targets(self.state, preemptor)
        if not targets:
            return _Mode(_Kind.NO_CANDIDATES, level)
        for target in targets:
            self.state.node_of(target.workload).remove(target.workload.usage)
        level, _ = self.node.borrow_level(pair, requested)
        for target in reversed(targets):
            self.state.node_of(target.workload).add(target.workload.usage)
        own = any(target.workload.cluster_queue == self.queue.name for target in targets)
        return _Mode(_Kind.PREEMPT if own else _Kind.RECLAIM, level)


def quota_look(node: QuotaNode, pair: FlavorResource, amount: int) -> QuotaLook:
    """What decides whether a ClusterQueue has so much quota, beside what never changes."""
    return max(0, node.available(pair)), node.borrow_level(pair, amount)


def preemptor_of(
    head: PendingWorkload,
    queue: ClusterQueueInfo,
    request: Mapping[FlavorResource, int],
    needed: frozenset[FlavorResource],
) -> Preemptor:
    """A head that needs others to be preempted."""
    return Preemptor(head.key, head.priority, head.queue_timestamp, queue, request, needed)


class _UnitSearch:
    """Flavors for PodSets that get the same flavors."""

    def __init__(
        self,
        search: _FlavorSearch,
        members: Sequence[NominatedPodSet],
        before: Mapping[FlavorResource, int],
    ) -> None:
        self._search, self._members, self._before = search, members, before
        self._fungibility = search.queue.fungibility
        self.total: dict[str, int] = {}
        for podset in members:
            for resource, amount in podset.amounts.items():
                self.total[resource] = self.total.get(resource, 0) + amount
        self.choices: dict[str, FlavorChoice] = {}
        self.texts: list[str] = []
        self.attempts: dict[str, FlavorAttempt] = {}
        self.borrow_level = 0

    def run(self) -> bool:
        """Go through the resources; whether each has a flavor."""
        for resource in sorted(self.total, key=resource_rank):
            if resource in self.choices:
                continue
            group = self._search.offer.group_of(resource)
            if group is None:
                if self.total[resource] == 0:
                    continue
                self.texts = [f"resource {resource} unavailable in ClusterQueue"]
                return False
            texts: list[str] = []
            if not self._search_group(resource, group, texts):
                self.texts = texts
                return False
            self.texts += texts
        return True

    def _search_group(self, resource: str, group: ResourceGroupInfo, texts: list[str]) -> bool:
        """Choose among the flavors of a group; whether there is one."""
        resources = [
            name for name in sorted(self.total, key=resource_rank) if name in group.covered
        ]
        best, best_mode, tried = "", _NO_FIT, -1
        checks: dict[str, _ResourceCheck] = {}
        looked_at: set[str] = set()
        for index, flavor in enumerate(group.flavors):
            tried = index
            if self._search.is_excluded(self._members, resource, flavor):
                texts.append(
                    f"skipping flavor {flavor} as it is not found in the nomination mapping for "
                    f"resource {resource}"
                )
                continue
            looked_at.add(flavor)
            problem = self._flavor_problem(flavor, group)
            if problem is not None:
                texts.append(problem)
                self._record(flavor, _no_match())
                continue
            found = self._rejection(flavor, resources) or {
                name: self._check(flavor, name) for name in resources
            }
            texts += [check.text for check in found.values() if check.text]
            mode = self._worst(found.values())
            reasons = [check.reason for check in found.values()]
            reason = max(reasons, key=SEVERITY.__getitem__, default="")
            self._record(flavor, FlavorAttempt(_assignment_mode(mode.kind), reason))
            if not self._tries_next(mode):
                best, best_mode, checks = flavor, mode, found
                break
            if self._is_preferred(mode, best_mode):
                best, best_mode, checks = flavor, mode, found
        self._forget_others(group, looked_at)
        if best_mode.kind is _Kind.NO_FIT:
            return False
        if best_mode.kind is _Kind.FIT:
            texts.clear()
        tried = -1 if tried == len(group.flavors) - 1 else tried
        for name, check in checks.items():
            self.choices[name] = FlavorChoice(best, _assignment_mode(check.mode.kind), tried)
            self.borrow_level = max(self.borrow_level, check.mode.borrow_level)
        return True

    def _flavor_problem(self, flavor: str, group: ResourceGroupInfo) -> str | None:
        for podset in self._members:
            problem = flavor_problem(self._search.offer, flavor, podset.request, group)
            if problem is not None:
                return problem
        return None

    def _rejection(self, flavor: str, resources: Sequence[str]) -> dict[str, _ResourceCheck]:
        """The checks of a flavor without a fitting domain; empty if it was not rejected."""
        rejected = self._search.head.rejected
        names = [podset.request.name for podset in self._members]
        found = next((rejected[name, flavor] for name in names if (name, flavor) in rejected), None)
        if found is None:
            return {}
        kind = _Kind.NO_FIT if found.fits_when_empty is False else _Kind.NO_CANDIDATES
        several = sum(name in names for name, _ in rejected) > len(names)
        text = f"flavor {flavor}: {found.message}" if several else found.message
        reason = PendingReason.TOPOLOGY_PLACEMENT_FAILED
        checks = [_ResourceCheck(_Mode(kind, 0), text, reason), _ResourceCheck(_Mode(kind, 0))]
        return {name: checks[bool(index)] for index, name in enumerate(resources)}

    def _check(self, flavor: str, resource: str) -> _ResourceCheck:
        pair = (flavor, resource)
        return self._search.check(pair, self.total[resource], self._before.get(pair, 0))

    def _worst(self, checks: Iterable[_ResourceCheck]) -> _Mode:
        worst = _BEST
        for check in checks:
            if self._is_preferred(worst, check.mode):
                worst = check.mode
        return worst

    def _record(self, flavor: str, attempt: FlavorAttempt) -> None:
        before = self.attempts.get(flavor)
        if before is not None:
            attempt.mode = min(attempt.mode, before.mode)
            attempt.reason = max(attempt.reason, before.reason, key=SEVERITY.__getitem__)
        self.attempts[flavor] = attempt

    def _forget_others(self, group: ResourceGroupInfo, looked_at: set[str]) -> None:
        """Flavors of an earlier search of the group that this one did not look at do not match."""
        for flavor in group.flavors:
            if flavor in self.attempts and flavor not in looked_at:
                self.attempts[flavor] = _no_match()

    def _tries_next(self, mode: _Mode) -> bool:
        """Whether the search goes on after a flavor of this mode."""
        if mode.kind in (_Kind.NO_FIT, _Kind.NO_CANDIDATES):
            return True
        if mode.kind is not _Kind.FIT and self._fungibility.when_can_preempt == TRY_NEXT_FLAVOR:
            return True
        return mode.borrow_level > 0 and self._fungibility.when_can_borrow == TRY_NEXT_FLAVOR

    def _is_preferred(self, mode: _Mode, other: _Mode) -> bool:
        """Whether a mode is better than another."""
        if mode.kind is _Kind.NO_FIT:
            return False
        if other.kind is _Kind.NO_FIT:
            return True
        if (mode.kind is _Kind.NO_CANDIDATES) != (other.kind is _Kind.NO_CANDIDATES):
            return other.kind is _Kind.NO_CANDIDATES
        if self._fungibility.preference == PREEMPTION_OVER_BORROWING:
            return (-mode.borrow_level, mode.kind) > (-other.borrow_level, other.kind)
        return (mode.kind, -mode.borrow_level) > (other.kind, -other.borrow_level)


def _no_match() -> FlavorAttempt:
    return FlavorAttempt(FlavorAssignmentMode.NO_FIT, PendingReason.NO_MATCHING_FLAVOR)


def _assignment_mode(kind: _Kind) -> FlavorAssignmentMode:
    if kind is _Kind.NO_FIT:
        return FlavorAssignmentMode.NO_FIT
    return FlavorAssignmentMode.FIT if kind is _Kind.FIT else FlavorAssignmentMode.PREEMPT
