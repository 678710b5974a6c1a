"""Phase 1: how much fits where (section 7), and the text of a refusal (section 10)."""

from __future__ import annotations

from typing import NoReturn

from tests.support.oracle.amounts import fit, subtract
from tests.support.oracle.nodes import Domain, Hierarchy, Json, closed, soft_score
from tests.support.oracle.request import DoesNotFitError, ParsedRequest


def count(hierarchy: Hierarchy, request: ParsedRequest, flavor: Json) -> None:
    for row in hierarchy.domains:
        for domain in row:
            domain.clear()
    lowest = len(hierarchy.levels) - 1
    for leaf in hierarchy.leaves:
        _count_leaf(hierarchy, leaf, request, flavor)
        if request.slice_level == lowest:
            leaf.slices, leaf.slices_led = leaf.pods // request.size, leaf.pods_led // request.size
    for depth in range(lowest - 1, -1, -1):
        for domain in hierarchy.domains[depth]:
            add_up(domain, request, depth, request.units[depth + 1])


def _count_leaf(hierarchy: Hierarchy, leaf: Domain, request: ParsedRequest, flavor: Json) -> None:
    if hierarchy.hosts:
        why = closed(leaf.nodes[0], request.workers, flavor)
        if why is not None:
            request.excluded[why] += 1
            return
    if leaf.path[: len(request.restricted_to)] != request.restricted_to:
        request.excluded["topologyDomain"] += 1
        return
    if request.soft and hierarchy.hosts:
        leaf.score = soft_score(leaf.nodes[0], request.workers)
    free = dict(leaf.free)
    leaf.pods, tightest = fit(request.worker, free)
    if leaf.pods == 0:
        request.excluded[f'resource "{tightest}"'] += 1
    if request.leader is not None and fit(request.leader, free)[0] > 0:
        leaf.lead = 1
        subtract(free, request.leader)
    leaf.pods_led = fit(request.worker, free)[0]


def add_up(domain: Domain, request: ParsedRequest, depth: int, unit: int) -> None:
    """A domain's numbers from those of its children."""
    pods, losses, slice_losses = 0, [], []
    for child in domain.children:
        rounded, rounded_led = child.pods // unit * unit, child.pods_led // unit * unit
        pods += rounded
        if not request.leaders or child.lead == 1:
            losses.append(rounded - rounded_led)
            slice_losses.append(child.slices - child.slices_led)
    domain.score = sum(child.score for child in domain.children)
    domain.lead = max(child.lead for child in domain.children)
    domain.pods = pods
    domain.slices = sum(child.slices for child in domain.children)
    domain.pods_led = domain.pods - min(losses) if losses else 0
    domain.slices_led = domain.slices - min(slice_losses) if slice_losses else 0
    if depth == request.slice_level:
        domain.slices = domain.pods // request.size
        domain.slices_led = domain.pods_led // request.size


def refuse(
    hierarchy: Hierarchy, topology: str, request: ParsedRequest, fitting: int, level: int
) -> NoReturn:
    unit = "pod" if request.size == 1 else "slice"
    if len(request.slices) > 1:
        text = f'topology "{topology}" doesn\'t allow to fit' + _layers(hierarchy, request, level)
    elif fitting == 0:
        text = f'topology "{topology}" doesn\'t allow to fit any of {request.need} {unit}(s)'
    else:
        text = f'topology "{topology}" allows to fit only {fitting} out of {request.need} {unit}(s)'
    if request.excluded:
        parts = sorted(f"{why}: {number}" for why, number in request.excluded.items())
        text += f". Total nodes: {len(hierarchy.leaves)}; excluded: {', '.join(parts)}"
    raise DoesNotFitError(text)


def _layers(hierarchy: Hierarchy, request: ParsedRequest, level: int) -> str:
    is_leaf = level == len(hierarchy.levels) - 1

    def name(domain: Domain) -> bytes:
        values = hierarchy.values(domain) if is_leaf else domain.path
        return ",".join(values).encode()

    best = min(hierarchy.domains[level], key=lambda domain: (-domain.slices, name(domain)))
    text = ""
    for layer in request.slices:
        row = hierarchy.domains[hierarchy.levels.index(layer["topology"])]
        inside = [domain for domain in row if domain.path[: level + 1] == best.path]
        fitting = sum(domain.pods // layer["size"] for domain in inside)
        wanted = request.count // layer["size"]
        text += f"; {fitting}/{wanted} slice(s) fit on level {layer['topology']}"
    return text
