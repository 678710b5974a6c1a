"""Pods against the admission of their PodSet: counts, domains, ranks, gates before admission."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rackgate.topology.assignment import Domain
from rackgate_invariants.cluster import ObjectGroup, PlacedPodSet, format_domain, listed
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import PodRow
from rackgate_invariants.rules.catalog import Breach


def check_counts(placed: PlacedPodSet, now: float) -> Iterator[Breach]:
    """`over-granted` and `over-domain`; terminating pods count.

    Terminating pods on a host that is no longer assigned do not count if the host does not report
    their end: otherwise no other pod could be ungated instead.
    """
    by_domain: dict[Domain, list[PodRow]] = defaultdict(list)
    live: list[PodRow] = []
    for pod in placed.live:
        domain = pod.domain(placed.levels)
        if domain is not None and domain in placed.counts:
            by_domain[domain].append(pod)
        elif placed.is_stuck_terminating(pod, now):
            continue
        live.append(pod)
    # After a scale-down an elastic Workload may have more pods: see `workload_slices`.
    if not placed.workload.elastic and _too_many(live, placed.admitted_count, placed):
        found = f"{len(live)} live ungated pods, {placed.admitted_count} admitted"
        yield Breach("over-granted", placed.subject, found)
    for domain, pods in by_domain.items():
        if _too_many(pods, placed.counts[domain], placed):
            yield Breach(
                "over-domain",
                f"{placed.subject} {format_domain(domain)}",
                f"{len(pods)} live ungated pods ({listed(pod.name for pod in pods)}), "
                f"{placed.counts[domain]} assigned",
            )


def _too_many(pods: Sequence[PodRow], most: int, placed: PlacedPodSet) -> bool:
    """Whether one pod too many was ungated.

    Terminating pods of an earlier admission may exceed the capacity of this one, as long as no
    pod is ungated in addition.
    """
    if len(pods) <= most:
        return False
    if placed.workload.elastic:
        return any(not (pod.terminating or placed.has_earlier_assignment(pod)) for pod in pods)
    leaving = [pod for pod in pods if pod.terminating and placed.has_earlier_assignment(pod)]
    return len(pods) - len(leaving) > most or any(
        not placed.has_earlier_assignment(pod) for pod in pods
    )


def check_domains(placed: PlacedPodSet, node_index: NodeIndex) -> Iterator[Breach]:
    """`past-the-gate` and `outside-assignment`: the nodeSelector of each live pod, and its node."""
    for pod in placed.live:
        if pod.terminating or placed.is_in_separate_assignment(pod):
            continue
        domain = pod.domain(placed.levels)
        node = node_index.nodes.get(pod.node)
        if domain is None:
            bound = f', and is bound to node "{pod.node}"' if pod.node else ""
            found = f"ungated without a domain of {placed.subject}{bound}"
            yield Breach("past-the-gate", pod.key, found)
        elif domain not in placed.counts:
            # Pods may still run on a replaced node: they stay until they end.
            if not placed.has_earlier_assignment(pod):
                where = format_domain(domain)
                found = f"ungated for {where}, which is not assigned to {placed.subject}"
                yield Breach("outside-assignment", pod.key, found)
        elif node is not None:
            bound_domain = tuple([node.labels.get(level, "") for level in placed.levels])
            if bound_domain != domain:
                found = (
                    f"ungated for {format_domain(domain)}, "
                    f'bound to node "{node.name}" of {format_domain(bound_domain)}'
                )
                yield Breach("outside-assignment", pod.key, found)


def check_ranks(placed: PlacedPodSet, group: ObjectGroup) -> Iterator[Breach]:
    """`rank-order`, if every index has one pod and no assignment changed since a pod was released.

    Otherwise, and with ambiguous ranks, the ungater does not keep an order.
    """
    podset, job = placed.podset, group.job
    if job is None or podset.name not in job.whole or not podset.indexed:
        return
    # Several child Jobs have the same ranks then, also if the pods of all but one have ended.
    if not podset.subgroups and any(
        child.podset_by_child_job == podset.name and child.count < podset.requested_count
        for child in group.child_jobs.values()
    ):
        return
    non_terminating = [pod for pod in (*placed.live, *placed.gated) if not pod.terminating]
    found_ranks = {podset.rank(pod) for pod in non_terminating}
    doubled = len(found_ranks) != len(non_terminating)
    if doubled or not found_ranks or min(found_ranks) < 0:
        return
    if max(found_ranks) >= placed.admitted_count:
        return
    # Pods released before a node was replaced may have ended; later ones do not change.
    if _is_replaced_since(job.suspend_changed_at, placed):
        return
    if any(placed.has_earlier_assignment(pod) for pod in placed.live):
        return
    order = [domain for domain, count in placed.counts.items() for _ in range(count)]
    for pod in placed.live:
        domain = pod.domain(placed.levels)
        rank = podset.rank(pod)
        if pod.terminating or domain not in placed.counts or rank >= len(order):
            continue
        if domain != order[rank]:
            found = (
                f"rank {rank} belongs to {format_domain(order[rank])}, ungated for "
                f"{format_domain(domain)}"
            )
            yield Breach("rank-order", pod.key, found)


def _is_replaced_since(started_at: float, placed: PlacedPodSet) -> bool:
    """Whether the admission was written again since the job was started: a node was replaced.

    These times have whole seconds. If both are the same, the admission may also be the one that
    the job was started with. It is not if the Workload was admitted in an earlier second. That is
    the clock of the assigner, so pods must have been released in this second, too: others were
    released by the assignment that is stored.
    """
    workload = placed.workload
    if 0 < started_at < workload.placed_at:
        return True
    if not 0 < workload.admitted_at < started_at == workload.placed_at:
        return False
    return any(0 < pod.assigned_at <= workload.placed_at for pod in placed.live)


def check_before_admission(group: ObjectGroup) -> Iterator[Breach]:
    """`ungated-before-admission`."""
    job = group.job
    # A Job whose owner does not exist may be a former child Job: see `forged-owner`.
    if job is None or not job.managed or job.over or job.parent_uid:
        return
    given = {
        podset.name
        for workload in group.own
        if workload.holds and (workload.admitted or workload.evicted)
        for podset in workload.podsets
    }
    for pod in group.pods.values():
        if pod.terminating or pod.gated or not pod.owner:
            continue
        if (pod.podset in given) if pod.podset else given:
            continue
        state = f'is bound to node "{pod.node}"' if pod.node else "is ungated"
        held = listed(workload.key for workload in group.own)
        what = f"Workload {held} is not admitted" if held else "there is no Workload"
        found = f'pod of managed {job.kind} "{job.name}" {state}, {what}'
        yield Breach("ungated-before-admission", pod.key, found)
