"""Even spread of preferred requests (section 12, `TASBalancedPlacement`)."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass

from tests.support.oracle.counting import add_up
from tests.support.oracle.nodes import Domain, Hierarchy
from tests.support.oracle.ordering import order_l, order_w
from tests.support.oracle.request import ParsedRequest

State = tuple[int, int, int]


@dataclass
class Greedy:
    """How many domains, the last with the leader and the last without."""

    used: int
    led: Domain | None
    plain: Domain | None


@dataclass
class Best:
    threshold: int
    used: int
    domains: list[Domain]


def balanced_placement(
    hierarchy: Hierarchy, request: ParsedRequest
) -> tuple[int, list[Domain]] | None:
    """The level and domains to start from, as changed copies; None if a step fails."""
    best = _best(hierarchy, request)
    if best is None:
        return None
    level, domains = request.level, best.domains
    if level < request.slice_level:
        selected = _select(domains, request, evenness=True)
        if selected is None:
            return None
        domains = _children(selected)
        level += 1
    selected = _select(domains, request, evenness=False)
    if selected is None:
        return None
    given = _give(order_l(selected, request, best_fit=True), best.threshold, request)
    return None if given is None else (level, given)


def _groups(hierarchy: Hierarchy, request: ParsedRequest) -> list[list[Domain]]:
    if request.level == 0:
        return [hierarchy.domains[0]]
    above = sorted(hierarchy.domains[request.level - 1], key=lambda domain: domain.key)
    return [domain.children for domain in above]


def _copies(domains: list[Domain]) -> list[Domain]:
    return deepcopy(domains)


def _best(hierarchy: Hierarchy, request: ParsedRequest) -> Best | None:
    best = Best(0, 0, [])
    for group in _groups(hierarchy, request):
        domains = _copies(group)
        below = request.level < request.slice_level
        found = _greedy(_children(domains) if below else domains, request)
        if found is None or found.used == 0:
            continue
        bounds = [request.need // found.used]
        if found.led is not None:
            bounds.append(found.led.slices_led)
        if found.plain is not None:
            bounds.append(found.plain.slices)
        threshold = reduced = min(bounds)
        if request.leaders and found.plain is not None:
            reduced = min(threshold, found.plain.slices_led)
        if threshold < best.threshold:
            continue
        _prune(domains, threshold, request)
        again = _greedy(domains, request)
        if again is None and 0 < reduced < threshold and reduced >= best.threshold:
            domains, threshold = _copies(group), reduced
            _prune(domains, threshold, request)
            again = _greedy(domains, request)
        if again is None:
            continue
        if threshold > best.threshold or (threshold == best.threshold and again.used < best.used):
            best = Best(threshold, again.used, domains)
    return best if best.threshold > 0 else None


def _children(domains: list[Domain]) -> list[Domain]:
    return [child for domain in domains for child in domain.children]


def _greedy(domains: list[Domain], request: ParsedRequest) -> Greedy | None:
    found = Greedy(0, None, None)
    rest = request.need
    others = list(domains)
    if request.leaders:
        if not others:
            return None
        first = order_l(others, request, best_fit=True)[0]
        if first.lead != 1:
            return None
        found.led, found.used = first, 1
        rest -= first.slices_led
        others = [domain for domain in others if domain is not first]
    for domain in order_w(others, request, best_fit=True):
        if rest <= 0 or domain.slices <= 0:
            break
        found.plain = domain
        found.used += 1
        rest -= domain.slices
    return found if rest <= 0 else None


def _prune(domains: list[Domain], threshold: int, request: ParsedRequest) -> None:
    if request.level < request.slice_level:
        for domain in domains:
            for child in domain.children:
                _prune_one(child, threshold, request)
    for domain in domains:
        if domain.children:
            add_up(domain, request, request.level, 1)
        _prune_one(domain, threshold, request)


def _prune_one(domain: Domain, threshold: int, request: ParsedRequest) -> None:
    if domain.slices < threshold:
        _clear(domain)
    elif request.leaders and domain.lead == 1 and domain.slices_led < threshold:
        _close(domain)


def _clear(domain: Domain) -> None:
    score = domain.score
    domain.clear()
    domain.score = score
    for child in domain.children:
        _clear(child)


def _close(domain: Domain) -> None:
    domain.pods_led = domain.slices_led = domain.lead = 0
    for child in domain.children:
        _close(child)


def _evenness(domain: Domain) -> float:
    total = sum(child.pods for child in domain.children)
    if total == 0:
        return 0.0
    shares = [child.pods / total for child in domain.children if child.pods > 0]
    # Equal shares give equal evenness in whatever order the children come.
    return -math.fsum(share * math.log2(share) for share in shares)


def _select(
    domains: list[Domain], request: ParsedRequest, *, evenness: bool
) -> list[Domain] | None:
    found = _greedy(domains, request)
    if found is None:
        return None
    ordered = sorted(domains, key=lambda domain: domain.key)
    if evenness:
        ordered.sort(
            key=lambda domain: (-domain.lead, -domain.slices_led, -_evenness(domain), domain.key)
        )
    ways: dict[State, list[Domain]] = {(0, request.leaders, request.need * request.size): []}
    for domain in ordered:
        states = sorted(ways, key=lambda state: (-state[0], state[1], state[2]))
        for used, leaders, pods in states:
            if used >= found.used or (leaders <= 0 and pods <= 0):
                continue
            way = [*ways[used, leaders, pods], domain]
            if leaders > 0 and domain.lead == 1:
                ways.setdefault((used + 1, leaders - domain.lead, pods - domain.pods_led), way)
            if domain.slices > 0:
                ways.setdefault((used + 1, leaders, pods - domain.pods), way)
    ends = [state for state in ways if state[0] == found.used and state[1] == 0 and state[2] <= 0]
    return ways[max(ends, key=lambda state: state[2])] if ends else None


def _give(domains: list[Domain], threshold: int, request: ParsedRequest) -> list[Domain] | None:
    rest = request.need - threshold * len(domains)
    if rest < 0:
        return None
    for place, domain in enumerate(domains):
        leads = bool(request.leaders) and place == 0
        room = domain.slices_led if leads else domain.slices
        extra = max(0, min(rest, room - threshold))
        rest -= extra
        domain.slices = domain.slices_led = threshold + extra
        domain.pods = domain.slices * request.size
        domain.lead = int(leads)
        domain.pods_led = domain.pods - domain.lead
    return domains if rest == 0 else None
