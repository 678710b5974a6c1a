"""Known ways in which a controller like this releases one pod too many, or forgets one."""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from rackgate.api import names
from rackgate.api.resources import LEASES, PODS, WORKLOADS
from rackgate.kube.client import PatchType
from rackgate.runtime import clock
from tests.support.apiserver import Fault
from tests.support.waiting import until
from tests.wire.ungater_world import R1, R2, STREAMS, Object, Replica, World, sample

Start = Callable[..., Replica]


def run(world: World, number: int, **status: Any) -> None:
    world.change(number, status=status or {"phase": "Running"})


@pytest.mark.requirement("UNG-05", "UNG-07", "UNG-10", "UNG-19")
@pytest.mark.field_note("U1")
async def test_pods_that_come_while_a_patch_is_unobserved_are_not_counted_too_few(
    world: World, start: Start
) -> None:
    world.workload({R1: 1})
    world.pod(5)
    replica = start(batch_window=0, lead=False, expectation_timeout=0.5)
    await replica.knows(1)
    await until(lambda: len(world.server.streams) == STREAMS)

    async def overtaken(_: Any, handle: Any) -> Any:
        """Others come before the patch is applied, and the watch shows nothing after them."""
        world.pods(0, 1, 2)  # sort before the first one: they would get its place
        await replica.knows(4)
        stalled = Fault.slow(30, watch=True, path="/pods", times=100)
        world.server.faults.append(stalled)
        for stream in tuple(world.server.streams):
            if stream.target.plural == "pods":
                stream.cut()
        return await handle()

    world.server.faults.append(Fault(overtaken, method="PATCH"))
    held = sample("ungatings_held_total")
    replica.lead()
    await world.released(1)
    await until(lambda: replica.ungater.machine.expectations)
    await until(lambda: sample("ungatings_held_total") > held)
    await replica.has_no_open_requests()
    await replica.idle()
    assert world.domains() == {"train-5": R1}
    assert len(world.asked("PATCH")) == 1


@pytest.mark.requirement("UNG-16", "UNG-11")
@pytest.mark.field_note("U2")
async def test_pods_of_an_earlier_admission_are_waited_for_before_their_places_are_filled(
    world: World, start: Start
) -> None:
    world.workload({R1: 2})
    world.pods(0, 1)
    replica = start()
    await world.released(2)
    world.workload({R1: 2}, conditions=("Evicted",))
    for number in (0, 1):
        pod = copy.deepcopy(world.server.get(PODS, f"train-{number}", "team"))
        assert pod is not None
        pod["metadata"] |= {
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 30,
        }
        world.server.put(PODS, pod)
    world.pods(2, 3)
    world.workload({R2: 2})
    await replica.knows(4)
    await replica.idle()
    assert world.counts() == {R1: 2}, "the old run still holds all that was granted"
    world.server.remove(PODS, "train-0", "team")
    await world.released(2)
    await until(lambda: world.counts() == {R1: 1, R2: 1})
    world.server.remove(PODS, "train-1", "team")
    await until(lambda: world.counts() == {R2: 2})


@pytest.mark.requirement("UNG-09", "UNG-12", "RNK-06")
@pytest.mark.field_note("U12")
async def test_a_job_of_more_completions_than_parallelism_runs_to_its_end(
    world: World, start: Start
) -> None:
    world.workload({R1: 1, R2: 1})
    world.pods(0, 1)
    replica = start(batch_window=0)
    for number in range(2, 10):
        await world.released(number)
        run(world, number - 2, phase="Succeeded")
        world.pod(number)
    await world.released(10)
    await replica.has_no_open_requests()
    live = {f"train-{number}" for number in (8, 9)}
    assert sorted(world.domains()[name] for name in live) == [R1, R2]


