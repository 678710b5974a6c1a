"""Records of the state machine: Workloads with PodSets, expectations, rejections. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from rackgate.topology.assignment import Domain, TopologyAssignment, decode
from rackgate_ungater.state_machine.gang_workloads import GangWorkload
from rackgate_ungater.state_machine.gated_objects import (
    TOPOLOGY,
    GangPod,
    GatedPod,
    GatedWorkload,
    PodUid,
    WorkloadKey,
)
from rackgate_ungater.state_machine.ungating_plan import (
    PodSetAdmission,
    admits_at_least,
    podset_admission,
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Waiting times of the state machine, in seconds.

    Attributes:
        expectation_s: a pod whose write is not seen is read live after this time.
        in_flight_s: a request without a response cannot be applied after this time.
        rejection_backoff_s: first pause before a rejected pod is retried; doubles each time.
        rejection_backoff_max_s: maximum of that pause.
        deletion_overdue_s: a deletion that is not complete so long after its grace period is
            overdue.
    """

    expectation_s: float = 10.0
    in_flight_s: float = 75.0
    rejection_backoff_s: float = 0.5
    rejection_backoff_max_s: float = 60.0
    deletion_overdue_s: float = 30.0


@dataclass(slots=True)
class Expectation:
    """One request that is not yet known to have succeeded or failed.

    Attributes:
        resource_version: the version that the request is bound to: once the pod has a later
            one, the request cannot be applied any more.
        domain: where the request sends the pod.
        gates: that it removes, as bits.
        read_due_at: when a live read is due, in monotonic seconds.
        in_flight_until: until then, a request without a response that is bound to this version may
            be applied.
        outcome_unknown: there was no response, or a conflict: the pod must be read before the next
            write.
        pinned: read since, and unchanged: the same request is sent again before any other.
        read_after_flight: no request was under way when the last live read was requested.
    """

    workload: WorkloadKey
    podset: str
    resource_version: str
    domain: Domain
    read_due_at: float
    gates: int = TOPOLOGY
    in_flight_until: float = 0.0
    outcome_unknown: bool = False
    pinned: bool = False
    read_after_flight: bool = False


@dataclass(slots=True)
class Rejection:
    """A pod whose request the API server rejected.

    Attributes:
        not_before: monotonic seconds of the next attempt.
        backoff_s: the last pause; the next one is twice as long.
        reread: the pod must be read again first.
    """

    resource_version: str
    not_before: float
    backoff_s: float
    reread: bool = True


@dataclass(slots=True)
class PodSetState:
    """Pods that name one PodSet, regardless of their owner.

    Attributes:
        pods: neither ended nor gone, by UID; pods of gangs also after they succeeded.
        gated: how many of them have a gate.
        unplaced: how many of them have the topology gate.
        in_gangs: how many of them are pods of gangs.
        succeeded: how many of them have succeeded.
        expected: UIDs with an open expectation.
        rejected: UIDs whose last request was rejected.
        deletion_seen_at: ungated pods that are being deleted, and the monotonic time at which that
            was first seen.
    """

    pods: dict[PodUid, GatedPod] = field(default_factory=dict)
    gated: int = 0
    unplaced: int = 0
    in_gangs: int = 0
    succeeded: int = 0
    expected: set[PodUid] = field(default_factory=set)
    rejected: dict[PodUid, Rejection] = field(default_factory=dict)
    deletion_seen_at: dict[PodUid, float] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return not self.pods and not self.expected

    @property
    def live(self) -> int:
        """Pods that have not ended."""
        return len(self.pods) - self.succeeded

    def count(self, pod: GatedPod, number: int) -> None:
        """Add a pod to the counts (1), or remove it (-1)."""
        self.gated += number * (pod.gates != 0)
        self.unplaced += number * bool(pod.gates & TOPOLOGY)
        if isinstance(pod, GangPod):
            self.in_gangs += number
            self.succeeded += number * pod.terminal

    def deletion_overdue_at(self, uid: PodUid, timeouts: Timeouts) -> float:
        """The monotonic time at which a deletion becomes overdue."""
        return self.deletion_seen_at[uid] + self.pods[uid].grace_s + timeouts.deletion_overdue_s


@dataclass(slots=True)
class LinkedGangs:
    """The Workloads of gangs that the pods of one Workload name.

    Attributes:
        pods: how many pods name each of them, by its name.
        workloads: those of them that exist, by name.
    """

    pods: dict[str, int] = field(default_factory=dict)
    workloads: dict[str, GangWorkload] = field(default_factory=dict)


