"""The two orders, the tight choice, leader first, and handing out (sections 8 to 8.3)."""

from __future__ import annotations

from tests.support.oracle.nodes import Domain
from tests.support.oracle.request import ParsedRequest


def order_w(
    domains: list[Domain], request: ParsedRequest, *, best_fit: bool | None = None
) -> list[Domain]:
    most_first = request.best_fit if best_fit is None else best_fit
    return sorted(
        domains,
        key=lambda domain: (
            -domain.score,
            -domain.slices if most_first else domain.slices,
            domain.pods,
            domain.key,
        ),
    )


def order_l(
    domains: list[Domain], request: ParsedRequest, *, best_fit: bool | None = None
) -> list[Domain]:
    most_first = request.best_fit if best_fit is None else best_fit
    return sorted(
        domains,
        key=lambda domain: (
            -domain.lead,
            -domain.score,
            -domain.slices_led if most_first else domain.slices_led,
            domain.pods_led,
            domain.key,
        ),
    )


def number(domain: Domain, what: str, *, led: bool) -> int:
    if what == "slices":
        return domain.slices_led if led else domain.slices
    return domain.pods_led if led else domain.pods


def tight(
    domains: list[Domain], wanted: int, leaders: int, what: str, request: ParsedRequest
) -> Domain:
    run = domains
    if request.soft:
        run = []
        for domain in domains:
            if domain.score != domains[0].score:
                break
            run.append(domain)
    best: Domain | None = None
    for domain in run:
        own = number(domain, what, led=leaders > 0)
        if domain.lead < leaders or own < wanted:
            continue
        if best is None or own < number(best, what, led=leaders > 0):
            best = domain
    return best if best is not None else domains[0]


def leader_first(domains: list[Domain], wanted: int, leaders: int, what: str) -> list[Domain]:
    if not leaders or len(domains) < 2:
        return list(domains)
    total = sum(number(domain, what, led=False) for domain in domains)
    for domain in domains:
        loss = number(domain, what, led=False) - number(domain, what, led=True)
        if domain.lead >= leaders and total - loss >= wanted:
            return [domain] + [other for other in domains if other is not domain]
    return list(domains)


def _set(domain: Domain, what: str, given: int, size: int) -> None:
    if what == "slices":
        domain.slices = given
    domain.pods = given * size


def assign(
    domains: list[Domain], count: int, leaders: int, *, size: int, what: str, request: ParsedRequest
) -> list[Domain]:
    rest = count // size
    listed = leader_first(domains, rest, leaders, what)
    used: list[Domain] = []
    for place in range(len(listed)):
        domain = listed[place]
        led = leaders > 0
        enough = number(domain, what, led=led) >= rest and domain.lead >= leaders
        if request.best_fit and enough:
            domain = tight(listed[place:], rest, leaders, what, request)
        own = number(domain, what, led=led)
        used.append(domain)
        if own >= rest and domain.lead >= leaders:
            domain.lead = leaders
            _set(domain, what, rest, size)
            return used
        given = min(own, rest)
        _set(domain, what, given, size)
        if led:
            if what == "slices":
                domain.slices_led = given
            else:
                domain.pods_led = given
            leaders -= domain.lead
        else:
            domain.lead = 0
        rest -= given
    return used
