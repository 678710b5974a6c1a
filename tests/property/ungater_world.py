"""A server's truth, watches that lag, and two ungater replicas with a machine each.

Every method is one thing that can happen. The server itself checks each write: no domain and no
PodSet may get more live pods than it was granted, and no gate of others may be touched. There are
no wall clocks. Monotonic ones have bases of their own, leap, and stand still while all goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from rackgate.api import names
from rackgate.topology.assignment import Domain
from rackgate_ungater.state_machine.events import (
    Event,
    Failure,
    PodGone,
    PodSeen,
    UngateAccepted,
    UngateFailed,
    WorkloadSeen,
)
from rackgate_ungater.state_machine.gated_objects import GatedPod, GatedWorkload, WorkloadKey
from rackgate_ungater.state_machine.records import Timeouts
from rackgate_ungater.state_machine.state_machine import Proposal, StateMachine
from rackgate_ungater.writer import patch_body, patch_tail
from tests.support.apiserver_objects import apply_patch
from tests.support.ungater_invariants import check_invariants
from tests.unit.ungater.builders import INDEX, LEVELS, pod, podset, workload

KEY = WorkloadKey("team/train")
DOMAINS: tuple[Domain, ...] = (("b1", "r1"), ("b1", "r2"), ("b2", "r1"), ("b2", "r2"))
TIMEOUTS = Timeouts(
    expectation_s=10,
    in_flight_s=60,
    rejection_backoff_s=1,
    rejection_backoff_max_s=8,
    deletion_overdue_s=20,
)
GRACE_S = 30.0
FOREIGN = ({"name": "example.com/first"}, {"name": "example.com/last"})
ANSWERS = ("ok", "applied, lost", "dropped", "delayed", "conflict", "refuse", "throttle")
FAILURES = {
    "dropped": Failure.UNKNOWN_OUTCOME,
    "conflict": Failure.CONFLICT,
    "refuse": Failure.REJECTED,
    "throttle": Failure.UNSENT,
}


@dataclass(frozen=True)
class Request:
    """A patch on its way.

    Attributes:
        until: when the server would no longer take it.
        run: that it records on a pod of a gang.
        starts_gang: it is the first of its gang.
    """

    row: GatedPod
    domain: Domain
    until: float = float("inf")
    run: str = ""
    starts_gang: bool = False


class Server:
    """The truth: objects, their history, and the rules that no write may break."""

    def __init__(self) -> None:
        self.version = 10
        self.now = 0.0
        self.pods: dict[str, GatedPod] = {}
        self.deleted_at: dict[str, float] = {}
        self.counts: dict[Domain, int] = {}
        self.workload: GatedWorkload = workload()
        self.pod_log: list[Event] = []
        self.workload_log: list[Event] = []

    def put(self, row: GatedPod) -> None:
        self.version += 1
        row = msgspec.structs.replace(row, version=self.version, resource_version=str(self.version))
        self.pods[row.uid] = row
        self.pod_log.append(PodSeen(row))

    def change(self, uid: str, **facts: Any) -> None:
        self.put(msgspec.structs.replace(self.pods[uid], **facts))

    def terminate(self, uid: str) -> None:
        """Its containers end within the grace period; the object may stay for ever."""
        self.deleted_at.setdefault(uid, self.now)
        self.change(uid, terminating=True, grace_s=GRACE_S)

    def remove(self, uid: str) -> None:
        self.version += 1
        self.pod_log.append(PodGone(self.pods.pop(uid).uid))

    def admit(self, counts: dict[Domain, int], *, ranks: bool, admitted: bool = True) -> None:
        self.version += 1
        self.counts = {domain: count for domain, count in counts.items() if count}
        label = INDEX if ranks else None
        given = podset(*self.counts.items(), requested=True, pod_index_label=label)
        self.workload = workload(given, version=self.version, admitted=admitted)
        self.workload_log.append(WorkloadSeen(self.workload))

    def ungated(self) -> list[GatedPod]:
        return [row for row in self.pods.values() if not row.terminal and not row.gated]

    def given_up(self, row: GatedPod) -> bool:
        """Whether a pod must have ended by now, on a domain that is not assigned any more."""
        ended = row.terminating and self.now >= self.deleted_at[row.uid] + GRACE_S
        return ended and tuple(row.selector.values()) not in self.counts

    def patch(self, request: Request) -> bool | None:
        """Apply a patch: True, None when the pod is gone, False for a conflict."""
        row = self.pods.get(request.row.uid)
        if row is None:
            return None
        if row.resource_version != request.row.resource_version:
            return False
        assert row.gated, "a patch bound to a gated version finds a gated pod"
        _touches_only_ours(request)
        selector = dict(zip(LEVELS, request.domain, strict=True))
        self.change(row.uid, gates=0, selector=selector, **self._recorded(request))
        ungated = self.ungated()
        there = sum(tuple(row.selector.values()) == request.domain for row in ungated)
        granted = self.counts.get(request.domain, there)
        assert there <= granted, "domain over its count"
        counted = [row for row in ungated if not self.given_up(row)]
        assert len(counted) <= sum(self.counts.values()), "PodSet over its count"
        return True

    def _recorded(self, _: Request) -> dict[str, Any]:
        return {}


def _touches_only_ours(request: Request) -> None:
    """Send the real bytes to a real object: foreign gates and selectors stay, in their order."""
    gates = [FOREIGN[0], {"name": names.TOPOLOGY_GATE}, FOREIGN[1]]
    stored = {"spec": {"schedulingGates": gates, "nodeSelector": {"disk": "ssd"}}}
    body = patch_body(request.row, patch_tail(LEVELS, request.domain))
    spec = apply_patch(stored, "application/strategic-merge-patch+json", body)["spec"]
    assert spec["schedulingGates"] == list(FOREIGN), "a foreign gate was touched"
    wanted = {"disk": "ssd", **dict(zip(LEVELS, request.domain, strict=True))}
    assert spec["nodeSelector"] == wanted


@dataclass
class Replica:
    """One process.

    Attributes:
        behind: what its monotonic clock lacks of the world's time.
        pods_seen: events of pods that it knows of.
        pods_listed: those of them that a list replaced. A watch begins after its list, so none of
            them is told again, and some of them never were.
    """

    behind: float
    machine: StateMachine = field(default_factory=lambda: StateMachine(TIMEOUTS))
    pods_seen: int = 0
    pods_listed: int = 0
    workloads_seen: int = 0


class World:
    """One replica acts at a time; the other watches, and remembers what it did before."""

    def __init__(self, counts: Iterable[int], *, ranks: bool) -> None:
        self.server = self._new_server()
        self.replicas = [Replica(0.0), Replica(-5000.0)]
        self.ranks, self.made = ranks, 0
        self.sent: list[Request] = []
        self.delayed: list[Request] = []
        self.listing: list[GatedPod] = []
        self.admit(counts)
        self.deliver_workloads()

    def _new_server(self) -> Server:
        return Server()

    @property
    def active(self) -> Replica:
        """The holder of the shard; hand-over turns the list."""
        return self.replicas[0]

    @property
    def machine(self) -> StateMachine:
        return self.active.machine

    @property
    def local(self) -> float:
        """Monotonic seconds of the active replica."""
        return self.server.now - self.active.behind

    def check(self) -> None:
        """What every machine believes fits together."""
        for replica in self.replicas:
            check_invariants(replica.machine)

    # The cluster --------------------------------------------------------------------------

    def create(self, *, odd: bool) -> None:
        """A pod; two names of three run against the rank, so that later pods sort before others."""
        self.made += 1
        used = {row.indices.get(INDEX) for row in self.server.pods.values() if not row.terminating}
        index = self.made % 5 if odd else next(n for n in range(1000) if n not in used)
        place = 10_000 + (self.made if self.made % 3 == 0 else -self.made)
        self.server.put(pod(f"p{place}").rank(index).build())

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
            self.server.terminate(row.uid)
        elif how == "touch":
            self.server.change(row.uid)

    def evict(self) -> None:
        """Suspended: every pod is marked for deletion before a new admission can come."""
        self.server.admit(dict(self.server.counts), ranks=self.ranks, admitted=False)
        for row in list(self.server.pods.values()):
            self.server.terminate(row.uid)

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

    # Time ---------------------------------------------------------------------------------

    def leap(self, seconds: float, *, noticed: bool) -> None:
        """Time passes; a replica that stood still as a whole may not have noticed."""
        self.server.now += seconds
        if not noticed:
            self.active.behind += seconds
        self.delayed = [request for request in self.delayed if request.until > self.server.now]

    # The watch ----------------------------------------------------------------------------

    def deliver_pods(self, count: int, *, to: int = 0) -> None:
        replica = self.replicas[to]
        for event in self.server.pod_log[replica.pods_seen : replica.pods_seen + count]:
            replica.machine.handle(event)
        replica.pods_seen = min(replica.pods_seen + count, len(self.server.pod_log))

    def deliver_workloads(self, *, to: int = 0) -> None:
        replica = self.replicas[to]
        for event in self.server.workload_log[replica.workloads_seen :]:
            replica.machine.handle(event)
        replica.workloads_seen = len(self.server.workload_log)

    def replay(self, back: int, count: int) -> None:
        """What was told is told once more."""
        start = max(self.active.pods_listed, self.active.pods_seen - back)
        for event in self.server.pod_log[start : min(start + count, self.active.pods_seen)]:
            self.machine.handle(event)
        for event in self.server.workload_log[: self.active.workloads_seen]:
            self.machine.handle(event)

    def relist(self) -> None:
        """410: what happened in between is only seen as a difference."""
        seen = self.server.pod_log[: self.active.pods_seen]
        known = {event.pod.uid for event in seen if isinstance(event, PodSeen)}
        known -= {event.uid for event in seen if isinstance(event, PodGone)}
        for uid in known - self.server.pods.keys():
            self.machine.handle(PodGone(uid))
        for row in self.server.pods.values():
            self.machine.handle(PodSeen(row))
        self.active.pods_seen = self.active.pods_listed = len(self.server.pod_log)

    # The ungater --------------------------------------------------------------------------

    def look(self, passed: float, *, reads_work: bool) -> None:
        """As the reconciler: read what is in doubt, confirm the Workload, record, send."""
        self.leap(passed, noticed=True)
        if self.sent:
            return  # one look at a time: the last batch is not answered yet
        proposal = self.machine.propose(KEY, self.local)
        if proposal.reads:
            if reads_work:
                self._read(proposal)
            proposal = self.machine.propose(KEY, self.local)
        if not proposal.ungates:
            return
        self.machine.handle(WorkloadSeen(self.server.workload, live=True))
        if self.machine.workload_states[KEY].version != proposal.version:
            proposal = self.machine.propose(KEY, self.local)
        self._send(proposal)

    def _send(self, proposal: Proposal) -> None:
        self.machine.expect_ungates(proposal.ungates, self.local)
        self.sent += [Request(ungate.pod, ungate.domain) for ungate in proposal.ungates]

    def _read(self, proposal: Proposal) -> None:
        for row in proposal.reads:
            found = self.server.pods.get(row.uid)
            self.machine.handle(PodSeen(found, live=True) if found else PodGone(row.uid))

    def begin_list(self) -> None:
        """A list for another shard: its pages show the pods as they are now, and come later."""
        self.listing = list(self.server.pods.values())

    def end_list(self) -> None:
        for row in self.listing:
            self.machine.handle(PodSeen(row, live=True, listed=True))
        self.listing = []

    def answer(self, how: str) -> None:
        """What becomes of the oldest request that has no answer yet."""
        if not self.sent:
            return
        request = self.sent.pop(0)
        uid, version = request.row.uid, request.row.resource_version
        if how == "delayed":
            until = self.server.now + TIMEOUTS.in_flight_s
            self.delayed.append(replace(request, until=until))
        applied = self.server.patch(request) if how in ("ok", "applied, lost") else False
        if how in ("delayed", "applied, lost"):
            self._failed(request, Failure.UNKNOWN_OUTCOME)
        elif how in FAILURES:
            self._failed(request, FAILURES[how])
        elif applied is None:
            self.machine.handle(PodGone(uid))
        elif applied:
            self.machine.handle(UngateAccepted(uid, version, self.local))
        else:
            self._failed(request, Failure.CONFLICT)

    def _failed(self, request: Request, failure: Failure) -> None:
        row = request.row
        self.machine.handle(UngateFailed(row.uid, row.resource_version, failure, self.local))

    def arrive(self, pick: int) -> None:
        """A request that everybody had given up is applied after all."""
        if self.delayed:
            self.server.patch(self.delayed.pop(pick % len(self.delayed)))

    # Replicas -----------------------------------------------------------------------------

    def give_over(self) -> bool:
        """A clean hand-over: all requests are answered, and none may still arrive.

        Late ones are left in the air on purpose: those that are must not be able to do anything.
        """
        if self.sent or self.machine.workloads_in_flight(self.local):
            return False
        self._take_over()
        return True

    def lose(self, *, applied: bool) -> None:
        """The Lease is lost: requests are broken off; the next one waits for their deadline."""
        for number, request in enumerate(self.sent):
            if applied and number % 2 == 0:
                self.server.patch(request)
            self._failed(request, Failure.UNKNOWN_OUTCOME)
        self._land(applied=applied)
        self.sent = []
        self._take_over()

    def kill(self, *, applied: bool, lag: int) -> None:
        """As `lose`, and nobody remembers anything; the process that follows is a new one."""
        for request in self.sent:
            if applied:
                self.server.patch(request)
        self._land(applied=applied)
        self.sent = []
        self.listing = []
        self.replicas[0] = Replica(self.server.now - 17.0)
        self.active.pods_seen = max(0, len(self.server.pod_log) - lag)
        for event in self.server.pod_log[: self.active.pods_seen]:
            self.machine.handle(event)
        self.deliver_workloads()
        self._list_afresh()

    def _land(self, *, applied: bool) -> None:
        """Nobody takes over before all that is under way was applied or never will be."""
        for request in self.delayed:
            if applied:
                self.server.patch(request)
        self.delayed = []

    def _take_over(self) -> None:
        self.listing = []
        self.replicas.reverse()
        self.deliver_workloads()
        self._list_afresh()

    def _list_afresh(self) -> None:
        for row in self.server.pods.values():
            self.machine.handle(PodSeen(row, live=True, listed=True))

    # The end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """When the faults end, every pod that has a place is released, whoever acts."""
        for row in list(self.server.pods.values()):
            if row.terminating:
                self.server.remove(row.uid)
        for _ in range(8):
            while self.sent:
                self.answer("ok")
            self.deliver_pods(len(self.server.pod_log))
            self.deliver_workloads()
            self.look(100.0, reads_work=True)
        if self.server.workload.admitted:
            live = sum(not row.terminal for row in self.server.pods.values())
            released = len(self.server.ungated())
            assert released == min(live, max(sum(self.server.counts.values()), released))
        assert not self.machine.expectations, "nothing is awaited any more"
        self.deliver_pods(len(self.server.pod_log), to=1)
        self.check()
