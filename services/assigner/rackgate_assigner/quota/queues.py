"""Queues and flavors: the fields of administrators' objects that scheduling needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from rackgate.api.unsupported import USAGE_BASED
from rackgate.resources.quantity import QuantityError, quota_amount, to_milli
from rackgate.wire import kueue
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.topology.placement.node_matching import expression_holds

FlavorResource: TypeAlias = tuple[str, str]
Quota: TypeAlias = Mapping[FlavorResource, int]

# Preemption policies.
NEVER: Final = "Never"
LOWER: Final = "LowerPriority"
LOWER_OR_NEWER: Final = "LowerOrNewerEqualPriority"
ANY: Final = "Any"
DRAIN: Final = "HoldAndDrain"
TRY_NEXT_FLAVOR: Final = "TryNextFlavor"
PREEMPTION_OVER_BORROWING: Final = "PreemptionOverBorrowing"


@dataclass(frozen=True, slots=True)
class FlavorInfo:
    """A ResourceFlavor.

    Attributes:
        topology: name of its Topology, None for a plain flavor.
        levels: the Topology's level keys, coarsest first; empty while the Topology is missing.
    """

    name: str
    node_labels: Mapping[str, str] = field(default_factory=dict)
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology: str | None = None
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckRule:
    """A check that a ClusterQueue names; on no flavors means on all."""

    name: str
    on_flavors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """An AdmissionCheck.

    Attributes:
        active: its controller handles it, according to its condition Active.
    """

    controller: str
    active: bool = False


@dataclass(frozen=True, slots=True)
class ResourceGroupInfo:
    """A resource group: its flavors in order of preference, and its quota by pair.

    Attributes:
        borrowing_limit: without a pair there is no limit.
        lending_limit: without a pair there is no limit.
    """

    covered: tuple[str, ...]
    flavors: tuple[str, ...]
    nominal: Quota
    borrowing_limit: Quota = field(default_factory=dict)
    lending_limit: Quota = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BorrowWithinCohort:
    """`preemption.borrowWithinCohort`; without a threshold every lower priority qualifies."""

    policy: str = NEVER
    max_priority_threshold: int | None = None


@dataclass(frozen=True, slots=True)
class FlavorFungibility:
    """`flavorFungibility`: when the search for a flavor goes on, and which flavor is better."""

    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = TRY_NEXT_FLAVOR
    preference: str = "BorrowingOverPreemption"


@dataclass(frozen=True, slots=True)
class CohortInfo:
    """A Cohort; one without an object has no quota and no parent.

    Attributes:
        fair_weight: `fairSharing.weight`, at least 0.
    """

    name: str
    parent: str = ""
    groups: tuple[ResourceGroupInfo, ...] = ()
    fair_weight: float = 1.0


@dataclass(frozen=True, slots=True)
class ClusterQueueInfo:
    """A ClusterQueue.

    Attributes:
        checks: the AdmissionChecks it names.
        preempts: any preemption is enabled.
        within_cluster_queue: `preemption.withinClusterQueue`: "Never", "LowerPriority" or
            "LowerOrNewerEqualPriority".
        reclaim_within_cohort: `preemption.reclaimWithinCohort`: "Never", "LowerPriority",
            "LowerOrNewerEqualPriority" or "Any".
        fair_weight: `fairSharing.weight`, at least 0.
        usage_based: `admissionScope`: its LocalQueues are ordered by their usage over time.
        selector: `namespaceSelector` as stored; None matches no namespace.
        stop_policy: "None", "Hold" or "HoldAndDrain".
    """

    name: str
    generation: int = 0
    deleting: bool = False
    cohort: str = ""
    strategy: str = "BestEffortFIFO"
    stop_policy: str = "None"
    selector: Mapping[str, Any] | None = None
    groups: tuple[ResourceGroupInfo, ...] = ()
    checks: tuple[CheckRule, ...] = ()
    preempts: bool = False
    within_cluster_queue: str = NEVER
    reclaim_within_cohort: str = NEVER
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()
    fungibility: FlavorFungibility = FlavorFungibility()
    fair_weight: float = 1.0
    usage_based: bool = False

    @property
    def is_strict(self) -> bool:
        """Whether a head that does not fit blocks those behind it."""
        return self.strategy == "StrictFIFO"

    @property
    def flavors(self) -> tuple[str, ...]:
        """All flavor names, in order of the groups, each once."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group.flavors))

    @property
    def nominal(self) -> dict[FlavorResource, int]:
        """Nominal quota by pair, of all groups."""
        return {pair: amount for group in self.groups for pair, amount in group.nominal.items()}


@dataclass(frozen=True, slots=True)
class LocalQueueInfo:
    """A LocalQueue; `key` is `namespace/name`, `fair_weight` at least 0."""

    key: str
    cluster_queue: str
    generation: int = 0
    deleting: bool = False
    stop_policy: str = "None"
    fair_weight: float = 1.0


def flavor_info(
    flavor: kueue.ResourceFlavor, topologies: Mapping[str, tuple[str, ...]]
) -> FlavorInfo:
    """Project a flavor, with the levels of its Topology if that exists."""
    spec = flavor.spec
    topology = spec.topology_name or None
    return FlavorInfo(
        name=flavor.metadata.name,
        node_labels=spec.node_labels,
        node_taints=spec.node_taints,
        tolerations=spec.tolerations,
        topology=topology,
        levels=topologies.get(topology, ()) if topology else (),
    )


