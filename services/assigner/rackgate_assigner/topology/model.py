"""Input and output of the placement engine, as plain data; and its array types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Taint, Toleration

IntVector: TypeAlias = npt.NDArray[np.int64]
IntMatrix: TypeAlias = npt.NDArray[np.int64]
BoolVector: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node, as placement sees it.

    Attributes:
        name: the Node object's name (its hostname label may differ).
        labels: all node labels.
        allocatable: whole numbers, cpu in millicores, everything else in base units.
        taints: in the node's order.
        unschedulable: cordoned.
        ready: condition Ready is True.
    """

    name: str
    labels: Mapping[str, str]
    allocatable: Mapping[str, int]
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    ready: bool = True


@dataclass(frozen=True, slots=True)
class SliceLayer:
    """`size` pods of a PodSet slice stay within one domain of level `topology`."""

    topology: str
    size: int


@dataclass(frozen=True, slots=True)
class TopologyRequest:
    """A topology request: at most one of required, preferred, unconstrained.

    Attributes:
        slices: coarsest first.
        layered: the slices were requested as a list of layers; only field paths depend on it.
    """

    required: str | None = None
    preferred: str | None = None
    unconstrained: bool = False
    slices: tuple[SliceLayer, ...] = ()
    layered: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class SharedDomain:
    """All PodSets of a group go into one domain.

    Attributes:
        group: which one; its PodSets have the same shared domains down to this one.
        level: node label.
        required: one domain of this level, or nothing; else coarser levels are tried.
        across: `namespace/name` of the Workload of gangs whose other Workloads share it, too.
    """

    group: str
    level: str
    required: bool
    across: str = ""


@dataclass(frozen=True, slots=True)
class PodSetRequest:
    """One PodSet to place.

    Attributes:
        requests: per pod, whole numbers (cpu in millicores), without the implied 1 of `pods`.
        topology: None without a request: implied unconstrained, at the lowest level.
        group: PodSets of one group are placed together as workers and leader.
        node_affinity: the Kubernetes NodeAffinity object, camelCase, or None.
        previous: current assignment; read only behind ElasticJobsViaWorkloadSlicesWithTAS.
        shared: domains that it shares with other PodSets, coarsest first: nested placement.
        turn: the PodSets that share a domain are placed in this order.
    """

    name: str
    count: int
    requests: Mapping[str, int]
    topology: TopologyRequest | None = None
    group: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_affinity: Mapping[str, Any] | None = None
    previous: TopologyAssignment | None = None
    shared: tuple[SharedDomain, ...] = ()
    turn: int = 0


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A request read against the levels of a tree.

    Attributes:
        count: pods (workers) to place.
        size: pods per (outer) podset slice; 1 without slices.
        need: slices to place (pods without slices).
        level: index of the requested level.
        slice_level: index of the level a slice must stay within.
        units: per level, pods that stay together there because of inner layers; 1 elsewhere.
        layers: slice layers as requested, outermost first.
        required: one domain of the requested level, or nothing.
        unconstrained: nothing is requested, or only slices, or `unconstrained: true`.
        least_free: domains with the least free capacity first, instead of best fit.
        required_level: with gate RackgateRequiredAndPreferred, the level of which one domain must
            fit everything while `level` is preferred; else None.
    """

    count: int
    size: int
    need: int
    level: int
    slice_level: int
    units: tuple[int, ...]
    layers: tuple[SliceLayer, ...]
    required: bool
    unconstrained: bool
    least_free: bool
    required_level: int | None = None


@dataclass(frozen=True, slots=True)
class NoFit:
    """PodSets do not fit.

    podset: the first PodSet that does not fit.
    message: why, as Kueue's message; fixed byte for byte by the conformance data.
    members: every PodSet that the message is about (all of a podset group).
    """

    podset: str
    message: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replacement:
    """Nodes became unhealthy under admitted PodSets.

    Attributes:
        unhealthy_nodes: host names; only the first is replaced.
        assignments: current assignment by PodSet name; PodSets without one are skipped.
        owned_by_single_pod: the Workload belongs to one plain Pod, which cannot move.
        mates: domains that other PodSets share, with their assignments, which stay.
    """

    unhealthy_nodes: tuple[str, ...]
    assignments: Mapping[str, TopologyAssignment]
    owned_by_single_pod: bool = False
    mates: tuple[tuple[tuple[SharedDomain, ...], TopologyAssignment], ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Assignments by PodSet name; `failure` names the first PodSet that does not fit."""

    assignments: Mapping[str, TopologyAssignment]
    failure: NoFit | None = None
