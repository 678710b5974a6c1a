"""Translates OSMO's pools and workflows into KAI's Topology, PodGroups and pod labels. No I/O."""

from __future__ import annotations

from rackgate_osmo.check import KaiWarning, check
from rackgate_osmo.model.reading import read_pool, read_workflow
from rackgate_osmo.model.rejections import RejectedError, Rejection
from rackgate_osmo.model.task_resources import tolerates, tolerations_of
from rackgate_osmo.model.workflow import (
    Built,
    KaiVersion,
    PodMembership,
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
from rackgate_osmo.render.node import Kind, Node
from rackgate_osmo.render.podgroups import build_podgroups, topology_of
from rackgate_osmo.render.tree import shared, subgroup_tree_of

__all__ = [
    "Built",
    "KaiVersion",
    "KaiWarning",
    "Kind",
    "Node",
    "PodMembership",
    "Pool",
    "Profile",
    "RejectedError",
    "Rejection",
    "Requirement",
    "Resource",
    "Task",
    "TaskGroup",
    "Toleration",
    "TopologyKey",
    "Workflow",
    "build_podgroups",
    "check",
    "read_pool",
    "read_workflow",
    "shared",
    "subgroup_tree_of",
    "tolerates",
    "tolerations_of",
    "topology_of",
]
