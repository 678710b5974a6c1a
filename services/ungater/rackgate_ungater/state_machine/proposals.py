"""What could be done for one Workload now: reads that are due, and pods to release. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rackgate_ungater.state_machine.child_jobs import ChildJobOwners
from rackgate_ungater.state_machine.gated_objects import GatedPod, GatedWorkload, PodUid
from rackgate_ungater.state_machine.plan import PodSetAdmission, Report, Ungate, plan_ungating
from rackgate_ungater.state_machine.records import Expectation, PodSetState, Timeouts, WorkloadState


@dataclass(slots=True)
class Proposal:
    """What could be done for one Workload now.

    Attributes:
        reads: pods to read live before anything else.
        overdue: how many of these reads look for a write that should have been seen by now.
        ungates: writes to make once `expect_ungates` has recorded them; none for a PodSet that
            awaits an expectation.
        reports: what users should hear.
        awaiting_expectations: gated pods that stay gated only because earlier writes are not seen
            yet.
        version: state of the Workload that this rests on.
    """

    reads: list[GatedPod] = field(default_factory=list)
    overdue: int = 0
    ungates: list[Ungate] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    awaiting_expectations: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Proposer:
    """Makes proposals from what the machine knows.

    Attributes:
        pods: pods that have not ended, by UID.
        expectations: open requests by pod UID.
        owners: child Jobs.
        timeouts: waiting times.
    """

    pods: Mapping[PodUid, GatedPod]
    expectations: Mapping[PodUid, Expectation]
    owners: ChildJobOwners
    timeouts: Timeouts

    def propose(self, workload_state: WorkloadState, now: float) -> Proposal:
        """Say what could be done.

        Changes no more than when reads fall due, and since when pods are known to end.

        Args:
            workload_state: all about one Workload.
            now: monotonic seconds. Nothing here depends on a wall clock, ours or another's.
        """
        proposal = Proposal(version=workload_state.version)
        admissions = dict(workload_state.admissions())
        for name, podset in workload_state.podsets.items():
            awaits_expectation = self._add_due_reads(podset, proposal, now)
            admission = admissions.get(name)
            if admission is None or not podset.gated or workload_state.workload is None:
                continue
            if awaits_expectation:
                proposal.awaiting_expectations += podset.gated
            elif isinstance(admission, str):
                proposal.reports.append(_unreadable_report(name, admission))
            else:
                self._plan_podset(workload_state.workload, podset, admission, proposal, now)
        return proposal

    def _add_due_reads(self, podset: PodSetState, proposal: Proposal, now: float) -> bool:
        """Add the live reads that are due; returns whether the PodSet must not act."""
        awaits_expectation = False
        for uid in podset.expected:
            expected = self.expectations[uid]
            if expected.pinned and now < expected.in_flight_until:
                continue
            awaits_expectation = True
            if uid in self.pods and (expected.outcome_unknown or now >= expected.read_due_at):
                expected.read_after_flight = now >= expected.in_flight_until
                expected.read_due_at = now + self.timeouts.expectation_s
                proposal.overdue += not expected.outcome_unknown
                proposal.reads.append(self.pods[uid])
        for uid, rejection in podset.rejected.items():
            if rejection.reread and now >= rejection.not_before and uid in podset.pods:
                proposal.reads.append(podset.pods[uid])
        return awaits_expectation

    def _plan_podset(
        self,
        workload: GatedWorkload,
        podset: PodSetState,
        admission: PodSetAdmission,
        proposal: Proposal,
        now: float,
    ) -> None:
        pods = self.owners.pods_of(workload, podset.pods.values(), assignment=admission.assignment)
        pinned = {uid: self.expectations[uid].domain for uid in podset.expected}
        backing_off = {
            uid
            for uid, rejection in podset.rejected.items()
            if rejection.reread or now < rejection.not_before
        }
        overdue_deletions = _overdue_deletions(podset, self.timeouts, now)
        plan = plan_ungating(
            admission,
            pods,
            pinned=pinned,
            backing_off=backing_off,
            overdue_deletions=overdue_deletions,
        )
        chosen = {ungate.pod.uid for ungate in plan.ungates}
        if pinned.keys() - chosen:
            # The place is no longer granted, and yet the lost write may still arrive.
            proposal.awaiting_expectations += podset.gated
            return
        proposal.ungates.extend(plan.ungates)
        proposal.reports.extend(plan.reports)


def _overdue_deletions(podset: PodSetState, timeouts: Timeouts, now: float) -> set[PodUid]:
    """Released pods whose deletion should be over by now."""
    for uid, pod in podset.pods.items():
        if pod.terminating and not pod.gated:
            podset.deletion_seen_at.setdefault(uid, now)
    return {
        uid for uid in podset.deletion_seen_at if now >= podset.deletion_overdue_at(uid, timeouts)
    }


def _unreadable_report(podset: str, message: str) -> Report:
    return Report(
        "AssignmentUnreadable",
        podset,
        f'pods of podset "{podset}" stay gated: the topology assignment is unreadable: {message}',
    )
