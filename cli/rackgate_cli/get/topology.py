"""`rackgate get topology`: nodes and usage of each domain, from the assigner's own trees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from rackgate.api.names import HOSTNAME_LABEL
from rackgate.resources.quantity import format_amount
from rackgate.wire.core import View
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_cli.errors import CommandError
from rackgate_cli.queues.model import API_VERSION
from rackgate_cli.queues.view import bar
from rackgate_cli.tables import Block, Grid, Heading, Line
from rackgate_cli.verbs import did_you_mean


class DomainUsage(View, frozen=True):
    """One resource in one domain.

    Attributes:
        used: what pods use, also those that Rackgate did not place.
        allocatable: what its nodes offer.
        share: used by allocatable; None if nothing is offered.
    """

    resource: str
    used: str
    allocatable: str
    share: float | None = None


class DomainRow(View, frozen=True):
    """One domain of a flavor's topology.

    Attributes:
        domain: values of the levels, from the highest one.
        nodes: that count for the flavor.
    """

    topology: str
    flavor: str
    level: str
    domain: tuple[str, ...]
    nodes: int
    usage: tuple[DomainUsage, ...] = ()

    @property
    def name(self) -> str:
        """`topology/value/value`, unique with the flavor."""
        return "/".join((self.topology, *self.domain))


class TopologyReport(View, frozen=True):
    """Output of `rackgate get topology -o json`."""

    items: tuple[DomainRow, ...]
    notes: tuple[str, ...] = ()
    kind: str = "TopologyReport"
    api_version: str = API_VERSION


_OTHER: Final = ("ephemeral-storage", "pods")


def topology_report(cache: Cache, topologies: Iterable[str], level: str) -> TopologyReport:
    """The domains of one level of each flavor's topology.

    Args:
        cache: filled.
        topologies: names; empty for all.
        level: key of a node label, or its last part; "" for the lowest one that is not the
            hostname.

    Raises:
        CommandError: no flavor has such a topology, or no topology such a level.
    """
    wanted = list(topologies)
    found = list(cache.flavor_topologies().by_flavor.values())
    known = {one.flavor.topology or "" for one in found}
    for name in wanted:
        if name not in known:
            raise CommandError(f'no flavor has a topology "{name}"{did_you_mean(name, known)}')
    rows: list[DomainRow] = []
    shown = [one for one in found if not wanted or one.flavor.topology in wanted]
    with_level = [(one, _level(one, level)) for one in shown]
    if shown and all(at is None for _, at in with_level):
        keys = sorted({key for one in shown for key in one.tree.levels})
        raise CommandError(f'no topology has a level "{level}" (levels: {", ".join(keys)})')
    covered = {
        resource
        for queue in cache.cluster_queues.values()
        for group in queue.groups
        for resource in group.covered
    }
    for one, at in with_level:
        if at is not None:
            rows += _rows(one, at, covered)
    return TopologyReport(tuple(rows))


def _level(found: FlavorTopology, level: str) -> int | None:
    keys = found.tree.levels
    if not level:
        upper = [at for at, key in enumerate(keys) if key != HOSTNAME_LABEL]
        return upper[-1] if upper else 0
    return next((at for at, key in enumerate(keys) if level in (key, key.rpartition("/")[2])), None)


def _rows(found: FlavorTopology, at: int, covered: set[str]) -> Iterator[DomainRow]:
    tree, capacity = found.tree, found.capacity
    if not tree.leaf_count:
        return
    starts = tree.leaf_ranges[at][:-1]
    nodes = np.diff(tree.node_offsets[tree.leaf_ranges[at]]).tolist()
    offered = np.add.reduceat(capacity.allocatable.T, starts, axis=1)
    free = np.add.reduceat(capacity.free.T, starts, axis=1)
    # Those of quotas; all if no quota covers one of them.
    resources = [name for name in capacity.resources if name in covered]
    resources = resources or [name for name in capacity.resources if name not in _OTHER]
    for domain, path in enumerate(tree.paths[at]):
        usage = []
        for resource in resources:
            row = capacity.rows[resource]
            total, left = int(offered[row, domain]), int(free[row, domain])
            used = total - left
            usage.append(
                DomainUsage(
                    resource,
                    format_amount(resource, used),
                    format_amount(resource, total),
                    used / total if total else None,
                )
            )
        yield DomainRow(
            topology=found.flavor.topology or "",
            flavor=found.flavor.name,
            level=tree.levels[at],
            domain=tuple(path),
            nodes=nodes[domain],
            usage=tuple(usage),
        )


def topology_blocks(report: TopologyReport) -> Iterator[Block]:
    """A table for each flavor."""
    if not report.items:
        yield Line("No topology with nodes found.")
    groups: dict[tuple[str, str, str], list[DomainRow]] = {}
    for row in report.items:
        groups.setdefault((row.topology, row.flavor, row.level), []).append(row)
    for (topology, flavor, level), rows in groups.items():
        yield Heading(f"TOPOLOGY {topology} (flavor {flavor}, level {level})")
        yield Grid(
            ("DOMAIN", "NODES", "RESOURCE", "USED", "ALLOCATABLE", "USAGE"),
            [
                (
                    "/".join(row.domain) if first else "",
                    str(row.nodes) if first else "",
                    usage.resource,
                    usage.used,
                    usage.allocatable,
                    bar(usage.share),
                )
                for row in rows
                for first, usage in _with_first(row.usage)
            ],
        )


def _with_first(usage: Iterable[DomainUsage]) -> Iterator[tuple[bool, DomainUsage]]:
    return ((at == 0, one) for at, one in enumerate(usage))
