"""What a viewer may see of an explanation. Pure.

An explanation is computed from the whole cluster. Who may see some namespaces gets no names of
others, and not how much a single one of them uses. Who may not list nodes gets no hosts and no free
capacity of one, but that of the domains above. Who may not list ClusterQueues gets no usage of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from msgspec.structs import replace

from rackgate.api.names import HOSTNAME_LABEL
from rackgate_assigner.explain.explanation import (
    Explanation,
    FlavorView,
    Holder,
    LevelCapacity,
    PlacedDomain,
    PodSetPlacement,
    QuotaLine,
)
from rackgate_assigner.explain.tenant import HIDDEN, for_namespace, with_names_replaced
from rackgate_console.viewers.access import Access

A_HOST: Final = "a host"


def visible(found: Explanation, namespace: str, access: Access) -> Explanation:
    """The explanation of a Workload, or of a manifest, of a namespace that the viewer may see."""
    if access.namespaces is not None:
        found = for_namespace(found, namespace)
        found = replace(
            found,
            quota=tuple(_without_single_holders(line) for line in found.quota),
            flavors=tuple(
                replace(view, levels=tuple(map(_without_foreign, view.levels)))
                for view in found.flavors
            ),
        )
    if not access.queues:
        found = replace(found, quota=tuple(_without_usage(line) for line in found.quota))
    if not access.nodes:
        hosts = {name for view in found.flavors for name in _hosts(view)}
        flavors = tuple(_without_hosts(view) for view in found.flavors)
        found = with_names_replaced(replace(found, flavors=flavors), hosts, A_HOST)
    return found


def _own(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    return tuple(one for one in holders if one.name != HIDDEN)


def _without_single_holders(line: QuotaLine) -> QuotaLine:
    own = _own(line.holders)
    return replace(line, holders=own, more_holders=line.more_holders + len(line.holders) - len(own))


def _without_foreign(level: LevelCapacity) -> LevelCapacity:
    best = []
    for domain in level.best:
        own = _own(domain.holders)
        more = domain.more_holders + len(domain.holders) - len(own)
        best.append(replace(domain, holders=own, more_holders=more))
    return replace(level, best=tuple(best))


def _without_usage(line: QuotaLine) -> QuotaLine:
    return replace(line, nominal="", used="", available="", holders=(), more_holders=0)


def _hosts(view: FlavorView) -> Iterator[str]:
    """Names of hosts in a view."""
    for exclusion in view.excluded:
        yield from exclusion.names
    for level in view.levels:
        if level.level == HOSTNAME_LABEL:
            yield from (one.domain[-1] for one in level.best)
    if view.level_keys[-1:] == (HOSTNAME_LABEL,):
        yield from (one.domain[-1] for placement in view.places for one in placement.places)


def _without_hosts(view: FlavorView) -> FlavorView:
    return replace(
        view,
        levels=tuple(level for level in view.levels if level.level != HOSTNAME_LABEL),
        excluded=tuple(replace(one, names=()) for one in view.excluded),
        places=tuple(_above_hosts(one) for one in view.places)
        if view.level_keys[-1:] == (HOSTNAME_LABEL,)
        else view.places,
    )


def _above_hosts(placement: PodSetPlacement) -> PodSetPlacement:
    """Pods by the domains above the hosts, in rank order."""
    places = [
        PlacedDomain(domain=domain, pods=sum(one.pods for one in found))
        for domain, found in groupby(placement.places, key=lambda one: one.domain[:-1])
        if domain
    ]
    return replace(placement, places=tuple(places))
