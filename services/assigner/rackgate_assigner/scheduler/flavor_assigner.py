"""Which flavor each resource of a Workload gets: `conformance/quota`, sections 6, 7 and 12.

Flavors of a resource group are tried in order and the first that fits is used. Otherwise the plan
has the reason for every flavor, in texts that change only with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from rackgate.api.names import PendingReason
from rackgate_assigner.quota.queues import (
    ClusterQueueInfo,
    FlavorInfo,
    FlavorResource,
    ResourceGroupInfo,
)
from rackgate_assigner.quota.quota import SEVERITY, FlavorAssignmentMode, QuotaCheck, check_quota
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.node_matching import blocking_taint, expression_holds
from rackgate_assigner.workload.decisions import TopologyNotFound
from rackgate_assigner.workload.info import REQUIRED_AFFINITY

# By PodSet and flavor.
RejectedFlavors: TypeAlias = Mapping[tuple[str, str], TopologyNotFound]
NO_REJECTED_FLAVORS: Final[RejectedFlavors] = {}


@dataclass(slots=True)
class PodSetPlan:
    """Flavors of one PodSet.

    Attributes:
        amounts: of the whole PodSet, with `pods` when the queue covers that.
        flavors: resource to flavor; resources that no group covers are omitted.
        texts: why flavors do not fit now; empty if they fit.
    """

    request: PodSetRequest
    amounts: Mapping[str, int]
    flavors: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FlavorPlan:
    """Flavors of a Workload.

    Attributes:
        podsets: in the Workload's order; those after a unit without flavors are omitted.
        reason: why not, empty if the mode is FIT.
        request: totals of all PodSets.
        preemption_needed: pairs of `request` that preemption must free.
    """

    podsets: list[PodSetPlan]
    mode: FlavorAssignmentMode = FlavorAssignmentMode.FIT
    reason: str = ""
    request: dict[FlavorResource, int] = field(default_factory=dict)
    preemption_needed: set[FlavorResource] = field(default_factory=set)

    @property
    def message(self) -> str:
        """The rejection of all PodSets that have texts."""
        return "; ".join(
            f"couldn't assign flavors to pod set {podset.request.name}: "
            + ", ".join(sorted(podset.texts))
            for podset in self.podsets
            if podset.texts
        )


@dataclass(frozen=True, slots=True)
class Offer:
    """What a ClusterQueue offers in this cycle: its flavors and the quota in use.

    Attributes:
        preemptible: what preemption could free in addition.
    """

    queue: ClusterQueueInfo
    flavors: Mapping[str, FlavorInfo]
    used: Mapping[FlavorResource, int]
    preemptible: Mapping[FlavorResource, int] = field(default_factory=dict)

    @property
    def implies_topology(self) -> bool:
        """Whether PodSets without resource requests are placed too: all flavors have a topology."""
        names = self.queue.flavors
        return bool(names) and all(self.has_topology(name) for name in names)

    def has_topology(self, name: str) -> bool:
        """Whether the flavor exists and names a Topology."""
        flavor = self.flavors.get(name)
        return flavor is not None and flavor.topology is not None

    def group_of(self, resource: str) -> ResourceGroupInfo | None:
        """The resource group that covers a resource."""
        return next((group for group in self.queue.groups if resource in group.covered), None)


@dataclass(frozen=True, slots=True)
class Inadmissible:
    """Why a Workload is not admitted in this cycle.

    Attributes:
        rejected_flavors: flavors that had the quota but no fitting domain, as tried.
        preemption_plan: flavors that would fit if other Workloads were preempted.
    """

    reason: str
    message: str
    rejected_flavors: tuple[TopologyNotFound, ...] = ()
    preemption_plan: FlavorPlan | None = None


@lru_cache(maxsize=4096)
def resource_rank(resource: str) -> int:
    """64-bit FNV-1a hash: the order in which Kueue iterates over resources."""
    value = 0xCBF29CE484222325
    for byte in resource.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def units_of(podsets: Sequence[PodSetRequest]) -> list[list[PodSetRequest]]:
    """PodSets of one group together, at the position of the first; others alone."""
    units: dict[object, list[PodSetRequest]] = {}
    for index, podset in enumerate(podsets):
        units.setdefault(podset.group or index, []).append(podset)
    return list(units.values())


def choose_flavors(
    offer: Offer, podsets: Sequence[PodSetRequest], rejected: RejectedFlavors = NO_REJECTED_FLAVORS
) -> FlavorPlan:
    """Choose a flavor for every covered resource of every PodSet, in order.

    Later PodSets see the requests of earlier ones.

    Args:
        offer: of the ClusterQueue.
        podsets: in the Workload's order.
        rejected: flavors whose topology does not fit a PodSet: never chosen for it; their texts
            are listed with those of the others.
    """
    plan = FlavorPlan([])
    before = plan.request
    for unit in units_of(podsets):
        plans = [PodSetPlan(podset, _amounts(offer, podset)) for podset in unit]
        plan.podsets.extend(plans)
        search = _UnitSearch(offer, unit, _sum(item.amounts for item in plans), before, rejected)
        mode, reason = search.run()
        for item in plans:
            item.texts = list(search.texts)
            item.flavors = {
                name: search.chosen[name] for name in item.amounts if name in search.chosen
            }
        if mode < plan.mode:
            plan.mode, plan.reason = mode, reason
        if mode is FlavorAssignmentMode.NO_FIT:
            break
        for resource, flavor in search.chosen.items():
            pair = (flavor, resource)
            before[pair] = before.get(pair, 0) + search.total[resource]
        plan.preemption_needed |= search.preemption_needed
    order = {podset.name: index for index, podset in enumerate(podsets)}
    plan.podsets.sort(key=lambda item: order[item.request.name])
    return plan


def requested_levels(request: TopologyRequest | None) -> list[str]:
    """Level keys that a request names, slices included."""
    if request is None:
        return []
    named = [request.required, request.preferred, *(layer.topology for layer in request.slices)]
    return [level for level in named if level]


def flavor_problem(
    offer: Offer, name: str, podset: PodSetRequest, group: ResourceGroupInfo
) -> str | None:
    """Why a PodSet can never use a flavor, regardless of quota; None if it can."""
    flavor = offer.flavors.get(name)
    if flavor is None:
        return f"flavor {name} not found"
    topology = _topology_problem(offer, flavor, podset, group)
    if topology is not None:
        return topology
    taint = blocking_taint(flavor.node_taints, (*podset.tolerations, *flavor.tolerations))
    if taint is not None:
        shown = f"{{{taint.key} {taint.value} {taint.effect} <nil>}}"
        return f"untolerated taint {shown} in flavor {name}"
    if not _labels_match(flavor.node_labels, podset):
        return f"flavor {name} doesn't match node affinity"
    return None


def _topology_problem(
    offer: Offer, flavor: FlavorInfo, podset: PodSetRequest, group: ResourceGroupInfo
) -> str | None:
    name = flavor.name
    if podset.topology is None:
        if flavor.topology is None or offer.implies_topology:
            return None
        return f'Flavor "{name}" supports only TopologyAwareScheduling'
    if flavor.topology is None:
        asks_here = any(resource in podset.requests for resource in group.covered)
        asks_here = asks_here or "pods" in group.covered
        return f'Flavor "{name}" does not support TopologyAwareScheduling' if asks_here else None
    if all(level in flavor.levels for level in requested_levels(podset.topology)):
        return None
    return f'Flavor "{name}" does not contain the requested level'


def _labels_match(labels: Mapping[str, str], podset: PodSetRequest) -> bool:
    """Match selector and affinity against a flavor's labels; other keys are ignored."""
    selector = podset.node_selector
    if any(key in selector and selector[key] != value for key, value in labels.items()):
        return False
    required = (podset.node_affinity or {}).get(REQUIRED_AFFINITY)
    if required is None:
        return True
    terms = [term.get("matchExpressions") or () for term in required.get("nodeSelectorTerms") or ()]
    return any(
        all(
            expression_holds(expression, labels[expression["key"]])
            for expression in term
            if expression.get("key") in labels
        )
        for term in terms
    )


