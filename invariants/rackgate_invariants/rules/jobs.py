"""Jobs and their Workloads: started, stopped and restored as admitted, nothing left injected.

Most breaches are normal for a while, so a breach has the time since which the objects show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rackgate.api import names
from rackgate.topology.assignment import Domain
from rackgate_invariants.cluster import ObjectGroup, PlacedPodSet, format_domain, listed
from rackgate_invariants.node_index import HOST_LEVELS, NodeIndex
from rackgate_invariants.rows.rows import JobRow, PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.job_usage import all_running_pods_of
from rackgate_invariants.rules.orphans import KINDS
from rackgate_invariants.running_pods import MAIN


def check_injected(job: JobRow) -> Iterator[Breach]:
    """`marks-on-ungoverned`, for Jobs that no other object controls."""
    free = (
        not (job.has_queue_label or job.owned) and job.namespace not in names.UNMANAGED_NAMESPACES
    )
    if free and job.injected:
        found = f"has no queue label, its template carries {', '.join(job.injected)}"
        yield Breach("marks-on-ungoverned", job.key, found)


def check_job_state(group: ObjectGroup) -> Iterator[Breach]:
    """A managed Job runs exactly while it is admitted, and is restored when it is stopped."""
    job = group.job
    if job is None or not job.managed or job.over or not job.count:
        return
    workloads = group.own
    if not job.suspended:
        yield from _running(job, workloads)
        return
    if not workloads and not job.has_priority_class:
        found = "managed, but has no Workload"
        yield Breach("no-workload", job.key, found, job.suspend_changed_at)
    admitted = next((one for one in workloads if one.may_ungate), None)
    if admitted is not None:
        since = max(admitted.admitted_at, job.suspend_changed_at)
        found = f"suspended, its Workload {admitted.key} is admitted"
        yield Breach("not-started", job.key, found, since)
    elif not any(one.holds and (one.admitted or one.evicted) for one in workloads):
        yield from _restored(job, workloads)
        yield from _child_jobs_restored(job, group)


def _running(job: JobRow, workloads: list[WorkloadRow]) -> Iterator[Breach]:
    if any(one.may_ungate for one in workloads):
        return  # with quota alone, admission checks are not all Ready
    changed = max((one.changed_at for one in workloads), default=0.0)
    state = "there is no Workload"
    if workloads:
        state = f"its Workload {listed(one.key for one in workloads)} is not admitted"
    found = f"not suspended, {state}"
    yield Breach("not-stopped", job.key, found, max(job.suspend_changed_at, changed))


def _restored(job: JobRow, workloads: list[WorkloadRow]) -> Iterator[Breach]:
    """The template of a suspended Job has nothing injected but what the webhook injects."""
    changed = max((one.changed_at for one in workloads), default=0.0)
    left = [one for one in job.injected if one not in job.injected_at_creation]
    if job.started and not left:
        left = [f"annotation {names.WORKLOAD_ANNOTATION} on the {job.kind}"]
    if left:
        found = f"suspended without admission, and still carries {', '.join(left)}"
        yield Breach("not-restored", job.key, found, max(job.suspend_changed_at, changed))
        return
    for workload in workloads:
        kept = {podset.name: podset.node_constraints for podset in workload.podsets}
        if not workload.finished and any(
            job.node_constraints.get(name, node_constraints) != node_constraints
            for name, node_constraints in kept.items()
        ):
            # A user may edit it too, and the Workload follows: the objects do not show since when.
            found = f"nodeSelector or tolerations differ from those of Workload {workload.key}"
            yield Breach("not-restored", job.key, found)


def _child_jobs_restored(job: JobRow, group: ObjectGroup) -> Iterator[Breach]:
    """Values that child Jobs of a suspended JobSet keep, and would have again after a resume."""
    for child in group.child_jobs.values():
        if child.over or not child.suspended:
            continue
        left = [one for one in child.injected if one not in child.injected_at_creation]
        wanted = job.node_constraints.get(child.podset_by_child_job)
        if not left and wanted is not None and child.node_constraints.get(MAIN) != wanted:
            left = ["another nodeSelector or other tolerations"]
        if left:
            what = ", ".join(left)
            found = f"{job.kind} {job.key} is suspended, and its child Job still carries {what}"
            since = max(job.suspend_changed_at, child.suspend_changed_at)
            yield Breach("not-restored", child.key, found, since)


def check_quota_after_end(
    group: ObjectGroup, groups: Mapping[str, ObjectGroup], node_index: NodeIndex
) -> Iterator[Breach]:
    """`held-after-end`."""
    if group.job is not None and not group.job.over:
        return
    holding = [one for one in group.own if one.owner_kind in KINDS and one.holds]
    if not holding or any(one.total for one in all_running_pods_of(group, groups, node_index)):
        return
    state = "has ended" if group.job is not None and group.job.finished else "is being deleted"
    for workload in holding:
        owner = f'{workload.owner_kind} "{workload.owner_name}"'
        gone = "is gone" if group.job is None else f"{state}, and no pod of it runs"
        found = f"holds quota of {workload.cluster_queue}, {owner} {gone}"
        yield Breach("held-after-end", workload.key, found)


def check_ungated(
    placed: PlacedPodSet, group: ObjectGroup, now: float, starting: Mapping[str, bool]
) -> Iterator[Breach]:
    """`not-released` of PodSets with an assignment.

    A pod that has a rank, or a nodeSelector of its own, can be ungated only for its own domain.
    Pods of a gang that has not started wait until it can start, and until each has a domain.

    Args:
        placed: the PodSet.
        group: of its job.
        now: Unix time.
        starting: pods of such gangs, by uid, and whether their gang could start.
    """
    if not placed.workload.may_ungate:
        return
    free = Counter(placed.counts)
    left = placed.cap
    for pod in placed.live:
        domain = pod.domain(placed.levels)
        if domain is not None and domain in placed.counts:
            free[domain] -= 1
        elif placed.is_stuck_terminating(pod, now):
            continue
        left -= 1
    if placed.levels == HOST_LEVELS:
        for domain in placed.counts:
            if domain[0] in placed.workload.unhealthy_hosts:
                free[domain] = 0
    waiting = [pod for pod in placed.gated if not pod.terminating and starting.get(pod.uid, True)]
    order = _order(placed, group)
    fitting = [pod for pod in waiting if _fits(pod, placed, free, order)] if left > 0 else []
    if len(fitting) < len(waiting):
        fitting = [pod for pod in fitting if pod.uid not in starting]
    if fitting:
        written = max(placed.workload.admitted_at, placed.workload.placed_at)
        since = max(written, min(pod.created_at for pod in fitting))
        found = f"{len(fitting)} gated pods have capacity ({listed(pod.name for pod in fitting)})"
        yield Breach("not-released", placed.subject, found, since)


def _order(placed: PlacedPodSet, group: ObjectGroup) -> list[Domain]:
    """The domain of each rank; empty if pods may use any domain."""
    elastic = placed.workload.elastic
    if group.job is None or not placed.podset.indexed or elastic:
        return []
    return [domain for domain, count in placed.counts.items() for _ in range(count)]


def _fits(pod: PodRow, placed: PlacedPodSet, free: Counter[Domain], order: list[Domain]) -> bool:
    rank = placed.podset.rank(pod)
    if order and rank >= 0:
        # If ranks are ambiguous the pod may also fit another domain; this one is certain.
        domains = [order[rank]] if rank < len(order) else []
    else:
        domains = [domain for domain, count in free.items() if count > 0]
    pairs = [(level, pod.selector.get(level)) for level in placed.levels]
    return any(
        free[domain] > 0
        and all(own in (None, value) for (_, own), value in zip(pairs, domain, strict=True))
        for domain in domains
    )


def check_orphaned_pods(
    group: ObjectGroup, workloads: Mapping[str, WorkloadRow]
) -> Iterator[Breach]:
    """`orphan-gated-pod`.

    Args:
        group: pods of one owner.
        workloads: all Workloads by `namespace/name`.
    """
    for pod in group.pods.values():
        if pod.terminating or not pod.gated:
            continue
        workload = workloads.get(f"{pod.namespace}/{pod.workload}")
        if workload is None:
            named = f'names Workload "{pod.workload}"' if pod.workload else "names no Workload"
            found = f"gated, {named}, which does not exist" if pod.workload else f"gated, {named}"
        elif workload.owner != group.root or not pod.owner:
            found = f"gated, and Workload {workload.key} is not that of its job"
        elif names.ELASTIC_GATE in pod.gates and not workload.elastic:
            found = f"behind the elastic gate, and Workload {workload.key} is not elastic"
        else:
            continue
        yield Breach("orphan-gated-pod", pod.key, found, pod.created_at)


def check_domain_gone(placed: PlacedPodSet, node_index: NodeIndex) -> Iterator[Breach]:
    """`domain-gone`, for hosts."""
    if not placed.workload.may_ungate or placed.levels != HOST_LEVELS:
        return
    bound = Counter(pod.domain(placed.levels) for pod in placed.live if pod.node)
    missing = [
        domain
        for domain, count in placed.counts.items()
        if domain[0] not in node_index.hosts and bound[domain] < count
    ]
    if missing and placed.podset.admitted_count > sum(bound.values()):
        found = f"no node is in {listed(map(format_domain, missing))}, and pods wait for it"
        yield Breach("domain-gone", placed.subject, found)
