"""What the cache records as changed covers every Workload that an event lets in, and little more.

Before each event all that a plan admits is admitted, so that whatever a plan does after the event
that it did not before is due to the event.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.changes import Changes
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    Decision,
    PodSetAssignment,
    Preempt,
)
from rackgate_assigner.workload.info import WorkloadInfo
from tests.property.test_cache import CacheMachine, live
from tests.property.test_quota_usage import World
from tests.property.test_slice_usage import Cluster
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    cache_with,
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    namespace,
    node,
    pod,
    podset,
    topology,
    workload,
)

CYCLES = 50
seeds = st.integers(min_value=0, max_value=2**32)


def planned(cache: Cache) -> list[Decision]:
    return plan(cache.snapshot(), cache.features)


def admitted_by(decisions: list[Decision]) -> list[Admit]:
    return [one for one in decisions if isinstance(one, Admit)]


def preemptors(decisions: list[Decision]) -> set[str]:
    return {one.by for one in decisions if isinstance(one, Preempt)}


def settle(cache: Cache) -> set[str]:
    """Admit all that can be admitted; return those that others would be preempted for."""
    for _ in range(CYCLES):
        decisions = planned(cache)
        found = admitted_by(decisions)
        if not found:
            return preemptors(decisions)
        for one in found:
            cache.assume(one.workload, one.assignment)
    raise AssertionError(f"after {CYCLES} cycles there is more to admit")


def queue_of(cache: Cache, row: WorkloadInfo) -> str:
    local = cache.local_queues.get(row.queue)
    return local.cluster_queue if local is not None else ""


def root_of(cache: Cache, queue: str) -> str:
    """The top Cohort of a ClusterQueue; itself if it is in none."""
    found = cache.cluster_queues.get(queue)
    if found is None or not found.cohort:
        return f"queue {queue}"
    name, passed = found.cohort, {found.cohort}
    while (above := cache.cohorts.get(name)) is not None and above.parent:
        name = above.parent
        if name in passed:
            return f"queue {queue}"
        passed.add(name)
    return f"cohort {name}"


def roots_with(cache: Cache, flavors: set[str]) -> set[str]:
    return {
        root_of(cache, name)
        for name, queue in cache.cluster_queues.items()
        if flavors.intersection(queue.flavors)
    }


def with_topology(cache: Cache, queue: str) -> set[str]:
    found = cache.cluster_queues.get(queue)
    flavors = found.flavors if found is not None else ()
    return {name for name in flavors if (one := cache.flavors.get(name)) and one.levels}


def check_event(cache: Cache, event: Callable[[], Any]) -> Changes:
    """Run an event; whoever is admitted or preempted for because of it must be woken by it."""
    before = settle(cache)
    waiting = {row.key: queue_of(cache, row) for row in cache.pending()}
    used = {key: dict(found) for key, found in cache.totals.used().items()}
    cache.take_changes()
    epoch = cache.epoch
    event()
    changes = cache.take_changes()
    assert cache.epoch > epoch or not changes
    if changes.everything:
        return changes
    now = cache.totals.used()
    grown = any(
        amount > used.get(name, {}).get(pair, 0)
        for name, found in now.items()
        for pair, amount in found.items()
    )
    woken = {root_of(cache, name) for name in changes.queues} | roots_with(cache, changes.flavors)
    for key in changes.workloads & waiting.keys():
        # One that waited may have held room, or was the head of its queue.
        queue = waiting[key]
        woken |= {root_of(cache, queue)} | roots_with(cache, with_topology(cache, queue))
    decisions = planned(cache)
    found = {one.workload for one in admitted_by(decisions)}
    if not grown:  # more usage lets no one in, but others may be preempted for the same Workloads
        found |= preemptors(decisions) - before
    for key in found - changes.workloads:
        assert root_of(cache, queue_of(cache, cache.workloads[key])) in woken, (key, changes)
    return changes


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_whoever_gets_quota_by_an_event_is_woken_by_it(seed: int) -> None:
    world = World(seed)
    for _ in range(40):
        check_event(world.cache, world.change)
        if world.rng.random() < 0.3:
            for key, assumed in list(world.cache.assumed.items()):
                world.set_workload(key.partition("/")[2], assumed.value)


class Racks:
    """ClusterQueues with a flavor of their own each; all but one share nodes with others.

    Two flavors place pods on hosts, two in racks. The quota is never the limit.
    """

    NODES: Final = ("n1", "n2", "n3", "n4", "n5")
    RACKS: Final = ("b/r1", "b/r2", "b/r3")
    FLAVORS: Final = MappingProxyType(
        {
            "hosts": ("hosts", {"kind": "x"}),
            "more-hosts": ("hosts", {}),
            "racks": ("racks", {"kind": "x"}),
            "more-racks": ("racks", {}),
            "apart": ("hosts", {"kind": "y"}),
        }
    )

    def __init__(self, seed: int) -> None:
        self.rng, self.cache, self.version = random.Random(seed), Cache(), 0
        self.cache.set_namespace(namespace())
        self.cache.set_topology(topology("hosts"))
        self.cache.set_topology(topology("racks", (BLOCK, RACK)))
        for name, (levels, labels) in self.FLAVORS.items():
            self.cache.set_flavor(flavor(name, levels, labels))
            self.cache.set_cluster_queue(cluster_queue(name, {name: {"cpu": "1000"}}))
            self.cache.set_local_queue(local_queue(name, name))
        for name in self.NODES:
            self.change_node(name)

    def change_node(self, name: str) -> None:
        rng = self.rng
        labels = {"kind": rng.choice("xxxyz")}
        ready, cpu = rng.random() < 0.9, rng.choice("3334")
        host = rng.choice((name, name, name, "shared"))
        rack = rng.choice(self.RACKS)
        self.cache.set_node(node(name, rack, host=host, cpu=cpu, labels=labels, ready=ready))

    def change_workload(self, name: str, **more: Any) -> None:
        self.version += 1
        version, rng = f"{self.version:05}", random.Random(name)
        asked: dict[str, Any] = rng.choice([{"unconstrained": True}, {"required": RACK}])
        requests = {"cpu": rng.choice("12")}
        podsets = [podset(count=rng.randint(1, 3), requests=requests, topology=asked)]
        queue = rng.choice(sorted(self.FLAVORS))
        self.cache.set_workload(workload(name, podsets, queue=queue, version=version, **more))

    def change(self) -> None:
        rng, cache = self.rng, self.cache
        name = f"w{rng.randint(0, 19)}"
        row, assumed = cache.workloads.get(f"team/{name}"), cache.assumed.get(f"team/{name}")
        held = assumed.value if assumed else row.reserved if row else None
        match rng.choice("nnxpppqqwwwwhfffde"):
            case "n":
                self.change_node(rng.choice(self.NODES))
            case "x":
                cache.drop_node(rng.choice(self.NODES))
            case "p":
                on, of = rng.choice(self.NODES), rng.choice([None, name])
                cache.set_pod(pod(f"p{rng.randint(0, 5)}", on, workload=of))
            case "q":
                cache.drop_pod(f"team/p{rng.randint(0, 5)}")
            case "w" if row is None:
                self.change_workload(name)
            case "h" if held:
                self.change_workload(name, assignment=held)
            case "f" if held:
                over = {"Finished": ("True", "Succeeded", "")}
                self.change_workload(name, assignment=held, conditions=over)
            case "e" if held:
                self.change_workload(name)
            case "d":
                cache.drop_workload(f"team/{name}")
            case _:
                pass


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_whoever_gets_a_domain_by_an_event_is_woken_by_it(seed: int) -> None:
    world = Racks(seed)
    for _ in range(40):
        check_event(world.cache, world.change)


@settings(max_examples=15, deadline=None)
@given(seed=seeds)
def test_whoever_is_admitted_by_an_event_of_a_long_life_is_woken_by_it(seed: int) -> None:
    machine, rng = CacheMachine(), random.Random(seed)
    for _ in range(60):
        check_event(machine.cache, lambda: live(machine, rng))


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_whichever_slice_is_admitted_by_an_event_is_woken_by_it(seed: int) -> None:
    cluster = Cluster(random.Random(seed))
    for _ in range(40):
        check_event(cluster.cache, cluster.step)


# What wakes little.


@pytest.fixture
def cache() -> Cache:
    """Two Cohorts of two ClusterQueues and a flavor of their own each; both are full.

    In each, `holds` has the quota and four CPUs of the one node, in the first ClusterQueue, and
    `waits` waits in the second.
    """
    cache = Cache(Features.of({"TASWithCohorts": True}))
    cache.set_topology(topology())
    cache.set_namespace(namespace())
    for kind in "xy":
        cache.set_flavor(flavor(kind, "default", {"kind": kind}))
        cache.set_node(node(f"node-{kind}", labels={"kind": kind}, cpu="5"))
        for number, nominal in (("1", "4"), ("2", "0")):
            name = f"{kind}{number}"
            queue = cluster_queue(name, {kind: {"cpu": nominal}}, cohortName=kind)
            cache.set_cluster_queue(queue)
            cache.set_local_queue(local_queue(name, name))
        part = PodSetAssignment(
            "main",
            {"cpu": kind},
            {"cpu": 4000},
            4,
            TopologyAssignment((HOST,), (((f"node-{kind}",), 4),)),
        )
        show(cache, f"holds-{kind}", f"{kind}1", Assignment(f"{kind}1", (part,)))
        show(cache, f"waits-{kind}", f"{kind}2")
    cache.set_pod(pod("foreign", "node-x"))
    planned(cache)
    cache.take_changes()
    return cache


def show(
    cache: Cache,
    name: str,
    queue: str,
    assignment: Assignment | None = None,
    version: str = "1",
    **more: Any,
) -> None:
    podsets = [podset(count=4, topology={"unconstrained": True})]
    cache.set_workload(
        workload(name, podsets, queue=queue, assignment=assignment, version=version, **more)
    )


def held_by(cache: Cache, name: str) -> Assignment:
    held = cache.workloads[f"team/{name}"].reserved
    assert held is not None
    return held


def finish(cache: Cache) -> None:
    over = {"Finished": ("True", "Succeeded", "")}
    show(cache, "holds-x", "x1", held_by(cache, "holds-x"), "2", conditions=over)


RELEASE = Changes(queues={"x1"}, flavors={"x"})


@pytest.mark.requirement("CAP-08")
@pytest.mark.parametrize("end", [finish, lambda cache: cache.drop_workload("team/holds-x")])
def test_a_workload_that_ends_wakes_its_queue_and_its_flavor_alone(
    cache: Cache, end: Callable[[Cache], None]
) -> None:
    end(cache)
    assert cache.take_changes() == RELEASE


def test_a_workload_that_ends_wakes_every_flavor_that_has_its_hosts(cache: Cache) -> None:
    cache.set_flavor(flavor("both", "default", {}))
    planned(cache)
    cache.take_changes()
    finish(cache)
    assert cache.take_changes() == replace(RELEASE, flavors={"x", "both"})


def test_capacity_that_is_counted_late_is_in_the_changes(cache: Cache) -> None:
    """The fifth pod of four is charged to its node, until another one is gone."""
    for number in range(5):
        cache.set_pod(pod(f"p{number}", "node-x", workload="holds-x"))
    cache.take_changes()
    cache.drop_pod("team/p0")
    assert cache.take_changes().flavors == {"x"}


def test_a_workload_that_loses_its_quota_is_pending_again(cache: Cache) -> None:
    show(cache, "holds-x", "x1", version="2")
    changes = cache.take_changes()
    assert changes == replace(RELEASE, workloads={"team/holds-x"})


def test_an_eviction_wakes_the_queue(cache: Cache) -> None:
    """Others may preempt it now, or need not."""
    evicted = {"Evicted": ("True", "Preempted", "")}
    show(cache, "holds-x", "x1", held_by(cache, "holds-x"), "2", conditions=evicted)
    assert cache.take_changes() == Changes(queues={"x1"})


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda cache: show(cache, "new", "x1"), {"team/new"}),
        (lambda cache: show(cache, "waits-x", "x2", version="2", priority=7), {"team/waits-x"}),
        (
            lambda cache: show(cache, "waits-x", "x2", version="2", reclaimable={"main": 1}),
            {"team/waits-x"},
        ),
        (lambda cache: cache.drop_workload("team/waits-x"), {"team/waits-x"}),
        (lambda cache: cache.set_local_queue(local_queue("x2", "y1")), {"team/waits-x"}),
        (lambda cache: cache.drop_local_queue("team/x2"), {"team/waits-x"}),
        (
            lambda cache: cache.set_namespace(namespace("team", a="b")),
            {"team/waits-x", "team/waits-y"},
        ),
        (lambda cache: cache.set_namespace(namespace("other")), set()),
    ],
)
def test_a_pending_workload_that_changes_wakes_itself_alone(
    cache: Cache, change: Callable[[Cache], None], keys: set[str]
) -> None:
    epoch = cache.epoch
    change(cache)
    assert cache.take_changes() == Changes(workloads=keys)
    assert cache.epoch > epoch


def test_heartbeats_and_written_conditions_wake_nothing(cache: Cache) -> None:
    found = node("node-x", labels={"kind": "x"}, cpu="5")
    cache.set_node(found)
    waits = {"QuotaReserved": ("False", "WaitingForQuota", "later")}
    show(cache, "waits-x", "x2", version="2", conditions=waits)
    ready = {"PodsReady": ("False", "WaitForStart", "")}
    show(cache, "holds-x", "x1", held_by(cache, "holds-x"), "2", conditions=ready)
    changes = cache.take_changes()
    assert not changes
    assert changes.refreshed == {"team/waits-x"}


def test_an_assumed_admission_wakes_nothing_and_its_failure_does(cache: Cache) -> None:
    finish(cache)
    (admit,) = admitted_by(planned(cache))
    cache.take_changes()
    cache.assume(admit.workload, admit.assignment)
    assert not cache.take_changes()
    cache.forget(admit.workload)
    expected = Changes(queues={"x2"}, flavors={"x"}, workloads={"team/waits-x"})
    assert cache.take_changes() == expected


def test_another_assignment_wakes_the_flavor_whose_domains_it_gives_back(cache: Cache) -> None:
    cache.set_node(node("spare", labels={"kind": "x"}))
    cache.take_changes()
    held = held_by(cache, "holds-x")
    spare = TopologyAssignment((HOST,), ((("spare",), 4),))
    moved = Assignment("x1", (replace(held.podsets[0], topology=spare),))
    cache.assume("team/holds-x", moved, replace_existing=True)
    assert cache.take_changes() == Changes(flavors={"x"})


@pytest.mark.requirement("CAP-07")
@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.drop_pod("team/foreign"),
        lambda cache: cache.set_pod(pod("foreign", "node-x", phase="Succeeded")),
        lambda cache: cache.set_node(node("node-x", labels={"kind": "x"}, cpu="9")),
        lambda cache: cache.set_node(node("node-x", labels={"kind": "z"})),
        lambda cache: cache.drop_node("node-x"),
        lambda cache: cache.set_node(node("more", labels={"kind": "x"})),
    ],
)
def test_pods_and_nodes_wake_the_flavors_of_the_node_alone(
    cache: Cache, change: Callable[[Cache], None]
) -> None:
    change(cache)
    assert cache.take_changes() == Changes(flavors={"x"})


def test_more_usage_wakes_nothing(cache: Cache) -> None:
    cache.set_pod(pod("more", "node-x"))
    assert not cache.take_changes()


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.set_cluster_queue(cluster_queue("x1", {"x": {"cpu": "9"}})),
        lambda cache: cache.drop_cluster_queue("x1"),
        lambda cache: cache.set_cohort(cohort("x", "y")),
        lambda cache: cache.set_flavor(flavor("x", "default", {"kind": "z"})),
        lambda cache: cache.drop_flavor("x"),
        lambda cache: cache.drop_topology("default"),
        lambda cache: cache.rebuild_derived_state(),
    ],
)
def test_what_many_workloads_depend_on_wakes_everything(
    cache: Cache, change: Callable[[Cache], None]
) -> None:
    change(cache)
    assert cache.take_changes() == Changes(everything=True)


def test_a_standby_which_takes_no_changes_keeps_no_names() -> None:
    cache = cache_with([node("a")])
    for number in range(3):
        cache.set_workload(workload(f"w{number}"))
    assert cache.changes == Changes(everything=True)


def test_ready_pods_wake_everything_that_they_blocked() -> None:
    cache = Cache(block_admission=True)
    cache.set_cluster_queue(cluster_queue("q", {"f": {"cpu": "4"}}))
    part = PodSetAssignment("main", {"cpu": "f"}, {"cpu": 4000}, 4)
    show(cache, "w", "q", Assignment("q", (part,)))
    cache.take_changes()
    ready = dict.fromkeys(("Admitted", "PodsReady"), ("True", "", ""))
    show(cache, "w", "q", Assignment("q", (part,)), "2", conditions=ready)
    assert cache.take_changes().everything


# Workload slices, and pods beyond an admission.


def elastic(*pending: str) -> Cluster:
    """A running job, and slices of it that wait."""
    cluster = Cluster(random.Random(0))
    for name in pending:
        cluster.slices[name] = None
        cluster.show_slice(name)
    planned(cluster.cache)
    cluster.cache.take_changes()
    return cluster


def test_a_slice_is_decided_about_again_when_its_parent_changes() -> None:
    cluster = elastic("s1", "s2")
    cluster.show_parent(evicted=True)
    assert cluster.cache.take_changes().workloads == {"team/s1", "team/s2"}
    epoch = cluster.cache.epoch
    cluster.show_parent(evicted=True)
    assert not cluster.cache.take_changes()
    assert cluster.cache.epoch == epoch


def test_a_slice_is_decided_about_again_when_another_one_is_admitted() -> None:
    """It is placed near the pods of its family."""
    cluster = elastic("s1", "s2")
    cluster.slices["s1"] = "a"
    cluster.show_slice("s1")
    assert cluster.cache.take_changes() == Changes(workloads={"team/s1", "team/s2"})


def test_a_slice_is_decided_about_again_when_pods_exceed_the_admission() -> None:
    """What they use beyond it is what the slice may take over."""
    cluster = elastic("s1")
    for name in ("p1", "p2", "p3"):
        cluster.cache.set_pod(pod(name, "a", workload="ray"))
    assert cluster.cache.take_changes() == Changes(workloads={"team/s1"})


def test_a_pod_beyond_the_admission_that_ends_wakes_the_queue() -> None:
    cluster = elastic()
    for name in ("p1", "p2"):
        cluster.cache.set_pod(pod(name, "a", workload="ray"))
    cluster.cache.take_changes()
    cluster.cache.drop_pod("team/p2")
    assert "cq" in cluster.cache.take_changes().queues
