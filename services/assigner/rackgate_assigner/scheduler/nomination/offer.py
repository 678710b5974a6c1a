"""What a ClusterQueue offers to a Workload, regardless of the quota in use: `conformance/quota`, 6.

Which flavor a PodSet could ever use; `flavor_fungibility` chooses among those that have the quota.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rackgate_assigner.quota.queues import ClusterQueueInfo, FlavorInfo, ResourceGroupInfo
from rackgate_assigner.topology.model import PodSetRequest, TopologyRequest
from rackgate_assigner.topology.placement.node_matching import blocking_taint, expression_holds
from rackgate_assigner.workload.info import REQUIRED_AFFINITY


@dataclass(frozen=True, slots=True)
class Offer:
    """A ClusterQueue and all flavors."""

    queue: ClusterQueueInfo
    flavors: Mapping[str, FlavorInfo]

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

    def needs_domains(self, request: PodSetRequest) -> bool:
        """Whether the pods of a PodSet are placed in domains."""
        return request.topology is not None or self.implies_topology


@lru_cache(maxsize=4096)
def resource_rank(resource: str) -> int:
    """64-bit FNV-1a hash: the order in which Kueue iterates over resources."""
    value = 0xCBF29CE484222325
    for byte in resource.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def units_of(podsets: Sequence[PodSetRequest]) -> list[list[PodSetRequest]]:
    """PodSets of one group or shared domain, at the position of the first; others alone."""
    units: dict[object, list[PodSetRequest]] = {}
    for index, podset in enumerate(podsets):
        key = podset.shared[0] if podset.shared else podset.group or index
        units.setdefault(key, []).append(podset)
    return list(units.values())


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
    levels = [*requested_levels(podset.topology), *(one.level for one in podset.shared)]
    if all(level in flavor.levels for level in levels):
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
