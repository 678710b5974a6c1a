"""Requests that no free capacity would satisfy: the cause in a sentence, and what would help.

A pod that is larger than every node, a nodeSelector that no node matches, a level that the topology
does not have, or levels in the wrong order. Changes are verified by placement itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from rackgate_assigner.explain.explanation import Remedy, RemedyKind
from rackgate_assigner.explain.remedies import Trial
from rackgate_assigner.quota.amounts import quantity
from rackgate_assigner.scheduler.nomination.offer import requested_levels
from rackgate_assigner.topology.model import NodeInfo, PodSetRequest, TopologyRequest

SHOWN_VALUES = 5
# "cpu" is no misspelled "gpu".
NEAR_RESOURCE = 0.8


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a request can never be satisfied.

    Attributes:
        text: a sentence without a full stop.
        changes: what would help.
    """

    text: str
    changes: tuple[Remedy, ...] = ()


# Levels.


def level_cause(trial: Trial, podset: PodSetRequest, topology: str) -> Cause | None:
    """An unknown level, or slices above the requested level; None if it is something else."""
    levels, asked = trial.levels, podset.topology
    unknown = next((key for key in requested_levels(asked) if key not in levels), None)
    known = ", ".join(levels)
    if asked is None:
        return None
    if unknown is not None:
        text = f'Topology "{topology}" has no level "{unknown}"'
        near = near_level(unknown, levels)
        if not near:
            change_text = f"name a level of the topology: {known}"
            change = Remedy(kind="levelName", value="", when="perhaps", text=change_text)
            return Cause(text, (change,))
        fixed = replace(podset, topology=_with_level(asked, {unknown: near}))
        change_text = f'use "{near}" instead of "{unknown}"; levels: {known}'
        return Cause(text, (_verified(trial, fixed, "levelName", near, change_text),))
    upper = asked.required or asked.preferred
    lower = asked.slices[0].topology if asked.slices else asked.preferred
    if not upper or not lower or levels.index(lower) >= levels.index(upper):
        return None
    what = "level of the slices" if asked.slices else "preferred level"
    text = (
        f'The {what}, "{lower}", is above the requested level "{upper}" in topology "{topology}" '
        f"(levels: {known})"
    )
    coarser = replace(podset, topology=_with_level(asked, {upper: lower}))
    finer = replace(podset, topology=_with_level(asked, {lower: upper}))
    return Cause(
        text,
        (
            _verified(trial, coarser, "levelName", lower, f"request {lower} instead of {upper}"),
            _verified(trial, finer, "levelName", upper, f"use {upper} as {what}"),
        ),
    )


def near_level(name: str, levels: Sequence[str]) -> str:
    """The level that a misspelled name means, by its whole key or its last part; "" if unclear."""
    near = get_close_matches(name, levels, n=1)
    if near:
        return near[0]
    short = {_short_name(level): level for level in levels}
    matches = get_close_matches(_short_name(name), list(short), n=1)
    return short[matches[0]] if matches else ""


def _short_name(level: str) -> str:
    return level.rpartition("/")[2].removeprefix("topology-")


def _with_level(asked: TopologyRequest, names: dict[str, str]) -> TopologyRequest:
    """The request with other names of levels."""
    return replace(
        asked,
        required=asked.required and names.get(asked.required, asked.required),
        preferred=asked.preferred and names.get(asked.preferred, asked.preferred),
        slices=tuple(
            replace(layer, topology=names.get(layer.topology, layer.topology))
            for layer in asked.slices
        ),
    )


# Nodes.


def node_cause(
    trial: Trial,
    podsets: Sequence[PodSetRequest],
    nodes: Sequence[NodeInfo],
    usable: Callable[[], Sequence[NodeInfo]],
    flavor: str,
) -> Cause | None:
    """A nodeSelector that no node matches, or a pod that is larger than every node.

    Args:
        trial: of the flavor.
        podsets: those that do not fit.
        nodes: of the flavor's tree.
        usable: those of them that taints, selectors and affinity allow.
        flavor: its name.
    """
    if not nodes:
        return None
    for podset in podsets:
        found = _selector_cause(trial, podset, nodes, flavor)
        if found is not None:
            return found
    allowed = usable()
    for podset in podsets if allowed else ():
        found = _size_cause(trial, podset, allowed, flavor)
        if found is not None:
            return found
    return None


def _selector_cause(
    trial: Trial, podset: PodSetRequest, nodes: Sequence[NodeInfo], flavor: str
) -> Cause | None:
    selector = podset.node_selector
    if not selector or any(_matches(node, selector) for node in nodes):
        return None
    of = f'None of the {len(nodes)} nodes of flavor "{flavor}" has'
    if len(nodes) == 1:
        of = f'The only node of flavor "{flavor}" does not have'
    missing = next(
        (
            (key, value)
            for key, value in sorted(selector.items())
            if all(node.labels.get(key) != value for node in nodes)
        ),
        None,
    )
    if missing is None:
        pairs = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
        return Cause(f"{of} all the labels of the nodeSelector: {pairs}")
    key, value = missing
    values = sorted({node.labels[key] for node in nodes if key in node.labels})
    text = f"{of} the label {key}={value} of the nodeSelector"
    if values:
        more = ", ..." if len(values) > SHOWN_VALUES else ""
        text += f" (values of {key}: {', '.join(values[:SHOWN_VALUES])}{more})"
    changes = []
    for near in get_close_matches(value, values, n=1):
        changed = replace(podset, node_selector={**selector, key: near})
        change_text = f"use the nodeSelector {key}={near} instead of {key}={value}"
        changes.append(_verified(trial, changed, "nodeSelector", f"{key}={near}", change_text))
    return Cause(text, tuple(changes))


def _matches(node: NodeInfo, selector: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in selector.items())


def _size_cause(
    trial: Trial, podset: PodSetRequest, nodes: Sequence[NodeInfo], flavor: str
) -> Cause | None:
    for resource, amount in sorted(podset.requests.items()):
        most = max(node.allocatable.get(resource, 0) for node in nodes)
        if amount <= most:
            continue
        one = quantity(resource, amount)
        if not most:
            text = f'No node of flavor "{flavor}" that its pods may use has {resource}'
            return Cause(text, tuple(_without_resource(trial, podset, resource, nodes)))
        limit = quantity(resource, most)
        text = (
            f"One pod requests {one} {resource}, and no node that it may use has more than {limit}"
        )
        smaller = replace(podset, requests={**podset.requests, resource: most})
        change_text = f"request at most {limit} {resource} per pod"
        return Cause(text, (_verified(trial, smaller, "podSize", limit, change_text),))
    return None


def _without_resource(
    trial: Trial, podset: PodSetRequest, resource: str, nodes: Sequence[NodeInfo]
) -> Iterator[Remedy]:
    offered = sorted(
        {name for node in nodes for name, amount in node.allocatable.items() if amount}
    )
    requests = dict(podset.requests)
    amount = requests.pop(resource)
    for near in get_close_matches(resource, offered, n=1, cutoff=NEAR_RESOURCE):
        changed = replace(podset, requests={**requests, near: amount})
        text = f"request {near} instead of {resource}"
        yield _verified(trial, changed, "resource", near, text)
    changed = replace(podset, requests=requests)
    yield _verified(trial, changed, "resource", resource, f"do not request {resource}")


def _verified(
    trial: Trial, changed: PodSetRequest, kind: RemedyKind, value: str, text: str
) -> Remedy:
    when = trial.when((changed,))
    return Remedy(kind=kind, value=value, when=when or "perhaps", text=text)
