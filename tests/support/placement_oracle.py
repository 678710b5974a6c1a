"""A slow second opinion on placement, written from the rules as text, not from the engine.

Plain Python objects, recursion, full sorts; nothing is shared with the engine but the model's
dataclasses. The rules are those of the conformance data's description (default gates, no
replacement).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rackgate_assigner.core.model import NodeFacts, PodSetRequest
from tests.support.placement_oracle_reading import (
    Amounts,
    Ask,
    RefusedError,
    excluded,
    fit,
    pod,
    read,
)

HOST = "kubernetes.io/hostname"


@dataclass
class Domain:
    path: tuple[str, ...]
    children: list[Domain] = field(default_factory=list)
    nodes: list[NodeFacts] = field(default_factory=list)
    free: Counter[str] = field(default_factory=Counter)
    pods: int = 0
    slices: int = 0
    pods_led: int = 0
    slices_led: int = 0
    lead: int = 0


@dataclass
class Cluster:
    """What the oracle is asked about."""

    levels: Sequence[str]
    nodes: Sequence[NodeFacts]
    topology: str = "default"
    node_labels: dict[str, str] = field(default_factory=dict)
    tolerations: tuple[Any, ...] = ()
    usage: Sequence[tuple[tuple[str, ...], Amounts, int]] = ()
    pods: Sequence[tuple[str, Amounts]] = ()
    simulate_empty: bool = False


def answer(cluster: Cluster, podsets: Sequence[PodSetRequest]) -> dict[str, Any]:
    """PodSet name to a list of (values, count), or to a refusal's text."""
    walk = Walk(cluster)
    result: dict[str, Any] = {}
    seen: set[str] = set()
    for podset in podsets:
        if podset.name in seen:
            continue
        members = [podset]
        if podset.group is not None:
            members = [other for other in podsets if other.group == podset.group]
        seen |= {member.name for member in members}
        try:
            result |= walk.place(members)
        except RefusedError as refused:
            return result | {member.name: str(refused) for member in members}
    return result


