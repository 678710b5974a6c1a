"""The world of the ungater with two gangs in one PodSet. No gang may start in part.

With each proposal the world judges by itself, from what the replica knows, whether a gang may
start. The server knows which request was judged so. Any other request finds a pod of its gang that
was released in the same run before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rackgate.gang.forms.expand import expand
from rackgate.gang.link import run_id
from rackgate.topology.assignment import Domain
from rackgate_ungater.state_machine.events import PodGone, PodSeen, WorkloadSeen
from rackgate_ungater.state_machine.gang_workloads import GangWorkload
from rackgate_ungater.state_machine.gangs import GangStart, first_of_gangs, rest_of_gangs
from rackgate_ungater.state_machine.gated_objects import GANG, TOPOLOGY, GangPod, GatedPod
from rackgate_ungater.state_machine.state_machine import Proposal
from rackgate_ungater.state_machine.ungating_plan import Ungate
from tests.property.ungater_world import KEY, Request, Server, World
from tests.unit.ungater.builders import INDEX, gang_pod, podset, workload

ROLES = ("a", "b")


def gang_workload(least: Sequence[int]) -> GangWorkload:
    groups = [
        {"name": role, "minCount": count, "selector": {"key": "role", "values": [role]}}
        for role, count in zip(ROLES, least, strict=True)
    ]
    return GangWorkload("team", "train", "gangs-uid", "1", expand({"gangGroups": groups}))


class GangServer(Server):
    """Knows which gangs started in which run."""

    def __init__(self) -> None:
        super().__init__()
        self.started: set[tuple[str, str]] = set()
        self.admitted_at = ""
        self.gangs: GangWorkload | None = None

    def admit(self, counts: dict[Domain, int], *, ranks: bool, admitted: bool = True) -> None:
        self.version += 1
        if admitted and not (self.workload.admitted and self.admitted_at):
            self.admitted_at = f"t{self.version}"
        self.counts = {domain: count for domain, count in counts.items() if count}
        self._store(ranks, admitted)

    def _store(self, ranks: bool, admitted: bool) -> None:
        label = INDEX if ranks else None
        succeeded = sum(row.terminal for row in self.pods.values())
        given = podset(
            *self.counts.items(), requested=True, pod_index_label=label, succeeded=succeeded
        )
        self.workload = workload(
            given, version=self.version, admitted=admitted, admitted_at=self.admitted_at
        )
        self.workload_log.append(WorkloadSeen(self.workload))

    def succeed(self, uid: str, *, ranks: bool) -> None:
        """A pod succeeds, and then the Workload says so."""
        self.change(uid, terminal=True, succeeded=True)
        self.version += 1
        self._store(ranks, self.workload.admitted)

    def patch(self, request: Request) -> bool | None:
        applied = super().patch(request)
        if applied:
            row = self.pods[request.row.uid]
            assert isinstance(row, GangPod)
            gang = request.run, row.labels["role"]
            assert request.starts_gang or gang in self.started, "a part of a gang was released"
            self.started.add(gang)
        return applied

    def _recorded(self, request: Request) -> dict[str, Any]:
        return {"run": request.run}


@dataclass
class _Batch:
    """A proposal under way: what follows once the first pods of its gangs are released."""

    ungates: list[Ungate]
    starts: tuple[GangStart, ...]
    first: list[Ungate]
    accepted: set[str] = field(default_factory=set)


class GangWorld(World):
    """See the module."""

    server: GangServer

    def __init__(self, counts: Iterable[int], least: Sequence[int], *, ranks: bool) -> None:
        self._batch: _Batch | None = None
        self.known: dict[int, GangWorkload | None] = {}
        super().__init__(counts, ranks=ranks)
        self.set_gangs(least)

    def _new_server(self) -> Server:
        return GangServer()

    # The cluster --------------------------------------------------------------------------

    def set_gangs(self, least: Sequence[int] | None) -> None:
        """Create, edit or delete the Workload of gangs; the watches show it later."""
        self.server.gangs = None if least is None else gang_workload(least)

    def deliver_gangs(self, *, to: int = 0) -> None:
        machine = self.replicas[to].machine
        self.known[id(machine)] = self.server.gangs
        machine.set_gang_workload("team/train", self.server.gangs)

    def create(self, *, odd: bool) -> None:
        super().create(odd=odd)
        row = list(self.server.pods.values())[-1]
        event = self.server.pod_log.pop()
        assert isinstance(event, PodSeen)
        foreign = ("example.com/wait",) if self.made % 11 == 5 else ()
        self.server.put(gang_pod(row, role=ROLES[self.made % 3 == 0], foreign=foreign))

    def change_pod(self, pick: int, how: str) -> None:
        rows = list(self.server.pods.values())
        if not rows:
            return
        row = rows[pick % len(rows)]
        assert isinstance(row, GangPod)
        if how == "end" and not row.gated and not row.terminating:
            self.server.succeed(row.uid, ranks=self.ranks)
        elif how == "touch" and row.foreign_gates:
            self.server.change(row.uid, foreign_gates=())
        elif how != "end":
            super().change_pod(pick, how)

    # One replica --------------------------------------------------------------------------

    def _send(self, proposal: Proposal) -> None:
        assert proposal.gangs is not None
        self._judge(proposal)
        starts = proposal.gangs.starts
        first = first_of_gangs(proposal.ungates, starts)
        if starts:
            self._batch = _Batch(proposal.ungates, starts, first)
        self._put(first or proposal.ungates, starts_gang=bool(first))

    def _put(self, ungates: list[Ungate], *, starts_gang: bool) -> None:
        self.machine.expect_ungates(ungates, self.local)
        self.sent += [
            Request(one.pod, one.domain, run=one.run, starts_gang=starts_gang) for one in ungates
        ]

    def _judge(self, proposal: Proposal) -> None:
        """Whether each gang of the proposal may start, or has started, by what is known."""
        known = self.machine.workload(KEY)
        assert known is not None
        assert known.admitted_at is not None
        run, gangs = run_id(known.uid, known.admitted_at), self.known.get(id(self.machine))
        assert gangs is not None, "its Workload of gangs is not known"
        for role in {_role(one.pod) for one in proposal.ungates}:
            chosen = {one.pod.uid for one in proposal.ungates if _role(one.pod) == role}
            assert {one.run for one in proposal.ungates} == {run}
            members = [
                row
                for row in self.machine.pods.values()
                if isinstance(row, GangPod) and _role(row) == role and not row.terminating
            ]
            if any(row.run == run and not row.gated for row in members):
                continue
            (least,) = [g["minCount"] for g in gangs.spec["gangGroups"] if g["name"] == role]
            counted = [row for row in members if row.gated or row.succeeded]
            assert len(counted) >= least, "members are missing"
            assert not any(row.foreign_gates for row in counted), "a gate of another owner"
            placed = chosen | {row.uid for row in counted if not row.gated}
            assert len(placed) >= least, "members without a domain"

    def answer(self, how: str) -> None:
        request = self.sent[0] if self.sent else None
        super().answer(how)
        batch = self._batch
        if request is None or batch is None:
            return
        row = self.server.pods.get(request.row.uid)
        if how == "ok" and row is not None and row.gates == 0:
            batch.accepted.add(row.uid)
        if not self.sent:
            self._batch = None
            rest = rest_of_gangs(
                batch.ungates, batch.starts, batch.first, batch.accepted, self.machine.pods
            )
            known = self.machine.workload(KEY)
            if known is not None and known.admitted and known.admitted_at == self._at(batch):
                self._put(rest, starts_gang=False)

    def _at(self, batch: _Batch) -> str:
        """When its run began, if that is still the admission of the server's Workload."""
        run = run_id(self.server.workload.uid, self.server.admitted_at)
        return self.server.admitted_at if batch.starts[0].run == run else ""

    def _take_over(self) -> None:
        self._batch = None
        self.deliver_gangs(to=1)
        super()._take_over()

    def kill(self, *, applied: bool, lag: int) -> None:
        self._batch = None
        super().kill(applied=applied, lag=lag)
        self.deliver_gangs()

    # The end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """When the faults end, all pods of a gang that may start are released, and no others."""
        for row in list(self.server.pods.values()):
            if row.terminating:
                self.server.remove(row.uid)
        self.deliver_gangs()
        # A repeated event may show a pod that a list no longer had; the next list corrects that.
        for uid in [uid for uid in self.machine.pods if uid not in self.server.pods]:
            self.machine.handle(PodGone(uid, self.server.version))
        for _ in range(10):
            while self.sent:
                self.answer("ok")
            self.deliver_pods(len(self.server.pod_log))
            self.deliver_workloads()
            self.look(100.0, reads_work=True)
        assert not self.machine.expectations, "nothing is awaited any more"
        for role in ROLES:
            self._check_settled(role)
        self.deliver_pods(len(self.server.pod_log), to=1)
        self.deliver_gangs(to=1)
        self.check()

    def _check_settled(self, role: str) -> None:
        server, gangs = self.server, self.server.gangs
        live = [row for row in server.pods.values() if not row.terminal]
        if not server.workload.admitted or len(live) > sum(server.counts.values()):
            return
        run = run_id(server.workload.uid, server.admitted_at)
        members = [row for row in server.pods.values() if _role(row) == role]
        gated = [row for row in members if row.gated]
        if gangs is None:
            assert not gated or all(row.gates == TOPOLOGY | GANG for row in gated)
            return
        (least,) = [g["minCount"] for g in gangs.spec["gangGroups"] if g["name"] == role]
        started = any(_was_released(row, run) for row in members)
        foreign = any(isinstance(row, GangPod) and row.foreign_gates for row in members)
        counted = [row for row in members if row.gated or row.terminal]
        if started or (len(counted) >= least and not foreign):
            assert not gated, f"{len(gated)} pods of a gang that may start stay gated"
        elif gated:
            assert not any(_was_released(row, run) for row in members)


def _role(row: GatedPod) -> str:
    assert isinstance(row, GangPod)
    return row.labels["role"]


def _was_released(row: GatedPod, run: str) -> bool:
    assert isinstance(row, GangPod)
    return row.run == run and not row.gated
