"""A cluster that does everything right, in rows: what the checker must never complain about.

Written from the promises alone, with plain loops: places are found by trying, room is counted
anew each time. Time moves on with every act, so that nothing looks simultaneous by chance.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from rackgate.api import names
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.rows.rows import (
    Counts,
    FlavorRow,
    JobRow,
    NodeRow,
    PodRow,
    PodSetRow,
    QueueRow,
    TopologyRow,
    WorkloadRow,
)

BLOCK, RACK, HOST = "block", "rack", names.HOSTNAME_LABEL
CPU, QUOTA = 8000, 40000
QUEUE, TAS = "team/queue", ("tas", "cpu")
OVERDUE_S = 30.0


@dataclass
class Life:
    """One Job: its rows, and the places of its pods."""

    job: JobRow
    workload: WorkloadRow
    pods: dict[str, PodRow] = field(default_factory=dict)

    @property
    def cpu(self) -> int:
        return dict(self.workload.podsets[0].requests)["cpu"]

    @property
    def places(self) -> list[tuple[Domain, int]]:
        found = self.workload.podsets[0].assignment
        return list(found.domains) if found else []


class Correct:
    """The cluster; every public method is one act, and does nothing where it would be wrong."""

    def __init__(self, dice: random.Random, *, hosts: bool) -> None:
        self.dice, self.now, self.serial = dice, 1_000_000.0, 0
        self.levels: tuple[str, ...] = (HOST,) if hosts else (BLOCK, RACK)
        self.nodes = {
            f"n{block}{rack}{host}": NodeRow(
                f"n{block}{rack}{host}",
                # Racks of both blocks bear the same names.
                {BLOCK: f"b{block}", RACK: f"r{rack}", HOST: f"n{block}{rack}{host}"},
                {"cpu": CPU, "pods": 110},
            )
            for block in range(2)
            for rack in range(2)
            for host in range(2)
        }
        self.lives: dict[str, Life] = {}
        self.others: dict[str, PodRow] = {}

    def cluster(self) -> Cluster:
        topology = TopologyRow("dc", (BLOCK, RACK, HOST) if len(self.levels) == 1 else self.levels)
        return Cluster(
            nodes=self.nodes.values(),
            pods=[pod for life in self.lives.values() for pod in life.pods.values()]
            + list(self.others.values()),
            jobs=[life.job for life in self.lives.values()],
            workloads=[life.workload for life in self.lives.values()],
            flavors=[FlavorRow("tas", {}, "dc")],
            topologies=[topology],
            cluster_queues=[
                QueueRow("cq", nominal={TAS: QUOTA}, counts=self.counts(), spec_at=1.0)
            ],
            local_queues=[QueueRow(QUEUE, cluster_queue="cq", counts=self.counts(), spec_at=1.0)],
            read_at=self.now,
        )

    def counts(self) -> Counts:
        """What the assigner says: of each job the larger of what was granted and what lives."""
        used = waiting = holding = 0
        for life in self.lives.values():
            alive = sum(life.cpu for pod in life.pods.values() if pod.node)
            granted = life.cpu * life.job.count if life.workload.holds else 0
            used += max(alive, granted)
            holding += life.workload.holds
            waiting += not (life.workload.reserved or life.workload.finished)
        return Counts(waiting, holding, holding, {TAS: used}, {TAS: used})

    # Acts.

    def submit(self) -> None:
        name, count = self._name("job"), self.dice.randint(1, 5)
        requests = (("cpu", self.dice.choice((1000, 2000, 4000))),)
        job = JobRow(
            "team",
            name,
            name,
            has_queue_label=True,
            managed=True,
            queue=QUEUE,
            suspended=True,
            count=count,
            whole=frozenset({"main"} if self.dice.random() < 0.8 else ()),
            suspend_changed_at=self.now,
        )
        podset = PodSetRow("main", count, True, requests, required=RACK, indexed=True)
        workload = WorkloadRow(
            *("team", f"job-{name}", f"w-{name}"),
            owner=name,
            owner_kind="Job",
            owner_name=name,
            job_uid=name,
            queue=QUEUE,
        )
        self.lives[name] = Life(job, replace(workload, podsets=(podset,), changed_at=self.now))

    def admit(self) -> None:
        life = self._one(lambda one: one.job.suspended and not one.workload.reserved)
        if life is None or (life.pods and any(not pod.terminating for pod in life.pods.values())):
            return
        podset = life.workload.podsets[0]
        used = sum(one.cpu * one.job.count for one in self._holding())
        places = self._fit(podset.requested_count, life.cpu)
        if places is None or used + life.cpu * podset.requested_count > QUOTA:
            return
        given = replace(
            podset,
            admitted_count=podset.requested_count,
            flavors={"cpu": "tas"},
            usage={"cpu": life.cpu * podset.requested_count},
            assignment=TopologyAssignment(self.levels, tuple(places)),
        )
        life.workload = replace(
            life.workload,
            reserved=True,
            admitted=True,
            cluster_queue="cq",
            admitted_at=self.now,
            placed_at=self.now,
            podsets=(given,),
        )

    def start(self) -> None:
        life = self._one(lambda one: one.job.suspended and one.workload.may_ungate)
        if life is not None:
            life.job = replace(life.job, suspended=False, started=True)
            for index in range(life.job.count):
                self._add_pod(life, index)

    def release(self) -> None:
        life = self._one(lambda one: one.workload.may_ungate and self._gated(one))
        if life is None:
            return
        pod = self.dice.choice(self._gated(life))
        room = Counter(dict(life.places))
        left = sum(room.values())
        for other in life.pods.values():
            if not other.gates:
                domain = other.domain(self.levels)
                given_up = domain not in dict(life.places)
                if given_up and 0 < other.ends_at <= self.now - OVERDUE_S:
                    continue
                left -= 1
                room[domain or ()] -= 1
        order = [domain for domain, count in life.places for _ in range(count)]
        strict = all(
            other.domain(self.levels) == order[other.index]
            for other in life.pods.values()
            if not other.gates and not other.terminating
        )
        wanted = [order[pod.index]] if strict else [domain for domain, _ in life.places]
        domain = next((domain for domain in wanted if room[domain] > 0), None)
        if domain is not None and left > 0:
            selector = dict(zip(self.levels, domain, strict=True))
            sent = replace(pod, gates=(), selector=selector, ungater_wrote_at=self.now)
            life.pods[pod.name] = sent

    def bind(self) -> None:
        waiting = [
            (life, pod)
            for life in self.lives.values()
            for pod in life.pods.values()
            if not (pod.gates or pod.node or pod.terminating)
        ]
        if waiting:
            life, pod = self.dice.choice(waiting)
            for node in self.nodes.values():
                fits = all(node.labels[key] == value for key, value in pod.selector.items())
                if fits and self._bound(node.name) + life.cpu <= CPU:
                    bound = replace(pod, node=node.name, scheduled_at=self.now)
                    life.pods[pod.name] = bound
                    return

    def lose(self) -> None:
        """A pod of a running Job fails, or is deleted; the Job makes another."""
        life = self._one(lambda one: one.workload.may_ungate and one.job.started and one.pods)
        if life is None:
            return
        staying = [pod for pod in life.pods.values() if not pod.terminating]
        if not staying:
            return
        pod = self.dice.choice(staying)
        if self.dice.random() < 0.5 or not pod.node:
            del life.pods[pod.name]
        else:
            self._terminate(life, pod)
        self._add_pod(life, pod.index)

    def end_deletion(self) -> None:
        ending = [
            (life, pod)
            for life in self.lives.values()
            for pod in life.pods.values()
            if pod.terminating
        ]
        if ending:
            life, pod = self.dice.choice(ending)
            del life.pods[pod.name]

    def evict(self) -> None:
        life = self._one(lambda one: one.workload.may_ungate)
        if life is not None:
            life.workload = replace(life.workload, evicted=True, evicted_at=self.now)

    def stop(self) -> None:
        life = self._one(lambda one: one.workload.evicted and one.workload.reserved)
        if life is None:
            return
        if not life.job.suspended:
            life.job = replace(life.job, suspended=True, suspend_changed_at=self.now)
            for pod in list(life.pods.values()):
                if pod.node and not pod.terminating:
                    self._terminate(life, pod)
                elif not pod.terminating:
                    del life.pods[pod.name]
            return
        podset = replace(
            life.workload.podsets[0], admitted_count=0, flavors={}, usage={}, assignment=None
        )
        life.workload = replace(
            life.workload,
            reserved=False,
            admitted=False,
            evicted=False,
            cluster_queue="",
            podsets=(podset,),
            placed_at=self.now,
        )
        life.job = replace(life.job, started=False)

    def finish(self) -> None:
        life = self._one(lambda one: one.workload.may_ungate and one.job.started)
        if life is not None:
            life.pods = {name: pod for name, pod in life.pods.items() if pod.terminating}
            life.job = replace(life.job, finished=True)
            life.workload = replace(life.workload, finished=True)

    def swap(self) -> None:
        """Give up a host none of whose pods stays, or one that somebody named by hand."""
        life = self._one(lambda one: one.workload.may_ungate and one.places)
        if life is None or self.levels != (HOST,):
            return
        place = self.dice.randrange(len(life.places))
        domain, count = life.places[place]
        old = self.nodes[domain[0]].labels
        taken = {other for other, _ in life.places}
        podset = life.workload.podsets[0]
        for node in self.nodes.values():
            near = (node.labels[BLOCK], node.labels[RACK]) == (old[BLOCK], old[RACK])
            target = (node.labels[HOST],)
            if near and target not in taken and self._free(node.name) >= life.cpu * count:
                places = list(life.places)
                places[place] = (target, count)
                moved = replace(podset, assignment=TopologyAssignment(self.levels, tuple(places)))
                life.workload = replace(life.workload, podsets=(moved,), placed_at=self.now)
                return

    def other(self) -> None:
        """A pod that nobody governs comes or goes; the scheduler knows only bound pods."""
        if self.others and self.dice.random() < 0.5:
            del self.others[self.dice.choice(list(self.others))]
            return
        name, node = self._name("other"), self.dice.choice(list(self.nodes))
        if self._bound(node) + 2000 <= CPU:
            self.others[name] = PodRow(
                "team",
                name,
                name,
                node=node,
                requests=(("cpu", 2000),),
                created_at=self.now,
                scheduled_at=self.now,
            )

    def delete(self) -> None:
        life = self._one(lambda one: one.job.finished or not one.workload.reserved)
        if life is not None and not life.pods:
            del self.lives[life.job.name]

    ACTS = (
        *(submit, admit, admit, start, start, release, release, release, release, bind, bind),
        *(lose, end_deletion, evict, stop, stop, finish, swap, other, delete),
    )

    def act(self) -> str:
        """Do one thing at random; returns its name."""
        self.now += self.dice.choice((1, 1, 3, 20, 45))
        chosen = self.dice.choice(self.ACTS)
        chosen(self)
        return chosen.__name__

    # What is where.

    def _name(self, kind: str) -> str:
        self.serial += 1
        return f"{kind}-{self.serial}"

    def _one(self, wanted: object) -> Life | None:
        assert callable(wanted)
        fitting = [
            life for life in self.lives.values() if not life.job.finished and wanted(life)
        ] or [life for life in self.lives.values() if wanted(life) and life.job.finished]
        return self.dice.choice(fitting) if fitting else None

    def _holding(self) -> list[Life]:
        return [life for life in self.lives.values() if life.workload.holds]

    def _gated(self, life: Life) -> list[PodRow]:
        return [pod for pod in life.pods.values() if pod.gates and not pod.terminating]

    def _add_pod(self, life: Life, index: int) -> None:
        name = self._name(f"{life.job.name}-{index}")
        life.pods[name] = PodRow(
            "team",
            name,
            name,
            owner=life.job.uid,
            owner_name=life.job.name,
            workload=life.workload.name,
            podset="main",
            gates=(names.TOPOLOGY_GATE,),
            requests=life.workload.podsets[0].requests,
            index=index,
            created_at=self.now,
            scheduled_at=self.now,
        )

    def _terminate(self, life: Life, pod: PodRow) -> None:
        life.pods[pod.name] = replace(pod, terminating=True, ends_at=self.now + 5)

    def _bound(self, node: str) -> int:
        every = [pod for life in self.lives.values() for pod in life.pods.values()]
        return sum(
            dict(pod.requests)["cpu"] for pod in (*every, *self.others.values()) if pod.node == node
        )

    def _free(self, node: str) -> int:
        """Room of a host: what is assigned there, and all pods that no assignment covers."""
        free = CPU
        host = (self.nodes[node].labels[HOST],)
        for life in self.lives.values():
            places = dict(life.places) if life.workload.holds else {}
            free -= places.get(host, 0) * life.cpu
            here = sum(pod.node == node for pod in life.pods.values())
            free -= max(0, here - places.get(host, 0)) * life.cpu
        return free - sum(2000 for pod in self.others.values() if pod.node == node)

    def _free_rack(self, block: str, rack: str) -> int:
        names_ = [
            node.name
            for node in self.nodes.values()
            if (node.labels[BLOCK], node.labels[RACK]) == (block, rack)
        ]
        free = CPU * len(names_)
        for life in self.lives.values():
            places = dict(life.places) if life.workload.holds else {}
            count = places.get((block, rack), 0)
            here = sum(pod.node in names_ for pod in life.pods.values())
            free -= max(count, here) * life.cpu
        return free - sum(2000 for pod in self.others.values() if pod.node in names_)

    def _fit(self, count: int, cpu: int) -> list[tuple[Domain, int]] | None:
        racks = sorted({(n.labels[BLOCK], n.labels[RACK]) for n in self.nodes.values()})
        for block, rack in racks:
            if len(self.levels) == 2:
                if self._free_rack(block, rack) >= count * cpu:
                    return [((block, rack), count)]
                continue
            places: list[tuple[Domain, int]] = []
            left = count
            for node in self.nodes.values():
                if (node.labels[BLOCK], node.labels[RACK]) == (block, rack):
                    fits = min(left, max(0, self._free(node.name)) // cpu, 3)
                    if fits:
                        places.append(((node.labels[HOST],), fits))
                        left -= fits
            if not left:
                return places
        return None
