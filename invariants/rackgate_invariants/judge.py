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
    evictions,
    excess_pods,
    gangs,
    jobs,
    orphans,
    podsets,
    quota,
    stopped_queues,
)
from rackgate_invariants.rules import workload_slices as slices
from rackgate_invariants.rules.catalog import ALL_NAMESPACES, RULES, Breach
from rackgate_invariants.rules.job_usage import job_usages


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
    skipped = skipped_rules(cluster)
    return sorted(breach for breach in _every_breach(cluster) if breach.rule not in skipped)


def _every_breach(cluster: Cluster) -> Iterator[Breach]:
    groups = group_by_job(cluster)
    node_index = NodeIndex(cluster.nodes, cluster.flavors, cluster.topologies)
    workloads = {workload.key: workload for workload in cluster.workloads}
    gang_workloads = gangs.by_key(cluster)
    for group in groups.values():
        starting = gangs.starting(group, gang_workloads)
        yield from _check_group(
            group, groups, node_index, workloads, cluster.read_at, starting=starting
        )
    # What only all groups together show: capacity, quota and gangs.
    usages = job_usages(cluster, groups, node_index)
    yield from capacity.check_capacity(groups, node_index)
    yield from quota.check_quota(cluster, groups, usages)
    yield from quota.check_uncharged(cluster, usages)
    yield from quota.check_queue_statuses(cluster, groups, usages)
    yield from stopped_queues.check(cluster)
    yield from gangs.check(cluster, groups)


def _check_group(
    group: ObjectGroup,
    groups: Mapping[str, ObjectGroup],
    node_index: NodeIndex,
    workloads: Mapping[str, WorkloadRow],
    now: float,
    *,
    starting: Mapping[str, bool],
) -> Iterator[Breach]:
    """Breaches that the objects of one job show."""
    for placed in group.placed():
        yield from podsets.check_counts(placed, now)
        yield from podsets.check_domains(placed, node_index)
        yield from podsets.check_ranks(placed, group)
        yield from jobs.check_ungated(placed, group, now, starting)
        yield from jobs.check_domain_gone(placed, node_index)
    for workload in group.workloads.values():
        yield from evictions.check_record(workload)
        yield from evictions.check_requeue(workload)
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
    yield from evictions.check_pods(group, node_index, now)
    yield from excess_pods.check(group)
    yield from orphans.check(group)
    yield from jobs.check_orphaned_pods(group, workloads)
    if group.job is not None:
        yield from jobs.check_injected(group.job)


def breaches(cluster: Cluster) -> list[Breach]:
    """Breaches of one reading that a correct cluster never shows, sorted.

    Patient rules are skipped: a `Tracker` over several readings finds what lasts too long.
    """
    return [breach for breach in judge(cluster) if not RULES[breach.rule].patient]


def lasting(first: Iterable[Breach], second: Iterable[Breach]) -> list[Breach]:
    """Breaches that both readings show, ignoring the numbers in them."""
    again = {(breach.rule, breach.subject) for breach in second}
    return [breach for breach in first if (breach.rule, breach.subject) in again]
