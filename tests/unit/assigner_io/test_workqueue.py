from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from rackgate.runtime.backoff import Backoff
from rackgate_assigner.workqueue import Turns, WorkQueue
from tests.support.waiting import until

pytestmark = pytest.mark.requirement("OPS-07")


@asynccontextmanager
async def running(
    work: Callable[[str], Awaitable[None]], *first: str
) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue("test", work, workers=3, backoff=Backoff(base_s=0.001, cap_s=0.002))
    task = asyncio.create_task(queue.run(first))
    await asyncio.sleep(0)
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_a_key_is_never_worked_on_twice_at_once_and_once_more_when_added_meanwhile() -> None:
    going, most, runs = 0, 0, 0
    gate = asyncio.Event()

    async def work(_key: str) -> None:
        nonlocal going, most, runs
        going += 1
        runs += 1
        most = max(most, going)
        await gate.wait()
        going -= 1

    async with running(work, "a") as queue:
        await until(lambda: runs == 1)
        for _ in range(5):
            queue.add("a")
        gate.set()
        await until(lambda: runs == 2 and going == 0)
        await asyncio.sleep(0.01)
    assert (most, runs) == (1, 2)


async def test_failing_work_is_repeated_while_other_keys_go_on() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)
        if key == "poison" and seen.count("poison") < 4:
            raise RuntimeError("as ordered")

    async with running(work, "poison", "good") as queue:
        await until(lambda: seen.count("poison") == 4)
        queue.add("other")
        await until(lambda: "other" in seen)
    assert "good" in seen


async def test_a_queue_that_does_not_run_keeps_no_names_and_starts_again() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    queue = WorkQueue("test", work, workers=1)
    queue.add("lost")
    assert len(queue) == 0
    for turn in ("first", "second"):
        task = asyncio.create_task(queue.run([turn]))
        await until(lambda turn=turn: turn in seen)  # type: ignore[misc]  # bound at once
        task.cancel()
        await asyncio.wait((task,))
    assert seen == ["first", "second"]


async def test_of_two_delays_the_earlier_one_counts() -> None:
    seen: list[str] = []

    async def work(key: str) -> None:
        seen.append(key)

    async with running(work) as queue:
        queue.add_later("later first", 3600)
        queue.add_later("later first", 0.01)
        queue.add_later("sooner first", 0.01)
        queue.add_later("sooner first", 3600)
        await until(lambda: sorted(seen) == ["later first", "sooner first"])
        queue.add_later("sooner first", 3600)
        await asyncio.sleep(0.05)
        assert len(seen) == 2


async def test_who_waits_until_few_wait_returns_as_soon_as_workers_have_taken_the_rest() -> None:
    free = asyncio.Semaphore(0)

    async def work(_key: str) -> None:
        await free.acquire()

    async with running(work, *"abcdef") as queue:
        await queue.wait_until_few_wait(3)  # three workers have the others
        waiting = asyncio.create_task(queue.wait_until_few_wait(1))
        free.release()
        await until(lambda: len(queue) == 5)
        assert not waiting.done()
        free.release()
        await asyncio.wait_for(waiting, 5)
        assert len(queue) == 4


async def test_who_lets_others_go_first_takes_one_turn_at_a_time_while_they_work() -> None:
    loop = asyncio.get_running_loop()
    turns, started = Turns(lambda: True, 0.02), loop.time()
    await asyncio.gather(*(turns.wait() for _ in range(4)))
    assert loop.time() - started >= 4 * 0.02 - 0.01


async def test_no_one_waits_for_a_turn_once_the_others_have_nothing_to_do() -> None:
    busy, taken = True, 0
    turns = Turns(lambda: busy, 0.02)

    async def take() -> None:
        nonlocal taken
        await turns.wait()
        taken += 1

    # All at once they would need a minute.
    waiting = [asyncio.create_task(take()) for _ in range(3000)]
    await until(lambda: taken)
    busy = False
    await until(lambda: taken == len(waiting), within_s=20.0)
