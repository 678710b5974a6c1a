"""The ungater on a part of the shards: what it lists, what it leaves alone, what it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import pytest

from rackgate.api.resources import WORKLOADS
from rackgate_ungater.shards.handover import SHARDS
from rackgate_ungater.state_machine.gated_objects import PodUid
from tests.support.apiserver import Fault
from tests.support.waiting import until
from tests.wire.ungater_world import R1, STREAMS, Replica, World, uid_in

Start = Callable[..., Replica]


def workload_in(world: World, shard: int, name: str, count: int = 1) -> None:
    """An admitted Workload of that shard."""
    world.workload({R1: count}, name=name, uid=uid_in(shard))


class Led:
    """Some shards of a replica, as if it held their Leases."""

    def __init__(self, replica: Replica, shards: Iterable[int]) -> None:
        self.leave = asyncio.Event()
        self.tasks = {
            shard: asyncio.create_task(replica.ungater.lead(shard, self._deadline, self.leave))
            for shard in shards
        }

    def _deadline(self) -> float:
        return float("-inf") if self.leave.is_set() else float("inf")

    async def lose(self, *shards: int) -> None:
        for shard in shards:
            self.tasks[shard].cancel()
            await asyncio.wait((self.tasks[shard],))

    async def end(self) -> None:
        self.leave.set()
        await asyncio.wait(self.tasks.values())


def lists(world: World) -> int:
    return sum(
        request.method == "GET" and request.path.endswith("/pods") and not request.watch
        for request in world.server.requests
    )


def stall(world: World, plural: str) -> None:
    """From now on no watch of that resource tells anything."""
    world.server.faults.append(Fault.slow(60, watch=True, path=f"/{plural}", times=100))
    for stream in tuple(world.server.streams):
        if stream.target.plural == plural:
            stream.cut()


@pytest.mark.requirement("UNG-13")
async def test_shards_gained_together_share_a_fresh_list(world: World, start: Start) -> None:
    replica = start(lead=False)
    await replica.synced()
    before = lists(world)
    led = Led(replica, range(SHARDS))
    await until(lambda: len(replica.ungater.leading) == SHARDS)
    assert lists(world) == before + 1
    await led.lose(3)
    again = Led(replica, [3])
    await until(lambda: len(replica.ungater.leading) == SHARDS)
    assert lists(world) == before + 2, "what others wrote meanwhile is not in the first one"
    await led.end()
    await again.end()


@pytest.mark.requirement("UNG-13")
async def test_a_failed_list_is_asked_for_again_before_the_first_act(
    world: World, start: Start
) -> None:
    workload_in(world, 0, "train")
    world.pod(0)
    replica = start(lead=False)
    await replica.synced()
    world.server.faults.append(Fault.status(500, method="GET", path="/pods", watch=False, times=2))
    led = Led(replica, [0])
    await world.released(1)
    assert all(fault.times == 0 for fault in world.server.faults)
    await led.end()


@pytest.mark.requirement("UNG-15", "UNG-11")
@pytest.mark.field_note("U11")
async def test_a_replica_leaves_shards_of_others_alone_and_acts_when_it_gains_them(
    world: World, start: Start
) -> None:
    for shard in range(SHARDS):
        workload_in(world, shard, f"w{shard}")
        world.pod(0, workload=f"w{shard}")
    world.pod(0, workload="unknown")
    replica = start(lead=False)
    await replica.synced()
    some, rest = range(0, SHARDS, 2), range(1, SHARDS, 2)
    led = Led(replica, some)
    await world.released(len(some))
    await replica.idle()
    assert set(world.domains()) == {f"w{shard}-0" for shard in some}
    asked = len(world.asked("PATCH"))
    more = Led(replica, rest)
    await world.released(SHARDS)
    await replica.idle()
    assert len(world.asked("PATCH")) == asked + len(rest)
    assert "unknown-0" not in world.domains(), "without a Workload there is no shard"
    await led.end()
    await more.end()


@pytest.mark.requirement("UNG-15", "UNG-14")
async def test_losing_a_shard_gives_up_its_requests_and_no_other(
    world: World, start: Start
) -> None:
    for shard in (1, 2):
        workload_in(world, shard, f"w{shard}", count=20)
        world.pods(*range(20), workload=f"w{shard}")
    world.server.faults.append(Fault.slow(0.3, method="PATCH", times=1000))
    replica = start(lead=False, concurrency=8)
    await replica.synced()
    led = Led(replica, [1, 2])
    await until(lambda: len({r.path.split("-")[0] for r in world.asked("PATCH")}) == 2)
    await led.lose(1)
    sent = len(world.asked("PATCH", "/w1-"))
    assert not replica.ungater.has_no_open_requests(1), "what was sent may still be applied"
    await until(lambda: sum(name.startswith("w2-") for name in world.domains()) == 20)
    assert len(world.asked("PATCH", "/w1-")) == sent < 20
    await until(lambda: replica.ungater.has_no_open_requests(2))
    again = Led(replica, [1])
    await world.released(40)
    await replica.has_no_open_requests()
    assert replica.ungater.has_no_open_requests(1)
    await led.end()
    await again.end()


@pytest.mark.requirement("UNG-13", "UNG-15")
async def test_a_workload_made_again_in_another_shard_is_counted_from_a_list(
    world: World, start: Start
) -> None:
    workload_in(world, 1, "train")
    world.pods(0, 1)
    replica = start(lead=False)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    led = Led(replica, [2])
    await until(lambda: replica.ungater.leading == {2})
    # The holder of shard 1 releases a pod; our watch does not tell.
    stall(world, "pods")
    world.change(1, spec={"schedulingGates": [], "nodeSelector": {"block": "b1", "rack": "r1"}})
    world.server.remove(WORKLOADS, "train", "team")
    workload_in(world, 2, "train")
    await until(lambda: world.asked("GET", "/namespaces/team/pods"))
    await until(lambda: not replica.ungater.machine.pods[_uid(world, 1)].gated)
    await replica.idle()
    assert set(world.domains()) == {"train-1"}
    await led.end()


def _uid(world: World, number: int) -> PodUid:
    pod = world.server._objects["pods"][f"team/train-{number}"]
    return PodUid(pod["metadata"]["uid"])


async def test_asked_to_leave_before_its_list_is_complete_it_leaves(
    world: World, start: Start
) -> None:
    replica = start(lead=False)
    await replica.synced()
    world.server.faults.append(Fault.slow(60, method="GET", path="/pods", watch=False, times=100))
    led = Led(replica, [0])
    await until(lambda: lists(world) > 1)
    await led.end()
    assert replica.ungater.leading == set()


@pytest.mark.requirement("UNG-13", "UNG-15")
async def test_a_list_for_one_shard_wakes_the_others_with_what_it_shows_first(
    world: World, start: Start
) -> None:
    workload_in(world, 1, "train", count=2)
    replica = start(lead=False)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    led = Led(replica, [1])
    await until(lambda: replica.ungater.leading == {1})
    stall(world, "pods")
    world.pods(0, 1)
    again = Led(replica, [2])
    await world.released(2)
    await led.end()
    await again.end()


@pytest.mark.requirement("UNG-13", "UNG-15")
async def test_a_workload_that_only_a_live_read_shows_to_be_made_again_is_acted_on(
    world: World, start: Start
) -> None:
    workload_in(world, 1, "train")
    replica = start(lead=False)
    await replica.synced()
    await until(lambda: len(world.server.streams) == STREAMS)
    led = Led(replica, [1, 2])
    await until(lambda: replica.ungater.leading == {1, 2})
    stall(world, "workloads")
    workload_in(world, 2, "train")
    before = lists(world)
    world.pod(0)
    await world.released(1)
    assert lists(world) > before, "its earlier pods are counted as they are now"
    await led.end()


async def test_workloads_made_again_together_share_lists(world: World, start: Start) -> None:
    names = [f"w{number}" for number in range(30)]
    for name in names:
        world.workload({R1: 1}, name=name)
    replica = start(lead=False, concurrency=64)
    await replica.synced()
    led = Led(replica, range(SHARDS))
    await until(lambda: len(replica.ungater.leading) == SHARDS)
    before = lists(world)
    for name in names:
        world.server.remove(WORKLOADS, name, "team")
        world.workload({R1: 1}, name=name)
        world.pod(0, workload=name)
    await world.released(len(names))
    assert before < lists(world) <= before + len(names) / 3
    await led.end()


@pytest.mark.requirement("OPS-08")
async def test_asked_to_leave_it_does_not_wait_for_the_rest_of_a_batch(
    world: World, start: Start
) -> None:
    world.workload({R1: 200})
    world.pods(*range(200))
    # At this rate the whole batch takes 40 seconds.
    replica = start(lead=False, concurrency=4, qps=5)
    await replica.synced()
    led = Led(replica, range(SHARDS))
    await world.released(3)
    async with asyncio.timeout(20):
        await led.end()
    assert 0 < len(world.domains()) < 100
    assert all(replica.ungater.has_no_open_requests(shard) for shard in range(SHARDS))


@pytest.mark.requirement("OPS-08", "UNG-17")
@pytest.mark.parametrize(
    ("code", "method", "path"),
    [(429, "PATCH", "/pods/"), (429, "GET", "/workloads/train"), (503, "PATCH", "/pods/")],
)
async def test_asked_to_leave_it_does_not_sit_out_a_long_retry_after(
    world: World, start: Start, code: int, method: str, path: str
) -> None:
    """Up to five times half a minute: the shard would be nobody's for so long."""
    world.workload({R1: 1})
    world.pods(0)
    replica = start(lead=False)
    await replica.synced()
    wait = {"Retry-After": "30"}
    world.server.faults.append(Fault.status(code, headers=wait, method=method, path=path, times=99))
    led = Led(replica, range(SHARDS))
    await until(lambda: world.asked(method, path))
    async with asyncio.timeout(15):
        await led.end()
    assert len(world.asked(method, path)) == 1, "nor is it sent before that time"
