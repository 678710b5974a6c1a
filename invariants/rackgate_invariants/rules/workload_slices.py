"""Elastic Workloads and their slices: admitted once, merged once, then deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rackgate_invariants.cluster import ObjectGroup, WorkloadWithSlices, listed
from rackgate_invariants.rows.rows import PodRow, PodSetRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach


@dataclass(slots=True)
class ElasticPodSet:
    """One PodSet of an elastic Workload, with its pods.

    Attributes:
        admitted_count: pods that may run now, those of slices included.
        pods_to_delete: names of pods to delete, as the autoscaler wrote them.
    """

    family: WorkloadWithSlices
    podset: PodSetRow
    admitted_count: int
    pods_to_delete: frozenset[str] = frozenset()
    live: list[PodRow] = field(default_factory=list)
    gated: list[PodRow] = field(default_factory=list)

    @property
    def subject(self) -> str:
        """Workload and PodSet, as the subject of a breach."""
        return f"{self.family.parent.key}/{self.podset.name}"


def elastic_podsets(group: ObjectGroup) -> list[ElasticPodSet]:
    """PodSets of elastic Workloads that hold quota."""
    found: dict[tuple[str, str], ElasticPodSet] = {}
    job = group.job
    for family in group.workloads_with_slices():
        parent = family.parent
        for podset in parent.podsets if parent.elastic and parent.holds else ():
            pods_to_delete = job.listed if job is not None else frozenset()
            one = ElasticPodSet(family, podset, family.admitted_count(podset), pods_to_delete)
            found[parent.name, podset.name] = one
    for pod in group.pods.values() if found else ():
        belongs = found.get((pod.workload, pod.podset)) if pod.owner else None
        if belongs is not None:
            (belongs.gated if pod.gated else belongs.live).append(pod)
    return list(found.values())


def check(group: ObjectGroup) -> Iterator[Breach]:
    """All rules about elastic Workloads and their slices."""
    if not any(one.elastic or one.is_slice for one in group.workloads.values()):
        return
    for one in elastic_podsets(group):
        yield from _too_many(one)
        yield from _not_ungated(one)
    for family in group.workloads_with_slices():
        yield from _merged_once(family)
        yield from _not_merged(family)
        yield from _counts(family, group)
        yield from _gates(family, group)
        for workload_slice in (*family.slices, *family.merged):
            yield from _shape(family.parent, workload_slice)
    yield from _orphans(group)


def _too_many(one: ElasticPodSet) -> Iterator[Breach]:
    """`over-granted` and `over-granted-left`.

    After a scale-down there may be too many pods until the operator deletes them; then none of
    them was ungated later. A pod without a domain does not show when it was ungated, so such pods
    are a breach only if they stay.
    """
    scaled_down_at = one.family.changed_at
    non_terminating = [pod for pod in one.live if not pod.terminating]
    if len(one.live) > one.admitted_count and any(
        pod.assigned_at > scaled_down_at for pod in non_terminating
    ):
        found = f"{len(one.live)} live ungated pods, {one.admitted_count} admitted"
        yield Breach("over-granted", one.subject, found)
    kept = [pod for pod in non_terminating if pod.name not in one.pods_to_delete]
    if len(kept) > one.admitted_count:
        found = f"{len(kept)} pods, {one.admitted_count} admitted, and the surplus is not deleted"
        yield Breach("over-granted-left", one.subject, found, scaled_down_at)


def _not_ungated(one: ElasticPodSet) -> Iterator[Breach]:
    """`not-released` of PodSets without an assignment, by the number of pods."""
    parent = one.family.parent
    if one.podset.assignment is not None or not parent.may_ungate:
        return
    gated = [pod for pod in one.gated if not pod.terminating]
    capacity = one.admitted_count - len(one.live)
    if capacity > 0 and gated:
        since = max(parent.admitted_at, parent.placed_at, min(pod.created_at for pod in gated))
        since = max(
            since, *(workload_slice.changed_at for workload_slice in one.family.slices), 0.0
        )
        names_ = listed(pod.name for pod in gated)
        found = f"{min(capacity, len(gated))} gated pods have capacity ({names_})"
        yield Breach("not-released", one.subject, found, since)


def _merged_once(family: WorkloadWithSlices) -> Iterator[Breach]:
    """`slice-counted-twice`."""
    parent = family.parent
    names_ = {podset.name for podset in parent.podsets}
    for uid, times in Counter(uid for uid, _ in parent.merged_slices).items():
        if times > 1:
            yield Breach("slice-counted-twice", f"{parent.key} {uid}", f"merged {times} times")
    for uid, podset in parent.merged_slices:
        if podset not in names_:
            found = f'merged into PodSet "{podset}", which its parent does not have'
            yield Breach("slice-counted-twice", f"{parent.key} {uid}", found)
    for workload_slice in family.merged:
        recorded = {podset for uid, podset in parent.merged_slices if uid == workload_slice.uid}
        if recorded.isdisjoint(podset.name for podset in workload_slice.podsets):
            found = f"merged into PodSet {listed(recorded)}, but of another"
            yield Breach("slice-counted-twice", f"{parent.key} {workload_slice.uid}", found)


def _not_merged(family: WorkloadWithSlices) -> Iterator[Breach]:
    """`slice-not-settled`."""
    parent = family.parent
    for workload_slice in family.merged:
        found = f"merged into {parent.key}, and not deleted"
        since = max(parent.placed_at, workload_slice.changed_at)
        yield Breach("slice-not-settled", workload_slice.key, found, since)
    here = {workload_slice.uid for workload_slice in family.merged}
    for uid in dict.fromkeys(uid for uid, _ in parent.merged_slices):
        if uid not in here:
            found = f"slice {uid} is gone, and still recorded"
            yield Breach("slice-not-settled", f"{parent.key} {uid}", found, parent.placed_at)
    for workload_slice in family.slices:
        if workload_slice.may_ungate and parent.may_ungate and _can_merge(parent, workload_slice):
            found = f"admitted, and not merged into {parent.key}"
            since = max(workload_slice.admitted_at, parent.placed_at)
            yield Breach("slice-not-settled", workload_slice.key, found, since)


def _can_merge(parent: WorkloadRow, workload_slice: WorkloadRow) -> bool:
    """Whether the admission of a slice can be added to that of its PodSet."""
    own_podsets = {podset.name: podset for podset in parent.podsets}
    for podset in workload_slice.podsets:
        own = own_podsets.get(podset.name)
        if own is None:
            return False
        levels = [one.assignment.levels for one in (own, podset) if one.assignment is not None]
        if (len(levels) == 1 and own.admitted_count) or len(set(levels)) > 1:
            return False
    return True


def _counts(family: WorkloadWithSlices, group: ObjectGroup) -> Iterator[Breach]:
    """`counts-differ`: spec, admission, slices and job."""
    parent, job = family.parent, group.job
    if not (parent.elastic and parent.may_ungate):
        return
    since = max(parent.changed_at, parent.placed_at, parent.resized_at)
    since = max(since, *(workload_slice.changed_at for workload_slice in family.slices), 0.0)
    for podset in parent.podsets:
        subject = f"{parent.key}/{podset.name}"
        if podset.requested_count != podset.admitted_count:
            found = (
                f"{podset.admitted_count} pods are admitted, the spec says {podset.requested_count}"
            )
            yield Breach("counts-differ", subject, found, since)
        if job is None or job.over or job.suspended or podset.name not in job.podset_counts:
            continue
        beside = sum(
            own.requested_count
            for workload_slice in family.slices
            for own in workload_slice.podsets
            if own.name == podset.name
        )
        if job.podset_counts[podset.name] != podset.admitted_count + beside:
            found = (
                f"{job.kind} requests {job.podset_counts[podset.name]} pods, "
                f"{podset.admitted_count} are admitted "
                f"and slices request {beside}"
            )
            yield Breach("counts-differ", subject, found, max(since, job.written_at))


def _gates(family: WorkloadWithSlices, group: ObjectGroup) -> Iterator[Breach]:
    """`elastic-gate-missing`."""
    parent, job = family.parent, group.job
    if job is None or job.over or job.suspended or not (parent.elastic and parent.may_ungate):
        return
    without_gate = sorted(job.without_elastic_gate & {podset.name for podset in parent.podsets})
    if without_gate:
        found = f"the template of PodSet {listed(without_gate)} has no elastic gate"
        yield Breach(
            "elastic-gate-missing", job.key, found, max(job.written_at, job.suspend_changed_at)
        )


def _shape(parent: WorkloadRow, workload_slice: WorkloadRow) -> Iterator[Breach]:
    """`slice-shape`."""
    own = {podset.name: podset for podset in parent.podsets}
    wrong = ""
    if len(workload_slice.podsets) != 1 or workload_slice.podsets[0].name not in own:
        wrong = f"requests PodSet {listed(podset.name for podset in workload_slice.podsets)}"
    elif parent.holds and workload_slice.holds:
        podset, of_parent = workload_slice.podsets[0], own[workload_slice.podsets[0].name]
        if workload_slice.cluster_queue != parent.cluster_queue:
            wrong = f"is admitted by ClusterQueue {workload_slice.cluster_queue}"
        elif (
            podset.requests != of_parent.requests
            or podset.node_constraints != of_parent.node_constraints
        ):
            wrong = "has pods of another template"
        elif of_parent.flavors and podset.flavors != of_parent.flavors:
            given = listed(f"{flavor} of {name}" for name, flavor in podset.flavors.items())
            wrong = f"has flavor {given}"
    if wrong:
        yield Breach("slice-shape", workload_slice.key, f"{wrong}, unlike its parent {parent.key}")


def _orphans(group: ObjectGroup) -> Iterator[Breach]:
    """`slice-orphaned`."""
    parents = {one.uid: one for one in group.own}
    for workload_slice in group.workloads.values():
        if not workload_slice.is_slice or workload_slice.finished:
            continue
        parent = parents.get(workload_slice.owner)
        since = workload_slice.changed_at
        if parent is None or parent.namespace != workload_slice.namespace:
            found = f'its parent "{workload_slice.owner_name}" is gone'
        elif not parent.elastic:
            found = f"its parent {parent.key} is not elastic"
        elif not parent.holds:
            found = f"its parent {parent.key} holds no quota"
            since = max(since, parent.changed_at)
        else:
            continue
        yield Breach("slice-orphaned", workload_slice.key, found, since)


def check_growth(
    before: WorkloadRow, after: WorkloadRow, slices: Mapping[str, WorkloadRow]
) -> Iterator[Breach]:
    """`grown-without-slice`.

    Args:
        before: one version.
        after: the next one.
        slices: its slices, by uid.
    """
    if not (before.elastic and before.holds and after.holds):
        return
    known = set(before.merged_slices)
    merged_counts: Counter[str] = Counter()
    for uid, podset in after.merged_slices:
        workload_slice = slices.get(uid)
        if (uid, podset) not in known and workload_slice is not None and workload_slice.holds:
            merged_counts[podset] += sum(
                own.admitted_count for own in workload_slice.podsets if own.name == podset
            )
    had = {podset.name: podset.admitted_count for podset in before.podsets}
    for now in after.podsets:
        more = now.admitted_count - had.get(now.name, now.admitted_count)
        if more > merged_counts[now.name]:
            found = f"grew by {more} pods, the slices merged with it have {merged_counts[now.name]}"
            yield Breach("grown-without-slice", f"{after.key}/{now.name}", found)
