"""An elastic Workload and its slices on a server, and two ungater replicas that follow them.

As `ungater_world`, whose pods, requests and clocks these are. The server's history of Workloads is
one, as the watch is; each replica has seen some part of it. Two things are checked: what a machine
grants is what the server granted at that point of its history, and no request goes out that would
leave more pods released than were granted at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rackgate.topology.assignment import Domain
from rackgate_ungater.state_machine.events import WorkloadGone, WorkloadSeen
from rackgate_ungater.state_machine.gated_objects import (
    ELASTIC,
    TOPOLOGY,
    GatedPod,
    GatedPodSet,
    GatedWorkload,
)
from rackgate_ungater.state_machine.ungating_plan import PodSetAdmission, Ungate
from rackgate_ungater.writer import patch_body, patch_tail
from tests.property.ungater_world import DOMAINS, GRACE_S, KEY, Request, Server, World
from tests.support.apiserver_objects import apply_patch
from tests.unit.ungater.builders import LEVELS, counted, elastic, pod, podset, slice_of

Counts = dict[Domain, int]
FOREIGN = {"name": "example.com/wait"}
OURS = ({"name": "kueue.x-k8s.io/elastic-job"}, {"name": "kueue.x-k8s.io/topology"})


def place_of(row: GatedPod) -> Domain:
    """The domain that a released pod names; none without topology."""
    return tuple(row.selector[level] for level in LEVELS if level in row.selector)


@dataclass
class Slice:
    """A slice as it is. `admitted`: admitted, and nothing says otherwise."""

    domain: Domain
    count: int
    admitted: bool = False
    leaving: bool = False
    row: GatedWorkload = field(default_factory=elastic)


class SliceServer(Server):
    """The truth. `past`: what was granted after each event of the Workloads' history."""

    def __init__(self, *, topology: bool) -> None:
        super().__init__()
        self.topology = topology
        self.admitted, self.made = False, 0
        self.merged: list[str] = []
        self.slices: dict[str, Slice] = {}
        self.past: list[Counts | None] = []

    @property
    def gates(self) -> int:
        return TOPOLOGY | ELASTIC if self.topology else ELASTIC

    def domain(self, pick: int) -> Domain:
        return DOMAINS[pick % len(DOMAINS)] if self.topology else ()

    def granted(self) -> Counts | None:
        """By domain; None while the parent is not admitted."""
        if not self.admitted:
            return None
        found = dict(self.counts)
        for uid, one in self.slices.items():
            if one.admitted and uid not in self.merged:
                found[one.domain] = found.get(one.domain, 0) + one.count
        return {domain: count for domain, count in found.items() if count}

    def rows(self) -> list[GatedWorkload]:
        """All at this moment, as one list shows them."""
        return [self.workload, *(one.row for one in self.slices.values())]

    def _podset(self, counts: Counts) -> GatedPodSet:
        given = {domain: count for domain, count in counts.items() if count}
        if self.topology and given:
            return podset(*given.items())
        return counted(sum(given.values()))

    def _log(self, event: WorkloadSeen | WorkloadGone) -> None:
        self.workload_log.append(event)
        self.past.append(self.granted())

    def write_parent(self) -> None:
        self.version += 1
        self.workload = elastic(
            self._podset(self.counts),
            version=self.version,
            admitted=self.admitted,
            merged=tuple(sorted(self.merged)),
        )
        self._log(WorkloadSeen(self.workload))

    def write_slice(self, uid: str) -> None:
        self.version += 1
        one = self.slices[uid]
        one.row = slice_of(
            self.workload,
            self._podset({one.domain: one.count}),
            uid=uid,
            version=self.version,
            admitted=one.admitted,
        )
        self._log(WorkloadSeen(one.row))

    def add_slice(self, pick: int) -> None:
        self.made += 1
        uid = f"slice-{self.made}"
        self.slices[uid] = Slice(self.domain(pick), 1 + pick % 2)
        self.write_slice(uid)

    def remove_slice(self, uid: str) -> None:
        self.version += 1
        row = self.slices.pop(uid).row
        self._log(WorkloadGone(row.key, row.uid))

    def given_up(self, row: GatedPod) -> bool:
        ended = row.terminating and self.now >= self.deleted_at[row.uid] + GRACE_S
        return ended and place_of(row) not in (self.granted() or {})

    def patch(self, request: Request) -> bool | None:
        row = self.pods.get(request.row.uid)
        if row is None:
            return None
        if row.resource_version != request.row.resource_version:
            return False
        levels = LEVELS if self.topology else ()
        stored = {"spec": {"schedulingGates": [FOREIGN, *OURS[: self.gates.bit_count()]]}}
        body = patch_body(request.row, patch_tail(levels, request.domain, self.gates))
        spec = apply_patch(stored, "application/strategic-merge-patch+json", body)["spec"]
        assert spec["schedulingGates"] == [FOREIGN], "one patch takes off ours, and no other"
        selector = dict(zip(levels, request.domain, strict=True))
        self.change(row.uid, gates=0, selector={**row.selector, **selector})
        return True


