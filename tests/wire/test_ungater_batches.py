"""When the ungater looks at a Workload, and when it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rackgate.kube.resources import PODS
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
    for number in range(5):
        world.pod(number)
        await replica.knows(number + 1)
    with pytest.raises(AssertionError):
        await world.released(1, within_s=0.2)
    await world.released(5)
    assert sample("ungate_batch_pods_count") == batches + 1


@pytest.mark.field_note("U9")
async def test_no_request_is_sent_when_nothing_changes(world: World, start: Start) -> None:
    world.workload({R1: 60})
    world.pods(*range(60))
    replica = start(resync_period=1)
    await world.released(60)
    await replica.settled()
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
