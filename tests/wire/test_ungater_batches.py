"""When the ungater looks at a Workload, and when it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rackgate.api.resources import PODS
from tests.support.apiserver import Fault
from tests.support.waiting import until
from tests.wire.ungater_world import R1, R2, Replica, World, sample

Start = Callable[..., Replica]
pytestmark = pytest.mark.steady_clock


@pytest.mark.requirement("UNG-04")
@pytest.mark.field_note("U10")
async def test_a_thousand_pods_within_the_window_are_looked_at_at_most_twice(
    world: World, start: Start
) -> None:
    world.workload({R1: 600, R2: 400})
    replica = start(batch_window=2)
    await replica.synced()
    await until(lambda: replica.leads)
    looks = sample("ungater_reconciles_total")
    world.pods(*range(1000))
    await world.released(1000)
    assert sample("ungater_reconciles_total") - looks <= 2
    assert world.counts() == {R1: 600, R2: 400}


@pytest.mark.requirement("UNG-04")
async def test_pods_that_come_one_by_one_within_the_window_are_released_together(
    world: World, start: Start
) -> None:
    world.workload({R1: 5})
    replica = start(batch_window=2)
    await replica.synced()
    await until(lambda: replica.leads)
    batches = sample("ungate_batch_pods_count")
    for number in range(4):
        world.pod(number)
        await replica.knows(number + 1)
    with pytest.raises(AssertionError):
        await world.released(1, within_s=0.2)
    await world.released(4)
    assert sample("ungate_batch_pods_count") == batches + 1
    assert len(world.domains()) == 4, "the window is over, and the fifth did not come"


@pytest.mark.requirement("UNG-04")
async def test_the_last_pod_that_may_be_released_ends_the_wait(world: World, start: Start) -> None:
    world.workload({R1: 3, R2: 2})
    replica = start(batch_window=60)
    await replica.synced()
    await until(lambda: replica.leads)
    world.pods(*range(4))
    await replica.knows(4)
    with pytest.raises(AssertionError):
        await world.released(1, within_s=0.2)
    world.pod(4)
    await world.released(5, within_s=30)
    assert world.counts() == {R1: 3, R2: 2}


@pytest.mark.requirement("UNG-04")
async def test_a_pod_that_is_made_again_and_again_costs_one_look_per_window(
    world: World, start: Start
) -> None:
    world.workload({R1: 1})
    replica = start(batch_window=60)
    await replica.synced()
    await until(lambda: replica.leads)
    world.pod(0)
    await world.released(1)
    await replica.has_no_open_requests()
    looks = sample("ungater_reconciles_total")
    for _ in range(20):
        world.server.remove(PODS, "train-0", "team")
        await replica.knows(0)
        world.pod(0)
        await replica.knows(1)
    assert sample("ungater_reconciles_total") == looks


@pytest.mark.field_note("U9")
async def test_no_request_is_sent_when_nothing_changes(world: World, start: Start) -> None:
    world.workload({R1: 60})
    world.pods(*range(60))
    replica = start(resync_period=1)
    await world.released(60)
    await replica.has_no_open_requests()
    await replica.idle()
    asked = len(world.server.requests)
    for number in range(60):
        world.change(number, status={"phase": "Running"})
    last = world.server.get(PODS, "train-59", "team")
    assert last is not None
    version = last["metadata"]["resourceVersion"]
    await until(lambda: replica.ungater.pods.store["team/train-59"].resource_version == version)
    assert replica.is_idle(), "not even a look is due"
    assert len(world.server.requests) == asked


@pytest.mark.requirement("UNG-19", "OPS-09")
async def test_the_pods_that_wait_are_those_that_the_watches_show(
    world: World, start: Start
) -> None:
    """Not those that the last resync saw, which may be a minute old."""
    refusing = Fault.status(403, "Forbidden", method="PATCH", path="/pods/", times=10**6)
    world.server.faults.append(refusing)
    world.workload({R1: 3})
    replica = start(resync_period=3600)
    await replica.synced()
    await until(lambda: replica.leads)
    world.pods(0, 1, 2)
    await until(lambda: sample("gated_pods") == 3)
    first = sample("longest_gated_seconds")
    await until(lambda: sample("longest_gated_seconds") > first)
    for number in range(3):
        world.server.remove(PODS, f"train-{number}", "team")
    await replica.knows(0)
    await until(lambda: sample("gated_pods") == 0, within_s=20)
    assert sample("longest_gated_seconds") == 0