class Walk:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.levels = list(cluster.levels)
        self.hosts = self.levels[-1] == HOST
        self.domains: list[list[Domain]] = [[] for _ in self.levels]
        self._grow([node for node in cluster.nodes if self._takes_part(node)])

    def _takes_part(self, node: NodeFacts) -> bool:
        wanted = self.cluster.node_labels.items()
        return (
            node.ready
            and not node.unschedulable
            and all(node.labels.get(key) == value for key, value in wanted)
            and all(level in node.labels for level in self.levels)
        )

    def _grow(self, nodes: list[NodeFacts]) -> None:
        index: dict[tuple[str, ...], Domain] = {}
        leaf_of_node: dict[str, Domain] = {}
        for node in sorted(nodes, key=lambda n: [n.labels[level] for level in self.levels]):
            path: tuple[str, ...] = ()
            for depth, level in enumerate(self.levels):
                above, path = path, (*path, node.labels[level])
                if path not in index:
                    index[path] = Domain(path)
                    self.domains[depth].append(index[path])
                    if above:
                        index[above].children.append(index[path])
            index[path].nodes.append(node)
            index[path].free.update(node.allocatable)
            leaf_of_node[node.name] = index[path]
        for name, requests in self.cluster.pods:
            if name in leaf_of_node:
                leaf_of_node[name].free.subtract(pod(requests))
        if self.cluster.simulate_empty:
            return
        for values, requests, count in self.cluster.usage:
            for leaf in self.domains[-1]:
                if self._values(leaf) == values:
                    for _ in range(count):
                        leaf.free.subtract(pod(requests))

    def _values(self, leaf: Domain) -> tuple[str, ...]:
        return leaf.path[-1:] if self.hosts else leaf.path

    def place(self, members: list[PodSetRequest]) -> dict[str, list[tuple[tuple[str, ...], int]]]:
        workers, leader = members[0], members[1] if len(members) > 1 else None
        if leader is not None and leader.count > workers.count:
            workers, leader = leader, workers
        ask = read(self.levels, workers, leader)
        self._count_leaves(ask, workers, leader)
        for depth in range(len(self.levels) - 2, -1, -1):
            for domain in self.domains[depth]:
                count_above(domain, ask, depth)
        leaves = sorted(self._descend(ask), key=lambda leaf: leaf.path)
        result = {}
        for podset, given in ((workers, "pods"), (leader, "lead")):
            if podset is None:
                continue
            spots = [(leaf, getattr(leaf, given)) for leaf in leaves if getattr(leaf, given) > 0]
            result[podset.name] = [(self._values(leaf), count) for leaf, count in spots]
            for leaf, count in spots:
                for _ in range(count):
                    leaf.free.subtract(pod(podset.requests))
        return result

    def _count_leaves(self, ask: Ask, workers: PodSetRequest, leader: PodSetRequest | None) -> None:
        for row in self.domains:
            for domain in row:
                domain.pods = domain.slices = domain.pods_led = domain.slices_led = domain.lead = 0
        for leaf in self.domains[-1]:
            if self.hosts:
                reason = excluded(leaf.nodes[0], workers, self.cluster.tolerations)
                if reason:
                    ask.tightest[reason] += 1
                    continue
            free = Counter(leaf.free)
            leaf.pods, tightest = fit(pod(workers.requests), free)
            if leaf.pods == 0:
                ask.tightest[f'resource "{tightest}"'] += 1
            if leader is not None and fit(pod(leader.requests), free)[0] > 0:
                leaf.lead = 1
                free.subtract(pod(leader.requests))
            leaf.pods_led, _ = fit(pod(workers.requests), free)
            if ask.slice_level == len(self.levels) - 1:
                leaf.slices = leaf.pods // ask.size
                leaf.slices_led = leaf.pods_led // ask.size

    def _start(self, ask: Ask, level: int) -> tuple[int, list[Domain]]:
        if not self.domains[level]:
            raise RefusedError(f"no topology domains at level: {self.levels[level]}")
        listed = order_l(self.domains[level], ask)
        top = listed[0]
        able = [d for d in listed if d.lead >= ask.leaders and d.slices_led >= ask.need]
        if ask.best_fit and top in able:
            return level, [tight(listed, ask.need, ask.leaders, "slices")]
        if not ask.best_fit and able:
            return level, [able[0]]
        if ask.required:
            self._refuse(ask, top.slices, level)
        if level > 0 and not ask.unconstrained:
            return self._start(ask, level - 1)
        return level, self._several(ask, listed, level)

    def _several(self, ask: Ask, listed: list[Domain], level: int) -> list[Domain]:
        listed = leader_first(listed, ask.need, ask.leaders, "slices")
        rest = ask.need
        chosen: list[Domain] = []
        if ask.leaders:
            if not listed[0].lead:
                self._refuse(ask, 0, level)
            first = listed[0]
            if ask.best_fit and first.slices_led >= rest:
                first = tight(listed, rest, 1, "slices")
            chosen.append(first)
            rest -= first.slices_led
        remaining = order_w([d for d in listed if d not in chosen], ask)
        while rest > 0 and remaining:
            domain = remaining[0]
            if ask.best_fit and domain.slices >= rest:
                domain = tight(remaining, rest, 0, "slices")
            chosen.append(domain)
            remaining.remove(domain)
            rest -= domain.slices
        if rest > 0:
            self._refuse(ask, ask.need - rest, level)
        return chosen

    def _descend(self, ask: Ask) -> list[Domain]:
        level, start = self._start(ask, ask.level)
        current = assign(start, ask.need, ask.leaders, ask.size, "slices", best_fit=ask.best_fit)
        while level < ask.slice_level:
            children = order_w([c for domain in current for c in domain.children], ask)
            current = assign(
                children, ask.need, ask.leaders, ask.size, "slices", best_fit=ask.best_fit
            )
            level += 1
        while level < len(self.levels) - 1:
            level += 1
            current = [leaf for d in current for leaf in into_children(d, ask, ask.units[level])]
        return current

    def _refuse(self, ask: Ask, fitting: int, level: int) -> None:
        head = f'topology "{self.cluster.topology}" '
        unit = "pod" if ask.size == 1 else "slice"
        if len(ask.layers) > 1:
            text = head + "doesn't allow to fit" + self._layers(ask, level)
        elif fitting == 0:
            text = head + f"doesn't allow to fit any of {ask.need} {unit}(s)"
        else:
            text = head + f"allows to fit only {fitting} out of {ask.need} {unit}(s)"
        if ask.tightest:
            parts = ", ".join(sorted(f"{why}: {n}" for why, n in ask.tightest.items()))
            text += f". Total nodes: {len(self.domains[-1])}; excluded: {parts}"
        raise RefusedError(text)

    def _layers(self, ask: Ask, level: int) -> str:
        most = max(domain.slices for domain in self.domains[level])
        best = min(
            (domain for domain in self.domains[level] if domain.slices == most),
            key=lambda d: self._values(d) if level == len(self.levels) - 1 else d.path,
        )
        text = ""
        for layer in ask.layers:
            under = self.domains[self.levels.index(layer.topology)]
            inside = [d for d in under if d.path[: level + 1] == best.path]
            fitting = sum(d.pods // layer.size for d in inside)
            wanted = ask.count // layer.size
            text += f"; {fitting}/{wanted} slice(s) fit on level {layer.topology}"
        return text


def count_above(domain: Domain, ask: Ask, depth: int) -> None:
    unit = ask.units[depth + 1]
    rounded = [(c, c.pods // unit * unit, c.pods_led // unit * unit) for c in domain.children]
    domain.pods = sum(pods for _, pods, _ in rounded)
    domain.lead = max(child.lead for child in domain.children)
    slices = sum(child.slices for child in domain.children)
    slices_led = 0
    hosting = [entry for entry in rounded if not ask.leaders or entry[0].lead == 1]
    domain.pods_led = 0
    if hosting:
        domain.pods_led = domain.pods - min(pods - led for _, pods, led in hosting)
        slices_led = slices - min(child.slices - child.slices_led for child, _, _ in hosting)
    if depth == ask.slice_level:
        slices, slices_led = domain.pods // ask.size, domain.pods_led // ask.size
    domain.slices, domain.slices_led = slices, slices_led


def order_w(domains: list[Domain], ask: Ask) -> list[Domain]:
    sign = -1 if ask.best_fit else 1
    return sorted(domains, key=lambda d: (sign * d.slices, d.pods, d.path))


def order_l(domains: list[Domain], ask: Ask) -> list[Domain]:
    sign = -1 if ask.best_fit else 1
    return sorted(domains, key=lambda d: (-d.lead, sign * d.slices_led, d.pods_led, d.path))


def tight(listed: list[Domain], wanted: int, leaders: int, what: str) -> Domain:
    name = f"{what}_led" if leaders else what
    able = [d for d in listed if d.lead >= leaders and getattr(d, name) >= wanted]
    return min(able, key=lambda d: int(getattr(d, name))) if able else listed[0]


def leader_first(listed: list[Domain], wanted: int, leaders: int, what: str) -> list[Domain]:
    if not leaders or len(listed) < 2:
        return listed
    total = sum(getattr(domain, what) for domain in listed)
    for domain in listed:
        loss = getattr(domain, what) - getattr(domain, f"{what}_led")
        if domain.lead >= leaders and total - loss >= wanted:
            return [domain] + [other for other in listed if other is not domain]
    return listed


def into_children(domain: Domain, ask: Ask, unit: int) -> list[Domain]:
    children = order_w(domain.children, ask)
    what = "pods"
    if unit > 1:
        what = "slices"
        for child in children:
            child.slices, child.slices_led = child.pods // unit, child.pods_led // unit
    return assign(children, domain.pods // unit, domain.lead, unit, what, best_fit=ask.best_fit)


def assign(
    listed: list[Domain], rest: int, leaders: int, size: int, what: str, *, best_fit: bool
) -> list[Domain]:
    listed = leader_first(listed, rest, leaders, what)
    used: list[Domain] = []
    while listed:
        domain = listed[0]
        name = f"{what}_led" if leaders > 0 else what
        wanted_lead = max(leaders, 0)
        if best_fit and getattr(domain, name) >= rest and domain.lead >= wanted_lead:
            domain = tight(listed, rest, wanted_lead, what)
        listed.remove(domain)
        used.append(domain)
        room = getattr(domain, name)
        if leaders > 0 and not (room >= rest and domain.lead >= leaders):
            leaders -= domain.lead
        else:
            domain.lead = leaders if leaders > 0 else 0
            if room >= rest:
                domain.pods = rest * size
                return used
        domain.pods = min(room, rest) * size
        rest -= min(room, rest)
    return used
