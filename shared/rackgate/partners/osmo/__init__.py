"""OSMO's topology keys to KAI's Topology, PodGroups and pods' labels. Pure: data in, data out."""

from __future__ import annotations

from rackgate.partners.osmo.checks import Warning_, check
from rackgate.partners.osmo.model import (
    Built,
    KaiVersion,
    PodMarks,
    Pool,
    Profile,
    Requirement,
    Resource,
    Task,
    TaskGroup,
    Toleration,
    TopologyKey,
    Workflow,
)
from rackgate.partners.osmo.node import Kind, Node
from rackgate.partners.osmo.podgroups import build_podgroups, topology_of
from rackgate.partners.osmo.reach import tolerates, tolerations_of
from rackgate.partners.osmo.reading import read_pool, read_workflow
from rackgate.partners.osmo.refusals import Refusal, RefusedError
from rackgate.partners.osmo.tree import shared, tree_of

__all__ = [
    "Built",
    "KaiVersion",
    "Kind",
    "Node",
    "PodMarks",
    "Pool",
    "Profile",
    "Refusal",
    "RefusedError",
    "Requirement",
    "Resource",
    "Task",
    "TaskGroup",
    "Toleration",
    "TopologyKey",
    "Warning_",
    "Workflow",
    "build_podgroups",
    "check",
    "read_pool",
    "read_workflow",
    "shared",
    "tolerates",
    "tolerations_of",
    "topology_of",
    "tree_of",
]
