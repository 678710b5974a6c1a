"""Jobs and their Workloads: nothing kept after a stop, nothing lost, nothing marked that is free.

Most of this is right for a while: each of these breaches says since when the objects show it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from rackgate.api import names
from rackgate.topology.assignment import Domain
from rackgate_invariants.cluster import Group, Placed, listed, shown
from rackgate_invariants.nodes import HOST_LEVELS, Places
from rackgate_invariants.rows.rows import JobRow, PodRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.rules.charges import all_lives
from rackgate_invariants.rules.orphans import KINDS
from rackgate_invariants.running_pods import MAIN


def marks(job: JobRow) -> Iterator[Breach]:
    """A Job that is not governed carries no marks; parts of another object are its business."""
    free = not (job.labelled or job.owned) and job.namespace not in names.UNMANAGED_NAMESPACES
    if free and job.marks:
        found = f"has no queue label, its template carries {', '.join(job.marks)}"
        yield Breach("marks-on-ungoverned", job.key, found)


def course(group: Group) -> Iterator[Breach]:
    """Does a governed Job run exactly while it is admitted, and is it as it was when stopped?"""
    job = group.job
    if job is None or not job.governed or job.over or not job.count:
        return
    workloads = group.own
    if not job.suspended:
        yield from _running(job, workloads)
        return
    if not workloads and not job.named_class:
        found = "governed, and there is no Workload for it"
        yield Breach("no-workload", job.key, found, job.settled_at)
    granted = next((one for one in workloads if one.granting), None)
    if granted is not None:
        since = max(granted.admitted_at, job.settled_at)
        found = f"suspended, its Workload {granted.key} is admitted"
        yield Breach("not-started", job.key, found, since)
    elif not any(one.holds for one in workloads):
        yield from _restored(job, workloads)
        yield from _parts_restored(job, group)


def _running(job: JobRow, workloads: list[WorkloadRow]) -> Iterator[Breach]:
    if any(one.holds and one.active and not one.evicted and not one.deleting for one in workloads):
        return
    changed = max((one.changed_at for one in workloads), default=0.0)
    state = "there is no Workload"
    if workloads:
        state = f"its Workload {listed(one.key for one in workloads)} is not admitted"
    found = f"not suspended, {state}"
    yield Breach("not-stopped", job.key, found, max(job.settled_at, changed))


def _restored(job: JobRow, workloads: list[WorkloadRow]) -> Iterator[Breach]:
    """The template of a Job that waits: without marks but those of its creation."""
    changed = max((one.changed_at for one in workloads), default=0.0)
    left = [mark for mark in job.marks if mark not in job.created_marks]
    if job.started and not left:
        left = [f"annotation {names.WORKLOAD_ANNOTATION} on the {job.kind}"]
    if left:
        found = f"suspended without admission, and still carries {', '.join(left)}"
        yield Breach("not-restored", job.key, found, max(job.settled_at, changed))
        return
    for workload in workloads:
        kept = {podset.name: podset.placing for podset in workload.podsets}
        if not workload.finished and any(
            job.placing.get(name, placing) != placing for name, placing in kept.items()
        ):
            # A user may edit it too; then the Workload follows, so how long it is so must be seen.
            found = f"nodeSelector or tolerations are not those that Workload {workload.key} keeps"
            yield Breach("not-restored", job.key, found)


def _parts_restored(job: JobRow, group: Group) -> Iterator[Breach]:
    """Child Jobs of a JobSet that waits: what its templates lack would come back with them."""
    for part in group.parts.values():
        if part.over or not part.suspended:
            continue
        left = [mark for mark in part.marks if mark not in part.created_marks]
        wanted = job.placing.get(part.replicated)
        if not left and wanted is not None and part.placing.get(MAIN) != wanted:
            left = ["another nodeSelector or other tolerations"]
        if left:
            found = f"{job.kind} {job.key} waits, and its child Job still carries {', '.join(left)}"
            yield Breach("not-restored", part.key, found, max(job.settled_at, part.settled_at))


def ended(group: Group, groups: Mapping[str, Group], places: Places) -> Iterator[Breach]:
    """A Workload whose job is gone, or over, holds nothing once no pod of it lives any more."""
    if group.job is not None and not group.job.over:
        return
    holding = [one for one in group.own if one.owner_kind in KINDS and one.holds]
    if not holding or any(one.total for one in all_lives(group, groups, places)):
        return
    state = "has ended" if group.job is not None and group.job.finished else "is being deleted"
    for workload in holding:
        owner = f'{workload.owner_kind} "{workload.owner_name}"'
        gone = "is gone" if group.job is None else f"{state}, and no pod of it lives"
        found = f"holds quota of {workload.cluster_queue}, {owner} {gone}"
        yield Breach("held-after-end", workload.key, found)


def released(placed: Placed, group: Group, now: float) -> Iterator[Breach]:
    """Gated pods of an admitted PodSet are released while there is room for them.

    A pod that has a rank, or a nodeSelector of its own, waits for its own domain.
    """
    if not placed.workload.granting:
        return
    free = Counter(placed.counts)
    left = placed.cap
    for pod in placed.live:
        domain = pod.domain(placed.levels)
        if domain is not None and domain in placed.counts:
            free[domain] -= 1
        elif placed.given_up(pod, now):
            continue
        left -= 1
    if placed.levels == HOST_LEVELS:
        for domain in placed.counts:
            if domain[0] in placed.workload.closed:
                free[domain] = 0
    waiting = [pod for pod in placed.gated if not pod.terminating]
    order = _order(placed, group)
    fitting = [pod for pod in waiting if _fits(pod, placed, free, order)] if left > 0 else []
    if fitting:
        written = max(placed.workload.admitted_at, placed.workload.placed_at)
        since = max(written, min(pod.created_at for pod in fitting))
        found = f"{len(fitting)} gated pods have room ({listed(pod.name for pod in fitting)})"
        yield Breach("not-released", placed.subject, found, since)


def _order(placed: Placed, group: Group) -> list[Domain]:
    """The domain of each rank; empty where pods take any domain."""
    elastic = placed.workload.elastic
    if group.job is None or not placed.podset.indexed or elastic:
        return []
    return [domain for domain, count in placed.counts.items() for _ in range(count)]


def _fits(pod: PodRow, placed: Placed, free: Counter[Domain], order: list[Domain]) -> bool:
    rank = placed.podset.rank(pod)
    if order and rank >= 0:
        # With doubtful ranks another domain might do as well; this one is certain.
        domains = [order[rank]] if rank < len(order) else []
    else:
        domains = [domain for domain, room in free.items() if room > 0]
    pairs = [(level, pod.selector.get(level)) for level in placed.levels]
    return any(
        free[domain] > 0
        and all(own in (None, value) for (_, own), value in zip(pairs, domain, strict=True))
        for domain in domains
    )


def orphans(group: Group, workloads: Mapping[str, WorkloadRow]) -> Iterator[Breach]:
    """A gated pod that no Workload can ever release waits for ever.

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
            found = f"gated, {named}, which is not there" if pod.workload else f"gated, {named}"
        elif workload.owner != group.root or not pod.owner:
            found = f"gated, and Workload {workload.key} is not that of its job"
        elif names.ELASTIC_GATE in pod.gates and not workload.elastic:
            found = f"behind the elastic gate, and Workload {workload.key} may not be resized"
        else:
            continue
        yield Breach("orphan-gated-pod", pod.key, found, pod.created_at)


def gone(placed: Placed, where: Places) -> Iterator[Breach]:
    """Pods are not kept waiting for a domain that no node belongs to any more."""
    if not placed.workload.granting or placed.levels != HOST_LEVELS:
        return
    bound = Counter(pod.domain(placed.levels) for pod in placed.live if pod.node)
    missing = [
        domain
        for domain, count in placed.counts.items()
        if domain[0] not in where.hosts and bound[domain] < count
    ]
    if missing and placed.podset.granted > sum(bound.values()):
        found = f"no node is in {listed(map(shown, missing))}, and pods wait for it"
        yield Breach("domain-gone", placed.subject, found)
