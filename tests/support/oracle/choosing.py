"""Phase 2: where to start and how to go down (sections 8.1 and 8.4)."""

from __future__ import annotations

from tests.support.oracle.counting import refuse
from tests.support.oracle.evenly import balanced_placement
from tests.support.oracle.nodes import Domain, Hierarchy
from tests.support.oracle.ordering import assign, leader_first, order_l, order_w, tight
from tests.support.oracle.request import DoesNotFitError, ParsedRequest


def choose(
    hierarchy: Hierarchy, topology: str, request: ParsedRequest, *, balanced: bool
) -> list[Domain]:
    """The leaves used, with what each got in `pods` and `lead`."""
    if balanced and request.preferred:
        found = balanced_placement(hierarchy, request)
        if found is not None:
            level, domains = found
            return _down(hierarchy, request, level, domains, evenly=True)
    level, domains = _start(hierarchy, topology, request, request.level)
    return _down(hierarchy, request, level, domains, evenly=False)


def _start(
    hierarchy: Hierarchy, topology: str, request: ParsedRequest, level: int
) -> tuple[int, list[Domain]]:
    if not hierarchy.domains[level]:
        raise DoesNotFitError(f"no topology domains at level: {hierarchy.levels[level]}")
    listed = order_l(hierarchy.domains[level], request)
    top = listed[0]
    if request.best_fit and top.slices_led >= request.need and top.lead >= request.leaders:
        return level, [tight(listed, request.need, request.leaders, "slices", request)]
    for place, domain in enumerate(listed):
        room = domain.slices_led if request.leaders else domain.slices
        if domain.lead < request.leaders or room < request.need:
            continue
        if not request.best_fit:
            return level, [domain]
        if request.required and request.soft:
            return level, [tight(listed[place:], request.need, request.leaders, "slices", request)]
    if request.required:
        refuse(hierarchy, topology, request, top.slices, level)
    if level > 0 and not request.unconstrained:
        return _start(hierarchy, topology, request, level - 1)
    return level, _several(hierarchy, topology, request, listed, level)


def _several(
    hierarchy: Hierarchy, topology: str, request: ParsedRequest, listed: list[Domain], level: int
) -> list[Domain]:
    rest = request.need
    listed = leader_first(listed, rest, request.leaders, "slices")
    chosen: list[Domain] = []
    if request.leaders:
        first = listed[0]
        if first.lead == 0:
            refuse(hierarchy, topology, request, 0, level)
        if request.best_fit and first.slices_led >= rest:
            first = tight(listed, rest, 1, "slices", request)
        chosen.append(first)
        rest -= first.slices_led
        listed = [domain for domain in listed if domain is not first]
    listed = order_w(listed, request)
    for place in range(len(listed)):
        if rest <= 0:
            break
        domain = listed[place]
        if request.best_fit and domain.slices >= rest:
            domain = tight(listed[place:], rest, 0, "slices", request)
        chosen.append(domain)
        rest -= domain.slices
    if rest > 0:
        refuse(hierarchy, topology, request, request.need - rest, level)
    return chosen


def _down(
    hierarchy: Hierarchy, request: ParsedRequest, level: int, domains: list[Domain], *, evenly: bool
) -> list[Domain]:
    lowest = len(hierarchy.levels) - 1
    current = assign(
        domains, request.count, request.leaders, size=request.size, what="slices", request=request
    )
    while not evenly and level < min(request.slice_level, lowest):
        children = [child for domain in current for child in domain.children]
        current = assign(
            order_w(children, request),
            request.count,
            request.leaders,
            size=request.size,
            what="slices",
            request=request,
        )
        level += 1
    while level < lowest:
        unit = request.size if level < request.slice_level else request.units[level + 1]
        current = [leaf for domain in current for leaf in _distribute_below(domain, unit, request)]
        level += 1
    return current


def _distribute_below(domain: Domain, unit: int, request: ParsedRequest) -> list[Domain]:
    children = order_w(domain.children, request)
    what = "pods"
    if unit > 1:
        what = "slices"
        for child in children:
            child.slices, child.slices_led = child.pods // unit, child.pods_led // unit
    return assign(children, domain.pods, domain.lead, size=unit, what=what, request=request)
