"""The dead-man timer in a process of its own, which it ends."""

from __future__ import annotations

import asyncio
import signal
import sys

FENCE = """
import signal, sys, time
from rackgate.kube.lease.fence import KernelTimer
from rackgate.runtime.clock import monotonic
fence = KernelTimer()
fence.arm("a", monotonic() + 60)
fence.arm("b", monotonic() + 50)
fence.disarm("b")
assert 59 < signal.getitimer(signal.ITIMER_REAL)[0] <= 60
fence.disarm("a")
fence.disarm("a")
assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
fence.arm("a", monotonic() + 60)
fence.arm("b", monotonic() - 1)
time.sleep(5)
"""


async def test_the_fence_follows_the_earliest_deadline_and_one_in_the_past_is_the_end() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FENCE)
    async with asyncio.timeout(30):
        assert await process.wait() == -signal.SIGALRM
