"""Records of the machine: Workloads with their PodSets, expectations, refusals, limits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from rackgate.topology.assignment import Domain, TopologyAssignment, decode
from rackgate_ungater.machine.admissions import covers, grant_of
from rackgate_ungater.machine.plan import Grant
from rackgate_ungater.machine.rows import TOPOLOGY, PodRow, PodUid, WorkloadKey, WorkloadRow


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the machine waits, in seconds.

    Attributes:
        expectation_s: an unseen write is looked up by a live read after this time.
        in_flight_s: a request without an answer cannot be applied any more after this time.
        refusal_s: first pause before a refused pod is tried again; doubles each time.
        refusal_max_s: longest such pause.
        overdue_s: a deletion that is not over so long after its grace period never will be.
    """

    expectation_s: float = 10.0
    in_flight_s: float = 75.0
    refusal_s: float = 0.5
    refusal_max_s: float = 60.0
    overdue_s: float = 30.0


@dataclass(slots=True)
class Expectation:
    """One request that is not yet known to have worked or failed.

    Attributes:
        resource_version: the version that the request is bound to: once the pod has a later
            one, the request cannot be applied any more.
        domain: where the request sends the pod.
        gates: those that it takes off, as bits.
        read_at: when a live read is due, in monotonic seconds.
        flight_until: until then an unanswered request bound to this version may be applied.
        doubtful: the answer was lost or a conflict: the pod must be read before the next act.
        pinned: read since, and unchanged: the same request is made again before any other.
        final: no request was under way any more when the last live read was asked for.
    """

    workload: WorkloadKey
    podset: str
    resource_version: str
    domain: Domain
    read_at: float
    gates: int = TOPOLOGY
    flight_until: float = 0.0
    doubtful: bool = False
    pinned: bool = False
    final: bool = False


@dataclass(slots=True)
class Refusal:
    """A pod whose request the server refused.

    Attributes:
        not_before: monotonic seconds of the next attempt.
        pause_s: the pause that led there; the next one is twice as long.
        reread: the pod must be read again first.
    """

    resource_version: str
    not_before: float
    pause_s: float
    reread: bool = True


@dataclass(slots=True)
class PodSetState:
    """Pods that name one PodSet, whoever owns them.

    Attributes:
        pods: neither ended nor gone, by UID.
        gated: how many of them carry the gate.
        expected: UIDs with an open expectation.
        refused: UIDs whose last request was refused.
        ending: released pods that are being deleted, and the monotonic second at which that was
            first noticed here.
    """

    pods: dict[PodUid, PodRow] = field(default_factory=dict)
    gated: int = 0
    expected: set[PodUid] = field(default_factory=set)
    refused: dict[PodUid, Refusal] = field(default_factory=dict)
    ending: dict[PodUid, float] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return not self.pods and not self.expected

    def over_at(self, uid: PodUid, limits: Limits) -> float:
        """The monotonic second from which on a deletion is overdue."""
        return self.ending[uid] + self.pods[uid].grace_s + limits.overdue_s


@dataclass(slots=True)
class Group:
    """Everything about one Workload name.

    Attributes:
        row: the Workload, None while only pods or slices name it.
        slices: of an elastic Workload of this name, by UID; without those it has folded.
        version: grows with every change that a plan could depend on.
        granted: grows with every change of what is granted.
    """

    row: WorkloadRow | None = None
    podsets: dict[str, PodSetState] = field(default_factory=dict)
    slices: dict[str, WorkloadRow] = field(default_factory=dict)
    version: int = 0
    granted: int = 0
    _grants: dict[str, Grant | str] = field(default_factory=dict)
    _decoded: dict[str, tuple[bytes, TopologyAssignment]] = field(default_factory=dict)

    @property
    def gated(self) -> int:
        """Gated pods over all PodSets."""
        return sum(podset.gated for podset in self.podsets.values())

    @property
    def empty(self) -> bool:
        """Whether nothing would be lost by forgetting it."""
        return self.row is None and not self.podsets and not self.slices

    @property
    def waits(self) -> bool:
        """Whether there are gated pods that it may release."""
        return self.row is not None and self.row.granting and self.gated > 0

    def set_row(self, row: WorkloadRow | None) -> None:
        """Take over another state of the Workload; decoded assignments stay while equal."""
        self.row = row
        self._granted_anew()
        raw = {podset.name: podset.assignment for podset in row.podsets} if row else {}
        for name in [name for name, (data, _) in self._decoded.items() if raw.get(name) != data]:
            del self._decoded[name]

    def set_slice(self, row: WorkloadRow) -> None:
        """Take over another state of a slice."""
        self.slices[row.uid] = row
        self._granted_anew()

    def drop_slice(self, uid: str) -> None:
        """Forget a slice: it is gone, or counted by its parent."""
        del self.slices[uid]
        self._decoded.pop(uid, None)
        self._granted_anew()

    def _granted_anew(self) -> None:
        self._grants.clear()
        self.version += 1
        self.granted += 1

    def granting_slices(self) -> list[WorkloadRow]:
        """The slices that grant beside the Workload's own counts."""
        row = self.row
        if row is None or not self.slices:
            return []
        return [
            slice_
            for slice_ in self.slices.values()
            if slice_.granting and slice_.owner_uid == row.uid and slice_.uid not in row.folded
        ]

    def grants(self) -> Iterator[tuple[str, Grant | str]]:
        """PodSets that may ungate pods: name and grant, or why the assignment is unreadable."""
        row = self.row
        if row is None or not row.granting or not row.owner_uid:
            return
        for podset in row.podsets:
            if podset.name in self.podsets and (row.elastic or podset.assignment is not None):
                if podset.name not in self._grants:
                    slices = self.granting_slices() if row.elastic else ()
                    self._grants[podset.name] = grant_of(row, podset, slices, self._decode)
                yield podset.name, self._grants[podset.name]

    def standing(self) -> Callable[[], bool]:
        """What tells, as often as it is asked, whether all that is granted now still is.

        Once it is not, it never is again: whoever planned by it has to plan anew.
        """
        acted, owner, seen = dict(self.grants()), self.row, self.granted
        stands = True

        def asked() -> bool:
            nonlocal seen, stands
            if stands and seen != self.granted:
                seen = self.granted
                same = owner is not None and self.row is not None and self.row.uid == owner.uid
                stands = same and covers(dict(self.grants()), acted)
            return stands

        return asked

    def _decode(self, name: str, raw: bytes) -> TopologyAssignment:
        known = self._decoded.get(name)
        if known is None or known[0] != raw:
            known = self._decoded[name] = (raw, decode(msgspec.json.decode(raw)))
        return known[1]


class Tombstones:
    """UIDs that are no more, so that a late list, read or repeated event cannot bring them back.

    Args:
        limit: how many are remembered; far more than disappear during one list.
    """

    def __init__(self, limit: int = 16384) -> None:
        self._limit = limit
        self._versions: dict[str, int] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._versions

    def outdated(self, uid: str, version: int) -> bool:
        """Whether that version is from before it went: it may come back, with a later one."""
        return uid in self._versions and 0 < version <= self._versions[uid]

    def discard(self, uid: str) -> None:
        """Forget a UID that is back: its label was taken away and given again."""
        self._versions.pop(uid, None)

    def add(self, uid: str, version: int = 0) -> None:
        """Remember a UID and its last version, and forget the oldest one beyond the limit."""
        self._versions[uid] = max(version, self._versions.get(uid, 0))
        if len(self._versions) > self._limit:
            del self._versions[next(iter(self._versions))]
