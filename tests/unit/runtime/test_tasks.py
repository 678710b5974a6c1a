"""A task that is cancelled is waited for, and its caller's own cancellation is not swallowed."""

from __future__ import annotations

import asyncio

import pytest

from rackgate.runtime.tasks import cancel, start


async def test_a_caller_that_is_cancelled_while_it_cancels_ends_as_cancelled() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            begun.set()
            await ended.wait()

    async def caller() -> None:
        await cancel(task)
        pytest.fail("the cancellation was swallowed")

    task = start(slow_to_end(), "slow to end")
    await asyncio.sleep(0)
    calling = start(caller(), "caller")
    await begun.wait()
    calling.cancel()
    ended.set()
    await asyncio.wait([calling, task])
    assert calling.cancelled()
    assert task.cancelled()


async def test_the_failure_of_the_task_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("broken")

    task = start(fails(), "fails")
    await asyncio.wait([task])
    with pytest.raises(ValueError, match="broken"):
        await cancel(task)


async def test_a_task_that_has_ended_is_cancelled_without_effect() -> None:
    task = start(asyncio.sleep(0), "short")
    await asyncio.wait([task])
    await cancel(task)
