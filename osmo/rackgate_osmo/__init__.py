"""OSMO's topology keys to KAI's Topology, PodGroups and pods' labels. Pure: data in, data out."""

from __future__ import annotations

from rackgate_osmo.check import Warning_, check
from rackgate_osmo.model.model import (
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
from rackgate_osmo.model.reach import tolerates, tolerations_of
from rackgate_osmo.model.reading import read_pool, read_workflow
from rackgate_osmo.model.rejections import Refusal, RefusedError
from rackgate_osmo.render.node import Kind, Node
from rackgate_osmo.render.podgroups import build_podgroups, topology_of
from rackgate_osmo.render.tree import shared, tree_of

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
