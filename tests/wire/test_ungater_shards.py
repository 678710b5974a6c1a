"""Shards and replicas on Leases, over real HTTP: who acts on what, and never two on one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from rackgate.api.resources import LEASES
from rackgate.kube.lease.holder import LeaseHolder
from rackgate.runtime import metrics
from rackgate_ungater.shards.handover import (
    MEMBERS_LEASE,
    SHARDS,
    annotation_value,
    lease_name,
    member_annotation,
    ranking,
)
from rackgate_ungater.shards.membership import GROUP_IDENTITY
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.steadytime import monotonic
from tests.support.waiting import until
from tests.wire.shards_world import (
    ALL,
    DURATION_S,
    REQUEST_S,
    SYSTEM,
    NotedFence,
    Replica,
    Shards,
)

pytestmark = pytest.mark.steady_clock

LIMIT_S = 60.0


@pytest.fixture
async def shards() -> AsyncIterator[Shards]:
    async with FakeApiServer() as server:
        made = Shards(server)
        yield made
        for replica in made.replicas:
            await replica.kill()
        assert made.owners.breaches == []


async def held(shards: Shards, *replicas: Replica) -> None:
    await until(lambda: shards.rightly(*replicas), LIMIT_S)


async def steadily(condition: Callable[[], bool], for_s: float) -> None:
    """It holds, and goes on holding: what is tested is that nothing happens."""
    until_s = monotonic() + for_s
    while monotonic() < until_s:
        assert condition()
        await asyncio.sleep(0.02)


@pytest.mark.requirement("UNG-15", "OPS-02")
async def test_one_replica_acts_on_all_shards_and_three_share_them(shards: Shards) -> None:
    one = shards.start("one")
    await until(lambda: one.shards == ALL, LIMIT_S)
    names = [lease_name(number) for number in range(SHARDS)]
    leader = [
        metrics.REGISTRY.get_sample_value("rackgate_leader", {"lease": name}) for name in names
    ]
    assert leader == [1.0] * SHARDS
    others = [shards.start("two"), shards.start("three")]
    await held(shards, one, *others)
    assert all(replica.shards for replica in (one, *others))
    begun = shards.owners.begun.total()
    await steadily(lambda: shards.rightly(one, *others), DURATION_S / 2)
    assert shards.owners.begun.total() == begun, "nothing moves any more"


@pytest.mark.requirement("OPS-08", "UNG-15")
async def test_a_clean_stop_gives_all_shards_away_at_once(shards: Shards) -> None:
    one, two = shards.start("one"), shards.start("two")
    await held(shards, one, two)
    for replica in (one, two):
        replica.actor.finish_s = 0.5
    started, one_by_one_s = monotonic(), 0.5 * len(one.shards)
    await one.stop()
    stopped = monotonic()
    assert stopped - started < one_by_one_s, "in parallel"
    await held(shards, two)
    assert monotonic() - stopped < DURATION_S, "without waiting for a Lease to run out"
    assert not one.fence.deadlines
    assert one.shards == set()
    await two.stop()
    assert all(shards.spec(number)["holderIdentity"] == "" for number in ALL)
    assert shards.spec(MEMBERS_LEASE)["holderIdentity"] == ""


@pytest.mark.requirement("UNG-15", "OPS-12")
async def test_shards_of_a_lost_replica_are_taken_when_its_time_is_over(shards: Shards) -> None:
    one, two = shards.start("one"), shards.start("two")
    await held(shards, one, two)
    its_own = one.shards
    ends = max(one.fence.deadlines.values())
    await one.kill()
    assert all(shards.spec(number)["holderIdentity"] == "one" for number in its_own)
    await until(lambda: two.shards == ALL, LIMIT_S)
    assert monotonic() > ends + REQUEST_S
    key = member_annotation("one")
    await until(lambda: key not in entries(shards), LIMIT_S)


def entries(shards: Shards) -> dict[str, str]:
    lease = shards.server.get(LEASES, MEMBERS_LEASE, SYSTEM) or {"metadata": {}}
    return dict(lease["metadata"].get("annotations", {}))


@pytest.mark.requirement("UNG-15")
async def test_losing_one_shard_stops_its_work_alone(shards: Shards) -> None:
    one = shards.start("one")
    await until(lambda: one.shards == ALL, LIMIT_S)
    begun = dict(shards.owners.begun)
    shards.put(5, "thief")
    await until(lambda: one.shards == ALL - {5}, LIMIT_S)
    assert shards.spec(5)["holderIdentity"] == "thief", "not ours to release"
    await until(lambda: one.shards == ALL, LIMIT_S)
    assert dict(shards.owners.begun) == {**begun, 5: begun[5] + 1}, "the others went on"


@pytest.mark.requirement("UNG-15")
async def test_a_deleted_lease_ends_the_work_before_anybody_begins(shards: Shards) -> None:
    one, two = shards.start("one"), shards.start("two")
    await held(shards, one, two)
    number = min(one.shards)
    begun = shards.owners.begun[number]
    shards.server.remove(LEASES, lease_name(number), SYSTEM)
    # Its holder may take it again at once: too soon to be seen without it.
    await until(lambda: shards.owners.begun[number] > begun, LIMIT_S)
    await held(shards, one, two)


@pytest.mark.requirement("UNG-15")
async def test_a_newcomer_waits_for_the_holder_of_a_lease_that_was_deleted(shards: Shards) -> None:
    for number in range(1, SHARDS):
        shards.put(number, "")
    one = shards.start("one")
    await until(lambda: one.shards == ALL - {0}, LIMIT_S)
    started = monotonic()
    await until(lambda: one.shards == ALL, LIMIT_S)
    assert monotonic() - started > (DURATION_S + REQUEST_S) / 2


@pytest.mark.requirement("UNG-15", "OPS-12")
async def test_without_an_api_server_work_stops_before_the_fence_and_begins_again(
    shards: Shards,
) -> None:
    one, two = shards.start("one"), shards.start("two")
    await held(shards, one, two)
    await shards.server.stop()
    fences = (one.fence, two.fence)
    await until(lambda: not shards.owners.of and not any(f.deadlines for f in fences), LIMIT_S)
    shards.server.compact()
    await shards.server.start()
    await held(shards, one, two)


@pytest.mark.requirement("UNG-15")
async def test_who_is_there_but_takes_nothing_is_passed_over(shards: Shards) -> None:
    one = shards.start("one")
    await until(lambda: one.shards == ALL, LIMIT_S)
    its_own = {n for n in ALL if ranking(n, ["one", "idle"])[0] == "idle"}
    assert its_own
    begun = dict(shards.owners.begun)

    async def beat() -> None:
        while True:
            lease = shards.server.get(LEASES, MEMBERS_LEASE, SYSTEM)
            assert lease is not None
            meta = lease["metadata"]
            alive = {member_annotation("idle"): annotation_value("idle", str(monotonic()))}
            noted = {**meta["annotations"], **alive}
            shards.server.put(LEASES, {**lease, "metadata": {**meta, "annotations": noted}})
            await asyncio.sleep(DURATION_S / 4)

    beating = asyncio.create_task(beat())
    try:
        await until(lambda: any(n not in one.shards for n in its_own), LIMIT_S)
        await until(lambda: one.shards == ALL, LIMIT_S)
        after = dict(shards.owners.begun)
        assert {n for n in ALL if after[n] > begun[n]} == its_own
        await steadily(lambda: one.shards == ALL, DURATION_S / 2)
    finally:
        beating.cancel()


@pytest.mark.requirement("UNG-14", "UNG-15")
async def test_a_shard_with_an_unanswered_request_is_not_given_away(shards: Shards) -> None:
    one = shards.start("one")
    await until(lambda: one.shards == ALL, LIMIT_S)
    theirs = {n for n in ALL if ranking(n, ["one", "two"])[0] == "two"}
    number = min(theirs)
    one.actor.unsettled.add(number)
    two = shards.start("two")
    await until(lambda: two.shards == theirs - {number}, LIMIT_S)
    await steadily(lambda: number in one.shards, DURATION_S / 2)
    ends = one.fence.deadlines[f"{SYSTEM}/{lease_name(number)}"]
    await one.stop()
    assert shards.spec(number)["holderIdentity"] == "one"
    await held(shards, two)
    assert monotonic() > ends + REQUEST_S


class Earlier:
    """A replica of the version that had one Lease for everything."""

    def __init__(self, shards: Shards, name: str) -> None:
        self.active = False
        self.client = shards.server.client(request_timeout_s=REQUEST_S)
        self._owners = shards.owners
        holder = LeaseHolder(
            self.client, SYSTEM, MEMBERS_LEASE, name, duration_s=DURATION_S, fence=NotedFence()
        )
        self._task = asyncio.create_task(holder.run(self._act))

    async def _act(self) -> None:
        assert not self._owners.of
        self.active = True
        try:
            await asyncio.Event().wait()
        finally:
            self.active = False

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))
        await self.client.close()


@pytest.mark.requirement("OPS-14", "UNG-15")
async def test_no_replica_acts_beside_one_of_the_version_with_a_single_lease(
    shards: Shards,
) -> None:
    first = Earlier(shards, "first")
    await until(lambda: first.active, LIMIT_S)
    one = shards.start("one")
    await until(lambda: not one.keeper.missing(), LIMIT_S)
    await steadily(lambda: first.active and not shards.owners.begun, DURATION_S)
    await first.stop()
    await until(lambda: one.shards == ALL, LIMIT_S)
    second = Earlier(shards, "second")
    await steadily(lambda: not second.active, DURATION_S + 2 * REQUEST_S)
    # A roll-back: when the last of us has gone, it begins.
    await one.stop()
    await until(lambda: second.active, LIMIT_S)
    await second.stop()


@pytest.mark.requirement("OPS-14", "UNG-15")
@pytest.mark.parametrize("holder", ["earlier", ""])
async def test_the_single_lease_in_other_hands_or_in_none_ends_all_work(
    shards: Shards, holder: str
) -> None:
    one = shards.start("one")
    await until(lambda: one.shards == ALL, LIMIT_S)
    shards.put(MEMBERS_LEASE, holder)
    await until(lambda: not one.shards, LIMIT_S)
    await until(lambda: one.shards == ALL, LIMIT_S)


@pytest.mark.requirement("UNG-15")
async def test_a_deleted_list_of_replicas_is_written_again(shards: Shards) -> None:
    one, two = shards.start("one"), shards.start("two")
    await held(shards, one, two)
    begun = shards.owners.begun.total()
    shards.server.remove(LEASES, MEMBERS_LEASE, SYSTEM)
    await until(
        lambda: {member_annotation("one"), member_annotation("two")} <= entries(shards).keys(),
        LIMIT_S,
    )
    assert shards.spec(MEMBERS_LEASE)["holderIdentity"] == GROUP_IDENTITY
    await steadily(lambda: shards.rightly(one, two), DURATION_S / 2)
    assert shards.owners.begun.total() == begun


async def test_asked_to_stop_while_distributing_over_nothing_is_left_behind(
    shards: Shards,
) -> None:
    one = shards.start("one")
    await until(lambda: one.shards == ALL, LIMIT_S)
    one.actor.finish_s = 0.5
    two = shards.start("two")
    await until(lambda: one.actor.finishing, LIMIT_S)
    assert one.actor.finishing <= {n for n in ALL if ranking(n, ["one", "two"])[0] == "two"}
    await asyncio.gather(one.stop(), two.stop())
    assert shards.owners.of == {}
    assert all(shards.spec(n).get("holderIdentity", "") == "" for n in ALL)


async def test_leases_cost_few_requests(shards: Shards) -> None:
    one, two = shards.start("one"), shards.start("two")
    await held(shards, one, two)
    since, started = len(shards.server.requests), monotonic()
    await asyncio.sleep(DURATION_S)  # a rate is measured
    span = (monotonic() - started) / DURATION_S
    # Three renewals per duration of each shard and each replica, and some jitter.
    assert shards.asked("PUT", since) <= (SHARDS * 3 * span + SHARDS) * 1.15
    assert shards.asked("PATCH", since) <= (2 * 3 * span + 2) * 1.15
    assert shards.asked("GET", since) == 0, "standbys are served by their watch"


@pytest.mark.requirement("UNG-15")
async def test_a_stalled_watch_lets_no_one_take_what_is_held(shards: Shards) -> None:
    one, two = shards.start("one"), shards.start("two")
    await held(shards, one, two)
    # From now on both see nothing new, and each believes that the other is gone.
    shards.server.faults.append(Fault.slow(60.0, watch=True, path="/leases", times=1000))
    for stream in tuple(shards.server.streams):
        stream.cut()
    await steadily(lambda: shards.rightly(one, two), DURATION_S + 3 * REQUEST_S)
