"""Usage of a job that is resized, at every event of its Workloads: no dip, nothing twice.

The Workloads of a parent and of its slices come in one watch, in the order of their writes. What
is in use after each event is what was granted by then and not given back.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from tests.unit.assigner.builders import (
    HOST,
    cache_with,
    cluster_queue,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    workload,
)

HOSTS = ("a", "b", "c")
CPU = ("tas", "cpu")
GATE = {"ElasticJobsViaWorkloadSlices": True}


def grant_of(places: Counter[str]) -> Assignment:
    spots = tuple(((host,), count) for host, count in sorted(places.items()) if count)
    total = sum(places.values())
    found = TopologyAssignment((HOST,), spots) if total else None
    return Assignment(
        "cq", (PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 1000 * total}, total, found),)
    )


class Cluster:
    """One resizable job: its Workload, its slices, and its pods, as they are stored."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.version, self.names = rng, 1, 0
        queue = cluster_queue("cq", {"tas": {"cpu": "100"}})
        nodes = [node(host, cpu="40") for host in HOSTS]
        self.cache: Cache = cache_with(nodes, queue=queue, features=GATE)
        self.counted: Counter[str] = Counter({"a": 1})
        self.admitted = self.exists = True
        self.folded: set[str] = set()
        # Slices: where each was admitted, None while it waits.
        self.slices: dict[str, str | None] = {}
        self.pods: dict[str, str] = {}
        self.show_parent()

    # What the watch shows.

    def show_parent(self, *, evicted: bool = False) -> None:
        self.version += 1
        self.cache.set_workload(
            workload(
                "ray",
                [podset(count=sum(self.counted.values()))],
                version=str(self.version),
                generation=0,
                elastic=True,
                folded=sorted(self.folded),
                assignment=grant_of(self.counted) if self.admitted else None,
                conditions={"Evicted": ("True", "Preempted", "")} if evicted else {},
            )
        )

    def show_slice(self, name: str) -> None:
        self.version += 1
        host = self.slices[name]
        self.cache.set_workload(
            workload(
                name,
                [podset()],
                parent="ray",
                version=str(self.version),
                assignment=grant_of(Counter({host: 1})) if host else None,
            )
        )

    def gone(self, name: str) -> None:
        del self.slices[name]
        self.cache.drop_workload(f"team/{name}")

    # What controllers and the cluster do.

    def step(self) -> None:
        """One write, seen at once; between two steps of one controller others take theirs."""
        waiting = [name for name, host in self.slices.items() if host is None]
        open_ = [n for n, host in self.slices.items() if host and n not in self.folded]
        settled = [name for name in self.slices if name in self.folded]
        stale = self.folded - set(self.slices)
        if not self.exists:
            self.clear_away()
            return
        match self.rng.choice("ccaaffffddpwsebbuk"):
            case "k" if self.rng.random() < 0.3:
                self.exists = False
                self.cache.drop_workload("team/ray")
            case "c" if self.admitted:
                self.names += 1
                self.slices[f"s{self.names}"] = None
                self.show_slice(f"s{self.names}")
            case "a" if waiting:
                name = self.rng.choice(waiting)
                self.slices[name] = self.rng.choice(HOSTS)
                self.show_slice(name)
            case "f" if open_ and self.admitted:
                for name in self.rng.sample(open_, self.rng.randint(1, len(open_))):
                    host = self.slices[name]
                    assert host is not None
                    self.counted[host] += 1
                    self.folded.add(name)
                self.show_parent()
            case "d" if settled:
                self.gone(self.rng.choice(settled))
            case "w" if waiting or open_:
                self.gone(self.rng.choice(waiting + open_))
            case "p" if stale:
                self.folded -= stale
                self.show_parent()
            case "s" if sum(self.counted.values()) > 1 and self.admitted:
                self.counted[self.rng.choice(sorted(+self.counted))] -= 1
                self.show_parent()
            case "e":
                self.admitted = not self.admitted
                if not self.admitted:
                    self.counted = Counter()
                else:
                    self.counted = Counter({self.rng.choice(HOSTS): 2})
                self.show_parent()
            case "b" if self.held():
                self.bind()
            case "u" if self.pods:
                name = self.rng.choice(sorted(self.pods))
                del self.pods[name]
                self.cache.drop_pod(f"team/{name}")
            case _:
                self.show_parent(evicted=self.rng.random() < 0.2 and self.admitted)

    def clear_away(self) -> None:
        """Garbage collection takes the slices of a parent that is gone; then it comes again."""
        if self.slices:
            self.gone(self.rng.choice(sorted(self.slices)))
            return
        self.exists, self.admitted = True, True
        self.counted, self.folded = Counter({"c": 1}), set()
        self.show_parent()

    def bind(self) -> None:
        """A pod lands where there is a place left for it."""
        room = self.held()
        room.subtract(Counter(self.pods.values()))
        if +room:
            self.names += 1
            name, host = f"p{self.names}", self.rng.choice(sorted(+room))
            self.pods[name] = host
            self.cache.set_pod(pod(name, host, workload="ray"))

    # What has to be so after every event.

    def held(self) -> Counter[str]:
        """Replicas by host that were granted and not given back."""
        if not self.exists:
            return Counter()
        own = Counter(self.counted) if self.admitted else Counter()
        own.update(host for name, host in self.slices.items() if host and name not in self.folded)
        return +own

    def check(self) -> None:
        held = self.held()
        used = self.cache.totals.used().get("cq", {}).get(CPU, 0)
        # Pods that outlive what was granted are charged, too, for as long as anything tells whose
        # they are.
        living = len(self.pods) if self.exists else 0
        assert used == 1000 * max(sum(held.values()), living)
        waiting = {row.name for row in self.cache.snapshot().pending}
        assert not waiting & self.folded
        flavor_topology = self.cache.flavor_topologies().by_flavor["tas"]
        surplus = Counter(self.pods.values())
        surplus.subtract(held)
        for host in HOSTS:
            leaf = flavor_topology.tree.leaf_of_host(host)
            assert leaf is not None
            free = int(flavor_topology.capacity.free[leaf, flavor_topology.capacity.rows["cpu"]])
            assert free == 40_000 - 1000 * (held[host] + max(0, surplus[host]))
        assert rebuild_matches(self.cache) == []


