"""The ungater's state: pods by PodSet, Workloads, and the requests not yet seen to work. Pure.

Everything that changes this state lives here, and nothing here does I/O or reads a clock.

An *expectation* is recorded before its request is sent and ends when the pod is seen without the
gate, when the server refused the request, or when the pod is gone. While a PodSet has one, none
of its pods is ungated: our view is behind our own writes. A request without an answer may still
arrive later. Such a pod is read first; found unchanged, it is sent to the same domain again
before any other pod, so that whichever of the two writes wins, it takes the same place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from rackgate.govern.predicates import is_tas_pod
from rackgate_ungater.checks import check
from rackgate_ungater.events import (
    Event,
    Failure,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.plan import Grant, Report, Ungate, plan_ungating
from rackgate_ungater.rows import PodRow, PodUid, WorkloadKey, WorkloadRow
from rackgate_ungater.state import Expectation, Group, Limits, PodSetState, Refusal, Tombstones


@dataclass(slots=True)
class Proposal:
    """What could be done for one Workload now.

    Attributes:
        reads: pods to read live before anything else.
        overdue: how many of these reads look for a write that should have been seen by now.
        ungates: writes to make once `commit` has recorded them; none for a PodSet that is held.
        reports: what users should hear.
        held: gated pods that wait only because earlier writes are not seen yet.
        version: state of the Workload that this rests on.
    """

    reads: list[PodRow] = field(default_factory=list)
    overdue: int = 0
    ungates: list[Ungate] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    held: int = 0
    version: int = 0


class Machine:
    """Events in, proposals out.

    Args:
        limits: waiting times.

    Attributes:
        pods: pods that have not ended, by UID.
        groups: Workloads and the pods that name them.
        expectations: open requests by pod UID.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.pods: dict[PodUid, PodRow] = {}
        self.groups: dict[WorkloadKey, Group] = {}
        self.expectations: dict[PodUid, Expectation] = {}
        self._gone = Tombstones()

    def handle(self, event: Event) -> WorkloadKey | None:
        """Take note of what happened; returns the Workload that deserves a look now."""
        match event:
            case PodSeen():
                return self._pod_seen(event)
            case PodGone():
                return self._pod_gone(event.uid, event.version)
            case WorkloadSeen():
                return self._workload_seen(event.row, live=event.live)
            case WorkloadGone():
                return self._workload_gone(event.key, event.uid)
            case UngateAccepted():
                self._ungate_accepted(event)
                return None
            case UngateFailed():
                return self._ungate_failed(event)
            case _:
                assert_never(event)

    def propose(self, key: WorkloadKey, now: float) -> Proposal:
        """Say what could be done for a Workload.

        Changes no more than when reads fall due, and since when pods are known to end.

        Args:
            key: the Workload.
            now: monotonic seconds. Nothing here depends on a wall clock, ours or another's.
        """
        group = self.groups.get(key)
        if group is None:
            return Proposal()
        proposal = Proposal(version=group.version)
        grants = dict(group.grants())
        for name, podset in group.podsets.items():
            held = self._reads(podset, proposal, now)
            grant = grants.get(name)
            if grant is None or not podset.gated:
                continue
            if held:
                proposal.held += podset.gated
            elif isinstance(grant, str):
                proposal.reports.append(_unreadable(name, grant))
            else:
                self._plan(group, podset, grant, proposal, now)
        return proposal

    def commit(self, ungates: list[Ungate], now: float) -> None:
        """Record expectations. Must come before the first of these requests is sent."""
        for ungate in ungates:
            pod = ungate.pod
            group = self.groups[pod.workload_key]
            group.podsets[pod.podset].expected.add(pod.uid)
            earlier = self.expectations.get(pod.uid)  # the same request, sent once more
            self.expectations[pod.uid] = Expectation(
                workload=pod.workload_key,
                podset=pod.podset,
                resource_version=pod.resource_version,
                domain=ungate.domain,
                read_at=now + self.limits.expectation_s,
                flight_until=earlier.flight_until if earlier else 0.0,
            )
            group.version += 1

    def wake_at(self, key: WorkloadKey, now: float) -> float | None:
        """When time alone gives work for a Workload, later than `now`; None for never."""
        group = self.groups.get(key)
        if group is None:
            return None
        times: list[float] = []
        for podset in group.podsets.values():
            for uid in podset.expected:
                expected = self.expectations[uid]
                times.append(expected.flight_until if expected.pinned else expected.read_at)
            times += [refusal.not_before for refusal in podset.refused.values()]
            if podset.gated:
                times += [self._over_at(podset, uid) for uid in podset.ending]
        return min((at for at in times if at > now), default=None)

    def flights(self, now: float) -> dict[WorkloadKey, float]:
        """Workloads with a request that has no answer and may still be applied.

        Another replica cannot know of it: it must not be told to act on such a Workload before
        that second of our monotonic clock. A request is not counted while it is awaited.
        """
        ends: dict[WorkloadKey, float] = {}
        for expected in self.expectations.values():
            if expected.flight_until > now:
                ends[expected.workload] = max(expected.flight_until, ends.get(expected.workload, 0))
        return ends

    def orphans(self) -> list[PodRow]:
        """Gated pods whose Workload is not there, by name."""
        pods = [
            pod
            for group in self.groups.values()
            if group.row is None and group.gated
            for podset in group.podsets.values()
            for pod in podset.pods.values()
            if pod.gated and not pod.terminating
        ]
        return sorted(pods, key=lambda pod: pod.key)

    def check(self) -> None:
        """Compare every index with what it is made from.

        Raises:
            InvariantError: they differ, which is a bug.
        """
        check(self.pods, self.groups, self.expectations)

    # Proposals ----------------------------------------------------------------------------

    def _reads(self, podset: PodSetState, proposal: Proposal, now: float) -> bool:
        """Add the live reads that are due; returns whether the PodSet must not act."""
        held = False
        for uid in podset.expected:
            expected = self.expectations[uid]
            if expected.pinned and now < expected.flight_until:
                continue
            held = True
            if uid in self.pods and (expected.doubtful or now >= expected.read_at):
                expected.final = now >= expected.flight_until
                expected.read_at = now + self.limits.expectation_s
                proposal.overdue += not expected.doubtful
                proposal.reads.append(self.pods[uid])
        for uid, refusal in podset.refused.items():
            if refusal.reread and now >= refusal.not_before and uid in podset.pods:
                proposal.reads.append(podset.pods[uid])
        return held

    def _plan(
        self, group: Group, podset: PodSetState, grant: Grant, proposal: Proposal, now: float
    ) -> None:
        owner = group.row.owner_uid if group.row else ""
        pods = [
            pod
            for pod in podset.pods.values()
            if is_tas_pod(pod.owner_uid, owner, assignment=grant.assignment)
        ]
        pinned = {uid: self.expectations[uid].domain for uid in podset.expected}
        barred = {
            uid
            for uid, refusal in podset.refused.items()
            if refusal.reread or now < refusal.not_before
        }
        overdue = self._overdue(podset, now)
        plan = plan_ungating(grant, pods, pinned=pinned, barred=barred, overdue=overdue)
        chosen = {ungate.pod.uid for ungate in plan.ungates}
        if pinned.keys() - chosen:
            # The place is no longer granted, and yet the lost write may still arrive.
            proposal.held += podset.gated
            return
        proposal.ungates.extend(plan.ungates)
        proposal.reports.extend(plan.reports)

    def _overdue(self, podset: PodSetState, now: float) -> set[PodUid]:
        for uid, pod in podset.pods.items():
            if pod.terminating and not pod.gated:
                podset.ending.setdefault(uid, now)
        return {uid for uid in podset.ending if now >= self._over_at(podset, uid)}

    def _over_at(self, podset: PodSetState, uid: PodUid) -> float:
        return podset.ending[uid] + podset.pods[uid].grace_s + self.limits.overdue_s

    # Pods ---------------------------------------------------------------------------------

    def _pod_seen(self, event: PodSeen) -> WorkloadKey | None:
        row, live = event.row, event.live
        if (live and row.uid in self._gone) or self._gone.outdated(row.uid, row.version):
            return None  # read before it went, told after
        self._gone.discard(row.uid)
        old = self.pods.get(row.uid)
        if old is not None and row.version and row.version <= old.version:
            row = old  # a watch that lags behind a live read tells nothing new
        if row.terminal:
            return self._pod_gone(row.uid, row.version)
        if row is not old:
            self._store(old, row)
        if live or row is not old:
            self._judge(row, live=live, listed=event.listed)
        return self._worth(old, row)

    def _store(self, old: PodRow | None, row: PodRow) -> None:
        self.pods[row.uid] = row
        if old is not None and (old.workload_key, old.podset) != (row.workload_key, row.podset):
            self._unlink(old)
            old = None
        group = self.groups.setdefault(row.workload_key, Group())
        podset = group.podsets.setdefault(row.podset, PodSetState())
        podset.pods[row.uid] = row
        podset.gated += row.gated - (old is not None and old.gated)
        group.version += 1

    def _worth(self, old: PodRow | None, row: PodRow) -> WorkloadKey | None:
        """A sight matters when it brings work: a new gated pod, or a place come free."""
        podset = self._podset(row)
        if podset is None or not podset.gated:
            return None
        if old is not None and old.same_but_version(row) and row.uid not in podset.refused:
            return None
        return row.workload_key

    def _judge(self, row: PodRow, *, live: bool, listed: bool) -> None:
        """End the refusal and the expectation of a pod as far as this sight allows."""
        podset = self._podset(row)
        refusal = podset.refused.get(row.uid) if podset else None
        if podset and refusal:
            if not row.gated:
                del podset.refused[row.uid]
            elif live or row.resource_version != refusal.resource_version:
                refusal.reread = False
        expected = self.expectations.get(row.uid)
        if expected is None:
            return
        moved = row.resource_version != expected.resource_version
        if not row.gated or (moved and (live or expected.doubtful)):
            # Seen to work; or it was bound to a version that has passed, and never can.
            self._close(row.uid)
        elif live and expected.doubtful:
            if not expected.final:
                expected.pinned = True
            elif not listed:
                self._close(row.uid)

    def _pod_gone(self, uid: PodUid, version: int = 0) -> WorkloadKey | None:
        row = self.pods.pop(uid, None)
        self._gone.add(uid, max(version, row.version if row else 0))
        self._close(uid)
        return self._unlink(row) if row is not None else None

    def _unlink(self, row: PodRow) -> WorkloadKey | None:
        """Take a pod out of its PodSet; returns the Workload when others may follow."""
        group = self.groups[row.workload_key]
        podset = group.podsets[row.podset]
        del podset.pods[row.uid]
        podset.refused.pop(row.uid, None)
        podset.ending.pop(row.uid, None)
        podset.gated -= row.gated
        group.version += 1
        if podset.empty:
            del group.podsets[row.podset]
        self._forget_empty(row.workload_key)
        return row.workload_key if podset.gated else None

    def _podset(self, row: PodRow) -> PodSetState | None:
        group = self.groups.get(row.workload_key)
        return group.podsets.get(row.podset) if group else None

    # Workloads ----------------------------------------------------------------------------

    def _workload_seen(self, row: WorkloadRow, *, live: bool) -> WorkloadKey | None:
        if live and row.uid in self._gone:
            return None
        group = self.groups.setdefault(row.key, Group())
        old = group.row
        if old is not None and row.version and row.version < old.version:
            return None  # versions grow over all Workloads, so this holds for a recreated one too
        if old is not None and old.same_grant(row):
            group.row = row
            return None
        group.set_row(row)
        return row.key if row.granting and group.gated else None

    def _workload_gone(self, key: WorkloadKey, uid: str) -> WorkloadKey | None:
        self._gone.add(uid)
        group = self.groups.get(key)
        if group is not None and group.row is not None and group.row.uid == uid:
            group.set_row(None)
            self._forget_empty(key)
        return None

    def _forget_empty(self, key: WorkloadKey) -> None:
        group = self.groups[key]
        if group.row is None and not group.podsets:
            del self.groups[key]

    # Requests -----------------------------------------------------------------------------

    def _ungate_accepted(self, event: UngateAccepted) -> None:
        """Wait for the watch from now on: the request may have queued for long before."""
        expected = self.expectations.get(event.uid)
        if expected is not None and expected.resource_version == event.resource_version:
            expected.read_at = event.now + self.limits.expectation_s

    def _ungate_failed(self, event: UngateFailed) -> WorkloadKey | None:
        expected = self.expectations.get(event.uid)
        if expected is None or expected.resource_version != event.resource_version:
            return None  # the watch was faster than the answer
        if event.failure is Failure.LOST:
            expected.flight_until = event.now + self.limits.in_flight_s
        if event.failure is Failure.CONFLICT or event.now < expected.flight_until:
            expected.doubtful = True
            return expected.workload
        if event.failure is Failure.REFUSED:
            self._refuse(event.uid, expected, event.now)
        return self._close(event.uid)

    def _refuse(self, uid: PodUid, expected: Expectation, now: float) -> None:
        refused = self.groups[expected.workload].podsets[expected.podset].refused
        pause = refused[uid].pause_s * 2 if uid in refused else self.limits.refusal_s
        pause = min(pause, self.limits.refusal_max_s)
        refused[uid] = Refusal(expected.resource_version, now + pause, pause)

    def _close(self, uid: PodUid) -> WorkloadKey | None:
        expected = self.expectations.pop(uid, None)
        if expected is None:
            return None
        group = self.groups[expected.workload]
        podset = group.podsets[expected.podset]
        podset.expected.discard(uid)
        group.version += 1
        if podset.empty:
            del group.podsets[expected.podset]
            self._forget_empty(expected.workload)
        return expected.workload


def _unreadable(podset: str, message: str) -> Report:
    return Report(
        "AssignmentUnreadable",
        podset,
        f'pods of podset "{podset}" stay gated: the topology assignment is unreadable: {message}',
    )
