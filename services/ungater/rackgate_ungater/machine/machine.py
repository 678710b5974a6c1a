"""The ungater's state: pods by PodSet, Workloads, and the requests not yet seen to work. Pure.

Everything that changes this state lives here, and nothing here does I/O or reads a clock.

An *expectation* is recorded before its request is sent and ends when the pod is seen without the
gate, when the server refused the request, or when the pod is gone. While a PodSet has one, none
of its pods is ungated: our view is behind our own writes. A request without an answer may still
arrive later. Such a pod is read first; found unchanged, it is sent to the same domain again
before any other pod, so that whichever of the two writes wins, it takes the same place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from rackgate_ungater.machine.admissions import covers
from rackgate_ungater.machine.events import (
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
from rackgate_ungater.machine.invariants import check, check_slices
from rackgate_ungater.machine.owners import Owners
from rackgate_ungater.machine.plan import Ungate
from rackgate_ungater.machine.proposals import Proposal, Proposer
from rackgate_ungater.machine.rows import PodRow, PodUid, WorkloadKey, WorkloadRow
from rackgate_ungater.machine.state import (
    Expectation,
    Group,
    Limits,
    PodSetState,
    Refusal,
    Tombstones,
)

# Seconds after which something that is due already is looked at again.
_SOON_S = 1.0


class Machine:
    """Events in, proposals out.

    Args:
        limits: waiting times.

    Attributes:
        pods: pods that have not ended, by UID.
        groups: Workloads and the pods that name them.
        expectations: open requests by pod UID.
        owners: the child Jobs there are.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.pods: dict[PodUid, PodRow] = {}
        self.groups: dict[WorkloadKey, Group] = {}
        self.expectations: dict[PodUid, Expectation] = {}
        self.owners = Owners()
        self._gone = Tombstones()
        self._parents: dict[str, WorkloadKey] = {}  # by UID of a slice
        self._jobsets: dict[str, WorkloadKey] = {}  # by UID of a JobSet

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
            case JobSeen():
                return self._job_seen(event)
            case JobGone():
                self.owners.gone(event.uid)
                return None
            case UngateAccepted():
                self._ungate_accepted(event)
                return None
            case UngateFailed():
                return self._ungate_failed(event)
            case _:
                assert_never(event)

    def propose(self, key: WorkloadKey, now: float) -> Proposal:
        """Say what could be done for a Workload; see `Proposer.propose`."""
        group = self.groups.get(key)
        if group is None:
            return Proposal()
        return Proposer(self.pods, self.expectations, self.owners, self.limits).propose(group, now)

    def covered(self, key: WorkloadKey, rows: Iterable[WorkloadRow]) -> bool:
        """Whether the server grants an elastic Workload at least what is known here.

        Args:
            key: the Workload.
            rows: it and its slices, all as they were at one moment.
        """
        group, live = self.groups[key], Group()
        live.podsets = group.podsets
        for row in rows:
            if row.parent == key:
                live.slices[row.uid] = row
            elif row.key == key:
                live.row = row
        if group.row is None or live.row is None or live.row.uid != group.row.uid:
            return False  # made anew, and perhaps another replica's by now
        return covers(dict(live.grants()), dict(group.grants()))

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
                gates=ungate.gates,
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
                at = expected.flight_until if expected.pinned else expected.read_at
                if at <= now and not expected.pinned:
                    at = now + _SOON_S  # fell due while a batch was under way: still to be read
                times.append(at)
            times += [refusal.not_before for refusal in podset.refused.values()]
            if podset.gated:
                times += [podset.over_at(uid, self.limits) for uid in podset.ending]
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
        check_slices(self.groups, self._parents, self._jobsets)

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
        podset.gated += (row.gates != 0) - (old is not None and old.gates != 0)
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
        if not row.gates & expected.gates or (moved and (live or expected.doubtful)):
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
        if row.parent is not None:
            return self._slice_seen(row, row.parent)
        if live and row.uid in self._gone:
            return None
        self._drop_slice(row.uid)  # somebody took its mark away
        group = self.groups.setdefault(row.key, Group())
        old = group.row
        if old is not None and row.version and row.version < old.version:
            return None  # versions grow over all Workloads, so this holds for a recreated one too
        if old is not None and old.same_grant(row):
            group.row = row
            return None
        self._set_row(row.key, group, row)
        for uid in row.folded:
            self._slice_folded(uid)
        return row.key if group.waits else None

    def _workload_gone(self, key: WorkloadKey, uid: str) -> WorkloadKey | None:
        self._gone.add(uid)
        self._drop_slice(uid)
        group = self.groups.get(key)
        if group is not None and group.row is not None and group.row.uid == uid:
            self._set_row(key, group, None)
            self._forget_empty(key)
        return None

    def _set_row(self, key: WorkloadKey, group: Group, row: WorkloadRow | None) -> None:
        old = group.row
        if old is not None and self._jobsets.get(old.owner_uid) == key:
            del self._jobsets[old.owner_uid]
        if row is not None and row.of_jobset:
            self._jobsets[row.owner_uid] = key
        group.set_row(row)

    def _forget_empty(self, key: WorkloadKey) -> None:
        if self.groups[key].empty:
            del self.groups[key]

    # Slices and child Jobs ----------------------------------------------------------------

    def _slice_seen(self, row: WorkloadRow, parent: WorkloadKey) -> WorkloadKey | None:
        """A slice is kept with its parent; what changes its grant wakes that one."""
        if row.uid in self._gone:
            return None  # folded, or deleted: it never counts again
        if self._parents.get(row.uid, parent) != parent:
            self._drop_slice(row.uid)  # somebody gave it to another
        group = self.groups.get(parent)
        if group is not None and group.row is not None and row.uid in group.row.folded:
            self._slice_folded(row.uid)
            return None
        group = group or self.groups.setdefault(parent, Group())
        known = group.slices.get(row.uid)
        if known is not None and row.version and row.version <= known.version:
            return None
        if known is not None and known.same_grant(row):
            group.slices[row.uid] = row
            return None
        self._parents[row.uid] = parent
        group.set_slice(row)
        # One that grants no longer wakes it, too: a plan that rested on it may be waiting.
        changes = row.granting or (known is not None and known.granting)
        return parent if changes and group.waits else None

    def _slice_folded(self, uid: str) -> None:
        """Its parent counts it from now on, also if that is forgotten before it is gone."""
        self._gone.add(uid)
        self._drop_slice(uid)

    def _drop_slice(self, uid: str) -> None:
        parent = self._parents.pop(uid, None)
        if parent is not None:
            self.groups[parent].drop_slice(uid)
            self._forget_empty(parent)

    def _job_seen(self, event: JobSeen) -> WorkloadKey | None:
        """Pods of a child Job that came before it belong to its JobSet's Workload now."""
        if not self.owners.seen(event.uid, event.owner):
            return None
        key = self._jobsets.get(event.owner)
        if key is None:
            return None
        group = self.groups[key]
        group.version += 1
        return key if group.waits else None

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
