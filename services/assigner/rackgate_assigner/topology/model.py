"""Plain data that the placement engine takes and gives. No client, clock or log here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import Taint, Toleration


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What placement needs to know of a node.

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
    """What a PodSet asks of the topology: at most one of required, preferred, unconstrained.

    Attributes:
        slices: coarsest first.
        layered: the slices were asked for as a list of layers; counts for field paths alone.
    """

    required: str | None = None
    preferred: str | None = None
    unconstrained: bool = False
    slices: tuple[SliceLayer, ...] = ()
    layered: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class PodSetRequest:
    """One PodSet to place.

    Attributes:
        requests: per pod, whole numbers (cpu in millicores), without the implied 1 of `pods`.
        topology: None when nothing was asked (implied: unconstrained at the lowest level).
        group: PodSets of one group are placed together as workers and leader.
        node_affinity: the Kubernetes NodeAffinity object, camelCase, or None.
        previous: current assignment, used only for resizing behind a gate.
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


@dataclass(frozen=True, slots=True)
class NoFit:
    """A refusal, in the field's text.

    Attributes:
        podset: the first PodSet that could not be placed.
        message: why; fixed byte for byte by the conformance data.
        members: every PodSet the refusal speaks for (all of a podset group).
    """

    podset: str
    message: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replacement:
    """A node broke under admitted PodSets.

    Attributes:
        unhealthy_nodes: host names; only the first is replaced.
        assignments: current assignment by PodSet name; PodSets without one are left alone.
        owned_by_single_pod: the Workload belongs to one plain pod, which cannot move.
    """

    unhealthy_nodes: tuple[str, ...]
    assignments: Mapping[str, TopologyAssignment]
    owned_by_single_pod: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Assignments by PodSet name; `failure` names the first PodSet that found no place."""

    assignments: Mapping[str, TopologyAssignment]
    failure: NoFit | None = None
