"""Elastic Workloads and their slices: granted once, settled once, deleted, and nothing beside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rackgate_invariants.cluster import Family, Group, listed
from rackgate_invariants.rows.rows import PodRow, PodSetRow, WorkloadRow
from rackgate_invariants.rules.catalog import Breach


@dataclass(slots=True)
class Elastic:
    """One PodSet of an elastic Workload, with its pods.

    Attributes:
        granted: pods that may run now, those of slices included.
        leaving: names of pods that whoever scales the job wants to be deleted.
    """

    family: Family
    podset: PodSetRow
    granted: int
    leaving: frozenset[str] = frozenset()
    live: list[PodRow] = field(default_factory=list)
    gated: list[PodRow] = field(default_factory=list)

    @property
    def subject(self) -> str:
        """Workload and PodSet."""
        return f"{self.family.parent.key}/{self.podset.name}"


def elastics(group: Group) -> list[Elastic]:
    """PodSets of Workloads that may be resized and hold quota."""
    found: dict[tuple[str, str], Elastic] = {}
    job = group.job
    for family in group.families():
        parent = family.parent
        for podset in parent.podsets if parent.elastic and parent.holds else ():
            leaving = job.listed if job is not None else frozenset()
            one = Elastic(family, podset, family.granted(podset), leaving)
            found[parent.name, podset.name] = one
    for pod in group.pods.values() if found else ():
        belongs = found.get((pod.workload, pod.podset)) if pod.owner else None
        if belongs is not None:
            (belongs.gated if pod.gated else belongs.live).append(pod)
    return list(found.values())


def judged(group: Group) -> Iterator[Breach]:
    """All rules about slices and what they grant."""
    if not any(one.elastic or one.is_slice for one in group.workloads.values()):
        return
    for one in elastics(group):
        yield from _too_many(one)
        yield from _released(one)
    for family in group.families():
        yield from _counted_once(family)
        yield from _settled(family)
        yield from _counts(family, group)
        yield from _gates(family, group)
        for piece in (*family.slices, *family.settled):
            yield from _shape(family.parent, piece)
    yield from _orphans(group)


def _too_many(one: Elastic) -> Iterator[Breach]:
    """More pods than are granted.

    They may be left over when fewer are granted than before, until whoever scales the job takes
    them away: then none of them was sent after that. A pod that was given no place does not tell
    when it was sent, so for those it has to show that they stay.
    """
    fewer_at = one.family.changed_at
    staying = [pod for pod in one.live if not pod.terminating]
    if len(one.live) > one.granted and any(pod.sent_at > fewer_at for pod in staying):
        found = f"{len(one.live)} live ungated pods, {one.granted} granted"
        yield Breach("over-granted", one.subject, found)
    kept = [pod for pod in staying if pod.name not in one.leaving]
    if len(kept) > one.granted:
        found = f"{len(kept)} pods, {one.granted} granted, and nobody takes them away"
        yield Breach("over-granted-left", one.subject, found, fewer_at)


def _released(one: Elastic) -> Iterator[Breach]:
    """Gated pods are released by their number, where they need no place."""
    parent = one.family.parent
    if one.podset.assignment is not None or not parent.granting:
        return
    waiting = [pod for pod in one.gated if not pod.terminating]
    room = one.granted - len(one.live)
    if room > 0 and waiting:
        since = max(parent.admitted_at, parent.placed_at, min(pod.created_at for pod in waiting))
        since = max(since, *(piece.changed_at for piece in one.family.slices), 0.0)
        names_ = listed(pod.name for pod in waiting)
        found = f"{min(room, len(waiting))} gated pods have room ({names_})"
        yield Breach("not-released", one.subject, found, since)


def _counted_once(family: Family) -> Iterator[Breach]:
    """Each slice is settled once, and in its own PodSet."""
    parent = family.parent
    names_ = {podset.name for podset in parent.podsets}
    for uid, times in Counter(uid for uid, _ in parent.folded).items():
        if times > 1:
            yield Breach("slice-counted-twice", f"{parent.key} {uid}", f"settled {times} times")
    for uid, podset in parent.folded:
        if podset not in names_:
            found = f'settled in PodSet "{podset}", which its parent has not'
            yield Breach("slice-counted-twice", f"{parent.key} {uid}", found)
    for piece in family.settled:
        recorded = {podset for uid, podset in parent.folded if uid == piece.uid}
        if recorded.isdisjoint(podset.name for podset in piece.podsets):
            found = f"settled in PodSet {listed(recorded)}, it is of another"
            yield Breach("slice-counted-twice", f"{parent.key} {piece.uid}", found)


def _settled(family: Family) -> Iterator[Breach]:
    """Nothing of a slice is left for long once it was admitted."""
    parent = family.parent
    for piece in family.settled:
        found = f"it is settled in {parent.key}, and still there"
        since = max(parent.placed_at, piece.changed_at)
        yield Breach("slice-not-settled", piece.key, found, since)
    here = {piece.uid for piece in family.settled}
    for uid in dict.fromkeys(uid for uid, _ in parent.folded):
        if uid not in here:
            found = f"slice {uid} is gone, and its record is still there"
            yield Breach("slice-not-settled", f"{parent.key} {uid}", found, parent.placed_at)
    for piece in family.slices:
        if piece.granting and parent.granting and _could_join(parent, piece):
            found = f"admitted, and not taken in by {parent.key}"
            since = max(piece.admitted_at, parent.placed_at)
            yield Breach("slice-not-settled", piece.key, found, since)


def _could_join(parent: WorkloadRow, piece: WorkloadRow) -> bool:
    """Whether what a slice holds can be written into what its PodSet holds."""
    given = {podset.name: podset for podset in parent.podsets}
    for podset in piece.podsets:
        own = given.get(podset.name)
        if own is None:
            return False
        levels = [one.assignment.levels for one in (own, podset) if one.assignment is not None]
        if (len(levels) == 1 and own.granted) or len(set(levels)) > 1:
            return False
    return True


def _counts(family: Family, group: Group) -> Iterator[Breach]:
    """What was granted is what the spec says, and with what waits it is what the job asks."""
    parent, job = family.parent, group.job
    if not (parent.elastic and parent.granting):
        return
    since = max(parent.changed_at, parent.placed_at, parent.resized_at)
    since = max(since, *(piece.changed_at for piece in family.slices), 0.0)
    for podset in parent.podsets:
        subject = f"{parent.key}/{podset.name}"
        if podset.asked != podset.granted:
            found = f"{podset.granted} pods are granted, the spec says {podset.asked}"
            yield Breach("counts-differ", subject, found, since)
        if job is None or job.over or job.suspended or podset.name not in job.wants:
            continue
        beside = sum(
            own.asked for piece in family.slices for own in piece.podsets if own.name == podset.name
        )
        if job.wants[podset.name] != podset.granted + beside:
            found = (
                f"{job.kind} asks for {job.wants[podset.name]} pods, {podset.granted} are granted "
                f"and slices ask for {beside}"
            )
            yield Breach("counts-differ", subject, found, max(since, job.written_at))


def _gates(family: Family, group: Group) -> Iterator[Breach]:
    """Pods that come later are held: the templates of a running elastic job have the gate."""
    parent, job = family.parent, group.job
    if job is None or job.over or job.suspended or not (parent.elastic and parent.granting):
        return
    bare = sorted(job.ungated & {podset.name for podset in parent.podsets})
    if bare:
        found = f"the template of PodSet {listed(bare)} has no elastic gate"
        yield Breach("elastic-gate-missing", job.key, found, max(job.written_at, job.settled_at))


def _shape(parent: WorkloadRow, piece: WorkloadRow) -> Iterator[Breach]:
    """A slice is a part of its parent: the same PodSet, the same flavors, the same queue."""
    own = {podset.name: podset for podset in parent.podsets}
    wrong = ""
    if len(piece.podsets) != 1 or piece.podsets[0].name not in own:
        wrong = f"asks for PodSet {listed(podset.name for podset in piece.podsets)}"
    elif parent.holds and piece.holds:
        podset, of_parent = piece.podsets[0], own[piece.podsets[0].name]
        if piece.cluster_queue != parent.cluster_queue:
            wrong = f"is admitted by ClusterQueue {piece.cluster_queue}"
        elif podset.requests != of_parent.requests or podset.placing != of_parent.placing:
            wrong = "has pods of another template"
        elif of_parent.flavors and podset.flavors != of_parent.flavors:
            given = listed(f"{flavor} of {name}" for name, flavor in podset.flavors.items())
            wrong = f"was given flavor {given}"
    if wrong:
        yield Breach("slice-shape", piece.key, f"{wrong}, unlike its parent {parent.key}")


def _orphans(group: Group) -> Iterator[Breach]:
    """Slices of a Workload that is gone, holds nothing, or may not be resized."""
    parents = {one.uid: one for one in group.own}
    for piece in group.workloads.values():
        if not piece.is_slice or piece.finished:
            continue
        parent = parents.get(piece.owner)
        since = piece.changed_at
        if parent is None or parent.namespace != piece.namespace:
            found = f'its parent "{piece.owner_name}" is gone'
        elif not parent.elastic:
            found = f"its parent {parent.key} may not be resized"
        elif not parent.holds:
            found = f"its parent {parent.key} holds no quota"
            since = max(since, parent.changed_at)
        else:
            continue
        yield Breach("slice-orphaned", piece.key, found, since)


def grown(
    before: WorkloadRow, after: WorkloadRow, slices: Mapping[str, WorkloadRow]
) -> Iterator[Breach]:
    """An elastic Workload that grew by more than the slices settled in the same write.

    Args:
        before: one version.
        after: the next one.
        slices: its slices that were there, by uid.
    """
    if not (before.elastic and before.holds and after.holds):
        return
    known = set(before.folded)
    joined: Counter[str] = Counter()
    for uid, podset in after.folded:
        piece = slices.get(uid)
        if (uid, podset) not in known and piece is not None and piece.holds:
            joined[podset] += sum(own.granted for own in piece.podsets if own.name == podset)
    had = {podset.name: podset.granted for podset in before.podsets}
    for now in after.podsets:
        more = now.granted - had.get(now.name, now.granted)
        if more > joined[now.name]:
            found = f"grew by {more} pods, the slices settled with it have {joined[now.name]}"
            yield Breach("grown-without-slice", f"{after.key}/{now.name}", found)
