"""Wherever a parent runs and whatever else does: its slices keep to its domains and its flavor."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate.topology.assignment import TopologyAssignment
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment, Requeue
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admissions,
    cache_with,
    cluster_queue,
    flavor,
    node,
    plan_cycle,
    pod,
    podset,
    workload,
)

GATE = {"ElasticJobsViaWorkloadSlices": True}
HOSTS = {
    f"{block}-{rack}-{number}": (block, rack) for block in "ab" for rack in "xy" for number in "12"
}
ROOM = 3


def path_of(host: str, level: str) -> tuple[str, ...]:
    return HOSTS[host] if level == RACK else HOSTS[host][:1]


def cluster(rng: random.Random) -> tuple[Cache, dict[str, int]]:
    """Eight hosts in four racks, with some room taken by others; what is left by host."""
    nodes = [node(host, "/".join(path), cpu=str(ROOM)) for host, path in HOSTS.items()]
    queue = cluster_queue("cq", {"other": {"cpu": "99"}, "tas": {"cpu": "99"}})
    cache = cache_with(nodes, queue=queue, features=GATE)
    cache.set_flavor(flavor("other"))
    left = dict.fromkeys(HOSTS, ROOM)
    for index in range(rng.randint(0, 14)):
        host = rng.choice(sorted(HOSTS))
        if left[host]:
            left[host] -= 1
            cache.set_pod(pod(f"p{index}", host))
    return cache, left


def run_parent(cache: Cache, rng: random.Random, left: dict[str, int], wish: dict[str, str]) -> str:
    """A parent with one or two pods of a domain that its request allows; a host of it."""
    level = next(iter(wish.values()))
    home = rng.choice([host for host in sorted(HOSTS) if left[host]])
    spots = {home: 1}
    left[home] -= 1
    near = [host for host in HOSTS if left[host] and path_of(host, level) == path_of(home, level)]
    if near and rng.random() < 0.5:
        other = rng.choice(near)
        spots[other] = spots.get(other, 0) + 1
        left[other] -= 1
    total = sum(spots.values())
    found = TopologyAssignment((HOST,), tuple(((host,), n) for host, n in spots.items()))
    part = PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 1000 * total}, total, found)
    podsets = [podset(count=total, topology=wish)]
    cache.set_workload(
        workload("ray", podsets, version="2", elastic=True, assignment=Assignment("cq", (part,)))
    )
    return home


@pytest.mark.requirement("SLC-09", "SLC-36")
@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(min_value=0, max_value=2**32),
    asked=st.sampled_from(["required", "preferred"]),
    level=st.sampled_from([BLOCK, RACK]),
    hosts_each=st.integers(1, 2),
)
def test_slices_go_where_their_parent_is(
    seed: int, asked: str, level: str, hosts_each: int
) -> None:
    rng = random.Random(seed)
    cache, left = cluster(rng)
    if not any(left.values()):
        return
    wish = {asked: level}
    home = path_of(run_parent(cache, rng, left, wish), level)
    for index in range(rng.randint(1, 6)):
        pods = [podset(count=hosts_each, topology=wish)]
        name, created = f"s{index}", f"2026-08-01T12:00:0{index}Z"
        cache.set_workload(workload(name, pods, parent="ray", created=created, generation=0))
        (decision,) = [d for d in plan_cycle(cache) if d.workload == f"team/{name}"]
        near = sum(room for host, room in left.items() if path_of(host, level) == home)
        if isinstance(decision, Requeue):
            assert decision.reason == "TopologyPlacementFailed"
            assert near < hosts_each if asked == "required" else sum(left.values()) < hosts_each
            cache.drop_workload(f"team/{name}")
            continue
        assignment = admissions([decision])[name]
        assert assignment.podsets[0].flavors == {"cpu": "tas"}
        assert assignment.podsets[0].topology is not None
        places = [(values[-1], count) for values, count in assignment.podsets[0].topology.domains]
        inside = all(path_of(host, level) == home for host, _ in places)
        assert inside or (asked == "preferred" and near < hosts_each)
        for host, count in places:
            left[host] -= count
            assert left[host] >= 0
        shown = workload(
            name,
            pods,
            parent="ray",
            created=created,
            generation=0,
            version="2",
            assignment=assignment,
        )
        cache.set_workload(shown)
        if not inside:
            return  # from then on there are two homes
