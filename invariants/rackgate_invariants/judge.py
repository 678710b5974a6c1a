"""All rules over one reading of a cluster.

Phases: group objects by the job behind them, check the groups one by one, then check capacity and
quota of all together. Input: rows; output: breaches, sorted. The rules share no accounting with the
services, so that they detect errors in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rackgate_invariants.cluster import Cluster, ObjectGroup, group_by_job
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import WorkloadRow
from rackgate_invariants.rules import (
    assignments,
    capacity,
    excess_pods,
    jobs,
    orphans,
    podsets,
    quota,
)
from rackgate_invariants.rules import workload_slices as slices
from rackgate_invariants.rules.catalog import ALL_NAMESPACES, RULES, Breach
from rackgate_invariants.rules.job_usage import QueueIndex, job_usages, queue_index_of


def skipped_rules(cluster: Cluster) -> dict[str, str]:
    """Rules that need what was not read, each with the reason.

    Rules about changes are not skipped only because there is a single reading.
    """
    found: dict[str, str] = {}
    for rule in RULES.values():
        reasons = [why for kind, why in cluster.unread.items() if kind in rule.needs]
        if ALL_NAMESPACES in rule.needs and not cluster.whole:
            reasons.append("only one namespace was read")
        if reasons:
            found[rule.id] = "; ".join(dict.fromkeys(reasons))
    return found


def judge(cluster: Cluster) -> list[Breach]:
    """All breaches that one reading shows, sorted; also those of patient rules."""
    groups = group_by_job(cluster)
    node_index = NodeIndex(cluster.nodes, cluster.flavors, cluster.topologies)
    workloads = {workload.key: workload for workload in cluster.workloads}
    found = [*check_cluster(cluster, groups, node_index, queue_index_of(cluster))]
    for group in groups.values():
        found += check_group(group, groups, node_index, workloads, cluster.read_at)
    return without_skipped(found, cluster)


def without_skipped(found: Iterable[Breach], cluster: Cluster) -> list[Breach]:
    """The breaches of rules that are not skipped, sorted."""
    skipped = skipped_rules(cluster)
    return sorted(breach for breach in found if breach.rule not in skipped)


def check_group(
    group: ObjectGroup,
    groups: Mapping[str, ObjectGroup],
    node_index: NodeIndex,
    workloads: Mapping[str, WorkloadRow],
    now: float,
) -> Iterator[Breach]:
    """Breaches that the objects of one job show.

    Args:
        group: the job and what belongs to it.
        groups: all groups by root.
        node_index: nodes and flavors.
        workloads: all Workloads by `namespace/name`.
        now: Unix time of the reading.
    """
    for placed in group.placed():
        yield from podsets.check_counts(placed, now)
        yield from podsets.check_domains(placed, node_index)
        yield from podsets.check_ranks(placed, group)
        yield from jobs.check_ungated(placed, group, now)
        yield from jobs.check_domain_gone(placed, node_index)
    for workload in group.workloads.values():
        if workload.holds:
            yield from assignments.check_assignments(workload)
            yield from assignments.check_usage(workload, group, node_index)
    for family in group.workloads_with_slices():
        if family.parent.holds:
            yield from assignments.check_levels(family, node_index)
    yield from slices.check(group)
    yield from assignments.check_admitted_once(group)
    yield from podsets.check_before_admission(group)
    yield from jobs.check_job_state(group)
    yield from jobs.check_quota_after_end(group, groups, node_index)
    yield from excess_pods.check(group)
    yield from orphans.check(group)
    yield from jobs.check_orphaned_pods(group, workloads)
    if group.job is not None:
        yield from jobs.check_injected(group.job)


def check_cluster(
    cluster: Cluster,
    groups: Mapping[str, ObjectGroup],
    node_index: NodeIndex,
    queue_index: QueueIndex,
) -> list[Breach]:
    """Breaches that only all groups together show: capacity and quota.

    Args:
        cluster: one reading.
        groups: its groups by root.
        node_index: its nodes and flavors.
        queue_index: its queues; the same object as before if no queue changed its flavors.
    """
    running_usage = job_usages(queue_index, groups, node_index)
    return [
        *capacity.check_capacity(groups, node_index),
        *quota.check_nominal_quota(cluster, groups, running_usage),
        *quota.check_uncharged(cluster, running_usage),
        *quota.check_queue_statuses(cluster, groups, running_usage),
    ]


def breaches(cluster: Cluster) -> list[Breach]:
    """Breaches of one reading that a correct cluster never shows, sorted.

    Patient rules are skipped: a `Tracker` over several readings finds what lasts too long.
    """
    return [breach for breach in judge(cluster) if not RULES[breach.rule].patient]


def lasting(first: Iterable[Breach], second: Iterable[Breach]) -> list[Breach]:
    """Breaches that both readings show, ignoring the numbers in them."""
    again = {(breach.rule, breach.subject) for breach in second}
    return [breach for breach in first if (breach.rule, breach.subject) in again]