@pytest.mark.requirement("UNG-10")
async def test_a_count_of_zero_releases_nothing_and_is_no_error(world: World, start: Start) -> None:
    for name, assignment in (("train", None), ("other", "kept")):
        item = copy.deepcopy(world.workload({R1: 1}, name=name))
        (given,) = item["status"]["admission"]["podSetAssignments"]
        given["count"] = 0
        if assignment is None:
            given["topologyAssignment"] = {"levels": ["block", "rack"], "slices": []}
        world.server.put(WORKLOADS, item)
        world.pods(0, 1, workload=name)
    looks = sample("ungater_reconciles_total")
    replica = start()
    await replica.knows(4)
    await until(lambda: sample("ungater_reconciles_total") >= looks + 2)
    await replica.idle()
    assert world.asked("PATCH") == []
    assert replica.ungater._backoff.failures("team/train") == 0


@pytest.mark.requirement("UNG-02", "UNG-03")
@pytest.mark.field_note("U8")
async def test_a_pod_whose_only_topology_annotation_is_the_slice_one_is_released(
    world: World, start: Start
) -> None:
    world.workload({R1: 1})
    pod = copy.deepcopy(world.pod(0))
    pod["metadata"]["annotations"][names.SLICE_REQUIRED_TOPOLOGY] = "rack"
    pod["metadata"]["annotations"][names.SLICE_SIZE] = "1"
    world.server.put(PODS, pod)
    start()
    await world.released(1)


@pytest.mark.requirement("UNG-12")
@pytest.mark.field_note("U9")
async def test_pods_that_stay_gated_cost_no_request_however_often_they_are_looked_at(
    world: World, start: Start
) -> None:
    world.workload({R1: 1})
    world.pods(0, 1, 2)
    replica = start(resync_period=1)
    await world.released(1)
    await replica.has_no_open_requests()
    await until(world.events)
    looks = sample("ungater_reconciles_total")
    # What was on its way has come by the next look, a second later.
    await until(lambda: sample("ungater_reconciles_total") > looks)
    await replica.idle()
    asked = len(world.server.requests)
    looks = sample("ungater_reconciles_total")
    await until(lambda: sample("ungater_reconciles_total") >= looks + 3)
    assert len(world.server.requests) == asked


@pytest.mark.requirement("UNG-18", "UNG-10", "OPS-07")
async def test_watches_cut_and_expired_in_the_middle_of_a_burst_forget_and_double_nothing(
    world: World, start: Start
) -> None:
    rng = random.Random(3)
    world.workload({R1: 70, R2: 50})
    replica = start(batch_window=0.01, concurrency=8)
    await replica.synced()
    for number in range(130):
        world.pod(number)
        if number % 10 == 9:
            for stream in tuple(world.server.streams):
                rng.choice((stream.cut, stream.end))()
        if number % 25 == 24:
            world.server.gone_as_status = not world.server.gone_as_status
            world.server.compact()
        await asyncio.sleep(0.002)
    await world.released(120)
    await replica.has_no_open_requests()
    await replica.idle()
    assert world.counts() == {R1: 70, R2: 50}


@pytest.mark.requirement("UNG-14", "UNG-17")
@pytest.mark.parametrize("code", [500, 503, 504])
@pytest.mark.parametrize("applied", [True, False])
async def test_a_5xx_is_taken_as_maybe_applied_and_read_before_the_next_try(
    world: World, start: Start, code: int, applied: bool
) -> None:
    world.workload({R1: 2})

    async def fail(request: Any, handle: Any) -> Any:
        if applied:
            await handle()
        return await Fault.status(code).answer(request, handle)

    world.server.faults.append(Fault(fail, method="PATCH", times=3))
    world.pods(0, 1, 2)
    replica = start(concurrency=1)
    await world.released(2)
    await replica.has_no_open_requests()
    assert world.counts() == {R1: 2}
    if not applied:
        assert world.asked("GET", "/pods/train-"), "never again blindly"


@pytest.mark.requirement("UNG-17")
async def test_a_server_in_failure_is_not_hammered_and_its_retry_after_is_kept(
    world: World, start: Start
) -> None:
    busy = Fault.status(503, headers={"Retry-After": "0.5"}, method="PATCH", times=10**6)
    world.server.faults.append(busy)
    world.workload({R1: 100})
    world.pods(*range(100))
    started = time.monotonic()
    start(concurrency=2)
    await until(lambda: len(world.asked("PATCH")) >= 6)
    assert time.monotonic() - started >= 0.9, "two at a time, each half a second apart"
    busy.times = 0
    await world.released(100)
    assert world.counts() == {R1: 100}


