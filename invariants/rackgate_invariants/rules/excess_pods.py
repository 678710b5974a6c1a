"""Pods beyond what their job was granted, told from their controllers and not from their marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rackgate_invariants.cluster import ObjectGroup, WorkloadWithSlices, listed
from rackgate_invariants.rows.rows import PodRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.running_pods import podset_of


def check(group: ObjectGroup) -> Iterator[Breach]:
    """All rules about pods beyond a grant."""
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
    non_terminating = _staying(group)
    yield from _over_admitted(group, holding, non_terminating)
    for family in holding:
        yield from _reclaimed_pods_back(family, non_terminating)


def _staying(group: ObjectGroup) -> dict[str, list[PodRow]]:
    """Pods that are not being deleted and wait behind no gate, by PodSet."""
    podset_by_child_job = group.podset_by_child_job()
    found: dict[str, list[PodRow]] = {}
    for pod in group.pods.values():
        if not (pod.terminating or pod.gates) and (
            group.job is None or pod.namespace == group.job.namespace
        ):
            found.setdefault(podset_of(pod, group.job, podset_by_child_job), []).append(pod)
    return found


def _without_workload(group: ObjectGroup) -> Iterator[Breach]:
    """Pods of a job that is over, or about to be: no other rule asks what they are charged to."""
    job = group.job
    if job is None or not job.over:
        return
    bound = [pod for pods in _staying(group).values() for pod in pods if pod.node]
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
    """More bound pods than were granted; `over-granted` counts those of placed PodSets.

    A pod of a child Job that stands for no PodSet is beyond any grant.
    """
    granted: Counter[str] = Counter()
    placed: set[str] = set()
    for family in holding:
        for podset in family.parent.podsets:
            granted[podset.name] += family.admitted_count(podset)
            if podset.assignment is not None:
                placed.add(podset.name)
    every = [pod for pods in non_terminating.values() for pod in pods if pod.node]
    for name, pods in sorted(non_terminating.items()):
        bound = [pod for pod in pods if pod.node]
        if name not in placed and len(bound) > granted[name]:
            yield _too_many(group, name, bound, granted[name])
            return
    if not placed and len(every) > granted.total():
        yield _too_many(group, "", every, granted.total())


def _too_many(group: ObjectGroup, podset: str, pods: list[PodRow], granted: int) -> Breach:
    subject = group.job.key if group.job is not None else group.root
    of_podset = f' of PodSet "{podset}"' if podset else ""
    found = (
        f"{len(pods)} bound pods{of_podset} ({listed(one.name for one in pods)}), {granted} granted"
    )
    return Breach("beyond-grant", subject, found)


def _reclaimed_pods_back(
    family: WorkloadWithSlices, non_terminating: dict[str, list[PodRow]]
) -> Iterator[Breach]:
    """Pods that counted as done, and are there again: what they held may be somebody else's."""
    for podset in family.parent.podsets:
        left = max(0, podset.requested_count - podset.reclaimable)
        pods = non_terminating.get(podset.name, [])
        if podset.reclaimable and len(pods) > left:
            found = (
                f"{len(pods)} pods, {podset.reclaimable} of {podset.requested_count} were given "
                "back as done"
            )
            since = max(pod.created_at for pod in pods)
            yield Breach("reclaimed-came-back", f"{family.parent.key}/{podset.name}", found, since)
