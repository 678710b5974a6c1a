"""What could be done for one Workload now: reads that are due, and pods to release. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rackgate_ungater.machine.owners import Owners
from rackgate_ungater.machine.plan import Grant, Report, Ungate, plan_ungating
from rackgate_ungater.machine.rows import PodRow, PodUid, WorkloadRow
from rackgate_ungater.machine.state import Expectation, Group, Limits, PodSetState


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


@dataclass(frozen=True, slots=True)
class Proposer:
    """Makes proposals from what the machine knows.

    Attributes:
        pods: pods that have not ended, by UID.
        expectations: open requests by pod UID.
        owners: child Jobs.
        limits: waiting times.
    """

    pods: Mapping[PodUid, PodRow]
    expectations: Mapping[PodUid, Expectation]
    owners: Owners
    limits: Limits

    def propose(self, group: Group, now: float) -> Proposal:
        """Say what could be done.

        Changes no more than when reads fall due, and since when pods are known to end.

        Args:
            group: all about one Workload.
            now: monotonic seconds. Nothing here depends on a wall clock, ours or another's.
        """
        proposal = Proposal(version=group.version)
        grants = dict(group.grants())
        for name, podset in group.podsets.items():
            held = self._reads(podset, proposal, now)
            grant = grants.get(name)
            if grant is None or not podset.gated or group.row is None:
                continue
            if held:
                proposal.held += podset.gated
            elif isinstance(grant, str):
                proposal.reports.append(_unreadable(name, grant))
            else:
                self._plan(group.row, podset, grant, proposal, now)
        return proposal

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
        self, row: WorkloadRow, podset: PodSetState, grant: Grant, proposal: Proposal, now: float
    ) -> None:
        pods = self.owners.pods_of(row, podset.pods.values(), assignment=grant.assignment)
        pinned = {uid: self.expectations[uid].domain for uid in podset.expected}
        barred = {
            uid
            for uid, refusal in podset.refused.items()
            if refusal.reread or now < refusal.not_before
        }
        overdue = _overdue(podset, self.limits, now)
        plan = plan_ungating(grant, pods, pinned=pinned, barred=barred, overdue=overdue)
        chosen = {ungate.pod.uid for ungate in plan.ungates}
        if pinned.keys() - chosen:
            # The place is no longer granted, and yet the lost write may still arrive.
            proposal.held += podset.gated
            return
        proposal.ungates.extend(plan.ungates)
        proposal.reports.extend(plan.reports)


def _overdue(podset: PodSetState, limits: Limits, now: float) -> set[PodUid]:
    """Released pods whose deletion should be over by now."""
    for uid, pod in podset.pods.items():
        if pod.terminating and not pod.gated:
            podset.ending.setdefault(uid, now)
    return {uid for uid in podset.ending if now >= podset.over_at(uid, limits)}


def _unreadable(podset: str, message: str) -> Report:
    return Report(
        "AssignmentUnreadable",
        podset,
        f'pods of podset "{podset}" stay gated: the topology assignment is unreadable: {message}',
    )
