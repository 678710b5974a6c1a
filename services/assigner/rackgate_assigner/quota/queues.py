"""Queues and flavors as rows: what scheduling needs of the objects that administrators write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from rackgate.resources.quantity import QuantityError, quota_amount
from rackgate.wire import kueue
from rackgate.wire.core import Taint, Toleration

FlavorResource: TypeAlias = tuple[str, str]
Quota: TypeAlias = Mapping[FlavorResource, int]

NEVER: Final = "Never"


@dataclass(frozen=True, slots=True)
class FlavorRow:
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
class GroupRow:
    """A resource group: its flavors in order of preference, and nominal quota by pair."""

    covered: tuple[str, ...]
    flavors: tuple[str, ...]
    nominal: Quota


@dataclass(frozen=True, slots=True)
class ClusterQueueRow:
    """A ClusterQueue.

    Attributes:
        checks: names of the AdmissionChecks it uses.
        preempts: any preemption is enabled.
        within: `preemption.withinClusterQueue`: "Never", "LowerPriority" or
            "LowerOrNewerEqualPriority".
        reclaims: preemption in other queues of the cohort is enabled.
        preempts_early: the first flavor where preemption helps is taken; else all are looked at.
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
    groups: tuple[GroupRow, ...] = ()
    checks: tuple[str, ...] = ()
    preempts: bool = False
    within: str = NEVER
    reclaims: bool = False
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
class LocalQueueRow:
    """A LocalQueue; `key` is `namespace/name`."""

    key: str
    cluster_queue: str
    generation: int = 0
    deleting: bool = False
    stop_policy: str = "None"


def flavor_row(
    flavor: kueue.ResourceFlavor, topologies: Mapping[str, tuple[str, ...]]
) -> FlavorRow:
    """Project a flavor, with the levels of its Topology if that is there."""
    spec = flavor.spec
    topology = spec.topology_name or None
    return FlavorRow(
        name=flavor.metadata.name,
        node_labels=spec.node_labels,
        node_taints=spec.node_taints,
        tolerations=spec.tolerations,
        topology=topology,
        levels=topologies.get(topology, ()) if topology else (),
    )


def locked_to(queue: ClusterQueueRow, flavors: Mapping[str, str]) -> ClusterQueueRow:
    """The queue, offering in each resource group only what these resources have taken there.

    Args:
        queue: as it is.
        flavors: resource to flavor; groups that cover none of the resources stay as they are.
    """
    groups = []
    for group in queue.groups:
        taken = {flavors[resource] for resource in group.covered if resource in flavors}
        kept = tuple(name for name in group.flavors if not taken or name in taken)
        groups.append(replace(group, flavors=kept))
    return replace(queue, groups=tuple(groups))


def without_topologies(flavors: Mapping[str, FlavorRow]) -> dict[str, FlavorRow]:
    """All flavors as plain ones, as they count while topologies are switched off (C22)."""
    return {name: replace(row, topology=None, levels=()) for name, row in flavors.items()}


def _nominal(resource: str, value: kueue.Amount) -> int:
    try:
        return quota_amount(resource, value)
    except QuantityError:  # the API schema lets no such quota through; nothing is granted by it
        return 0


def _group_row(group: kueue.ResourceGroup) -> GroupRow:
    return GroupRow(
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


def cluster_queue_row(queue: kueue.ClusterQueue) -> ClusterQueueRow:
    """Project a ClusterQueue."""
    meta, spec = queue.metadata, queue.spec
    strategy = spec.admission_checks_strategy
    preemption = spec.preemption or kueue.Preemption()
    within, reclaims = preemption.within_cluster_queue or NEVER, _reclaims(preemption)
    return ClusterQueueRow(
        name=meta.name,
        generation=meta.generation,
        deleting=meta.deletion_timestamp is not None,
        cohort=spec.cohort_name or "",
        strategy=spec.queueing_strategy or "BestEffortFIFO",
        stop_policy=spec.stop_policy or "None",
        selector=spec.namespace_selector,
        groups=tuple(_group_row(group) for group in spec.resource_groups),
        checks=tuple(check.name for check in strategy.admission_checks) if strategy else (),
        preempts=reclaims or within != NEVER,
        within=within,
        reclaims=reclaims,
        preempts_early=(spec.flavor_fungibility or {}).get("whenCanPreempt") == "MayStopSearch",
    )


def local_queue_row(queue: kueue.LocalQueue) -> LocalQueueRow:
    """Project a LocalQueue."""
    meta, spec = queue.metadata, queue.spec
    return LocalQueueRow(
        key=meta.key,
        cluster_queue=spec.cluster_queue,
        generation=meta.generation,
        deleting=meta.deletion_timestamp is not None,
        stop_policy=spec.stop_policy or "None",
    )
