"""Pods beyond what was admitted, found by their controllers and not by their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rackgate_invariants.cluster import ObjectGroup, WorkloadWithSlices, listed
from rackgate_invariants.rows.rows import PodRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.running_pods import podset_of


def check(group: ObjectGroup) -> Iterator[Breach]:
    """All rules about pods beyond what was admitted."""
    if not group.pods or not group.root or group.job is None or not group.managed:
        return
    holding = [family for family in group.workloads_with_slices() if family.parent.holds]
    if not holding:
        yield from _without_workload(group)
        return
    podsets = [podset for family in holding for podset in family.parent.podsets]
    if any(family.parent.elastic for family in holding) or not any(
        podset.assignment is None or podset.reclaimable for podset in podsets
    ):
        return
    non_terminating = _non_terminating(group)
    yield from _over_admitted(group, holding, non_terminating)
    for family in holding:
        yield from _reclaimed_pods_back(family, non_terminating)


def _non_terminating(group: ObjectGroup) -> dict[str, list[PodRow]]:
    """Pods without a gate that are not being deleted, by PodSet."""
    podset_by_child_job = group.podset_by_child_job()
    found: dict[str, list[PodRow]] = {}
    for pod in group.pods.values():
        if not (pod.terminating or pod.gates) and (
            group.job is None or pod.namespace == group.job.namespace
        ):
            found.setdefault(podset_of(pod, group.job, podset_by_child_job), []).append(pod)
    return found


def _without_workload(group: ObjectGroup) -> Iterator[Breach]:
    """Pods of a job that has ended or is being deleted: no other rule checks their quota."""
    job = group.job
    if job is None or not job.over:
        return
    bound = [pod for pods in _non_terminating(group).values() for pod in pods if pod.node]
    if not bound:
        return
    state = "is being deleted" if job.deleting else "has ended"
    found = (
        f"{len(bound)} pods of it are bound ({listed(pod.name for pod in bound)}), it {state}, and "
        "no Workload of it holds quota"
    )
    since = max(pod.scheduled_at for pod in bound)
    yield Breach("running-without-workload", job.key, found, since)


def _over_admitted(
    group: ObjectGroup, holding: list[WorkloadWithSlices], non_terminating: dict[str, list[PodRow]]
) -> Iterator[Breach]:
    """More bound pods than were admitted; pods of placed PodSets belong to `over-granted`.

    Nothing is admitted for a child Job that belongs to no PodSet.
    """
    admitted: Counter[str] = Counter()
    placed: set[str] = set()
    for family in holding:
        for podset in family.parent.podsets:
            admitted[podset.name] += family.admitted_count(podset)
            if podset.assignment is not None:
                placed.add(podset.name)
    every = [pod for pods in non_terminating.values() for pod in pods if pod.node]
    for name, pods in sorted(non_terminating.items()):
        bound = [pod for pod in pods if pod.node]
        if name not in placed and len(bound) > admitted[name]:
            yield _too_many(group, name, bound, admitted[name])
            return
    if not placed and len(every) > admitted.total():
        yield _too_many(group, "", every, admitted.total())


def _too_many(group: ObjectGroup, podset: str, pods: list[PodRow], admitted: int) -> Breach:
    subject = group.job.key if group.job is not None else group.root
    of_podset = f' of PodSet "{podset}"' if podset else ""
    names = listed(pod.name for pod in pods)
    found = f"{len(pods)} bound pods{of_podset} ({names}), {admitted} admitted"
    return Breach("beyond-grant", subject, found)


def _reclaimed_pods_back(
    family: WorkloadWithSlices, non_terminating: dict[str, list[PodRow]]
) -> Iterator[Breach]:
    """Pods whose quota was reclaimed and that exist again; another job may use it already."""
    for podset in family.parent.podsets:
        left = max(0, podset.requested_count - podset.reclaimable)
        pods = non_terminating.get(podset.name, [])
        if podset.reclaimable and len(pods) > left:
            found = (
                f"{len(pods)} pods, {podset.reclaimable} of {podset.requested_count} were reclaimed"
            )
            since = max(pod.created_at for pod in pods)
            yield Breach("reclaimed-came-back", f"{family.parent.key}/{podset.name}", found, since)
