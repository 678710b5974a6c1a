"""Jobs that have come and gone leave nothing in the services: every container is looked into."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bench.soak_world import SoakWorld
from rackgate_assigner.assigner import Assigner
from tests.support.kept import grown, kept
from tests.wire.assigner_world import assigner, eventually, furnish
from tests.wire.ungater_world import Replica

JOBS, AT_ONCE = 40, 8
# What remembers a bounded number, or for a bounded time; `bench.soak` sees it level out.
BOUNDED = ("._recent", "._rested_at", "Tombstones", "_deleted._versions", "_recreated._versions")


async def pass_through(world: SoakWorld, first: int) -> None:
    """Let Jobs come, run and go; every other one takes a rack of its own, so that some wait."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with limit:
            await world.one(f"job-{number}", 2, "8" if number % 2 else "100m")

    await asyncio.gather(*(one(number) for number in range(first, first + JOBS)))
    assert not world.workloads()


async def rest(world: SoakWorld, replica: Assigner, ungater: Replica) -> None:
    """Return when everything told has been looked at."""
    await eventually(lambda: not replica.watches.workloads.store)
    await eventually(lambda: not replica.watches.kinds["Job"].store)
    await eventually(lambda: not ungater.ungater.pods.store)
    await eventually(lambda: not ungater.ungater.machine.workload_states)
    await eventually(lambda: not any(replica.scheduler.counts().values()))
    await ungater.idle()
    await eventually(lambda: not len(replica.jobs.queue))
    assert world.broken_rules == []


@pytest.mark.requirement("OPS-07")
async def test_jobs_that_come_and_go_leave_nothing() -> None:
    async with SoakWorld() as world:
        furnish(world)
        ungater = Replica(world, batch_window=0.02)
        try:
            async with assigner(world) as replica:
                ungater.lead()
                await eventually(lambda: ungater.leads)
                await pass_through(world, 0)
                await rest(world, replica, ungater)
                before = kept(replica) + kept(ungater.ungater)
                assert len(before) > 100, "the walk reaches what is there"
                await pass_through(world, JOBS)
                await rest(world, replica, ungater)

                def leaks() -> dict[str, int]:
                    more = grown(before, kept(replica) + kept(ungater.ungater), JOBS // 8)
                    bounded = {path for path in more for part in BOUNDED if part in path}
                    return {path: more[path] for path in more.keys() - bounded}

                # What was noted and is to be looked at is nothing that is kept.
                with contextlib.suppress(TimeoutError, AssertionError):
                    await eventually(lambda: not leaks())
                assert leaks() == {}
        finally:
            await ungater.kill()


def test_a_container_that_grows_is_found() -> None:
    replica = Replica.__new__(Replica)
    replica.__dict__["known"] = {"a": [1, 2], "b": [3]}
    before = kept(replica)
    replica.__dict__["known"]["c"] = [4, 5, 6]
    assert before == {"Replica.known": 2, "Replica.known[]": 3}
    assert grown(before, kept(replica), 2) == {"Replica.known[]": 3}
