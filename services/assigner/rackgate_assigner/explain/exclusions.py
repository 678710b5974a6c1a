"""Which nodes were no help, and by which rule: the exclusions of a refusal, with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.explanation import Exclusion, Rule
from rackgate_assigner.explain.flavor_nodes import missing_levels, skipping_rule
from rackgate_assigner.explain.nearest import GroupCounts
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest
from rackgate_assigner.topology.placement.count import pods_that_fit
from rackgate_assigner.topology.tree import IntVector

# The order in which rules are told: what its owner can mend first.
_ORDER: tuple[Rule, ...] = (
    "missingLevel",
    "hostname",
    "notReady",
    "unschedulable",
    "taint",
    "nodeSelector",
    "affinity",
    "resource",
    "flavorLabels",
)
_Names = dict[tuple[Rule, str], list[str]]


def nodes_outside_tree(flavor_topology: FlavorTopology, nodes: Iterable[NodeInfo]) -> _Names:
    """Nodes that are not in the tree: names by rule and detail."""
    found: _Names = {}
    flavor, tree = flavor_topology.flavor, flavor_topology.tree
    for node in nodes:
        if tree.leaf_of_node(node.name) is not None:
            continue
        rule = skipping_rule(node, flavor)
        detail = ""
        if rule is None:
            rule = "hostname"  # its labels are complete, and another node has its hostname
        elif rule == "missingLevel":
            detail = ", ".join(missing_levels(node, flavor))
        elif rule == "flavorLabels":
            detail = ", ".join(
                f"{key}={value}" for key, value in sorted(flavor.node_labels.items())
            )
        found.setdefault((rule, detail), []).append(node.name)
    return found


def excluded_tree_nodes(group_counts: GroupCounts, workers: PodSetRequest) -> _Names:
    """Nodes of the tree that take no pod, by the rules that a refusal counts them by."""
    found: _Names = {}
    codes, reasons = group_counts.eligibility.codes, group_counts.eligibility.reasons
    open_leaves = np.ones(group_counts.tree.leaf_count, dtype=np.bool_)
    if codes is not None:
        open_leaves = codes == 0
        for index in codes.nonzero()[0].tolist():
            key = _reason(reasons[codes[index] - 1], group_counts.tree.nodes[index], workers)
            found.setdefault(key, []).append(group_counts.tree.nodes[index].name)
    resources, tightest, fits = _tightest(
        group_counts.worker, group_counts.free, group_counts.tree.leaf_count
    )
    for leaf in (open_leaves & (fits <= 0)).nonzero()[0].tolist():
        name = "/".join(group_counts.tree.values_of_leaf(leaf))
        if group_counts.tree.lowest_is_hostname:
            name = group_counts.tree.nodes[leaf].name
        found.setdefault(("resource", resources[tightest[leaf]]), []).append(name)
    return found


def exclusions(found: Iterable[_Names], top: int) -> tuple[Exclusion, ...]:
    """As told: in a fixed order of rules, most nodes first within a rule."""
    merged: _Names = {}
    for names_by_rule in found:
        for key, names in names_by_rule.items():
            merged.setdefault(key, []).extend(names)

    def sort_key(key: tuple[Rule, str]) -> tuple[int, int, str]:
        return (_ORDER.index(key[0]), -len(merged[key]), key[1])

    return tuple(
        Exclusion(
            rule=key[0],
            detail=key[1],
            nodes=len(merged[key]),
            names=tuple(sorted(merged[key])[:top]),
        )
        for key in sorted(merged, key=sort_key)
    )


def _reason(reason: str, node: NodeInfo, workers: PodSetRequest) -> tuple[Rule, str]:
    if reason == "nodeSelector":
        differs = [
            f"{key}={value}"
            for key, value in sorted(workers.node_selector.items())
            if node.labels.get(key) != value
        ]
        return "nodeSelector", ", ".join(differs)
    if reason == "affinity":
        return "affinity", ""
    return "taint", reason.removeprefix('taint "').removesuffix('"')


def _tightest(
    worker: Mapping[str, int], free: Mapping[str, IntVector], leaf_count: int
) -> tuple[list[str], IntVector, IntVector]:
    """Per leaf the resource that allows fewest pods, first name first, and that number."""
    resources = sorted(free)
    rows = [np.maximum(pods_that_fit(worker[r], free[r], leaf_count), 0) for r in resources]
    stacked = np.stack(rows)  # never empty: every pod asks for 1 of `pods`
    return resources, stacked.argmin(axis=0), stacked.min(axis=0)
