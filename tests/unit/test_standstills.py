"""Which failed calls a machine that stood still excuses."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tests.support import virtualtime
from tests.support.reviewed import PATIENCE_S
from tests.support.standstills import EVERY_S, Standstills, standstills


async def stand_still(seconds: float) -> None:
    """Let all timers be so late."""
    cast(Any, asyncio.get_running_loop())._jumping.passed_s += seconds
    await asyncio.sleep(2 * EVERY_S)


async def played() -> tuple[Standstills, list[float]]:
    """Two pauses of two thirds of what is needed, then a slow second: the times of all."""
    loop = asyncio.get_running_loop()
    times = [loop.time()]
    async with standstills() as still:
        await asyncio.sleep(1)
        for _ in range(2):
            await stand_still(PATIENCE_S * 2 / 3)
            times.append(loop.time())
            assert still.excuse(times[0]) is (len(times) == 3)
        for _ in range(20):
            await stand_still(0.4)
        times.append(loop.time())
        return still, times


def test_a_call_is_excused_by_what_the_machine_stood_still_meanwhile() -> None:
    still, (begun, between, after, _) = virtualtime.run(played())
    assert still.excuse(begun)
    assert not still.excuse(between), "half of it was before"
    assert not still.excuse(after), "a busy machine is no excuse"
