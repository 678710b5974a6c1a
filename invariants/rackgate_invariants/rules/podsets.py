"""Pods against what their PodSet was granted: counts, places, ranks, and pods before admission."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rackgate.topology.assignment import Domain
from rackgate_invariants.cluster import ObjectGroup, PlacedPodSet, format_domain, listed
from rackgate_invariants.node_index import NodeIndex
from rackgate_invariants.rows.rows import PodRow
from rackgate_invariants.rules.catalog import Breach


def check_counts(placed: PlacedPodSet, now: float) -> Iterator[Breach]:
    """Live ungated pods, also those that terminate, per PodSet and per domain.

    One pod that does not count is on a host that was given up and cannot say that it ended:
    nobody would take its place otherwise.
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
    # Of what may be resized more may be left than is granted: `slices` judges that.
    if not placed.workload.elastic and _too_many(live, placed.admitted_count, placed):
        found = f"{len(live)} live ungated pods, {placed.admitted_count} granted"
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
    """Whether somebody released a pod too many.

    Pods on their way out may be from an admission before this one, and more than it has room for:
    then nobody may be released beside them, and that is all.
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
    """Where each live pod was sent, and where it is."""
    for pod in placed.live:
        if pod.terminating or placed.is_in_separate_assignment(pod):
            continue
        domain = pod.domain(placed.levels)
        node = node_index.nodes.get(pod.node)
        if domain is None:
            bound = f', and is bound to node "{pod.node}"' if pod.node else ""
            found = f"ungated without a place of {placed.subject}{bound}"
            yield Breach("past-the-gate", pod.key, found)
        elif domain not in placed.counts:
            # A swap gives hosts up while pods may still run there: they stay until they end.
            if not placed.has_earlier_assignment(pod):
                found = (
                    f"sent to {format_domain(domain)}, which is not assigned to {placed.subject}"
                )
                yield Breach("outside-assignment", pod.key, found)
        elif node is not None:
            bound_domain = tuple([node.labels.get(level, "") for level in placed.levels])
            if bound_domain != domain:
                found = (
                    f"sent to {format_domain(domain)}, "
                    f'bound to node "{node.name}" of {format_domain(bound_domain)}'
                )
                yield Breach("outside-assignment", pod.key, found)


def check_ranks(placed: PlacedPodSet, group: ObjectGroup) -> Iterator[Breach]:
    """Each pod in the domain of its rank, where the PodSet could be placed by rank.

    That is so when every index has one pod at once, and no place was given anew since a pod was
    sent: after that, and with doubtful ranks, the order is left to chance on purpose.
    """
    podset, job = placed.podset, group.job
    if job is None or podset.name not in job.whole or not podset.indexed:
        return
    non_terminating = [pod for pod in (*placed.live, *placed.gated) if not pod.terminating]
    found_ranks = {podset.rank(pod) for pod in non_terminating}
    doubled = len(found_ranks) != len(non_terminating)
    if doubled or not found_ranks or min(found_ranks) < 0:
        return
    if max(found_ranks) >= placed.admitted_count:
        return
    # Pods that were sent before a swap may have ended since, and those after them stay as they are.
    replaced_nodes = 0 < job.suspend_changed_at < placed.workload.placed_at
    if replaced_nodes or any(placed.has_earlier_assignment(pod) for pod in placed.live):
        return
    order = [domain for domain, count in placed.counts.items() for _ in range(count)]
    for pod in placed.live:
        domain = pod.domain(placed.levels)
        rank = podset.rank(pod)
        if pod.terminating or domain not in placed.counts or rank >= len(order):
            continue
        if domain != order[rank]:
            found = (
                f"rank {rank} belongs to {format_domain(order[rank])}, sent to "
                f"{format_domain(domain)}"
            )
            yield Breach("rank-order", pod.key, found)


def check_before_admission(group: ObjectGroup) -> Iterator[Breach]:
    """Pods of a managed Job wait for admission: gated, not bound and not running."""
    job = group.job
    # A Job that names an owner which is not there may be left over from a part: `forged-owner`.
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
        found = f'pod of governed {job.kind} "{job.name}" {state}, {what}'
        yield Breach("ungated-before-admission", pod.key, found)
