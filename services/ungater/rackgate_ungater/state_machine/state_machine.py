"""State of the ungater: pods by PodSet, Workloads, and unconfirmed requests. Pure.

All changes of this state are here. There is no I/O, and no clock is read.

An *expectation* is recorded before its request is sent and ends when the pod is seen without the
gate, when the server rejected the request, or when the pod is gone. While a PodSet has one, none of
its pods is ungated, because the caches are behind our own writes. A request without a response may
still be applied later. Such a pod is read first. If it is unchanged, it is sent to the same domain
again before any other pod. So it gets the same domain, whichever of the two writes wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from sys import intern
from typing import assert_never

import msgspec

from rackgate.jobframework.slice_chains import SliceChains
from rackgate_ungater.state_machine.child_jobs import ChildJobOwners
from rackgate_ungater.state_machine.events import (
    Event,
    Failure,
    JobGone,
    JobSeen,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadGone,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gang_workloads import GangWorkload
from rackgate_ungater.state_machine.gangs import GangDecision, decide, pods_of_gangs
from rackgate_ungater.state_machine.gated_objects import (
    TOPOLOGY,
    GangPod,
    GatedPod,
    GatedWorkload,
    PodUid,
    WorkloadKey,
)
from rackgate_ungater.state_machine.records import (
    Expectation,
    PodSetState,
    Rejection,
    Timeouts,
    Tombstones,
    WorkloadState,
)
from rackgate_ungater.state_machine.ungating_plan import (
    PodSetAdmission,
    Report,
    Ungate,
    admits_at_least,
    plan_ungating,
)

# Seconds after which an overdue item is checked again.
_RETRY_S = 1.0


@dataclass(slots=True)
class Proposal:
    """Possible actions for one Workload now.

    Attributes:
        reads: pods to read live before anything else.
        overdue: how many of these reads check a write that the watch should have shown.
        ungates: writes to make once `expect_ungates` has recorded them; none for a PodSet that
            awaits an expectation.
        reports: Events for users.
        awaiting_expectations: pods that stay gated only because earlier writes are not seen yet.
        gangs: which gangs start now, and which pods wait for theirs; None without gangs.
        version: state of the Workload that this is based on.
    """

    reads: list[GatedPod] = field(default_factory=list)
    overdue: int = 0
    ungates: list[Ungate] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    awaiting_expectations: int = 0
    gangs: GangDecision | None = None
    version: int = 0


def _first_membership(pod: GangPod, old: GatedPod | None) -> GangPod:
    """The pod with the link and the labels with which it was first seen: it never moves."""
    if not isinstance(old, GangPod) or (pod.link == old.link and pod.labels == old.labels):
        return pod
    return msgspec.structs.replace(pod, link=old.link, labels=old.labels)


class StateMachine:
    """Events in, proposals out.

    Args:
        timeouts: waiting times.
        native_groups: native PodGroups are made for gangs.

    Attributes:
        pods: pods that have not ended, by UID; pods of gangs also after they succeeded.
        workload_states: Workloads and the pods that name them.
        expectations: open requests by pod UID.
        owners: the existing child Jobs.
    """

    def __init__(self, timeouts: Timeouts | None = None, *, native_groups: bool = False) -> None:
        self.timeouts = timeouts or Timeouts()
        self._native_groups = native_groups
        self.pods: dict[PodUid, GatedPod] = {}
        self.workload_states: dict[WorkloadKey, WorkloadState] = {}
        self.expectations: dict[PodUid, Expectation] = {}
        self.owners = ChildJobOwners()
        self._deleted = Tombstones()
        self._slice_chains = SliceChains[PodUid]()
        self._parent_by_slice: dict[str, WorkloadKey] = {}  # by UID of a slice
        self._workload_by_parent: dict[str, WorkloadKey] = {}  # by UID of a JobSet
        self._gang_workloads: dict[str, GangWorkload] = {}  # by key
        self._workloads_by_link: dict[str, set[WorkloadKey]] = {}  # by key of a gang Workload

    def handle(self, event: Event) -> WorkloadKey | None:
        """Update the state; returns the Workload to reconcile now, if any."""
        match event:
            case PodSeen():
                return self._pod_seen(event)
            case PodGone():
                return self._pod_gone(event.uid, event.version)
            case WorkloadSeen():
                return self._workload_seen(event.workload, live=event.live)
            case WorkloadGone():
                return self._workload_gone(event.key, event.uid)
            case JobSeen():
                return self._job_seen(event)
            case JobGone():
                self.owners.delete(event.uid)
                return None
            case UngateAccepted():
                # Start the wait for the watch: the request may have been queued for long.
                expected = self.expectations.get(event.uid)
                if expected is not None and expected.resource_version == event.resource_version:
                    expected.read_due_at = event.now + self.timeouts.expectation_s
                return None
            case UngateFailed():
                return self._ungate_failed(event)
            case _:
                assert_never(event)

    def set_gang_workload(self, key: str, workload: GangWorkload | None) -> list[WorkloadKey]:
        """Record a Workload of gangs, or that it is gone; returns the Workloads to reconcile now.

        Pods of several Workloads may name it.
        """
        known = self._gang_workloads.pop(key, None)
        if workload is not None:
            self._gang_workloads[key] = workload
        changed = known is None or workload is None or not known.has_same_gangs(workload)
        found = []
        for user in self._workloads_by_link.get(key, ()):
            workload_state = self.workload_states[user]
            workload_state.set_gang_workload(key.partition("/")[2], workload)
            workload_state.version += changed
            if changed and workload_state.may_ungate:
                found.append(user)
        return found

    def workload(self, key: WorkloadKey) -> GatedWorkload | None:
        """The Workload of a name, None while it is not known."""
        workload_state = self.workload_states.get(key)
        return workload_state.workload if workload_state is not None else None

    def propose(self, key: WorkloadKey, now: float) -> Proposal:
        """Propose actions for a Workload.

        Changes only when reads are due, and since when pods are known to terminate.

        Args:
            key: the Workload.
            now: monotonic seconds. No wall clock is used.
        """
        workload_state = self.workload_states.get(key)
        if workload_state is None:
            return Proposal()
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
                message = (
                    f'pods of podset "{name}" stay gated: the topology assignment is unreadable'
                )
                report = Report("AssignmentUnreadable", name, f"{message}: {admission}")
                proposal.reports.append(report)
            else:
                self._plan_podset(workload_state.workload, podset, admission, proposal, now)
        # A gang that has started may need its PodGroup again.
        acts = workload_state.is_admitted if self._native_groups else workload_state.may_ungate
        if workload_state.gangs is not None and acts:
            pods = pods_of_gangs(workload_state, self.owners)
            proposal.gangs = decide(
                workload_state, pods, proposal.ungates, native=self._native_groups
            )
            proposal.ungates = proposal.gangs.ungates
        return proposal

    def _add_due_reads(self, podset: PodSetState, proposal: Proposal, now: float) -> bool:
        """Add the live reads that are due; returns whether no pod of the PodSet may be ungated."""
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
        for uid, pod in podset.pods.items():
            if pod.terminating and not pod.gated:
                podset.deletion_seen_at.setdefault(uid, now)
        overdue_deletions = {
            uid
            for uid in podset.deletion_seen_at
            if now >= podset.deletion_overdue_at(uid, self.timeouts)
        }
        plan = plan_ungating(
            admission,
            pods,
            pinned=pinned,
            backing_off=backing_off,
            overdue_deletions=overdue_deletions,
        )
        chosen = {ungate.pod.uid for ungate in plan.ungates}
        if pinned.keys() - chosen:
            # The domain is no longer assigned, but the write may still be applied.
            proposal.awaiting_expectations += podset.gated
            return
        proposal.ungates.extend(plan.ungates)
        proposal.reports.extend(plan.reports)

    def is_still_admitted(self, key: WorkloadKey, workloads: Iterable[GatedWorkload]) -> bool:
        """Whether an elastic Workload is still admitted with at least the known counts.

        Args:
            key: the Workload.
            workloads: it and its slices, all from one list.
        """
        workload_state, live = self.workload_states[key], WorkloadState()
        live.podsets = workload_state.podsets
        for obj in workloads:
            if obj.parent == key:
                live.slices[obj.uid] = obj
            elif obj.key == key:
                live.workload = obj
        if (
            workload_state.workload is None
            or live.workload is None
            or live.workload.uid != workload_state.workload.uid
            or live.workload.admitted_at != workload_state.workload.admitted_at
        ):
            # Recreated: it may belong to a shard of another replica. Or admitted again.
            return False
        return admits_at_least(dict(live.admissions()), dict(workload_state.admissions()))

    def expect_ungates(self, ungates: list[Ungate], now: float) -> None:
        """Record expectations. Must be called before the first of these requests is sent."""
        for ungate in ungates:
            pod = ungate.pod
            workload_state = self.workload_states[pod.workload_key]
            workload_state.podsets[pod.podset].expected.add(pod.uid)
            earlier = self.expectations.get(pod.uid)  # the same request, sent again
            self.expectations[pod.uid] = Expectation(
                workload=pod.workload_key,
                podset=pod.podset,
                resource_version=pod.resource_version,
                domain=ungate.domain,
                gates=ungate.gates,
                read_due_at=now + self.timeouts.expectation_s,
                in_flight_until=earlier.in_flight_until if earlier else 0.0,
            )
            workload_state.version += 1

    def next_timer_at(self, key: WorkloadKey, now: float) -> float | None:
        """When a Workload is next due without an event, later than `now`; None for never."""
        workload_state = self.workload_states.get(key)
        if workload_state is None:
            return None
        times: list[float] = []
        for podset in workload_state.podsets.values():
            for uid in podset.expected:
                expected = self.expectations[uid]
                at = expected.in_flight_until if expected.pinned else expected.read_due_at
                if at <= now and not expected.pinned:
                    at = now + _RETRY_S  # became due during a batch: still to be read
                times.append(at)
            times += [rejection.not_before for rejection in podset.rejected.values()]
            if podset.gated:
                times += [
                    podset.deletion_overdue_at(uid, self.timeouts)
                    for uid in podset.deletion_seen_at
                ]
        return min((at for at in times if at > now), default=None)

    def workloads_in_flight(self, now: float) -> dict[WorkloadKey, float]:
        """Workloads with a request that has no response and may still be applied.

        Other replicas do not know about it: none may act on such a Workload before that time of our
            monotonic clock. A request is not counted while its response is awaited.
        """
        ends: dict[WorkloadKey, float] = {}
        for expected in self.expectations.values():
            if expected.in_flight_until > now:
                ends[expected.workload] = max(
                    expected.in_flight_until, ends.get(expected.workload, 0)
                )
        return ends

    def orphans(self) -> list[GatedPod]:
        """Gated pods whose Workload does not exist, by name."""
        pods = [
            pod
            for workload_state in self.workload_states.values()
            if workload_state.workload is None and workload_state.gated
            for podset in workload_state.podsets.values()
            for pod in podset.pods.values()
            if pod.gated and not pod.terminating
        ]
        return sorted(pods, key=lambda pod: pod.key)

    # Pods ---------------------------------------------------------------------------------

    def _pod_seen(self, event: PodSeen) -> WorkloadKey | None:
        obj, live = event.pod, event.live
        if (live and obj.uid in self._deleted) or self._deleted.outdated(obj.uid, obj.version):
            return None  # read before its deletion, delivered after it
        self._deleted.discard(obj.uid)
        old = self.pods.get(obj.uid)
        if old is not None and obj.version and obj.version <= old.version:
            obj = old  # the watch lags behind a live read
        if isinstance(obj, GangPod):
            obj = _first_membership(obj, old)
        obj = self._of_live_slice(obj)
        if obj.terminal and not (isinstance(obj, GangPod) and obj.succeeded and not obj.gates):
            return self._pod_gone(obj.uid, obj.version)
        if obj is not old:
            self._store_pod(old, obj)
        if live or obj is not old:
            self._resolve_expectation(obj, live=live, listed=event.listed)
        return self._workload_to_reconcile(old, obj)

    def _store_pod(self, old: GatedPod | None, obj: GatedPod) -> None:
        self.pods[obj.uid] = obj
        self._slice_chains.set_pod(obj.uid, obj.chain)
        if old is not None and (old.workload_key, old.podset) != (obj.workload_key, obj.podset):
            self._remove_pod(old)
            old = None
        workload_state = self.workload_states.setdefault(obj.workload_key, WorkloadState())
        podset = workload_state.podsets.setdefault(obj.podset, PodSetState())
        podset.pods[obj.uid] = obj
        if isinstance(obj, GangPod) or isinstance(old, GangPod):
            if old is not None:
                podset.count(old, -1)
            podset.count(obj, 1)
            self._link(workload_state, obj, old)
        else:
            podset.gated += (obj.gates != 0) - (old is not None and old.gates != 0)
            podset.unplaced += bool(obj.gates & TOPOLOGY) - (
                old is not None and bool(old.gates & TOPOLOGY)
            )
        workload_state.version += 1

    def _link(
        self, workload_state: WorkloadState, new: GatedPod | None, old: GatedPod | None
    ) -> None:
        """Count the pods that name each Workload of gangs, after a pod changed or is gone."""
        if isinstance(new, GangPod) and isinstance(old, GangPod) and new.link == old.link:
            return
        if isinstance(new, GangPod):
            workload_state.add_link(new.link, self._gang_workloads.get(new.link_key))
            self._workloads_by_link.setdefault(new.link_key, set()).add(new.workload_key)
        if isinstance(old, GangPod) and workload_state.remove_link(old.link):
            users = self._workloads_by_link[old.link_key]
            users.discard(old.workload_key)
            if not users:
                del self._workloads_by_link[old.link_key]

    def _workload_to_reconcile(self, old: GatedPod | None, obj: GatedPod) -> WorkloadKey | None:
        """Return the Workload if it has a new gated pod or new free capacity."""
        podset = self._podset_state(obj)
        if podset is None or not podset.gated:
            return None
        if old is not None and old.is_equal_except_version(obj) and obj.uid not in podset.rejected:
            return None
        return obj.workload_key

    def _resolve_expectation(self, obj: GatedPod, *, live: bool, listed: bool) -> None:
        """End the rejection and the expectation of a pod if this version allows it."""
        podset = self._podset_state(obj)
        rejection = podset.rejected.get(obj.uid) if podset else None
        if podset and rejection:
            if not obj.gated:
                del podset.rejected[obj.uid]
            elif live or obj.resource_version != rejection.resource_version:
                rejection.reread = False
        expected = self.expectations.get(obj.uid)
        if expected is None:
            return
        moved = obj.resource_version != expected.resource_version
        if not obj.gates & expected.gates or (moved and (live or expected.outcome_unknown)):
            # It succeeded, or it was bound to an older version and can no longer be applied.
            self._end_expectation(obj.uid)
        elif live and expected.outcome_unknown:
            if not expected.read_after_flight:
                expected.pinned = True
            elif not listed:
                self._end_expectation(obj.uid)

    def _pod_gone(self, uid: PodUid, version: int = 0) -> WorkloadKey | None:
        obj = self.pods.pop(uid, None)
        if obj is not None:
            self._slice_chains.set_pod(uid, "")
        self._deleted.add(uid, max(version, obj.version if obj else 0))
        self._end_expectation(uid)
        return self._remove_pod(obj) if obj is not None else None

    def _remove_pod(self, obj: GatedPod) -> WorkloadKey | None:
        """Remove a pod from its PodSet; returns the Workload if other pods may be ungated."""
        workload_state = self.workload_states[obj.workload_key]
        podset = workload_state.podsets[obj.podset]
        del podset.pods[obj.uid]
        podset.rejected.pop(obj.uid, None)
        podset.deletion_seen_at.pop(obj.uid, None)
        podset.count(obj, -1)
        self._link(workload_state, None, obj)
        workload_state.version += 1
        if podset.is_empty:
            del workload_state.podsets[obj.podset]
        self._remove_if_empty(obj.workload_key)
        return obj.workload_key if podset.gated else None

    def _podset_state(self, obj: GatedPod) -> PodSetState | None:
        workload_state = self.workload_states.get(obj.workload_key)
        return workload_state.podsets.get(obj.podset) if workload_state else None

    # Workloads ----------------------------------------------------------------------------

    def _workload_seen(self, obj: GatedWorkload, *, live: bool) -> WorkloadKey | None:
        if obj.parent is not None:
            return self._slice_seen(obj, obj.parent)
        if live and obj.uid in self._deleted:
            return None
        self._remove_slice(obj.uid)  # it is no longer a slice
        workload_state = self.workload_states.setdefault(obj.key, WorkloadState())
        old = workload_state.workload
        if old is not None and obj.version and obj.version < old.version:
            return None  # also true if recreated: versions grow over all Workloads
        if old is not None and old.has_same_admission(obj):
            workload_state.workload = obj
            return None
        self._set_workload(obj.key, workload_state, obj)
        for uid in obj.merged:
            self._slice_merged(uid)
        return obj.key if workload_state.may_ungate else None

    def _workload_gone(self, key: WorkloadKey, uid: str) -> WorkloadKey | None:
        self._deleted.add(uid)
        self._remove_slice(uid)
        known = self.workload(key)
        if known is not None and known.uid == uid:
            self._set_workload(key, self.workload_states[key], None)
            self._remove_if_empty(key)
        return None

    def _set_workload(
        self, key: WorkloadKey, workload_state: WorkloadState, obj: GatedWorkload | None
    ) -> None:
        old = workload_state.workload
        if old is not None and self._workload_by_parent.get(old.owner_uid) == key:
            del self._workload_by_parent[old.owner_uid]
        if obj is not None and obj.has_children:
            self._workload_by_parent[obj.owner_uid] = key
        workload_state.set_workload(obj)
        chain, admitted = (obj.chain, obj.admitted) if obj is not None else ("", False)
        for uid in self._slice_chains.set_workload(key, chain, admitted=admitted):
            pod = self.pods[uid]
            moved = self._of_live_slice(pod)
            if moved is not pod:
                self._store_pod(pod, moved)

    def _of_live_slice(self, pod: GatedPod) -> GatedPod:
        """The pod, with the Workload that it belongs to now if Kueue replaced the one it names."""
        if not pod.slice_chain:
            return pod
        key = self._slice_chains.workload_of(pod.chain, pod.workload_key)
        if key == pod.workload_key:
            return pod
        return msgspec.structs.replace(pod, workload=intern(key.partition("/")[2]))

    def _remove_if_empty(self, key: WorkloadKey) -> None:
        if self.workload_states[key].is_empty:
            del self.workload_states[key]

    # Slices and child Jobs ----------------------------------------------------------------

    def _slice_seen(self, obj: GatedWorkload, parent: WorkloadKey) -> WorkloadKey | None:
        """Store a slice with its parent; a change of its admission wakes the parent."""
        if obj.uid in self._deleted:
            return None  # merged or deleted: it never counts again
        if self._parent_by_slice.get(obj.uid, parent) != parent:
            self._remove_slice(obj.uid)  # it has another parent now
        workload = self.workload(parent)
        if workload is not None and obj.uid in workload.merged:
            self._slice_merged(obj.uid)
            return None
        workload_state = self.workload_states.setdefault(parent, WorkloadState())
        known = workload_state.slices.get(obj.uid)
        if known is not None and obj.version and obj.version <= known.version:
            return None
        if known is not None and known.has_same_admission(obj):
            workload_state.slices[obj.uid] = obj
            return None
        self._parent_by_slice[obj.uid] = parent
        workload_state.set_slice(obj)
        # The end of an admission wakes the parent, too: a pending plan may be based on it.
        changes = obj.admitted or (known is not None and known.admitted)
        return parent if changes and workload_state.may_ungate else None

    def _slice_merged(self, uid: str) -> None:
        """Record that the parent includes a slice, even if the parent is removed first."""
        self._deleted.add(uid)
        self._remove_slice(uid)

    def _remove_slice(self, uid: str) -> None:
        parent = self._parent_by_slice.pop(uid, None)
        if parent is not None:
            self.workload_states[parent].remove_slice(uid)
            self._remove_if_empty(parent)

    def _job_seen(self, event: JobSeen) -> WorkloadKey | None:
        """Assign pods that were seen before their child Job to the Workload of its JobSet."""
        if not self.owners.update(event.uid, event.owner, event.attempt):
            return None
        key = self._workload_by_parent.get(event.owner)
        if key is None:
            return None
        workload_state = self.workload_states[key]
        workload_state.version += 1
        return key if workload_state.may_ungate else None

    # Requests -----------------------------------------------------------------------------

    def _ungate_failed(self, event: UngateFailed) -> WorkloadKey | None:
        expected = self.expectations.get(event.uid)
        if expected is None or expected.resource_version != event.resource_version:
            return None  # the watch was faster than the response
        if event.failure is Failure.UNKNOWN_OUTCOME:
            expected.in_flight_until = event.now + self.timeouts.in_flight_s
        if event.failure is Failure.CONFLICT or event.now < expected.in_flight_until:
            expected.outcome_unknown = True
            return expected.workload
        if event.failure is Failure.REJECTED:
            self._record_rejection(event.uid, expected, event.now)
        return self._end_expectation(event.uid)

    def _record_rejection(self, uid: PodUid, expected: Expectation, now: float) -> None:
        rejected = self.workload_states[expected.workload].podsets[expected.podset].rejected
        pause = (
            rejected[uid].backoff_s * 2 if uid in rejected else self.timeouts.rejection_backoff_s
        )
        pause = min(pause, self.timeouts.rejection_backoff_max_s)
        rejected[uid] = Rejection(expected.resource_version, now + pause, pause)

    def _end_expectation(self, uid: PodUid) -> WorkloadKey | None:
        expected = self.expectations.pop(uid, None)
        if expected is None:
            return None
        workload_state = self.workload_states[expected.workload]
        podset = workload_state.podsets[expected.podset]
        podset.expected.discard(uid)
        workload_state.version += 1
        if podset.is_empty:
            del workload_state.podsets[expected.podset]
            self._remove_if_empty(expected.workload)
        return expected.workload
