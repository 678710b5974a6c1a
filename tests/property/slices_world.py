"""A correct elastic cluster as rows, moved by one random act after another.

One RayCluster of a head and one worker group is admitted, grows by slices, shrinks in place, loses
pods, is evicted and comes back; folds, deletions and what follows them are acts of their own, so
that any of them may be late. Nothing here uses code of the services or of the checker's rules.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from msgspec.structs import replace

from rackgate.api import names
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate_invariants.cluster import Cluster
from rackgate_invariants.rows.rows import (
    FlavorRow,
    JobRow,
    NodeRow,
    PodRow,
    PodSetRow,
    QueueRow,
    TopologyRow,
    WorkloadRow,
)

RACK, HOST = "rack", names.HOSTNAME_LABEL
HOSTS = ("n0", "n1", "n2")
CPU, WORKER, HEAD, QUOTA, MOST = 8000, 2000, 1000, 19000, 9
JOB, PARENT = "ray", "raycluster-ray"


@dataclass
class Resizing:
    """The cluster; every act does nothing where it would be wrong."""

    dice: random.Random
    topology: bool
    now: float = 1_000_000.0
    serial: int = 0
    pods: dict[str, PodRow] = field(default_factory=dict)
    slices: dict[str, WorkloadRow] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job = JobRow(
            *("team", JOB, JOB),
            kind="RayCluster",
            has_queue_label=True,
            managed=True,
            suspended=True,
            is_elastic_job=True,
            count=1,
            suspend_changed_at=self.now,
        )
        self._want(self.dice.randint(0, 4))
        self.parent = WorkloadRow(
            *("team", PARENT, PARENT),
            owner=JOB,
            owner_kind="RayCluster",
            owner_name=JOB,
            elastic=True,
            podsets=self._asked(),
            changed_at=self.now,
        )

    def cluster(self) -> Cluster:
        return Cluster(
            nodes=[NodeRow(h, {RACK: "r", HOST: h}, {"cpu": CPU, "pods": 110}) for h in HOSTS],
            pods=list(self.pods.values()),
            rayclusters=[self.job],
            workloads=[self.parent, *self.slices.values()],
            flavors=[FlavorRow("f", {}, "dc" if self.topology else "")],
            topologies=[TopologyRow("dc", (RACK, HOST))],
            cluster_queues=[QueueRow("cq", nominal={("f", "cpu"): QUOTA}, spec_at=1.0)],
            read_at=self.now,
        )

    # The job, its autoscaler and its operator.

    def scale(self) -> None:
        """Ray writes replicas, and which pods it wants to lose; a person writes replicas alone."""
        staying = self._staying()
        wanted = self.dice.randint(0, MOST)
        listed: frozenset[str] = frozenset()
        if wanted < len(staying) and not self.job.suspended:
            listed = frozenset(self.dice.sample(staying, len(staying) - wanted))
        self._want(wanted)
        self.job = replace(self.job, listed=listed, written_at=self.now)

    def _want(self, count: int) -> None:
        self.job = replace(self.job, podset_counts={"head": 1, "w": count}, count=1 + count)

    def operate(self) -> None:
        """KubeRay: pods that are listed go, missing ones come, all gated."""
        if self.job.suspended:
            return
        for name in self.job.listed & self.pods.keys():
            self._end(name)
        if not any(pod.podset == "head" and not pod.terminating for pod in self.pods.values()):
            self._make("head")
        for _ in range(self.job.podset_counts["w"] - len(self._staying())):
            self._make("w")

    def lose(self) -> None:
        if self.pods:
            self._end(self.dice.choice(sorted(self.pods)))

    def end_deletion(self) -> None:
        ending = sorted(name for name, pod in self.pods.items() if pod.terminating)
        if ending:
            del self.pods[self.dice.choice(ending)]

    def bind(self) -> None:
        for name, pod in self.pods.items():
            if not (pod.gates or pod.node or pod.terminating):
                host = pod.selector.get(HOST) or self.dice.choice(HOSTS)
                self.pods[name] = replace(pod, node=host, scheduled_at=self.now)
                return

    # The assigner.

    def admit(self) -> None:
        if self.parent.reserved or not self.job.suspended or self._staying():
            return
        if self.slices or self.pods or self.parent.merged_slices:
            return
        self.parent = replace(self.parent, podsets=self._asked())
        given: list[PodSetRow] = []
        for podset in self.parent.podsets:
            places = self._places(podset, podset.requested_count, given)
            if places is None:
                return
            given.append(self._given(podset, podset.requested_count, places))
        if sum(one.usage["cpu"] for one in given) <= QUOTA:
            self.parent = replace(
                self.parent,
                reserved=True,
                admitted=True,
                cluster_queue="cq",
                admitted_at=self.now,
                placed_at=self.now,
                podsets=tuple(given),
            )

    def start(self) -> None:
        if self.parent.may_ungate and self.job.suspended:
            self.job = replace(self.job, suspended=False, started=True, suspend_changed_at=self.now)

    def ask(self) -> None:
        """Slices for what is missing; the surplus that waits goes, the last one first."""
        if not self.parent.may_ungate:
            return
        worker = self.parent.podsets[1]
        gap = self.job.podset_counts["w"] - worker.admitted_count - len(self._open())
        waiting = sorted(n for n, one in self.slices.items() if not one.reserved)
        while len(waiting) > max(gap, 0):
            del self.slices[waiting.pop()]
        for _ in range(gap - len(waiting)):
            ordinal = next(i for i in range(99) if f"{PARENT}-w-{i:02}" not in self.slices)
            name = f"{PARENT}-w-{ordinal:02}"
            self.slices[name] = WorkloadRow(
                *("team", name, self._name("uid")),
                owner=PARENT,
                owner_kind="Workload",
                owner_name=PARENT,
                elastic=True,
                podsets=(replace(_plain(worker), requested_count=1),),
                changed_at=self.now,
            )

    def admit_slice(self) -> None:
        waiting = sorted(n for n, one in self.slices.items() if not one.reserved)
        used = sum(p.usage["cpu"] for one in self._holding() for p in one.podsets)
        if not waiting or not self.parent.may_ungate or used + WORKER > QUOTA:
            return
        name = self.dice.choice(waiting)
        one = self.slices[name]
        places = self._places(one.podsets[0], 1, [])
        if places is not None:
            self.slices[name] = replace(
                one,
                reserved=True,
                admitted=True,
                cluster_queue="cq",
                admitted_at=self.now,
                placed_at=self.now,
                changed_at=self.now,
                podsets=(self._given(one.podsets[0], 1, places),),
            )

    def settle(self) -> None:
        """One status write: slices taken in, pods given back, records of slices that are gone."""
        if not self.parent.reserved:
            return
        head, worker = self.parent.podsets
        joining = self._open()
        present = {one.uid for one in self.slices.values()}
        kept = tuple(entry for entry in self.parent.merged_slices if entry[0] in present)
        places = dict(worker.assignment.domains) if worker.assignment else {}
        for one in joining:
            own = one.podsets[0].assignment
            for domain, count in own.domains if own is not None else ():
                places[domain] = places.get(domain, 0) + count
        count = worker.admitted_count + len(joining)
        fewer = max(0, count - self.job.podset_counts["w"]) if self.parent.may_ungate else 0
        if not (joining or fewer or kept != self.parent.merged_slices):
            return
        for _ in range(fewer if self.topology else 0):
            live = [pod.selector.get(HOST) for pod in self.pods.values() if not pod.gates]
            spare = [d for d, n in places.items() if n > live.count(d[0])] or list(places)
            places[spare[-1]] -= 1
            places = {domain: pods for domain, pods in places.items() if pods}
        worker = self._given(worker, count - fewer, places)
        self.parent = replace(
            self.parent,
            podsets=(head, replace(worker, requested_count=self.parent.podsets[1].requested_count)),
            merged_slices=(*kept, *((one.uid, "w") for one in joining)),
            placed_at=self.now,
        )

    def follow(self) -> None:
        if self.parent.may_ungate:
            podsets = tuple(
                replace(one, requested_count=one.admitted_count) for one in self.parent.podsets
            )
            self.parent = replace(self.parent, podsets=podsets)

    def delete_slice(self) -> None:
        settled = {uid for uid, _ in self.parent.merged_slices}
        for name, one in sorted(self.slices.items()):
            if one.uid in settled or (not one.reserved and not self.parent.may_ungate):
                del self.slices[name]
                return

    def evict(self) -> None:
        if self.parent.may_ungate and self.dice.random() < 0.3:
            self.parent = replace(self.parent, evicted=True, evicted_at=self.now)

    def stop(self) -> None:
        if not self.parent.evicted:
            return
        if not self.job.suspended:
            self.job = replace(
                self.job,
                suspended=True,
                started=False,
                suspend_changed_at=self.now,
                listed=frozenset(),
            )
        for name in list(self.pods):
            self._end(name)
        if self.pods or self.slices:
            return
        self.parent = replace(
            self.parent,
            reserved=False,
            admitted=False,
            evicted=False,
            cluster_queue="",
            merged_slices=(),
            placed_at=self.now,
            changed_at=self.now,
            podsets=self._asked(),
        )

    # The ungater.

    def release(self) -> None:
        if not self.parent.may_ungate:
            return
        for podset in self.parent.podsets:
            beside = [one.podsets[0] for one in self._open()] if podset.name == "w" else []
            mine = [pod for pod in self.pods.values() if pod.podset == podset.name]
            live = [pod for pod in mine if not pod.gates]
            waiting = [pod for pod in mine if pod.gates and not pod.terminating]
            if not waiting or len(live) >= podset.admitted_count + len(beside):
                continue
            pod = self.dice.choice(waiting)
            if not self.topology:
                self.pods[pod.name] = replace(pod, gates=())
                continue
            room: dict[Domain, int] = {}
            for one in (podset, *beside):
                for domain, count in one.assignment.domains if one.assignment else ():
                    room[domain] = room.get(domain, 0) + count
            for other in live:
                host = other.selector.get(HOST, "")
                room[host,] = room.get((host,), 0) - 1
            free = [domain for domain, count in room.items() if count > 0]
            if free:
                sent = replace(
                    pod, gates=(), selector={HOST: free[0][0]}, ungater_wrote_at=self.now
                )
                self.pods[pod.name] = sent

    ACTS = (
        *(scale, scale, operate, operate, operate, lose, end_deletion, end_deletion, bind, bind),
        *(admit, start, ask, ask, admit_slice, admit_slice, settle, settle, follow, delete_slice),
        *(delete_slice, evict, stop, release, release, release),
    )

    def act(self) -> str:
        """Do one thing at random; returns its name. Several may happen within a second."""
        self.now += self.dice.choice((0, 0, 0, 1, 2, 20))
        chosen = self.dice.choice(self.ACTS)
        chosen(self)
        return chosen.__name__

    def come_to_rest(self) -> None:
        """Everybody does what is left to do, without anything new."""
        for _ in range(40):
            self.now += 1
            for doing in (self.stop, self.end_deletion, self.admit, self.start, self.operate):
                doing()
            for doing in (self.ask, self.admit_slice, self.settle, self.follow, self.release):
                doing()
            for doing in (self.delete_slice, self.delete_slice, self.end_deletion, self.bind):
                doing()

    # What is where.

    def _name(self, kind: str) -> str:
        self.serial += 1
        return f"{kind}-{self.serial}"

    def _staying(self) -> list[str]:
        every = self.pods.values()
        return sorted(pod.name for pod in every if pod.podset == "w" and not pod.terminating)

    def _open(self) -> list[WorkloadRow]:
        settled = {uid for uid, _ in self.parent.merged_slices}
        return [o for _, o in sorted(self.slices.items()) if o.reserved and o.uid not in settled]

    def _holding(self) -> list[WorkloadRow]:
        return [self.parent, *self._open()] if self.parent.reserved else []

    def _asked(self) -> tuple[PodSetRow, ...]:
        required = RACK if self.topology else ""
        head = PodSetRow("head", 1, self.topology, (("cpu", HEAD),), required)
        wanted = self.job.podset_counts["w"]
        return head, PodSetRow("w", wanted, self.topology, (("cpu", WORKER),), required)

    def _given(self, podset: PodSetRow, count: int, places: dict[Domain, int]) -> PodSetRow:
        placed = TopologyAssignment((HOST,), tuple(places.items())) if places else None
        usage = {"cpu": dict(podset.requests)["cpu"] * count}
        return replace(
            podset, admitted_count=count, flavors={"cpu": "f"}, usage=usage, assignment=placed
        )

    def _places(
        self, podset: PodSetRow, count: int, others: list[PodSetRow]
    ) -> dict[Domain, int] | None:
        """Hosts with room; none without a topology."""
        if not self.topology or not count:
            return {}
        cpu, places = dict(podset.requests)["cpu"], dict[Domain, int]()
        for host in HOSTS:
            free = CPU - self._charged(host, others)
            fits = min(count, max(0, free) // cpu)
            if fits:
                places[(host,)] = fits
                count -= fits
        return None if count else places

    def _charged(self, host: str, others: list[PodSetRow]) -> int:
        total = 0
        podsets = [p for one in self._holding() for p in one.podsets]
        for name, cpu in (("head", HEAD), ("w", WORKER)):
            assigned = sum(
                dict(p.assignment.domains).get((host,), 0)
                for p in (*podsets, *others)
                if p.name == name and p.assignment is not None
            )
            bound = sum(p.podset == name and p.node == host for p in self.pods.values())
            total += max(assigned, bound) * cpu
        return total

    def _make(self, podset: str) -> None:
        name = self._name(f"{JOB}-{podset}")
        gates = (names.TOPOLOGY_GATE,) if self.topology else ()
        cpu = HEAD if podset == "head" else WORKER
        self.pods[name] = PodRow(
            *("team", name, name),
            owner=JOB,
            owner_name=JOB,
            workload=PARENT,
            podset=podset,
            gates=(names.ELASTIC_GATE, *gates),
            requests=(("cpu", cpu),),
            created_at=self.now,
            scheduled_at=self.now,
        )

    def _end(self, name: str) -> None:
        pod = self.pods[name]
        if pod.node and not pod.terminating:
            self.pods[name] = replace(pod, terminating=True, ends_at=self.now + 5)
        elif not pod.node:
            del self.pods[name]


def _plain(podset: PodSetRow) -> PodSetRow:
    return replace(podset, admitted_count=0, flavors={}, usage={}, assignment=None)