@dataclass(slots=True)
class WorkloadState:
    """State of one Workload name.

    Attributes:
        workload: the Workload, None if only pods or slices name it.
        slices: of an elastic Workload of this name, by UID, without merged ones.
        gangs: if some of its pods belong to gangs.
        version: incremented by every change that can affect a plan.
        admission_version: incremented by every change of what is admitted.
    """

    workload: GatedWorkload | None = None
    podsets: dict[str, PodSetState] = field(default_factory=dict)
    slices: dict[str, GatedWorkload] = field(default_factory=dict)
    gangs: LinkedGangs | None = None
    version: int = 0
    admission_version: int = 0
    _admissions: dict[str, PodSetAdmission | str] = field(default_factory=dict)
    _decoded_assignments: dict[str, tuple[bytes, TopologyAssignment]] = field(default_factory=dict)

    @property
    def gated(self) -> int:
        """Gated pods over all PodSets."""
        return sum(podset.gated for podset in self.podsets.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return self.workload is None and not self.podsets and not self.slices

    @property
    def is_admitted(self) -> bool:
        """Whether its Workload is known and admitted."""
        return self.workload is not None and self.workload.admitted

    @property
    def may_ungate(self) -> bool:
        """Whether it has gated pods and is admitted."""
        return self.is_admitted and self.gated > 0

    def set_workload(self, workload: GatedWorkload | None) -> None:
        """Replace the Workload; decoded assignments stay cached if equal."""
        self.workload = workload
        self._admission_changed()
        raw = {podset.name: podset.assignment for podset in workload.podsets} if workload else {}
        for name in [
            name for name, (data, _) in self._decoded_assignments.items() if raw.get(name) != data
        ]:
            del self._decoded_assignments[name]

    def add_link(self, link: str, workload: GangWorkload | None) -> None:
        """Count a pod that names a Workload of gangs, which is None if it is not known."""
        if self.gangs is None:
            self.gangs = LinkedGangs()
        self.gangs.pods[link] = self.gangs.pods.get(link, 0) + 1
        self.set_gang_workload(link, workload)

    def remove_link(self, link: str) -> bool:
        """Remove a pod from that count; returns whether it was the last one."""
        if self.gangs is None:
            return False
        self.gangs.pods[link] -= 1
        if self.gangs.pods[link]:
            return False
        del self.gangs.pods[link]
        self.gangs.workloads.pop(link, None)
        if not self.gangs.pods:
            self.gangs = None
        return True

    def set_gang_workload(self, link: str, workload: GangWorkload | None) -> None:
        """Replace a Workload of gangs; None if it is not known."""
        if self.gangs is None:
            return
        if workload is None:
            self.gangs.workloads.pop(link, None)
        else:
            self.gangs.workloads[link] = workload

    def set_slice(self, workload: GatedWorkload) -> None:
        """Replace a slice."""
        self.slices[workload.uid] = workload
        self._admission_changed()

    def remove_slice(self, uid: str) -> None:
        """Remove a slice: it is deleted, or merged into its parent."""
        del self.slices[uid]
        self._decoded_assignments.pop(uid, None)
        self._admission_changed()

    def _admission_changed(self) -> None:
        self._admissions.clear()
        self.version += 1
        self.admission_version += 1

    def admitted_slices(self) -> list[GatedWorkload]:
        """The admitted slices that count in addition to the Workload's own counts."""
        workload = self.workload
        if workload is None or not self.slices:
            return []
        return [
            slice_
            for slice_ in self.slices.values()
            if slice_.admitted
            and slice_.owner_uid == workload.uid
            and slice_.uid not in workload.merged
        ]

    def admissions(self) -> Iterator[tuple[str, PodSetAdmission | str]]:
        """PodSets that may ungate pods: name and admission, or why the assignment is unreadable."""
        workload = self.workload
        if workload is None or not workload.admitted or not workload.owner_uid:
            return
        for podset in workload.podsets:
            state = self.podsets.get(podset.name)
            if state is not None and (
                workload.elastic
                or podset.assignment is not None
                or state.in_gangs
                or (state.unplaced and not workload.of_plain_pods)
            ):
                if podset.name not in self._admissions:
                    slices = self.admitted_slices() if workload.elastic else ()
                    self._admissions[podset.name] = podset_admission(
                        workload, podset, slices, self._decode_assignment
                    )
                yield podset.name, self._admissions[podset.name]

    def admission_check(self) -> Callable[[], bool]:
        """A function that returns whether everything that is admitted now is still admitted.

        After it has returned False it never returns True: a plan based on it must be made again.
        """
        planned, owner, seen = dict(self.admissions()), self.workload, self.admission_version
        still_admitted = True

        def is_still_admitted() -> bool:
            nonlocal seen, still_admitted
            if still_admitted and seen != self.admission_version:
                seen = self.admission_version
                same = (
                    owner is not None
                    and self.workload is not None
                    and self.workload.uid == owner.uid
                    and self.workload.admitted_at == owner.admitted_at
                )
                still_admitted = same and admits_at_least(dict(self.admissions()), planned)
            return still_admitted

        return is_still_admitted

    def _decode_assignment(self, name: str, raw: bytes) -> TopologyAssignment:
        known = self._decoded_assignments.get(name)
        if known is None or known[0] != raw:
            known = self._decoded_assignments[name] = (raw, decode(msgspec.json.decode(raw)))
        return known[1]


class Tombstones:
    """UIDs of deleted objects, so that a late list, read or repeated event is ignored.

    Args:
        limit: how many are kept; far more than are deleted during one list.
    """

    def __init__(self, limit: int = 16384) -> None:
        self._limit = limit
        self._versions: dict[str, int] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._versions

    def outdated(self, uid: str, version: int) -> bool:
        """Whether that version is from before the deletion. It may return with a later one."""
        return uid in self._versions and 0 < version <= self._versions[uid]

    def discard(self, uid: str) -> None:
        """Remove a UID that returned: its label was removed and added again."""
        self._versions.pop(uid, None)

    def add(self, uid: str, version: int = 0) -> None:
        """Add a UID and its last version, and remove the oldest one beyond the limit."""
        self._versions[uid] = max(version, self._versions.get(uid, 0))
        if len(self._versions) > self._limit:
            del self._versions[next(iter(self._versions))]
