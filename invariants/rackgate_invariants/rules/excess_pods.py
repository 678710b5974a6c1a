"""Pods beyond what their job was granted, told from their controllers and not from their marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rackgate_invariants.cluster import Family, Group, listed
from rackgate_invariants.rows.rows import PodRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.running_pods import podset_of


def judged(group: Group) -> Iterator[Breach]:
    """All rules about pods beyond a grant."""
    if not group.pods or not group.root or group.job is None or not group.governed:
        return
    holding = [family for family in group.families() if family.parent.holds]
    if not holding:
        yield from _without(group)
        return
    podsets = [podset for family in holding for podset in family.parent.podsets]
    if any(family.parent.elastic for family in holding) or not any(
        podset.assignment is None or podset.done for podset in podsets
    ):
        return
    staying = _staying(group)
    yield from _beyond(group, holding, staying)
    for family in holding:
        yield from _came_back(family, staying)


def _staying(group: Group) -> dict[str, list[PodRow]]:
    """Pods that are not being deleted and wait behind no gate, by PodSet."""
    replicated = group.replicated()
    found: dict[str, list[PodRow]] = {}
    for pod in group.pods.values():
        if not (pod.terminating or pod.gates) and (
            group.job is None or pod.namespace == group.job.namespace
        ):
            found.setdefault(podset_of(pod, group.job, replicated), []).append(pod)
    return found


def _without(group: Group) -> Iterator[Breach]:
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


def _beyond(
    group: Group, holding: list[Family], staying: dict[str, list[PodRow]]
) -> Iterator[Breach]:
    """More bound pods than were granted; `over-granted` counts those of placed PodSets.

    A pod of a child Job that stands for no PodSet is beyond any grant.
    """
    granted: Counter[str] = Counter()
    placed: set[str] = set()
    for family in holding:
        for podset in family.parent.podsets:
            granted[podset.name] += family.granted(podset)
            if podset.assignment is not None:
                placed.add(podset.name)
    every = [pod for pods in staying.values() for pod in pods if pod.node]
    for name, pods in sorted(staying.items()):
        bound = [pod for pod in pods if pod.node]
        if name not in placed and len(bound) > granted[name]:
            yield _too_many(group, name, bound, granted[name])
            return
    if not placed and len(every) > granted.total():
        yield _too_many(group, "", every, granted.total())


def _too_many(group: Group, podset: str, pods: list[PodRow], granted: int) -> Breach:
    subject = group.job.key if group.job is not None else group.root
    where = f' of PodSet "{podset}"' if podset else ""
    found = f"{len(pods)} bound pods{where} ({listed(one.name for one in pods)}), {granted} granted"
    return Breach("beyond-grant", subject, found)


def _came_back(family: Family, staying: dict[str, list[PodRow]]) -> Iterator[Breach]:
    """Pods that counted as done, and are there again: what they held may be somebody else's."""
    for podset in family.parent.podsets:
        left = max(0, podset.asked - podset.done)
        pods = staying.get(podset.name, [])
        if podset.done and len(pods) > left:
            found = f"{len(pods)} pods, {podset.done} of {podset.asked} were given back as done"
            since = max(pod.created_at for pod in pods)
            yield Breach("reclaimed-came-back", f"{family.parent.key}/{podset.name}", found, since)