def restrict_to_flavors(queue: ClusterQueueInfo, flavors: Mapping[str, str]) -> ClusterQueueInfo:
    """The queue, restricted to the flavors that these resources use in each resource group.

    Args:
        queue: the whole queue.
        flavors: resource to flavor; groups that cover none of the resources do not change.
    """
    groups = []
    for group in queue.groups:
        taken = {flavors[resource] for resource in group.covered if resource in flavors}
        kept = tuple(name for name in group.flavors if not taken or name in taken)
        groups.append(replace(group, flavors=kept))
    return replace(queue, groups=tuple(groups))


def without_topologies(flavors: Mapping[str, FlavorInfo]) -> dict[str, FlavorInfo]:
    """All flavors as plain ones, for when topology is off (C22)."""
    return {name: replace(row, topology=None, levels=()) for name, row in flavors.items()}


def _amount(pair: FlavorResource, value: kueue.Amount) -> int:
    try:
        return quota_amount(pair[1], value)
    except QuantityError:  # the API schema rejects such a quota; it counts as zero
        return 0


def _fair_weight(sharing: kueue.FairSharing | None) -> float:
    if sharing is None or sharing.weight is None:
        return 1.0
    try:
        return max(0, to_milli(sharing.weight)) / 1000
    except QuantityError:  # rejected by the API schema
        return 1.0


def _resource_group_info(group: kueue.ResourceGroup) -> ResourceGroupInfo:
    quotas = {
        (flavor.name, quota.name): quota for flavor in group.flavors for quota in flavor.resources
    }
    return ResourceGroupInfo(
        covered=group.covered_resources,
        flavors=tuple(flavor.name for flavor in group.flavors),
        nominal={pair: _amount(pair, quota.nominal_quota) for pair, quota in quotas.items()},
        borrowing_limit={
            pair: _amount(pair, quota.borrowing_limit)
            for pair, quota in quotas.items()
            if quota.borrowing_limit is not None
        },
        lending_limit={
            pair: _amount(pair, quota.lending_limit)
            for pair, quota in quotas.items()
            if quota.lending_limit is not None
        },
    )


def _reclaims(preemption: kueue.Preemption) -> bool:
    borrow = preemption.borrow_within_cohort
    policies = [preemption.reclaim_within_cohort, borrow.policy if borrow else NEVER]
    return any(policy not in ("", NEVER) for policy in policies)


def _check_rule(rule: kueue.AdmissionCheckRef) -> CheckRule:
    return CheckRule(rule.name, frozenset(rule.on_flavors))


def check_info(check: kueue.AdmissionCheck) -> CheckInfo:
    """Project an AdmissionCheck."""
    conditions = check.status.conditions
    active = any(found.type == "Active" and found.status == "True" for found in conditions)
    return CheckInfo(check.spec.controller_name, active)


def cluster_queue_info(queue: kueue.ClusterQueue) -> ClusterQueueInfo:
    """Project a ClusterQueue."""
    meta, spec = queue.metadata, queue.spec
    strategy = spec.admission_checks_strategy
    preemption = spec.preemption or kueue.Preemption()
    fungibility = spec.flavor_fungibility or kueue.FlavorFungibility()
    borrow = preemption.borrow_within_cohort or kueue.BorrowWithinCohort()
    scope = spec.admission_scope
    within, reclaims = preemption.within_cluster_queue or NEVER, _reclaims(preemption)
    return ClusterQueueInfo(
        name=meta.name,
        generation=meta.generation,
        deleting=meta.deletion_timestamp is not None,
        cohort=spec.cohort_name or "",
        strategy=spec.queueing_strategy or "BestEffortFIFO",
        stop_policy=spec.stop_policy or "None",
        selector=spec.namespace_selector,
        groups=tuple(_resource_group_info(group) for group in spec.resource_groups),
        checks=tuple(_check_rule(rule) for rule in strategy.admission_checks) if strategy else (),
        preempts=reclaims or within != NEVER,
        within_cluster_queue=within,
        reclaim_within_cohort=preemption.reclaim_within_cohort or NEVER,
        borrow_within_cohort=BorrowWithinCohort(
            borrow.policy or NEVER, borrow.max_priority_threshold
        ),
        fungibility=FlavorFungibility(
            fungibility.when_can_borrow,
            fungibility.when_can_preempt,
            fungibility.preference or "BorrowingOverPreemption",
        ),
        fair_weight=_fair_weight(spec.fair_sharing),
        usage_based=scope is not None and scope.admission_mode == USAGE_BASED,
    )


def cohort_info(cohort: kueue.Cohort) -> CohortInfo:
    """Project a Cohort."""
    spec = cohort.spec
    return CohortInfo(
        name=cohort.metadata.name,
        parent=spec.parent_name or "",
        groups=tuple(_resource_group_info(group) for group in spec.resource_groups),
        fair_weight=_fair_weight(spec.fair_sharing),
    )


def local_queue_info(queue: kueue.LocalQueue) -> LocalQueueInfo:
    """Project a LocalQueue."""
    meta, spec = queue.metadata, queue.spec
    return LocalQueueInfo(
        key=meta.key,
        cluster_queue=spec.cluster_queue,
        generation=meta.generation,
        deleting=meta.deletion_timestamp is not None,
        stop_policy=spec.stop_policy or "None",
        fair_weight=_fair_weight(spec.fair_sharing),
    )


# A label selector allows only these four; `Gt` and `Lt` belong to node selectors.
_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches labels: None selects nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(
        expression.get("operator") in _OPERATORS
        and expression_holds(expression, labels.get(expression.get("key", "")))
        for expression in selector.get("matchExpressions") or ()
    )
