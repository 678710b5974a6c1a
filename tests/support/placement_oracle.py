"""A slow second opinion on placement, asked with the engine's own data classes.

The opinion is that of `tests.support.oracle`; here questions are written down as scenarios and
answers read back. Nothing of the engine but its model's dataclasses is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rackgate_assigner.topology.model import NodeInfo, PodSetRequest
from tests.support.oracle import expected, prepared
from tests.support.oracle.nodes import HOST

__all__ = ["HOST", "Amounts", "Cluster", "answer", "oracle_place"]
Amounts = dict[str, int]


@dataclass
class Cluster:
    """What the oracle is asked about."""

    levels: Sequence[str]
    nodes: Sequence[NodeInfo]
    topology: str = "default"
    node_labels: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Any, ...] = ()
    usage: Sequence[tuple[tuple[str, ...], Amounts, int]] = ()
    pods: Sequence[tuple[str, Amounts]] = ()
    simulate_empty: bool = False


def answer(cluster: Cluster, podsets: Sequence[PodSetRequest]) -> dict[str, Any]:
    """PodSet name to a list of (values, count), or to a refusal's text."""
    asked = scenario_of(cluster, podsets)
    return {name: _plain(entry) for name, entry in expected(asked).items()}


def oracle_place(cluster: Cluster) -> Callable[[Sequence[PodSetRequest]], dict[str, Any]]:
    """As `answer`, again and again on a cluster that is read once: what a bench times."""
    ask = prepared(scenario_of(cluster, ()))

    def place(podsets: Sequence[PodSetRequest]) -> dict[str, Any]:
        found = ask([_podset(podset) for podset in podsets])
        return {name: _plain(entry) for name, entry in found.items()}

    return place


def scenario_of(cluster: Cluster, podsets: Sequence[PodSetRequest]) -> dict[str, Any]:
    """The question as a `tas-scenario/1` object."""
    return {
        "levels": list(cluster.levels),
        "flavor": {
            "topology": cluster.topology,
            "nodeLabels": cluster.node_labels,
            "tolerations": [_toleration(toleration) for toleration in cluster.tolerations],
        },
        "nodes": [_node(node) for node in cluster.nodes],
        "usage": [
            {"values": list(values), "requests": _quantities(requests), "count": count}
            for values, requests, count in cluster.usage
        ],
        "pods": [
            {"name": "", "node": node, "requests": _quantities(requests)}
            for node, requests in cluster.pods
        ],
        "podSets": [_podset(podset) for podset in podsets],
        "simulateEmpty": cluster.simulate_empty,
    }


def _plain(entry: dict[str, Any]) -> Any:
    if "failure" in entry:
        return entry["failure"]
    return [(tuple(d["values"]), d["count"]) for d in entry["assignment"]["domains"]]


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: f"{n}m" if name == "cpu" else str(n) for name, n in amounts.items()}


def _node(node: NodeInfo) -> dict[str, Any]:
    return {
        "name": node.name,
        "labels": dict(node.labels),
        "allocatable": _quantities(node.allocatable),
        "taints": [{"key": t.key, "value": t.value, "effect": t.effect} for t in node.taints],
        "unschedulable": node.unschedulable,
        "ready": node.ready,
    }


def _toleration(toleration: Any) -> dict[str, str]:
    return {name: getattr(toleration, name) for name in ("key", "operator", "value", "effect")}


def _podset(podset: PodSetRequest) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": podset.name,
        "count": podset.count,
        "requests": _quantities(podset.requests),
        "nodeSelector": dict(podset.node_selector),
        "tolerations": [_toleration(toleration) for toleration in podset.tolerations],
        "nodeAffinity": podset.node_affinity,
    }
    if podset.group is not None:
        found["group"] = podset.group
    request = podset.topology
    if request is not None:
        asked: dict[str, Any] = {
            "required": request.required,
            "preferred": request.preferred,
            "unconstrained": request.unconstrained,
        }
        if request.slices:
            asked["slices"] = [{"topology": s.topology, "size": s.size} for s in request.slices]
        found["topologyRequest"] = asked
    return found
