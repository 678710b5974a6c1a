"""Why PodSets do not fit in a flavor: the numbers behind the placement message.

1. `place` decides whether they fit, now and in an empty cluster.
2. `_count_group` counts the group that does not fit with the functions of placement, after the
   PodSets that fit.
3. The counts show, level by level, the best candidate domains and their missing capacity
   (`_level_capacities`), and the nodes that are excluded, by rule (`_excluded_tree_nodes`).
4. `place` is called with changed requests: those that fit are remedies (`remedies`).

So an explanation never contradicts the message that it explains. All state is read-only.
Complexity: two counts of all domains, O(nodes) for the exclusions, and one placement per remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from rackgate.features import DEFAULTS, Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.explain.causes import Cause, level_cause, node_cause
from rackgate_assigner.explain.explanation import (
    DomainCapacity,
    Exclusion,
    FlavorView,
    Holder,
    LevelCapacity,
    PlacedDomain,
    PodSetPlacement,
    Remedy,
    ResourceCapacity,
    Rule,
)
from rackgate_assigner.explain.flavor_nodes import missing_levels, skipping_rule
from rackgate_assigner.explain.remedies import Trial, remedies
from rackgate_assigner.quota.amounts import quantity
from rackgate_assigner.topology.capacity import single_pod_requests
from rackgate_assigner.topology.model import (
    BoolVector,
    IntVector,
    NodeInfo,
    PodSetRequest,
)
from rackgate_assigner.topology.placement.assign import Shortfall, sort_domains_with_leader
from rackgate_assigner.topology.placement.count import NO_LIMIT, DomainCounts, pods_that_fit
from rackgate_assigner.topology.placement.node_matching import Eligibility, match_nodes
from rackgate_assigner.topology.placement.place import (
    PlacementSearch,
    PodSetGroup,
    RequestError,
    group_podsets,
    read_placement_request,
)

# Rules in the order they are listed: first those that an administrator can fix.
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


@dataclass(frozen=True, slots=True)
class Occupant:
    """Pods on one leaf.

    Attributes:
        kind: Workload or Pod.
        name: `namespace/name`.
        requests: per pod, without the implied 1 of `pods`.
    """

    kind: str
    name: str
    pods: int
    requests: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ExplainContext:
    """Input of an explanation in addition to the tree.

    Attributes:
        nodes: all nodes of the cluster.
        occupants: pods by leaf of the tree.
        features: state of feature gates.
        top: maximum number of domains, holders and names in each list.
    """

    nodes: Iterable[NodeInfo] = ()
    occupants: Mapping[int, Sequence[Occupant]] = field(default_factory=dict)
    features: Features = DEFAULTS
    top: int = 3


def explain_placement(
    flavor_topology: FlavorTopology, podsets: Sequence[PodSetRequest], context: ExplainContext
) -> FlavorView:
    """How PodSets fit in one flavor.

    Args:
        flavor_topology: the flavor's tree and capacity.
        podsets: those of a Workload that are placed in this flavor, in its order.
        context: nodes, occupants, gates and maximum length of lists.
    """
    trial = Trial(flavor_topology, podsets, context.features)
    placement = trial.place()
    flavor, tree = flavor_topology.flavor, flavor_topology.tree
    known: dict[str, Any] = {
        "flavor": flavor.name,
        "topology": flavor.topology or "",
        "level_keys": tree.levels,
        "nodes": len(tree.nodes),
        "podsets": tuple(podset.name for podset in podsets),
        "places": tuple(
            podset_placement(name, assignment, context.top)
            for name, assignment in placement.assignments.items()
        ),
    }
    if placement.failure is None:
        asked = "; ".join(dict.fromkeys(describe_request(podset) for podset in podsets))
        return FlavorView(**known, asked=asked, fits=True, fits_when_empty=True)
    names = placement.failure.members or (placement.failure.podset,)
    not_fitting = [podset for podset in podsets if podset.name in names]
    group = next(group_podsets(not_fitting))
    outside = _nodes_outside_tree(flavor_topology, context.nodes)
    known |= {
        "refused": tuple(names),
        "leader": group.leader.name if group.leader is not None else "",
        "asked": describe_request(group.workers),
        "message": placement.failure.message,
        "fits_when_empty": trial.place(empty=True).failure is None,
        "wanted": group.workers.count,
    }
    before = [
        (podset, placement.assignments[podset.name])
        for podset in podsets
        if podset.name in placement.assignments
    ]
    try:
        counts = _count_group(flavor_topology, group, context.features, before)
    except RequestError:
        cause = level_cause(trial, group.workers, flavor.topology or "") or Cause("")
        known |= {"cause": cause.text, "changes": cause.changes}
        return FlavorView(**known, excluded=_exclusions(outside, context.top))
    inside = _excluded_tree_nodes(counts, group.workers)
    levels = _level_capacities(counts, context.occupants, context.top)
    request = counts.counts.request
    cause = _node_cause(trial, not_fitting, counts, flavor.name)
    changes = remedies(trial, not_fitting, list(inside))
    if cause.text:
        changes = (*cause.changes, *changes)
    else:
        missing = _missing_capacity_changes(levels, request.count, required=request.required)
        changes = (*missing, *changes)
    return FlavorView(
        **{**known, "wanted": request.need},
        fitting=counts.shortfall.fitting if counts.shortfall is not None else None,
        unit="pod" if request.size == 1 else "slice",
        slice_size=request.size,
        levels=levels,
        excluded=_exclusions({**outside, **inside}, context.top),
        cause=cause.text,
        changes=changes,
    )


def _node_cause(
    trial: Trial, podsets: Sequence[PodSetRequest], counts: _GroupCounts, flavor: str
) -> Cause:
    tree, codes = counts.counts.tree, counts.eligibility.codes

    def usable() -> Sequence[NodeInfo]:
        if codes is None:
            return tree.nodes
        return [tree.nodes[index] for index in (codes == 0).nonzero()[0].tolist()]

    return node_cause(trial, podsets, tree.nodes, usable, flavor) or Cause("")


def podset_placement(podset: str, assignment: TopologyAssignment, top: int) -> PodSetPlacement:
    """The first domains of an assignment."""
    return PodSetPlacement(
        podset=podset,
        domains=len(assignment.domains),
        places=tuple(
            PlacedDomain(domain=values, pods=count) for values, count in assignment.domains[:top]
        ),
    )


def describe_request(podset: PodSetRequest) -> str:
    """A topology request as text."""
    asked = podset.topology
    if asked is None:
        return "unconstrained (implied by the queue)"
    request_text = "unconstrained"
    if asked.required is not None:
        request_text = f"required {asked.required}"
    elif asked.preferred is not None:
        request_text = f"preferred {asked.preferred}"
    for layer in asked.slices:
        request_text += f", slices of {layer.size} in one {layer.topology}"
    return request_text


# Remedies that follow from the request and the counts.


def _missing_capacity_changes(
    levels: Sequence[LevelCapacity], wanted: int, *, required: bool
) -> tuple[Remedy, ...]:
    """Missing capacity: in the best domain of a required level, else in all domains together."""
    asked = next((level for level in levels if level.asked and level.best), None)
    if asked is None:
        return ()
    best = asked.best[0]
    if not best.usable_nodes:
        return ()  # its pods may use none of the nodes there, whatever is free
    more = wanted - (best.pods if required else asked.pods)
    if more <= 0:
        return ()
    pods = "1 more pod" if more == 1 else f"{more} more pods"
    where = "/".join(best.domain) if required else "all domains together"
    short = [r for r in best.resources if r.resource == best.tightest and r.missing != "0"]
    if required and short:
        pods += f" ({short[0].missing} {short[0].resource})"
    text = f"free capacity for {pods} in {where}"
    return (Remedy(kind="room", value=str(more), when="perhaps", text=text),)


# Counts of the group that does not fit.


@dataclass(frozen=True, slots=True)
class _GroupCounts:
    """One group, with counts for the cluster as it is now and for an empty cluster.

    Attributes:
        worker: requests of one worker, with its 1 of `pods`.
        leader: the same of the leader, or None.
        free: by requested resource, shape (leaves,); minus the PodSets that fit.
        usable: shape (leaves,), leaves that taints, selectors and affinity allow.
        shortfall: None when the group fits.
    """

    eligibility: Eligibility
    worker: Mapping[str, int]
    leader: Mapping[str, int] | None
    free: Mapping[str, IntVector]
    usable: BoolVector
    counts: DomainCounts
    empty: DomainCounts
    shortfall: Shortfall | None


def _count_group(
    flavor_topology: FlavorTopology,
    group: PodSetGroup,
    features: Features,
    before: Sequence[tuple[PodSetRequest, TopologyAssignment]],
) -> _GroupCounts:
    """Count a group after the PodSets `before`, which fit.

    Raises:
        RequestError: no capacity would be enough.
    """
    tree, flavor = flavor_topology.tree, flavor_topology.flavor
    workers = group.workers
    leader = group.leader if group.leader is not None and group.leader.count else None
    search, search_empty = (
        PlacementSearch(
            tree,
            flavor_topology.capacity,
            flavor.topology or "",
            flavor.tolerations,
            features,
            simulate_empty=empty,
        )
        for empty in (False, True)
    )
    request = read_placement_request(tree.levels, workers, workers.count, features)
    for podset, assignment in before:
        leaves = ((tree.leaf_of_values(values), count) for values, count in assignment.domains)
        pods_by_leaf = {leaf: count for leaf, count in leaves if leaf is not None}
        search.free.assume(pods_by_leaf, podset.requests)
        search_empty.free.assume(pods_by_leaf, podset.requests)
    counts, _ = search.count(request, workers, leader)
    shares = search.assign(counts)
    eligibility = match_nodes(
        tree, workers, flavor.tolerations, soft_affinity=features.node_affinity_preferred
    )
    usable = np.ones(tree.leaf_count, dtype=np.bool_)
    if eligibility.blocked is not None:
        usable = ~eligibility.blocked
    worker = single_pod_requests(workers.requests)
    nothing = np.zeros(tree.leaf_count, dtype=np.int64)
    free = {
        resource: search.free.free_amounts(resource)
        for resource in sorted(worker)
        if worker[resource]
    }
    return _GroupCounts(
        eligibility,
        worker,
        single_pod_requests(leader.requests) if leader is not None else None,
        {resource: nothing if amounts is None else amounts for resource, amounts in free.items()},
        usable,
        counts,
        search_empty.count(request, workers, leader)[0],
        shares if isinstance(shares, Shortfall) else None,
    )


# Best candidate domains.


def _level_capacities(
    group: _GroupCounts, occupants: Mapping[int, Sequence[Occupant]], top: int
) -> tuple[LevelCapacity, ...]:
    """Every level with its best domains, coarsest first."""
    if not group.counts.tree.leaf_count:
        return ()
    found = []
    wanted = group.counts.request.count
    for index, level in enumerate(group.counts.tree.levels):
        pods = group.counts.level(index).pods
        total = int(pods.sum())
        found.append(
            LevelCapacity(
                level=level,
                asked=index == group.counts.request.level,
                domains=len(pods),
                pods=total,
                best=tuple(
                    _domain_capacity(group, index, domain, occupants, top)
                    for domain in _best_domains(group, index, top)
                ),
                fragmented=total >= wanted > int(pods.max(initial=0)),
            )
        )
    return tuple(found)


def _best_domains(group: _GroupCounts, level: int, top: int) -> list[int]:
    """The domains that fit the most pods, best first; ties are broken by path.

    If there is a leader or a score, placement's own order is used: the message of a required
    level reports the number of the first domain.
    """
    numbers = group.counts.level(level)
    ids = np.arange(len(numbers.pods), dtype=np.int64)
    if numbers.leader_fits is not None or numbers.score is not None:
        ordered = sort_domains_with_leader(numbers, ids, least_free=False)
    else:
        ordered = np.lexsort([-numbers.pods, -numbers.slices])
    best: list[int] = ordered[:top].tolist()
    return best


def _domain_capacity(
    group: _GroupCounts,
    level: int,
    domain: int,
    occupants: Mapping[int, Sequence[Occupant]],
    top: int,
) -> DomainCapacity:
    tree, numbers, empty = group.counts.tree, group.counts.level(level), group.empty.level(level)
    start, end = tree.leaf_ranges[level][domain : domain + 2].tolist()
    resources = _resource_capacities(group, start, end)
    pods = int(numbers.pods[domain])
    nodes = slice(*np.searchsorted(tree.node_leaves, (start, end)).tolist())
    inside = group.usable[tree.node_leaves[nodes]]
    held = _holders(
        [found for leaf in range(start, end) for found in occupants.get(leaf, ())], group.worker
    )
    leader_fits = numbers.leader_fits is not None and bool(numbers.leader_fits[domain])
    enough = all(found.missing == "0" for found in resources)
    tightest = min(resources, key=lambda found: found.pods, default=None)
    return DomainCapacity(
        domain=tree.paths[level][domain],
        pods=pods,
        pods_when_empty=int(empty.pods[domain]),
        slices=int(numbers.slices[domain]),
        pods_with_leader=int(numbers.pods_with_leader[domain]) if leader_fits else None,
        nodes=len(inside),
        usable_nodes=int(inside.sum()),
        tightest=tightest.resource if tightest is not None and inside.any() else "",
        fragmented=enough and pods < group.counts.request.count,
        resources=resources,
        holders=tuple(held[:top]),
        more_holders=max(0, len(held) - top),
    )


def _resource_capacities(group: _GroupCounts, start: int, end: int) -> tuple[ResourceCapacity, ...]:
    """Requested resources over the usable leaves from `start`, `end` exclusive."""
    mask = group.usable[start:end]
    found = []
    for resource, over_all in group.free.items():
        amount = group.worker[resource]
        here = np.maximum(over_all[start:end][mask], 0)
        free, fits = int(here.sum()), int(pods_that_fit(amount, here, len(here)).sum())
        wanted = amount * group.counts.request.count
        if group.leader is not None:
            wanted += group.leader.get(resource, 0)
        found.append(
            ResourceCapacity(
                resource=resource,
                per_pod=quantity(resource, amount),
                wanted=quantity(resource, wanted),
                free=quantity(resource, free),
                pods=min(fits, NO_LIMIT),
                missing=quantity(resource, max(0, wanted - free)),
                stranded=quantity(resource, free - fits * amount),
            )
        )
    return tuple(found)


def _holders(found: Sequence[Occupant], resources: Mapping[str, int]) -> list[Holder]:
    """Occupants added up by name, most pods first; amounts of `resources` alone."""
    pods: dict[tuple[str, str], int] = {}
    amounts: dict[tuple[str, str], dict[str, int]] = {}
    for one in found:
        who = (one.kind, one.name)
        pods[who] = pods.get(who, 0) + one.pods
        total = amounts.setdefault(who, {})
        for resource, amount in one.requests.items():
            if resource in resources:
                total[resource] = total.get(resource, 0) + amount * one.pods
    return [
        Holder(
            kind="Workload" if kind == "Workload" else "Pod",
            name=name,
            pods=pods[kind, name],
            amounts={r: quantity(r, value) for r, value in sorted(amounts[kind, name].items())},
        )
        for kind, name in sorted(pods, key=lambda who: (-pods[who], who))
    ]


# Excluded nodes.


def _nodes_outside_tree(flavor_topology: FlavorTopology, nodes: Iterable[NodeInfo]) -> _Names:
    """Nodes that are not in the tree: names by rule and detail."""
    found: _Names = {}
    flavor, tree = flavor_topology.flavor, flavor_topology.tree
    for node in nodes:
        if tree.leaf_of_node(node.name) is not None:
            continue
        rule = skipping_rule(node, flavor)
        detail = ""
        if rule is None:
            rule = "hostname"  # Its labels are complete, but another node has its hostname.
        elif rule == "missingLevel":
            detail = ", ".join(missing_levels(node, flavor))
        elif rule == "flavorLabels":
            detail = ", ".join(
                f"{key}={value}" for key, value in sorted(flavor.node_labels.items())
            )
        found.setdefault((rule, detail), []).append(node.name)
    return found


def _excluded_tree_nodes(group: _GroupCounts, workers: PodSetRequest) -> _Names:
    """Nodes of the tree on which no pod fits, by the rules that the message uses."""
    found: _Names = {}
    tree = group.counts.tree
    codes, reasons = group.eligibility.codes, group.eligibility.reasons
    open_leaves = np.ones(tree.leaf_count, dtype=np.bool_)
    if codes is not None:
        selector = sorted(workers.node_selector.items())
        open_leaves = codes == 0
        for index in codes.nonzero()[0].tolist():
            key = _rule_of(reasons[codes[index] - 1], tree.nodes[index], selector)
            found.setdefault(key, []).append(tree.nodes[index].name)
    resources = list(group.free)
    fits = np.stack(  # never empty: every pod requests 1 of `pods`
        [pods_that_fit(group.worker[r], group.free[r], tree.leaf_count) for r in resources]
    ).clip(0)
    tightest = fits.argmin(axis=0)
    for leaf in (open_leaves & (fits.min(axis=0) <= 0)).nonzero()[0].tolist():
        name = "/".join(tree.values_of_leaf(leaf))
        if tree.lowest_is_hostname:
            name = tree.nodes[leaf].name
        found.setdefault(("resource", resources[tightest[leaf]]), []).append(name)
    return found


# Labels of a nodeSelector that one node lacks and that are named.
SHOWN_LABELS = 5


def _rule_of(reason: str, node: NodeInfo, selector: Sequence[tuple[str, str]]) -> tuple[Rule, str]:
    if reason == "nodeSelector":
        differs = (f"{key}={value}" for key, value in selector if node.labels.get(key) != value)
        shown = list(islice(differs, SHOWN_LABELS + 1))
        more = [] if len(shown) <= SHOWN_LABELS else ["..."]
        return "nodeSelector", ", ".join([*shown[:SHOWN_LABELS], *more])
    if reason == "affinity":
        return "affinity", ""
    return "taint", reason.removeprefix('taint "').removesuffix('"')


def _exclusions(found: _Names, top: int) -> tuple[Exclusion, ...]:
    """In a fixed order of rules; within a rule, those with the most nodes first."""

    def sort_key(key: tuple[Rule, str]) -> tuple[int, int, str]:
        return (_ORDER.index(key[0]), -len(found[key]), key[1])

    return tuple(
        Exclusion(
            rule=key[0], detail=key[1], nodes=len(found[key]), names=tuple(sorted(found[key])[:top])
        )
        for key in sorted(found, key=sort_key)
    )
