"""The second pass: node replacement (hot swap) for admitted Workloads with unhealthy nodes.

Only the pods of unhealthy nodes get new domains. Each name in `status.unhealthyNodes` is one call
of `replace`, one after another as in Kueue. If several hosts only fit together (a slice
lost more than one), they are replaced in one call. Pods whose node is not ready or gone stay in
their domains, and do not make the whole assignment stale (N7).

A tree does not contain hosts that are not ready. `split_assignment` excludes them from the call,
and `restrict_to_domain` keeps the request in their domain, according to their labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, islice
from typing import Final, TypeAlias

from rackgate.api.names import EvictionReason
from rackgate.features import Features
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.cache.snapshot import Snapshot
from rackgate_assigner.node_replacement.unhealthy import (
    HostState,
    host_assignments,
    host_state,
    named_hosts,
    supports_node_replacement,
    tolerations_of,
)
from rackgate_assigner.scheduler.cycle import evictions
from rackgate_assigner.topology.model import PodSetRequest, Replacement
from rackgate_assigner.topology.placement.replace import replace as replace_pods
from rackgate_assigner.topology.tree import AMOUNT_LIMIT, PODS, TopologyTree
from rackgate_assigner.workload.decisions import (
    ClearUnhealthyNodes,
    Evict,
    PodSetAssignment,
    ReplacementFailed,
    ReplaceNode,
    SecondPassDecision,
)
from rackgate_assigner.workload.info import (
    Charge,
    WorkloadInfo,
    assigned_per_pod,
    replacement_requests,
)


def pods_on_hosts(assignment: TopologyAssignment, hosts: set[str]) -> int:
    """Pods that an assignment has on these hosts."""
    return sum(count for values, count in assignment.domains if values[-1] in hosts)


def split_assignment(
    assignment: TopologyAssignment, tree: TopologyTree, group: Sequence[str]
) -> tuple[TopologyAssignment, tuple[tuple[Domain, int], ...]]:
    """The assignment for `replace`, and the domains that the tree does not contain.

    The pods of a group are put on its first host, the last domain: they are replaced together.
    """
    known: list[tuple[Domain, int]] = []
    absent: list[tuple[Domain, int]] = []
    for values, count in assignment.domains:
        if values[-1] in group:
            continue
        (known if tree.leaf_of_values(values) is not None else absent).append((values, count))
    known.append(((group[0],), pods_on_hosts(assignment, set(group))))
    return TopologyAssignment(assignment.levels, tuple(known)), tuple(absent)


def restrict_to_domain(
    request: PodSetRequest,
    tree: TopologyTree,
    known: TopologyAssignment,
    absent: Sequence[tuple[Domain, int]],
    hosts: Hosts,
) -> PodSetRequest:
    """The request, restricted to the domain of kept pods on hosts that the tree does not contain.

    `replace` derives that domain from kept pods on nodes in the tree. If the node of other kept
    pods is not ready, its labels still show the domain.
    """
    asked = request.topology
    if not absent or asked is None:
        return request
    seen = [(values[-1], count) for values, count in known.domains[:-1]]
    lost = known.domains[-1][1]
    kept = [*seen, *((values[-1], count) for values, count in absent)]
    partial_slices = [layer for layer in asked.slices if layer.size > 0 and lost % layer.size]
    if partial_slices and asked.slices[0] in partial_slices:
        pods: dict[Domain, int] = {}
        for host, count in kept:
            path = path_of(tree, hosts, host, partial_slices[-1].topology)
            if path:
                pods[path] = pods.get(path, 0) + count
        size = partial_slices[-1].size
        target_domain = next((path for path in sorted(pods) if (pods[path] + lost) % size == 0), ())
        remaining_slices = tuple(s for s in asked.slices if s.size > 0 and lost % s.size == 0)[-1:]
        asked = replace(asked, slices=remaining_slices) if target_domain else asked
    elif asked.required and not seen:
        paths = (path_of(tree, hosts, host, asked.required) for host, _ in kept)
        target_domain = next((path for path in paths if path), ())
    else:
        return request
    selector = {**request.node_selector, **dict(zip(tree.levels, target_domain, strict=False))}
    return replace(request, topology=asked, node_selector=selector)


def path_of(tree: TopologyTree, hosts: Hosts, host: str, level: str) -> Domain:
    """The domain of a level that contains a host, by its labels; empty if that is not known."""
    node = hosts.node(host)
    if node is None or level not in tree.levels:
        return ()
    levels = tree.levels[: tree.levels.index(level) + 1]
    if any(key not in node.labels for key in levels):
        return ()
    return tuple(node.labels[key] for key in levels)


# Groups of unhealthy hosts that are tried together before replacement fails: fewer for a Workload
# with many domains, as each try reads all of them.
_MAX_GROUPS: Final = 64
_MAX_DOMAINS_VISITED: Final = 2**17

# An unhealthy host: its rack by its labels, whether the tree contains it, and its pods by PodSet.
_EquivalenceKey: TypeAlias = tuple[Domain, bool, tuple[int, ...]]
_FULL: Final = {PODS: AMOUNT_LIMIT}


def second_pass(
    snapshot: Snapshot, hosts: Hosts, requested: Mapping[str, frozenset[str]], features: Features
) -> list[SecondPassDecision]:
    """Decide about every Workload with names in `status.unhealthyNodes`, by key.

    Args:
        snapshot: new assignments are charged to it.
        hosts: nodes as known now.
        requested: by Workload, names to be replaced although their nodes are healthy.
        features: feature gates.
    """
    leaving = {
        found.workload
        for found in evictions(
            snapshot.eviction_candidates, snapshot.local_queues, snapshot.cluster_queues
        )
    }
    decisions: list[SecondPassDecision] = []
    for info in sorted(snapshot.with_unhealthy_nodes, key=lambda info: info.key):
        if supports_node_replacement(info) and info.key not in leaving:
            requested_hosts = requested.get(info.key, frozenset())
            replacement_plan: _NodeReplacement | None = None
            try:
                replacement_plan = _NodeReplacement(
                    info, snapshot, hosts, requested_hosts, features
                )
                decisions += replacement_plan.decide()
            except Exception as error:  # noqa: BLE001 - a defect affects this Workload alone
                if replacement_plan is not None:
                    replacement_plan.undo()
                text = f"internal error: {type(error).__name__}: {error}"
                decisions.append(ReplacementFailed(info.key, text))
    return decisions


class _NodeReplacement:
    """One Workload being replaced on the snapshot."""

    def __init__(
        self,
        info: WorkloadInfo,
        snapshot: Snapshot,
        hosts: Hosts,
        requested: frozenset[str],
        features: Features,
    ) -> None:
        self.info, self.snapshot, self.hosts = info, snapshot, hosts
        self.features = features
        self.fail_fast = features.failed_node_replacement_fail_fast
        self.requests = replacement_requests(info)
        self.parts = {
            part.name: part for part in host_assignments(info) if part.name in self.requests
        }
        podsets = {podset.request.name: podset for podset in info.podsets}
        self.per_pod = {
            name: assigned_per_pod(part, podsets.get(name)) for name, part in self.parts.items()
        }
        self.assignments = {
            name: part.topology for name, part in self.parts.items() if part.topology is not None
        }
        self.requested_healthy: set[str] = set()
        self.to_replace = self._hosts_to_replace(requested)
        self.charges: list[tuple[Charge, int]] = []
        # Without a tree of the flavor there is no decision; running pods are kept (C2, C22).
        self.topology_missing = False

    def decide(self) -> list[SecondPassDecision]:
        """At most one write, and a message if some host has no replacement."""
        pinned = self.info.owned_by_pod and self.features.skip_reassignment_for_pod_owned
        if not self.to_replace or pinned:
            return []
        done: list[str] = []
        blocked_leaves = self._block_hosts(self.to_replace.values())
        try:
            left, rejection = self._replace_all(done)
        finally:
            for flavor_topology, leaf in blocked_leaves:
                flavor_topology.capacity.charge_other(leaf, _FULL, -1)
        return self._decisions(done, left, rejection)

    def _hosts_to_replace(self, requested: frozenset[str]) -> dict[str, str]:
        """Host by name, for the names that are to be replaced now."""
        to_replace: dict[str, str] = {}
        for name, host in named_hosts(self.info, self.hosts).items():
            states = [
                host_state(
                    self.hosts.node(host), tolerations_of(self.info, part, self.snapshot.flavors)
                )
                for part in self.parts.values()
                if pods_on_hosts(self.assignments[part.name], {host})
            ]
            all_healthy = all(state is HostState.HEALTHY for state in states)
            if not states or host in to_replace.values() or (all_healthy and name not in requested):
                continue
            to_replace[name] = host
            if all_healthy:
                self.requested_healthy.add(name)
        return to_replace

    def _block_hosts(self, closing: Iterable[str]) -> list[tuple[FlavorTopology, int]]:
        """Use the full capacity of the hosts to replace, so that none of them is chosen again."""
        found = []
        for host in closing:
            for flavor_topology in self.snapshot.flavor_topologies.by_flavor.values():
                leaf = flavor_topology.tree.leaf_of_host(host)
                if leaf is not None:
                    flavor_topology.capacity.charge_other(leaf, _FULL, 1)
                    found.append((flavor_topology, leaf))
        return found

    def _replace_all(self, done: list[str]) -> tuple[list[str], str]:
        """Replace what can be replaced; returns the remaining names and the first reason.

        One by one may fail if the first new domain determines the rack of all others: then
        all are replaced in one call.
        """
        before = dict(self.assignments)
        left, rejection = self._replace_in_turn(done)
        if not (left and done):
            return left, rejection
        self.undo()
        self.assignments = before
        done.clear()
        if self._replace_hosts(list(self.to_replace.values())) is None:
            done += self.to_replace
            return [], ""
        return self._replace_in_turn(done)

    def _replace_in_turn(self, done: list[str]) -> tuple[list[str], str]:
        left, rejection = list(self.to_replace), ""
        while left:
            replaced: tuple[str, ...] = ()
            rejection = ""
            for group in self._groups_of_hosts(left):
                problem = self._replace_hosts([self.to_replace[name] for name in group])
                if problem is None:
                    replaced = group
                    break
                rejection = rejection or problem
            if not replaced:
                break
            done += replaced
            left = [name for name in left if name not in replaced]
        return left, rejection

    def _groups_of_hosts(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Single names, then several that may only fit together, and finally all of them.

        Hosts of one rack, or all gone, with equally many pods are equivalent.
        """
        equivalence_keys = {name: self._equivalence_key(name) for name in names}
        tried: set[tuple[_EquivalenceKey, ...]] = set()
        yield from _untried([(name,) for name in names], equivalence_keys, tried)
        requests = (self.requests[name].topology for name in self.parts)
        if any(request is not None and request.slices for request in requests):
            domains = sum(len(assignment.domains) for assignment in self.assignments.values())
            tries = min(_MAX_GROUPS, _MAX_DOMAINS_VISITED // max(domains, 1)) - len(tried)
            groups = (group for size in range(2, len(names)) for group in combinations(names, size))
            yield from islice(_untried(groups, equivalence_keys, tried), max(tries, 0))
            racks: dict[Domain, list[str]] = {}
            for name in names:
                racks.setdefault(equivalence_keys[name][0], []).append(name)
            yield from _untried(map(tuple, racks.values()), equivalence_keys, tried)
        yield from _untried([tuple(names)], equivalence_keys, tried)

    def _equivalence_key(self, name: str) -> _EquivalenceKey:
        host, seen = self.to_replace[name], False
        path: Domain = ()
        for flavor_topology in self.snapshot.flavor_topologies.by_flavor.values():
            seen |= flavor_topology.tree.leaf_of_host(host) is not None
            if len(flavor_topology.tree.levels) > 1:
                path = path or path_of(
                    flavor_topology.tree, self.hosts, host, flavor_topology.tree.levels[-2]
                )
        return (
            path,
            seen,
            tuple(pods_on_hosts(given, {host}) for given in self.assignments.values()),
        )

    def _replace_hosts(self, group: Sequence[str]) -> str | None:
        """Move the pods of these hosts; None if all of them are assigned now, charged."""
        before, charged = dict(self.assignments), len(self.charges)
        flavors: dict[str, list[PodSetAssignment]] = {}
        for part in self.parts.values():
            if pods_on_hosts(self.assignments[part.name], set(group)):
                flavors.setdefault(min(part.flavors.values(), default=""), []).append(part)
        for flavor in sorted(flavors):
            result = self._replace_in_flavor(flavor, flavors[flavor], group)
            if isinstance(result, str):
                self._uncharge(charged)
                self.assignments = before
                return result
            self.assignments |= result[0]
            for charge, sign in result[1]:
                self._charge(charge, sign)
        return None

    def _replace_in_flavor(
        self, flavor: str, parts: Sequence[PodSetAssignment], group: Sequence[str]
    ) -> tuple[Mapping[str, TopologyAssignment], Sequence[tuple[Charge, int]]] | str:
        """New assignments of one flavor's PodSets and what they charge; or why there are none."""
        flavor_topology = self.snapshot.flavor_topologies.by_flavor.get(flavor)
        if flavor_topology is None or not flavor_topology.tree.lowest_is_hostname:
            self.topology_missing = True
            return f'flavor "{flavor}" has no topology with hosts now'
        current: dict[str, TopologyAssignment] = {}
        absent: dict[str, tuple[tuple[Domain, int], ...]] = {}
        requests: list[PodSetRequest] = []
        for part in parts:
            known, away = split_assignment(self.assignments[part.name], flavor_topology.tree, group)
            current[part.name], absent[part.name] = known, away
            request = self.requests[part.name]
            requests.append(
                restrict_to_domain(request, flavor_topology.tree, known, away, self.hosts)
            )
        others = (name for name in self.parts if name not in current)
        mates = tuple((self.requests[name].shared, self.assignments[name]) for name in others)
        answer = replace_pods(
            flavor_topology.tree,
            flavor_topology.capacity,
            requests,
            Replacement((group[0],), current, self.info.owned_by_pod, mates),
            topology_name=flavor_topology.flavor.topology or "",
            flavor_tolerations=flavor_topology.flavor.tolerations,
            features=self.features,
        )
        if answer.failure is not None:
            return f"pod set {answer.failure.podset}: {answer.failure.message}"
        after = {
            name: TopologyAssignment(found.levels, (*found.domains, *absent[name]))
            for name, found in answer.assignments.items()
        }
        charges: list[tuple[Charge, int]] = []
        for name, assignment in after.items():
            amounts = self.per_pod[name]
            charges.append((Charge(flavor, amounts, self.assignments[name]), -1))
            charges.append((Charge(flavor, amounts, assignment), 1))
        return after, charges

    def _charge(self, charge: Charge, sign: int) -> None:
        self.snapshot.flavor_topologies.charge(charge, sign)
        self.charges.append((charge, sign))

    def undo(self) -> None:
        """Release everything that was charged."""
        self._uncharge(0)

    def _uncharge(self, kept: int) -> None:
        """Undo all charges except the first `kept`."""
        while len(self.charges) > kept:
            charge, sign = self.charges.pop()
            self.snapshot.flavor_topologies.charge(charge, -sign)

    def _decisions(
        self, done: Sequence[str], left: Sequence[str], rejection: str
    ) -> list[SecondPassDecision]:
        info = self.info
        lost = [name for name in left if name not in self.requested_healthy]
        if lost and self.fail_fast and not self.topology_missing:
            self.undo()
            nodes = ", ".join(lost)
            word = "a failed node" if len(lost) == 1 else "failed nodes"
            text = f"Workload was evicted as there was no replacement for {word}: {nodes}"
            return [Evict(info.key, EvictionReason.NODE_FAILURES, f"{text}; {rejection}")]
        decisions: list[SecondPassDecision] = []
        if lost:
            names = ", ".join(lost)
            decisions.append(
                ReplacementFailed(info.key, f"no replacement found for {names}: {rejection}")
            )
        if done and info.reserved is not None:
            podsets = tuple(
                replace(part, topology=self.assignments.get(part.name, part.topology))
                for part in info.reserved.podsets
            )
            decided = replace(info.reserved, podsets=podsets)
            self._charge_old_domains({self.to_replace[name] for name in done})
            decisions.append(ReplaceNode(info.key, decided, tuple(done)))
        elif kept := tuple(name for name in left if name in self.requested_healthy):
            text = f"no replacement found for {', '.join(kept)}, which is healthy: its pods stay"
            decisions.append(ClearUnhealthyNodes(info.key, kept, f"{text}; {rejection}"))
        return decisions

    def _charge_old_domains(self, hosts: set[str]) -> None:
        """Until the end of the cycle: only then it is known whether pods are still there (C4)."""
        for part in self.parts.values():
            if part.topology is None:
                continue
            left = tuple(pair for pair in part.topology.domains if pair[0][-1] in hosts)
            if left:
                place = TopologyAssignment(part.topology.levels, left)
                flavor = min(part.flavors.values(), default="")
                self._charge(Charge(flavor, self.per_pod[part.name], place), 1)


def _untried(
    groups: Iterable[tuple[str, ...]],
    equivalence_keys: Mapping[str, _EquivalenceKey],
    tried: set[tuple[_EquivalenceKey, ...]],
) -> Iterator[tuple[str, ...]]:
    """Groups without an equivalent group that was already tried."""
    for group in groups:
        kind = tuple(sorted(equivalence_keys[name] for name in group))
        if kind not in tried:
            tried.add(kind)
            yield group
