"""All rules over one reading. Pure: takes rows, gives breaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rackgate_invariants.cluster import Cluster, Group, groups_of
from rackgate_invariants.nodes import Places
from rackgate_invariants.rows.rows import WorkloadRow
from rackgate_invariants.rules import assignments, jobs, podsets, quota
from rackgate_invariants.rules import capacity as room
from rackgate_invariants.rules import excess_pods as beyond
from rackgate_invariants.rules import orphans as strays
from rackgate_invariants.rules import workload_slices as slices
from rackgate_invariants.rules.catalog import EVERYWHERE, RULES, Breach
from rackgate_invariants.rules.charges import Terms, accounts, terms_of


def unable(cluster: Cluster) -> dict[str, str]:
    """Rules that this reading cannot judge, each with the reason.

    That a single reading shows no changes is no reason here.
    """
    found: dict[str, str] = {}
    for rule in RULES.values():
        reasons = [why for kind, why in cluster.unread.items() if kind in rule.needs]
        if EVERYWHERE in rule.needs and not cluster.whole:
            reasons.append("only one namespace was read")
        if reasons:
            found[rule.id] = "; ".join(dict.fromkeys(reasons))
    return found


def judge(cluster: Cluster) -> list[Breach]:
    """Everything that one reading shows, sorted; also what a correct cluster shows for a while."""
    groups = groups_of(cluster)
    places = Places(cluster.nodes, cluster.flavors, cluster.topologies)
    workloads = {workload.key: workload for workload in cluster.workloads}
    found = [*of_all(cluster, groups, places, terms_of(cluster))]
    for group in groups.values():
        found += of_group(group, groups, places, workloads, cluster.read_at)
    return judged(found, cluster)


def judged(found: Iterable[Breach], cluster: Cluster) -> list[Breach]:
    """Without what cannot be told from what was read; sorted."""
    left_out = unable(cluster)
    return sorted(breach for breach in found if breach.rule not in left_out)


def of_group(
    group: Group,
    groups: Mapping[str, Group],
    places: Places,
    workloads: Mapping[str, WorkloadRow],
    now: float,
) -> list[Breach]:
    """What the objects of one owner show.

    Args:
        group: the owner and what belongs to it.
        groups: all of them by root.
        places: nodes and flavors.
        workloads: all of them by `namespace/name`.
        now: Unix time of the reading.
    """
    return list(_of_group(group, groups, places, workloads, now))


def _of_group(
    group: Group,
    groups: Mapping[str, Group],
    places: Places,
    workloads: Mapping[str, WorkloadRow],
    now: float,
) -> Iterator[Breach]:
    for placed in group.placed():
        yield from podsets.counts(placed, now)
        yield from podsets.places(placed, places)
        yield from podsets.ranks(placed, group)
        yield from jobs.released(placed, group, now)
        yield from jobs.gone(placed, places)
    for workload in group.workloads.values():
        if workload.holds:
            yield from assignments.shape(workload)
            yield from assignments.charges(workload, group, places)
    for family in group.families():
        if family.parent.holds:
            yield from assignments.levels(family, places)
    yield from slices.judged(group)
    yield from assignments.twice(group)
    yield from podsets.before_admission(group)
    yield from jobs.course(group)
    yield from jobs.ended(group, groups, places)
    yield from beyond.judged(group)
    yield from strays.judged(group)
    yield from jobs.orphans(group, workloads)
    if group.job is not None:
        yield from jobs.marks(group.job)


def of_all(
    cluster: Cluster, groups: Mapping[str, Group], places: Places, terms: Terms
) -> list[Breach]:
    """What shows only when all owners are looked at together: room and quota.

    Args:
        cluster: one reading.
        groups: its owners by root.
        places: its nodes and flavors.
        terms: its queues; the same object as before while they offer the same.
    """
    living = accounts(terms, groups, places)
    return [
        *room.capacity(groups, places),
        *quota.nominal(cluster, groups, living),
        *quota.uncharged(cluster, living),
        *quota.statuses(cluster, groups, living),
    ]


def at_once(found: Iterable[Breach]) -> list[Breach]:
    """Those that are never right, not even for a while."""
    return [breach for breach in found if not RULES[breach.rule].patient]