@pytest.mark.requirement("UNG-17")
@pytest.mark.field_note("U10")
async def test_nothing_else_waits_behind_a_full_and_slow_ungating_budget(
    world: World, start: Start
) -> None:
    answered = asyncio.Event()

    async def held(_: Any, handle: Any) -> Any:
        await answered.wait()
        return await handle()

    world.server.faults.append(Fault(held, method="PATCH", path="/pods/", times=1000))
    world.workload({R1: 40})
    world.workload({R1: 1}, name="odd")
    world.pods(*range(40))
    replica = start(concurrency=4)
    await until(lambda: len(world.asked("PATCH")) == 4)
    lease = {"metadata": {"name": "mine"}, "spec": {"holderIdentity": "me"}}
    await replica.client.budget(0, 1).create(LEASES.path("system"), msgspec.json.encode(lease))
    path = WORKLOADS.path("team", "train", "status")
    await replica.client.patch(path, b'{"status":{"note":"written"}}', PatchType.MERGE)
    world.pod(0, workload="odd", nodeSelector={"rack": "r7"})
    await until(world.events)
    assert world.domains() == {}, "all of this while four patches were awaited"
    answered.set()
    await world.released(40)


@pytest.fixture
def shifted() -> Iterator[Callable[[float], None]]:
    """Moves the wall clock of this process, and puts it back."""
    yield clock.shift
    clock.shift(0.0)


@pytest.mark.requirement("UNG-10", "UNG-13")
async def test_a_wall_clock_that_jumps_changes_nothing(
    world: World, start: Start, shifted: Callable[[float], None]
) -> None:
    world.workload({R1: 6})
    replica = start(batch_window=0)
    for number, offset_s in enumerate((0.0, 1e6, -1e6, 3600.0, -4e8, 0.0, 0.0)):
        shifted(offset_s)
        world.pod(number)
        await replica.knows(number + 1)
        await world.released(min(number + 1, 6))
    await replica.has_no_open_requests()
    await replica.idle()
    assert world.counts() == {R1: 6}
    assert sample("pod_scheduling_gate_removal_seconds_sum", **WAIT) >= 0


WAIT = {"name": names.TOPOLOGY_GATE, "cluster_queue": "cq"}


@contextmanager
def counting(world: World) -> Iterator[dict[str, int]]:
    """Requests by method while the block runs."""
    before = len(world.server.requests)
    found: dict[str, int] = {}
    yield found
    for request in world.server.requests[before:]:
        found[request.method] = found.get(request.method, 0) + 1


@pytest.mark.requirement("UNG-08", "UNG-17")
@pytest.mark.field_note("U9", "U10")
@pytest.mark.steady_clock
async def test_a_batch_costs_one_request_a_pod_and_one_read_of_its_workload(
    world: World, start: Start
) -> None:
    world.workload({R1: 50})
    replica = start(batch_window=1)
    await replica.synced()
    await until(lambda: replica.leads)
    await until(lambda: len(world.server.streams) == STREAMS)
    with counting(world) as asked:
        world.pods(*range(50))
        await world.released(50)
        await replica.has_no_open_requests()
        await replica.idle()
    assert asked == {"GET": 1, "PATCH": 50}


@pytest.mark.requirement("UNG-14", "UNG-10")
@pytest.mark.field_note("U1", "U15")
async def test_a_pod_that_lost_its_gate_to_somebody_else_breaks_no_count(
    world: World, start: Start
) -> None:
    world.workload({R1: 2})
    world.pods(0, 1, 2)
    pod: Object = copy.deepcopy(world.server.get(PODS, "train-0", "team") or {})
    pod["spec"]["schedulingGates"] = []
    world.server.put(PODS, pod)
    replica = start()
    await world.released(2)
    await replica.has_no_open_requests()
    await replica.idle()
    assert len(world.domains()) == 2, "it runs, wherever that is, and counts"
    assert len(world.asked("PATCH")) == 1
