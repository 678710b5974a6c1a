"""What cannot be stored is not granted: the Workload waits and is told why."""

from __future__ import annotations

import random

import pytest

from rackgate.topology.assignment import TopologyAssignment, encoded_size
from rackgate_assigner.workload.decisions import Requeue
from rackgate_assigner.workload.object_size import (
    ALWAYS_BYTES,
    STORE_BYTES,
    assignment_room,
    too_large,
)
from tests.unit.assigner.builders import (
    HOST,
    admissions,
    cache_with,
    cluster_queue,
    node,
    plan_cycle,
    podset,
    rebuild_matches,
    topology,
    workload,
)

HOSTS = 24_000


def host_names(length: int) -> list[str]:
    noise = random.Random(7)
    return ["".join(noise.choices("abcdefghijklmnopqrstuvwxyz", k=length)) for _ in range(HOSTS)]


def on(names: list[str]) -> dict[str, TopologyAssignment]:
    return {"main": TopologyAssignment((HOST,), tuple(((name,), 1) for name in names))}


@pytest.mark.requirement("TAS-30")
@pytest.mark.field_note("C23")
def test_an_assignment_beyond_the_store_is_held_and_holds_up_no_one() -> None:
    queue = cluster_queue(quotas={"tas": {"cpu": "100000"}}, queueingStrategy="StrictFIFO")
    cache = cache_with(queue=queue)
    cache.set_topology(topology(levels=(HOST,)))
    for index, name in enumerate(host_names(63)):
        cache.set_node(node(f"n{index}", host=name, cpu="1"))
    cache.set_workload(workload("a-huge", [podset(count=HOSTS)]))
    cache.set_workload(workload("b-small", [podset(count=2)]))
    decisions = plan_cycle(cache)
    assert list(admissions(decisions)) == ["b-small"]
    (held,) = (decision for decision in decisions if isinstance(decision, Requeue))
    assert (held.workload, held.reason) == ("team/a-huge", "Misconfigured")
    assert held.message.startswith(
        f"the topology assignment of pod set main names {HOSTS} domains in 15"
    )
    assert "shorter node names" in held.message
    assert rebuild_matches(cache) == []


@pytest.mark.field_note("C23")
def test_room_is_what_templates_leave() -> None:
    names = on(host_names(40))
    size = encoded_size(names["main"])
    assert too_large(names, 65_536) is None
    room = assignment_room(300_000)
    assert room < size < STORE_BYTES
    text = too_large(names, 300_000)
    assert text is not None
    assert f"in {size} bytes, and this Workload has {room} bytes left" in text


def test_small_assignments_are_never_held_back() -> None:
    names = on(host_names(40)[:1000])
    assert encoded_size(names["main"]) < ALWAYS_BYTES
    assert too_large(names, 10 * STORE_BYTES) is None


def test_several_pod_sets_share_the_room() -> None:
    half = on(host_names(40))["main"]
    assert too_large({"a": half}, 65_536) is None
    text = too_large({"b": half, "a": half}, 65_536)
    assert text is not None
    assert text.startswith(f"the topology assignment of pod set a, b names {2 * HOSTS} domains")
