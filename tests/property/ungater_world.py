"""A server's truth, a watch that lags, and the ungater's machine between them.

Every method is one thing that can happen. The server itself checks each write: no domain and no
PodSet may get more live pods than it was granted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from rackgate.domains import Domain
from rackgate_ungater.events import (
    Event,
    Failure,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadSeen,
)
from rackgate_ungater.machine import Limits, Machine, Proposal
from rackgate_ungater.rows import PodRow, WorkloadKey, WorkloadRow
from tests.unit.ungater.builders import INDEX, LEVELS, pod, podset, workload

KEY = WorkloadKey("team/train")
DOMAINS: tuple[Domain, ...] = (("b1", "r1"), ("b1", "r2"), ("b2", "r1"), ("b2", "r2"))
LIMITS = Limits(expectation_s=10, in_flight_s=60, refusal_s=1, refusal_max_s=8)
WALL = 1_000_000.0  # Unix time: the deletion of a pod that sticks was due long ago
ANSWERS = ("ok", "applied, lost", "dropped", "delayed", "conflict", "refuse", "throttle")
FAILURES = {
    "dropped": Failure.LOST,
    "conflict": Failure.CONFLICT,
    "refuse": Failure.REFUSED,
    "throttle": Failure.UNSENT,
}


@dataclass(frozen=True)
class Request:
    """A patch on its way. `until`: when the server would no longer take it."""

    row: PodRow
    domain: Domain
    until: float = float("inf")


class Server:
    """The truth: objects, their history, and the rule that no write may break."""

    def __init__(self) -> None:
        self.version = 10
        self.pods: dict[str, PodRow] = {}
        self.counts: dict[Domain, int] = {}
        self.workload: WorkloadRow = workload()
        self.pod_log: list[Event] = []
        self.workload_log: list[Event] = []

    def put(self, row: PodRow) -> None:
        self.version += 1
        row = msgspec.structs.replace(row, version=self.version, resource_version=str(self.version))
        self.pods[row.uid] = row
        self.pod_log.append(PodSeen(row))

    def change(self, uid: str, **facts: Any) -> None:
        self.put(msgspec.structs.replace(self.pods[uid], **facts))

    def remove(self, uid: str) -> None:
        self.version += 1
        self.pod_log.append(PodGone(self.pods.pop(uid).uid))

    def admit(self, counts: dict[Domain, int], *, ranks: bool, granting: bool = True) -> None:
        self.version += 1
        self.counts = {domain: count for domain, count in counts.items() if count}
        label = INDEX if ranks else None
        given = podset(*self.counts.items(), requested=True, pod_index_label=label)
        self.workload = workload(given, version=self.version, granting=granting)
        self.workload_log.append(WorkloadSeen(self.workload))

    def ungated(self) -> list[PodRow]:
        return [row for row in self.pods.values() if not row.terminal and not row.gated]

    def given_up(self, row: PodRow) -> bool:
        """Whether a pod is overdue on a domain that is not assigned any more."""
        return row.ends_at > 0 and tuple(row.selector.values()) not in self.counts

    def patch(self, request: Request) -> bool | None:
        """Apply a patch: True, None when the pod is gone, False for a conflict."""
        row = self.pods.get(request.row.uid)
        if row is None:
            return None
        if row.resource_version != request.row.resource_version:
            return False
        assert row.gated, "a patch bound to a gated version finds a gated pod"
        selector = dict(zip(LEVELS, request.domain, strict=True))
        self.change(row.uid, gated=False, selector=selector)
        ungated = self.ungated()
        there = sum(tuple(row.selector.values()) == request.domain for row in ungated)
        granted = self.counts.get(request.domain, there)
        assert there <= granted, "domain over its count"
        counted = [row for row in ungated if not self.given_up(row)]
        assert len(counted) <= sum(self.counts.values()), "PodSet over its count"
        return True


class World:
    """One active replica at a time; a killed one is followed by another with a stale watch."""

    def __init__(self, counts: Iterable[int], *, ranks: bool) -> None:
        self.server, self.machine = Server(), Machine(LIMITS)
        self.ranks, self.now, self.made = ranks, 0.0, 0
        self.pods_seen = self.workloads_seen = 0
        self.sent: list[Request] = []
        self.delayed: list[Request] = []
        self.admit(counts)
        self.deliver_workloads()

    # The cluster --------------------------------------------------------------------------

    def create(self, *, odd: bool) -> None:
        """A pod; its name runs against its rank, so that later pods sort before earlier ones."""
        self.made += 1
        used = {row.indices.get(INDEX) for row in self.server.pods.values() if not row.terminating}
        index = self.made % 5 if odd else next(n for n in range(1000) if n not in used)
        self.server.put(pod(f"p{(self.made * 619) % 1000:03}-{self.made}").rank(index).row())

    def change_pod(self, pick: int, how: str) -> None:
        rows = list(self.server.pods.values())
        if not rows:
            return
        row = rows[pick % len(rows)]
        if how == "remove":
            self.server.remove(row.uid)
        elif how == "end" and not row.gated:
            self.server.change(row.uid, terminal=True)
        elif how == "terminate":
            self.server.change(row.uid, terminating=True)
        elif how == "stick" and not row.gated:
            # Its node died: it is deleted, and nobody says that it ended.
            self.server.change(row.uid, terminating=True, ends_at=1.0)
        elif how == "touch":
            self.server.change(row.uid)

    def evict(self) -> None:
        """Suspended: every pod is marked for deletion before a new admission can come."""
        self.server.admit(dict(self.server.counts), ranks=self.ranks, granting=False)
        for row in list(self.server.pods.values()):
            self.server.change(row.uid, terminating=True)

    def admit(self, counts: Iterable[int]) -> None:
        self.server.admit(dict(zip(DOMAINS, counts, strict=True)), ranks=self.ranks)

    def swap_domain(self, pick: int) -> None:
        """A broken domain is replaced while the pods of the others run on."""
        busy = {request.domain for request in (*self.sent, *self.delayed)}
        busy |= {tuple(row.selector.values()) for row in self.server.ungated()}
        spare = next((d for d in DOMAINS if d not in self.server.counts and d not in busy), None)
        if spare is None:
            return
        gone = list(self.server.counts)[pick % len(self.server.counts)]
        counts = {spare if d == gone else d: n for d, n in self.server.counts.items()}
        self.server.admit(counts, ranks=self.ranks)

    # The watch ----------------------------------------------------------------------------

    def deliver_pods(self, count: int) -> None:
        for event in self.server.pod_log[self.pods_seen : self.pods_seen + count]:
            self.machine.handle(event)
        self.pods_seen = min(self.pods_seen + count, len(self.server.pod_log))

    def deliver_workloads(self) -> None:
        for event in self.server.workload_log[self.workloads_seen :]:
            self.machine.handle(event)
        self.workloads_seen = len(self.server.workload_log)

    def relist(self) -> None:
        """410: what happened in between is only seen as a difference."""
        seen = self.server.pod_log[: self.pods_seen]
        known = {event.row.uid for event in seen if isinstance(event, PodSeen)}
        known -= {event.uid for event in seen if isinstance(event, PodGone)}
        for uid in known - self.server.pods.keys():
            self.machine.handle(PodGone(uid))
        for row in self.server.pods.values():
            self.machine.handle(PodSeen(row))
        self.pods_seen = len(self.server.pod_log)

    # The ungater --------------------------------------------------------------------------

    def look(self, passed: float, *, reads_work: bool) -> None:
        """As the reconciler: read what is in doubt, confirm the Workload, record, send."""
        self.now += passed
        self.delayed = [request for request in self.delayed if request.until > self.now]
        if self.sent:
            return  # one look at a time: the last batch is not answered yet
        proposal = self.machine.propose(KEY, self.now, WALL)
        if proposal.reads:
            if reads_work:
                self._read(proposal)
            proposal = self.machine.propose(KEY, self.now, WALL)
        if not proposal.ungates:
            return
        self.machine.handle(WorkloadSeen(self.server.workload, live=True))
        if self.machine.groups[KEY].version != proposal.version:
            proposal = self.machine.propose(KEY, self.now, WALL)
        self.machine.commit(proposal.ungates, self.now)
        self.sent += [Request(ungate.pod, ungate.domain) for ungate in proposal.ungates]

    def _read(self, proposal: Proposal) -> None:
        for row in proposal.reads:
            found = self.server.pods.get(row.uid)
            self.machine.handle(PodSeen(found, live=True) if found else PodGone(row.uid))

    def answer(self, how: str) -> None:
        """What becomes of the oldest request that has no answer yet."""
        if not self.sent:
            return
        request = self.sent.pop(0)
        uid, version = request.row.uid, request.row.resource_version
        if how == "delayed":
            self.delayed.append(replace(request, until=self.now + LIMITS.in_flight_s))
        applied = self.server.patch(request) if how in ("ok", "applied, lost") else False
        if how in ("delayed", "applied, lost"):
            self.machine.handle(UngateFailed(uid, version, Failure.LOST, self.now))
        elif how in FAILURES:
            self.machine.handle(UngateFailed(uid, version, FAILURES[how], self.now))
        elif applied is None:
            self.machine.handle(PodGone(uid))
        elif applied:
            self.machine.handle(UngateAccepted(uid, version, self.now))
        else:
            self.machine.handle(UngateFailed(uid, version, Failure.CONFLICT, self.now))

    def arrive(self, pick: int) -> None:
        """A request that everybody had given up is applied after all."""
        if self.delayed:
            self.server.patch(self.delayed.pop(pick % len(self.delayed)))

    def kill(self, *, applied: bool, lag: int) -> None:
        """Another replica takes over when no request can be under way any more."""
        for request in (*self.sent, *self.delayed):
            if applied:
                self.server.patch(request)
        self.sent, self.delayed = [], []
        self.machine = Machine(LIMITS)
        self.pods_seen = max(0, len(self.server.pod_log) - lag)
        for event in self.server.pod_log[: self.pods_seen]:
            self.machine.handle(event)
        self.workloads_seen = 0
        self.deliver_workloads()
        for row in self.server.pods.values():
            self.machine.handle(PodSeen(row, live=True))

    def settle(self) -> None:
        """When the faults end, every pod that has a place is released."""
        for row in list(self.server.pods.values()):
            if row.terminating:
                self.server.remove(row.uid)
        for _ in range(8):
            while self.sent:
                self.answer("ok")
            self.deliver_pods(len(self.server.pod_log))
            self.deliver_workloads()
            self.look(100.0, reads_work=True)
        if self.server.workload.granting:
            live = sum(not row.terminal for row in self.server.pods.values())
            released = len(self.server.ungated())
            assert released == min(live, max(sum(self.server.counts.values()), released))