class SlicesWorld(World):
    """What an autoscaler, the slice controllers and the replicas do."""

    server: SliceServer

    def __init__(self, counts: Iterable[int], *, topology: bool) -> None:
        super().__init__(counts, ranks=False)
        self.server = SliceServer(topology=topology)
        for replica in self.replicas:
            replica.machine = type(replica.machine)(replica.machine.timeouts)
            replica.pods_seen = replica.workloads_seen = 0
        self.admit(counts)
        self.deliver_workloads()

    # The cluster --------------------------------------------------------------------------

    def admit(self, counts: Iterable[int]) -> None:
        server = self.server
        if not isinstance(server, SliceServer):
            return  # the base class makes a server of its own first
        given = list(counts)
        domains = DOMAINS if server.topology else ((),) * len(given)
        server.counts, server.admitted = {}, True
        for domain, count in zip(domains, given, strict=True):
            server.counts[domain] = server.counts.get(domain, 0) + count
        server.write_parent()

    def evict(self) -> None:
        """The whole cluster: slices are deleted at once, every pod is."""
        self.server.admitted = False
        self.server.write_parent()
        for uid, one in list(self.server.slices.items()):
            one.admitted, one.leaving = False, True
            self.server.write_slice(uid)
        for row in list(self.server.pods.values()):
            self.server.terminate(row.uid)

    def create(self, *, odd: bool) -> None:
        """A pod; an odd one has lost one of its two gates."""
        self.made += 1
        builder = pod(f"p{(self.made * 619) % 1000:03}-{self.made}").gates(self.server.gates)
        if odd and self.server.topology:
            builder = builder.gates((TOPOLOGY, ELASTIC)[self.made % 2])
        self.server.put(builder.build())

    def slice_event(self, pick: int, what: str) -> None:
        """One step in the life of one slice, or a new one, or a fold."""
        server = self.server
        if what == "add":
            server.add_slice(pick)
        elif what == "fold":
            self._fold(pick)
        elif server.slices:
            found = sorted(server.slices)
            self._step(found[pick % len(found)], what)

    def _step(self, uid: str, what: str) -> None:
        server, one = self.server, self.server.slices[uid]
        if what == "admit" and server.admitted and not one.leaving:
            one.admitted = True
        elif what in ("evict", "delete"):
            one.admitted, one.leaving = False, one.leaving or what == "delete"
        elif what == "vanish" and (one.leaving or uid in server.merged):
            server.remove_slice(uid)
            return
        server.write_slice(uid)

    def _fold(self, pick: int) -> None:
        """Some admitted slices at once: counts and UIDs in one write."""
        server = self.server
        found = [
            uid
            for uid, one in sorted(server.slices.items())
            if one.admitted and uid not in server.merged
        ]
        if not found or not server.admitted:
            return
        for uid in found[: 1 + pick % 3]:
            one = server.slices[uid]
            server.counts[one.domain] = server.counts.get(one.domain, 0) + one.count
            server.merged.append(uid)
        server.write_parent()

    def prune(self) -> None:
        """UIDs of slices that are gone are taken out."""
        self.server.merged = [uid for uid in self.server.merged if uid in self.server.slices]
        self.server.write_parent()

    def shrink(self, pick: int) -> None:
        busy = [domain for domain, count in self.server.counts.items() if count]
        if busy and self.server.admitted:
            self.server.counts[busy[pick % len(busy)]] -= 1
            self.server.write_parent()

    # The watch ----------------------------------------------------------------------------

    def tell_workloads(self, count: int, *, to: int = 0) -> None:
        """The next events of the one history, in their order."""
        replica = self.replicas[to]
        seen = replica.workloads_seen
        for event in self.server.workload_log[seen : seen + count]:
            replica.machine.handle(event)
        replica.workloads_seen = min(seen + count, len(self.server.workload_log))

    def relist_workloads(self) -> None:
        """410: deletions are told first, then all that are there, in the order of their names."""
        group = self.machine.workload_states.get(KEY)
        for one in list(group.slices.values()) if group is not None else ():
            if one.uid not in self.server.slices:
                self.machine.handle(WorkloadGone(one.key, one.uid))
        for row in sorted(self.server.rows(), key=lambda row: row.key):
            self.machine.handle(WorkloadSeen(row))
        self.active.workloads_seen = len(self.server.workload_log)

    def _take_over(self) -> None:
        """The watch of Workloads may lag as before: only the pods are listed."""
        self.listing = []
        self.replicas.reverse()
        self._list_afresh()

    # The ungater --------------------------------------------------------------------------

    def look(self, passed: float, *, reads_work: bool) -> None:
        """As the reconciler: read what is in doubt, compare with one list, record, send."""
        self.leap(passed, noticed=True)
        if self.sent:
            return
        proposal = self.machine.propose(KEY, self.local)
        if proposal.reads:
            if reads_work:
                self._read(proposal)
            proposal = self.machine.propose(KEY, self.local)
        if not proposal.ungates or not self.machine.is_still_admitted(KEY, self.server.rows()):
            return
        self._check_release(proposal.ungates)
        self.machine.expect_ungates(proposal.ungates, self.local)
        self.sent += [Request(ungate.pod, ungate.domain) for ungate in proposal.ungates]

    def _check_release(self, ungates: list[Ungate]) -> None:
        """Whatever of what is under way arrives, no more live released than is granted now."""
        server = self.server
        places = {row.uid: place_of(row) for row in server.ungated()}
        coming = {ungate.pod.uid: ungate.domain for ungate in ungates}
        for request in self.delayed:
            there = server.pods.get(request.row.uid)
            if there is not None and there.resource_version == request.row.resource_version:
                coming.setdefault(request.row.uid, request.domain)
        coming = {u: d for u, d in coming.items() if u in server.pods and u not in places}
        granted = server.granted() or {}
        live = sum(not server.given_up(row) for row in server.ungated())
        assert live + len(coming) <= sum(granted.values()), "PodSet over what was granted"
        for domain in {ungate.domain for ungate in ungates}:
            taken = [*places.values(), *coming.values()].count(domain)
            assert taken <= granted.get(domain, 0), "domain over what was granted"

    def check(self) -> None:
        """A machine grants what the server granted when that was its history."""
        super().check()
        for replica in self.replicas:
            group = replica.machine.workload_states.get(KEY)
            if group is None or "main" not in group.podsets or not replica.workloads_seen:
                continue
            grant = dict(group.admissions()).get("main")
            expected = self.server.past[replica.workloads_seen - 1]
            if expected is None:
                assert grant is None, "a parent that is not admitted grants nothing"
                continue
            assert isinstance(grant, PodSetAdmission)
            found = {domain: count for domain, count in grant.assignment.domains if count}
            assert found == expected, "another grant than the server's"

    # The end ------------------------------------------------------------------------------

    def settle(self) -> None:
        """When the faults end, as many are released as were granted, whoever acts."""
        for row in list(self.server.pods.values()):
            if row.terminating:
                self.server.remove(row.uid)
        for _ in range(8):
            while self.sent:
                self.answer("ok")
            self.deliver_pods(len(self.server.pod_log))
            self.tell_workloads(len(self.server.workload_log))
            self.look(100.0, reads_work=True)
        live = sum(not row.terminal for row in self.server.pods.values())
        released = len(self.server.ungated())
        granted = sum((self.server.granted() or {}).values())
        assert released == min(live, max(granted, released))
        assert not self.machine.expectations, "nothing is awaited any more"
        self.check()
