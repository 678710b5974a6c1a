"""Queues and flavors: the fields of administrators' objects that scheduling needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from rackgate.resources.quantity import QuantityError, quota_amount
from rackgate.wire import kueue
from rackgate.wire.core import Taint, Toleration
from rackgate_assigner.topology.placement.node_matching import expression_holds

FlavorResource: TypeAlias = tuple[str, str]
Quota: TypeAlias = Mapping[FlavorResource, int]

NEVER: Final = "Never"
DRAIN: Final = "HoldAndDrain"


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
class ResourceGroupInfo:
    """A resource group: its flavors in order of preference, and nominal quota by pair."""

    covered: tuple[str, ...]
    flavors: tuple[str, ...]
    nominal: Quota


@dataclass(frozen=True, slots=True)
class ClusterQueueInfo:
    """A ClusterQueue.

    Attributes:
        checks: names of the AdmissionChecks it uses.
        preempts: any preemption is enabled.
        within_cluster_queue: `preemption.withinClusterQueue`: "Never", "LowerPriority" or
            "LowerOrNewerEqualPriority".
        reclaims_in_cohort: preemption in other queues of the cohort is enabled.
        preempts_early: use the first flavor where preemption helps; else all are considered.
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
    checks: tuple[str, ...] = ()
    preempts: bool = False
    within_cluster_queue: str = NEVER
    reclaims_in_cohort: bool = False
    preempts_early: bool = False

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
    """A LocalQueue; `key` is `namespace/name`."""

    key: str
    cluster_queue: str
    generation: int = 0
    deleting: bool = False
    stop_policy: str = "None"


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


def _nominal(resource: str, value: kueue.Amount) -> int:
    try:
        return quota_amount(resource, value)
    except QuantityError:  # the API schema rejects such a quota; it counts as zero
        return 0


def _resource_group_info(group: kueue.ResourceGroup) -> ResourceGroupInfo:
    return ResourceGroupInfo(
        covered=group.covered_resources,
        flavors=tuple(flavor.name for flavor in group.flavors),
        nominal={
            (flavor.name, quota.name): _nominal(quota.name, quota.nominal_quota)
            for flavor in group.flavors
            for quota in flavor.resources
        },
    )


def _reclaims(preemption: kueue.Preemption) -> bool:
    borrow = preemption.borrow_within_cohort
    policies = [preemption.reclaim_within_cohort, borrow.policy if borrow else NEVER]
    return any(policy not in ("", NEVER) for policy in policies)


def cluster_queue_info(queue: kueue.ClusterQueue) -> ClusterQueueInfo:
    """Project a ClusterQueue."""
    meta, spec = queue.metadata, queue.spec
    strategy = spec.admission_checks_strategy
    preemption = spec.preemption or kueue.Preemption()
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
        checks=tuple(check.name for check in strategy.admission_checks) if strategy else (),
        preempts=reclaims or within != NEVER,
        within_cluster_queue=within,
        reclaims_in_cohort=reclaims,
        preempts_early=(spec.flavor_fungibility or {}).get("whenCanPreempt") == "MayStopSearch",
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
