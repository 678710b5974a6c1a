"""`over-capacity`: assignments to a leaf domain, with the other pods there, fit its nodes.

A leaf is a host, or all nodes of a coarser lowest domain. An assignment is charged in full as soon
as it is written. Other pods count where they are bound, unless they came after the last assignment
to that leaf, which could not take them into account.

Phases: charge every assignment to its leaves; add assignments to hosts to the coarser leaves that
contain them; add pods that no assignment covers; compare with allocatable.
Complexity: O(pods + assigned domains + flavors * nodes for assignments above the host level).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rackgate.topology.assignment import Domain
from rackgate_invariants.cluster import ObjectGroup, PlacedPodSet, format_domain
from rackgate_invariants.node_index import HOST_LEVELS, NodeIndex, flavor_of
from rackgate_invariants.rows.rows import PodRow, PodSetRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.running_pods import PODS

# The assigner may not have seen a pod bound so few seconds before an assignment.
UNSEEN_S = 10.0
Leaf = tuple[tuple[str, ...], Domain]


@dataclass(slots=True)
class _LeafUsage:
    """Assigned amounts of one leaf.

    Attributes:
        latest: when the last assignment to it was written.
        nodes: names of its nodes.
    """

    used: Counter[str] = field(default_factory=Counter)
    latest: float = 0.0
    nodes: set[str] = field(default_factory=set)


def check_capacity(groups: Mapping[str, ObjectGroup], node_index: NodeIndex) -> Iterator[Breach]:
    """Leaves with assignments whose pods use more than their nodes have."""
    loads, covered = _assigned(groups, node_index)
    leaf_of: dict[str, list[_LeafUsage]] = defaultdict(list)
    for load in loads.values():
        for name in load.nodes:
            leaf_of[name].append(load)
    _spread(loads, leaf_of)
    for group in groups.values():
        for pod in group.pods.values():
            if pod.node in leaf_of and pod.uid not in covered:
                for load in leaf_of[pod.node]:
                    if not load.latest or pod.scheduled_at <= load.latest - UNSEEN_S:
                        # kube-scheduler checks resources that no assignment requests.
                        _charge(load, ((r, n) for r, n in pod.requests if r in load.used), 1)
    for (_, domain), load in loads.items():
        yield from _over_admitted(format_domain(domain), load, node_index)


def _assigned(
    groups: Mapping[str, ObjectGroup], node_index: NodeIndex
) -> tuple[dict[Leaf, _LeafUsage], set[str]]:
    """Charges of all assignments, and the uids of the pods that they cover."""
    loads: dict[Leaf, _LeafUsage] = defaultdict(_LeafUsage)
    covered: set[str] = set()
    coarse = _coarse_nodes(groups, node_index)
    for group in groups.values():
        for placed in group.placed():
            if group.is_releasing_quota(placed.workload):
                continue  # its pods count where they are bound
            requests = _counted(placed.podset)
            written = _written(placed.workload)
            charged = _held(placed)
            for domain, count in charged.items():
                load = loads[placed.levels, domain]
                load.latest = max(load.latest, written)
                _charge(load, requests, count)
                if placed.levels == HOST_LEVELS:
                    node = node_index.hosts.get(domain[0])
                    load.nodes.update([node.name] if node else [])
                else:
                    load.nodes |= coarse.get((placed.levels, domain), set())
            covered.update(_covered(placed.live, placed.levels, charged, node_index))
    return loads, covered


def _held(placed: PlacedPodSet) -> Mapping[Domain, int]:
    """Pods that use capacity in each domain.

    Capacity of reclaimable pods may be assigned to others, so then only existing pods count.
    """
    if not placed.podset.reclaimable:
        return placed.charged
    there = Counter(pod.domain(placed.levels) for pod in placed.live)
    return {domain: min(count, there[domain]) for domain, count in placed.charged.items()}


def _written(workload: WorkloadRow) -> float:
    """When the assignment was written; the earlier time of two clocks."""
    times = [time for time in (workload.admitted_at, workload.placed_at) if time]
    return min(times, default=0.0)


def _coarse_nodes(groups: Mapping[str, ObjectGroup], node_index: NodeIndex) -> dict[Leaf, set[str]]:
    """Names of the nodes of every domain above the host level."""
    wanted = {
        (podset.assignment.levels, flavor_of(podset))
        for group in groups.values()
        for workload in group.workloads.values()
        for podset in workload.podsets
        if podset.assignment is not None and podset.assignment.levels != HOST_LEVELS
    }
    found: dict[Leaf, set[str]] = defaultdict(set)
    for levels, flavor in wanted:
        row = node_index.flavors.get(flavor)
        needed = row.labels.items() if row is not None else ()
        for node in node_index.nodes.values():
            labels = node.labels
            values = tuple([labels.get(level, "") for level in levels])
            if all(values) and all(labels.get(key) == value for key, value in needed):
                found[levels, values].add(node.name)
    return found


def _counted(podset: PodSetRow) -> tuple[tuple[str, int], ...]:
    """Requests of one pod that count; resources without a flavor are excluded.

    The usage includes what the API server adds to the template.
    """
    requests, pods = dict(podset.requests), max(podset.admitted_count, 1)
    found = {
        name: max(requests.get(name, 0), -(-podset.usage.get(name, 0) // pods))
        for name in podset.flavors
        if name != PODS
    }
    return tuple((name, each) for name, each in found.items() if each)


def _covered(
    live: list[PodRow], levels: tuple[str, ...], counts: Mapping[Domain, int], node_index: NodeIndex
) -> Iterator[str]:
    """Pods in their assigned domains; a pod on a host that is no longer assigned is not covered."""
    present: dict[Domain, list[PodRow]] = defaultdict(list)
    for pod in live:
        node = node_index.nodes.get(pod.node)
        if node is not None:
            present[tuple([node.labels.get(level, "") for level in levels])].append(pod)
    for bound_domain, pods in present.items():
        count = counts.get(bound_domain, 0)
        if len(pods) > count:
            pods.sort(key=lambda pod: (pod.scheduled_at, pod.name))
        yield from (pod.uid for pod in pods[:count])


def _spread(loads: Mapping[Leaf, _LeafUsage], leaf_of: Mapping[str, list[_LeafUsage]]) -> None:
    """Adds assignments to a host to the coarser leaves that contain it."""
    for (levels, _), load in loads.items():
        if levels != HOST_LEVELS:
            continue
        for name in load.nodes:
            for other in leaf_of[name]:
                if other is not load and len(other.nodes) > len(load.nodes):
                    other.used.update(load.used)
                    other.latest = max(other.latest, load.latest)


def _charge(load: _LeafUsage, requests: Iterable[tuple[str, int]], count: int) -> None:
    for resource, quantity in requests:
        load.used[resource] += quantity * count
    load.used["pods"] += count


def _over_admitted(name: str, load: _LeafUsage, node_index: NodeIndex) -> Iterator[Breach]:
    nodes = [node_index.nodes[node] for node in load.nodes]
    if not nodes:
        return  # gone: see `domain-gone`; the node is replaced
    for resource, used in sorted(load.used.items()):
        allocatable = sum(node.allocatable.get(resource, 0) for node in nodes)
        if used > allocatable:
            found = f"{used} charged, {allocatable} allocatable"
            if len(nodes) > 1:
                found += f" on {len(nodes)} nodes"
            yield Breach("over-capacity", f"{name} {resource}", found)
