"""The ungater while what it does is failed on and on, or overtaken while it is at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from rackgate.api.resources import PODS, WORKLOADS
from rackgate_ungater.writer import MAX_CONSECUTIVE_FAILURES
from tests.support.apiserver import Fault
from tests.support.apiserver_faults import Handler
from tests.support.waiting import until
from tests.wire.ungater_world import R1, R2, Object, Replica, World

Start = Callable[..., Replica]


@pytest.mark.requirement("UNG-17")
@pytest.mark.parametrize("code", [409, 429, 500])
async def test_a_pod_whose_patch_fails_on_and_on_is_tried_less_and_less_often(
    world: World, start: Start, code: int
) -> None:
    now = {"Retry-After": "0"}
    fault = Fault.status(code, headers=now, method="PATCH", path="/pods/", times=10**6)
    world.server.faults.append(fault)
    world.workload({R1: 1})
    world.pods(0)
    replica = start()
    await until(lambda: replica.ungater._backoff.failures("team/train") >= 3)
    tries = len(world.asked("PATCH"))
    await asyncio.sleep(2.0)  # a rate is measured
    # Pauses of 0.4 s, 0.8 s and so on, or half of it; a 429 is tried five times by each look.
    looks = (len(world.asked("PATCH")) - tries) / (5 if code == 429 else 1)
    assert looks <= 5, "at the pace of the batches it would be a hundred"
    fault.times = 0
    await world.released(1, within_s=30)
    await until(lambda: not replica.ungater._backoff.failures("team/train"))


class Paused:
    """Lets a few patches of pods through; the others wait until `go_on`."""

    def __init__(self, world: World, first: int) -> None:
        self._first, self._world, self._may = first, world, asyncio.Event()
        self.go_on = self._may.set
        world.server.faults.append(Fault(self._answer, method="PATCH", path="/pods/", times=10**6))

    async def _answer(self, _: web.Request, handle: Handler) -> web.StreamResponse:
        if len(self._world.asked("PATCH")) > self._first:
            await self._may.wait()
        return await handle()


async def halfway(world: World, start: Start) -> tuple[Replica, Paused]:
    """A batch of 40 pods: four are released, four on their way."""
    world.workload({R1: 40})
    world.pods(*range(40))
    patches = Paused(world, first=4)
    replica = start(concurrency=4)
    await until(lambda: len(world.asked("PATCH")) == 8)
    return replica, patches


async def seen(world: World, replica: Replica) -> None:
    """Its watch has shown the Workload as it is now."""
    item = world.server.get(WORKLOADS, "train", "team")
    known = replica.ungater.workloads.store
    await until(lambda: _version(item) == getattr(known.get("team/train"), "resource_version", ""))


def _version(item: Object | None) -> str:
    return str(item["metadata"]["resourceVersion"]) if item else ""


@pytest.mark.requirement("UNG-11")
@pytest.mark.parametrize("how", ["evicted", "deleted"])
async def test_a_batch_ends_when_its_workload_is_seen_to_admission_no_more(
    world: World, start: Start, how: str
) -> None:
    replica, patches = await halfway(world, start)
    if how == "evicted":
        world.workload({R1: 40}, conditions=("Evicted",))
    else:
        world.server.remove(WORKLOADS, "train", "team")
    await seen(world, replica)
    patches.go_on()
    await replica.has_no_open_requests()
    await replica.idle()
    assert len(world.asked("PATCH")) == 8, "only what was on its way already"


@pytest.mark.requirement("UNG-10", "UNG-11")
@pytest.mark.field_note("U2", "U3")
async def test_the_rest_of_a_batch_goes_where_its_workload_was_moved_meanwhile(
    world: World, start: Start
) -> None:
    replica, patches = await halfway(world, start)
    world.workload({R1: 8, R2: 32})
    await seen(world, replica)
    patches.go_on()
    await world.released(40)
    assert world.counts() == {R1: 8, R2: 32}


@pytest.mark.requirement("UNG-04")
async def test_a_batch_goes_on_while_its_workload_is_admitted_more(
    world: World, start: Start
) -> None:
    replica, patches = await halfway(world, start)
    world.workload({R1: 40, R2: 40})
    await seen(world, replica)
    patches.go_on()
    await world.released(40)
    await replica.has_no_open_requests()
    assert len(world.asked("GET", "/workloads/train")) == 1, "one batch was enough"


@pytest.mark.requirement("UNG-17")
async def test_a_workload_that_makes_progress_is_soon_looked_at_again(
    world: World, start: Start
) -> None:
    pauses: list[int] = []

    async def every_second_conflicts(request: web.Request, handle: Handler) -> web.StreamResponse:
        pauses.append(replica.ungater._backoff.failures("team/train"))
        if len(pauses) % 2:
            return await conflict.answer(request, handle)
        return await handle()

    conflict = Fault.status(409, "Conflict")
    world.server.faults.append(Fault(every_second_conflicts, method="PATCH", times=10**6))
    world.workload({R1: 60})
    world.pods(*range(60))
    replica = start()
    await world.released(60)
    assert max(pauses) <= 1, "each look released some"


@pytest.mark.requirement("UNG-01")
async def test_nothing_is_kept_of_a_workload_that_goes_while_its_pods_fail(
    world: World, start: Start
) -> None:
    deleted = asyncio.Event()

    async def fail(request: web.Request, handle: Handler) -> web.StreamResponse:
        await deleted.wait()
        return await trouble.answer(request, handle)

    trouble = Fault.status(500)
    world.server.faults.append(Fault(fail, method="PATCH", path="/pods/", times=10**6))
    world.workload({R1: 1})
    world.pods(0)
    replica = start()
    await until(lambda: world.asked("PATCH"))
    world.server.remove(WORKLOADS, "train", "team")
    world.server.remove(PODS, "train-0", "team")
    await until(lambda: not replica.ungater.machine.workload_states)
    deleted.set()
    await until(lambda: not replica.ungater._active)
    await until(lambda: not replica.ungater._backoff._failures and not replica.ungater._queue)


@pytest.mark.requirement("UNG-17")
async def test_workloads_in_failure_keep_no_other_waiting(world: World, start: Start) -> None:
    fault = Fault.status(503, method="PATCH", path="/pods/bad", times=10**6)
    world.server.faults.append(fault)
    for number in range(4):
        world.workload({R1: 200}, name=f"bad{number}")
        world.pods(*range(200), workload=f"bad{number}")
    replica = start(concurrency=4)
    await until(lambda: len(replica.ungater._active) == 4)
    world.workload({R1: 3}, name="good")
    world.pods(*range(3), workload="good")
    await world.released(3, within_s=30)
    fault.times = 0
    await world.released(803, within_s=60)


@pytest.mark.requirement("UNG-17")
async def test_a_batch_in_failure_is_left_by_all_together(world: World, start: Start) -> None:
    """Who is answered at last must not go on alone with what the others left."""
    failures = MAX_CONSECUTIVE_FAILURES

    async def late(_: web.Request, handle: Handler) -> web.StreamResponse:
        expected = replica.ungater.machine.expectations
        await until(lambda: sum(one.outcome_unknown for one in expected.values()) == failures)
        return await handle()

    trouble = Fault.status(503, method="PATCH", path="/pods/", times=10**6)
    world.server.faults += [Fault(late, method="PATCH"), trouble]
    world.workload({R1: 40})
    world.pods(*range(40))
    replica = start(concurrency=2)
    await until(lambda: len(world.asked("PATCH")) > 1 + failures)
    trouble.times = 0
    asked = [r.method for r in world.server.requests if not r.watch and "/pods/" in r.path]
    last = [place for place, method in enumerate(asked) if method == "PATCH"][failures]
    assert asked[last + 1] == "GET", "the next look begins, with those whose answer was lost"
    await world.released(40)


@pytest.mark.requirement("UNG-17")
async def test_pods_that_fail_for_good_do_not_keep_others_of_their_workload_waiting(
    world: World, start: Start
) -> None:
    world.workload({R1: 8})
    for number in range(4):
        path = f"/pods/train-{number}"
        world.server.faults.append(Fault.status(500, method="PATCH", path=path, times=10**6))
    world.pods(*range(8))
    start(concurrency=1)
    await world.released(4)
    assert sorted(world.domains()) == [f"train-{number}" for number in range(4, 8)]
