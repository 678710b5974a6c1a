"""Phase 1: how much fits where (section 7), and the text of a refusal (section 10)."""

from __future__ import annotations

from typing import NoReturn

from tests.support.oracle.amounts import fit, subtract
from tests.support.oracle.asking import Ask, RefusedError
from tests.support.oracle.nodes import Domain, Hierarchy, Json, closed, soft_score


def count(hierarchy: Hierarchy, ask: Ask, flavor: Json) -> None:
    for row in hierarchy.domains:
        for domain in row:
            domain.clear()
    lowest = len(hierarchy.levels) - 1
    for leaf in hierarchy.leaves:
        _count_leaf(hierarchy, leaf, ask, flavor)
        if ask.slice_level == lowest:
            leaf.slices, leaf.slices_led = leaf.pods // ask.size, leaf.pods_led // ask.size
    for depth in range(lowest - 1, -1, -1):
        for domain in hierarchy.domains[depth]:
            add_up(domain, ask, depth, ask.units[depth + 1])


def _count_leaf(hierarchy: Hierarchy, leaf: Domain, ask: Ask, flavor: Json) -> None:
    if hierarchy.hosts:
        why = closed(leaf.nodes[0], ask.workers, flavor)
        if why is not None:
            ask.excluded[why] += 1
            return
    if leaf.path[: len(ask.fence)] != ask.fence:
        ask.excluded["topologyDomain"] += 1
        return
    if ask.soft and hierarchy.hosts:
        leaf.score = soft_score(leaf.nodes[0], ask.workers)
    free = dict(leaf.free)
    leaf.pods, tightest = fit(ask.worker, free)
    if leaf.pods == 0:
        ask.excluded[f'resource "{tightest}"'] += 1
    if ask.leader is not None and fit(ask.leader, free)[0] > 0:
        leaf.lead = 1
        subtract(free, ask.leader)
    leaf.pods_led = fit(ask.worker, free)[0]


def add_up(domain: Domain, ask: Ask, depth: int, unit: int) -> None:
    """A domain's numbers from those of its children."""
    pods, losses, slice_losses = 0, [], []
    for child in domain.children:
        rounded, rounded_led = child.pods // unit * unit, child.pods_led // unit * unit
        pods += rounded
        if not ask.leaders or child.lead == 1:
            losses.append(rounded - rounded_led)
            slice_losses.append(child.slices - child.slices_led)
    domain.score = sum(child.score for child in domain.children)
    domain.lead = max(child.lead for child in domain.children)
    domain.pods = pods
    domain.slices = sum(child.slices for child in domain.children)
    domain.pods_led = domain.pods - min(losses) if losses else 0
    domain.slices_led = domain.slices - min(slice_losses) if slice_losses else 0
    if depth == ask.slice_level:
        domain.slices = domain.pods // ask.size
        domain.slices_led = domain.pods_led // ask.size


def refuse(hierarchy: Hierarchy, topology: str, ask: Ask, fitting: int, level: int) -> NoReturn:
    unit = "pod" if ask.size == 1 else "slice"
    if len(ask.slices) > 1:
        text = f'topology "{topology}" doesn\'t allow to fit' + _layers(hierarchy, ask, level)
    elif fitting == 0:
        text = f'topology "{topology}" doesn\'t allow to fit any of {ask.need} {unit}(s)'
    else:
        text = f'topology "{topology}" allows to fit only {fitting} out of {ask.need} {unit}(s)'
    if ask.excluded:
        parts = sorted(f"{why}: {number}" for why, number in ask.excluded.items())
        text += f". Total nodes: {len(hierarchy.leaves)}; excluded: {', '.join(parts)}"
    raise RefusedError(text)


def _layers(hierarchy: Hierarchy, ask: Ask, level: int) -> str:
    is_leaf = level == len(hierarchy.levels) - 1

    def name(domain: Domain) -> bytes:
        values = hierarchy.values(domain) if is_leaf else domain.path
        return ",".join(values).encode()

    best = min(hierarchy.domains[level], key=lambda domain: (-domain.slices, name(domain)))
    text = ""
    for layer in ask.slices:
        row = hierarchy.domains[hierarchy.levels.index(layer["topology"])]
        inside = [domain for domain in row if domain.path[: level + 1] == best.path]
        fitting = sum(domain.pods // layer["size"] for domain in inside)
        wanted = ask.count // layer["size"]
        text += f"; {fitting}/{wanted} slice(s) fit on level {layer['topology']}"
    return text