def _amounts(offer: Offer, podset: PodSetRequest) -> dict[str, int]:
    amounts = {name: value * podset.count for name, value in podset.requests.items()}
    if offer.group_of("pods") is not None:
        amounts["pods"] = podset.count
    return amounts


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


class _UnitSearch:
    """Flavors for PodSets that get the same flavors."""

    def __init__(
        self,
        offer: Offer,
        unit: Sequence[PodSetRequest],
        total: Mapping[str, int],
        before: Mapping[FlavorResource, int],
        rejected: RejectedFlavors,
    ) -> None:
        self.offer, self.unit, self.total, self.before = offer, unit, total, before
        names = {podset.name for podset in unit}
        self.rejected = {flavor: no for (name, flavor), no in rejected.items() if name in names}
        self.chosen: dict[str, str] = {}
        self.texts: list[str] = []
        self.pending_reasons: list[str] = []
        self.preemption_needed: set[FlavorResource] = set()

    def run(self) -> tuple[FlavorAssignmentMode, str]:
        """Iterate over the resources; the mode of the unit and the reason if it is not FIT."""
        worst, severest = FlavorAssignmentMode.FIT, ""
        for resource in sorted(self.total, key=resource_rank):
            if resource in self.chosen:
                continue
            group = self.offer.group_of(resource)
            if group is None:
                if self.total[resource] == 0:
                    continue
                self.chosen = {}
                self.texts = [f"resource {resource} unavailable in ClusterQueue"]
                return FlavorAssignmentMode.NO_FIT, PendingReason.NO_MATCHING_FLAVOR
            mode, reason, texts = self._search(group)
            severest = max(severest, reason, key=SEVERITY.__getitem__)
            if mode is FlavorAssignmentMode.NO_FIT:
                self.chosen, self.texts = {}, texts
                return mode, severest or PendingReason.NO_MATCHING_FLAVOR
            self.texts += texts
            worst = min(worst, mode)
        return worst, max(self.pending_reasons, key=SEVERITY.__getitem__, default="")

    def _search(self, group: ResourceGroupInfo) -> tuple[FlavorAssignmentMode, str, list[str]]:
        """Choose among the flavors of a group: mode, reason of a NO_FIT, texts."""
        resources = [name for name in group.covered if name in self.total]
        best, mode = "", FlavorAssignmentMode.NO_FIT
        enough = (
            FlavorAssignmentMode.PREEMPT
            if self.offer.queue.preempts_early
            else FlavorAssignmentMode.FIT
        )
        preemption_needed: set[FlavorResource] = set()
        texts: list[str] = []
        reasons: list[str] = []
        pending_reasons: list[str] = []
        for flavor in group.flavors:
            quota_checks = self._check_flavor(flavor, group, resources)
            texts += [quota_check.text for quota_check in quota_checks if quota_check.text]
            found = min(
                (quota_check.mode for quota_check in quota_checks), default=FlavorAssignmentMode.FIT
            )
            if found is not FlavorAssignmentMode.FIT:
                named = [quota_check.reason for quota_check in quota_checks]
                listed = reasons if found is FlavorAssignmentMode.NO_FIT else pending_reasons
                listed.append(max(named, key=SEVERITY.__getitem__))
            if found > mode:
                best, mode, preemption_needed = (
                    flavor,
                    found,
                    _preemption_needed(flavor, resources, quota_checks),
                )
            if mode is FlavorAssignmentMode.FIT:
                texts = []
            if mode >= enough:
                break
        if mode is not FlavorAssignmentMode.NO_FIT:
            self.chosen.update(dict.fromkeys(resources, best))
            self.preemption_needed |= preemption_needed
        if mode in (FlavorAssignmentMode.NO_CANDIDATES, FlavorAssignmentMode.PREEMPT):
            self.pending_reasons.append(min(pending_reasons, key=SEVERITY.__getitem__))
        return mode, min(reasons, key=SEVERITY.__getitem__, default=""), texts

    def _check_flavor(
        self, flavor: str, group: ResourceGroupInfo, resources: Sequence[str]
    ) -> list[QuotaCheck]:
        rejection = self.rejected.get(flavor)
        if rejection is not None:
            return [self._topology_not_found(rejection)]
        for podset in self.unit:
            problem = flavor_problem(self.offer, flavor, podset, group)
            if problem is not None:
                return [
                    QuotaCheck(
                        FlavorAssignmentMode.NO_FIT, PendingReason.NO_MATCHING_FLAVOR, problem
                    )
                ]
        return [
            check_quota(
                (flavor, resource),
                self.total[resource],
                before=self.before.get((flavor, resource), 0),
                nominal=group.nominal.get((flavor, resource), 0),
                used=self.offer.used.get((flavor, resource), 0),
                preemptible=self.offer.preemptible.get((flavor, resource), 0),
            )
            for resource in resources
        ]

    def _topology_not_found(self, rejection: TopologyNotFound) -> QuotaCheck:
        """A flavor with quota but no fitting domain: no candidates, or no fit even if empty."""
        mode = (
            FlavorAssignmentMode.NO_FIT
            if rejection.fits_when_empty is False
            else FlavorAssignmentMode.NO_CANDIDATES
        )
        text = rejection.message
        if len(self.rejected) > 1:  # else the text is the same as for a queue of one flavor
            text = f"flavor {rejection.flavor}: {text}"
        return QuotaCheck(mode, PendingReason.TOPOLOGY_PLACEMENT_FAILED, text)


def _preemption_needed(
    flavor: str, resources: Sequence[str], quota_checks: Sequence[QuotaCheck]
) -> set[FlavorResource]:
    """What preemption must free in a flavor; nothing if the whole flavor was rejected."""
    if len(quota_checks) != len(resources):
        return set()
    return {
        (flavor, resource)
        for resource, quota_check in zip(resources, quota_checks, strict=True)
        if quota_check.mode is FlavorAssignmentMode.PREEMPT
    }
