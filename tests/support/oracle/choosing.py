"""Phase 2: where to start and how to go down (sections 8.1 and 8.4)."""

from __future__ import annotations

from tests.support.oracle.asking import Ask, RefusedError
from tests.support.oracle.counting import refuse
from tests.support.oracle.evenly import spread_evenly
from tests.support.oracle.nodes import Domain, Hierarchy
from tests.support.oracle.ordering import assign, leader_first, order_l, order_w, tight


def choose(hierarchy: Hierarchy, topology: str, ask: Ask, *, balanced: bool) -> list[Domain]:
    """The leaves used, with what each got in `pods` and `lead`."""
    if balanced and ask.preferred:
        found = spread_evenly(hierarchy, ask)
        if found is not None:
            level, domains = found
            return _down(hierarchy, ask, level, domains, evenly=True)
    level, domains = _start(hierarchy, topology, ask, ask.level)
    return _down(hierarchy, ask, level, domains, evenly=False)


def _start(hierarchy: Hierarchy, topology: str, ask: Ask, level: int) -> tuple[int, list[Domain]]:
    if not hierarchy.domains[level]:
        raise RefusedError(f"no topology domains at level: {hierarchy.levels[level]}")
    listed = order_l(hierarchy.domains[level], ask)
    top = listed[0]
    if ask.best_fit and top.slices_led >= ask.need and top.lead >= ask.leaders:
        return level, [tight(listed, ask.need, ask.leaders, "slices", ask)]
    for place, domain in enumerate(listed):
        room = domain.slices_led if ask.leaders else domain.slices
        if domain.lead < ask.leaders or room < ask.need:
            continue
        if not ask.best_fit:
            return level, [domain]
        if ask.required and ask.soft:
            return level, [tight(listed[place:], ask.need, ask.leaders, "slices", ask)]
    if ask.required:
        refuse(hierarchy, topology, ask, top.slices, level)
    if level > 0 and not ask.unconstrained:
        return _start(hierarchy, topology, ask, level - 1)
    return level, _several(hierarchy, topology, ask, listed, level)


def _several(
    hierarchy: Hierarchy, topology: str, ask: Ask, listed: list[Domain], level: int
) -> list[Domain]:
    rest = ask.need
    listed = leader_first(listed, rest, ask.leaders, "slices")
    chosen: list[Domain] = []
    if ask.leaders:
        first = listed[0]
        if first.lead == 0:
            refuse(hierarchy, topology, ask, 0, level)
        if ask.best_fit and first.slices_led >= rest:
            first = tight(listed, rest, 1, "slices", ask)
        chosen.append(first)
        rest -= first.slices_led
        listed = [domain for domain in listed if domain is not first]
    listed = order_w(listed, ask)
    for place in range(len(listed)):
        if rest <= 0:
            break
        domain = listed[place]
        if ask.best_fit and domain.slices >= rest:
            domain = tight(listed[place:], rest, 0, "slices", ask)
        chosen.append(domain)
        rest -= domain.slices
    if rest > 0:
        refuse(hierarchy, topology, ask, ask.need - rest, level)
    return chosen


def _down(
    hierarchy: Hierarchy, ask: Ask, level: int, domains: list[Domain], *, evenly: bool
) -> list[Domain]:
    lowest = len(hierarchy.levels) - 1
    current = assign(domains, ask.count, ask.leaders, size=ask.size, what="slices", ask=ask)
    while not evenly and level < min(ask.slice_level, lowest):
        children = [child for domain in current for child in domain.children]
        current = assign(
            order_w(children, ask), ask.count, ask.leaders, size=ask.size, what="slices", ask=ask
        )
        level += 1
    while level < lowest:
        unit = ask.size if level < ask.slice_level else ask.units[level + 1]
        current = [leaf for domain in current for leaf in _hand_down(domain, unit, ask)]
        level += 1
    return current


def _hand_down(domain: Domain, unit: int, ask: Ask) -> list[Domain]:
    children = order_w(domain.children, ask)
    what = "pods"
    if unit > 1:
        what = "slices"
        for child in children:
            child.slices, child.slices_led = child.pods // unit, child.pods_led // unit
    return assign(children, domain.pods, domain.lead, size=unit, what=what, ask=ask)