@pytest.mark.requirement("SLC-18", "SLC-19", "SLC-21", "SLC-25", "SLC-32", "SLC-35")
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_usage_is_what_was_admitted_or_lives_at_every_event_of_a_resize(seed: int) -> None:
    cluster = Cluster(random.Random(seed))
    for _ in range(40):
        epoch, planned = cluster.cache.epoch, plan_cycle(cluster.cache)
        cluster.step()
        cluster.check()
        if cluster.cache.epoch == epoch:
            assert plan_cycle(cluster.cache) == planned


@pytest.mark.requirement("SLC-21")
def test_a_fold_changes_usage_by_nothing_and_the_deletion_after_it_as_well() -> None:
    cluster = Cluster(random.Random(1))
    cluster.slices["s"] = "b"
    cluster.show_slice("s")
    cluster.check()
    cluster.counted["b"] += 1
    cluster.folded.add("s")
    cluster.show_parent()
    cluster.check()
    cluster.gone("s")
    cluster.check()
    assert cluster.held() == Counter(a=1, b=1)


@pytest.mark.requirement("SLC-19")
def test_a_slice_that_lost_its_admission_after_the_fold_asks_for_nothing() -> None:
    cluster = Cluster(random.Random(1))
    cluster.slices["s"] = None
    cluster.folded.add("s")
    cluster.show_parent()
    cluster.show_slice("s")
    assert cluster.cache.snapshot().pending == []
