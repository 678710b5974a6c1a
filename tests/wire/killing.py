"""Kills the assigner at a chosen write, lets another take over, and tells a story meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.support.apiserver import Request
from tests.support.apiserver_faults import Fault, Handler
from tests.wire.assigner_world import World, assigner

# What a life is made of; waiting reasons, queues and Events are not counted.
WATCHED = ("/jobs", "/workloads", "/rayclusters", "/rayjobs")

Replica = Callable[[World], AbstractAsyncContextManager[Any]]


class Killer:
    """Cuts the n-th write on Jobs and Workloads off, and says that the process is to die."""

    def __init__(self, number: int, *, applied: bool, watched: Collection[str] = WATCHED) -> None:
        self.left, self.applied, self.watched = number, applied, watched
        self.struck = asyncio.Event()

    def fault(self) -> Fault:
        """The fault to add to a world."""
        cut = Fault.cut(applied=self.applied)

        async def answer(request: object, handle: Handler) -> object:
            self.struck.set()
            return await cut.answer(request, handle)  # type: ignore[arg-type]  # the request the fake was given

        killer = self

        class Counting(Fault):
            def matches(self, request: Request) -> bool:
                if request.method == "GET" or killer.struck.is_set():
                    return False
                if not any(part in request.path for part in killer.watched):
                    return False
                killer.left -= 1
                return killer.left < 0

        return Counting(answer)  # type: ignore[arg-type]  # same call, looser types


async def keep_running(world: World, struck: asyncio.Event, replica: Replica = assigner) -> None:
    """A replica until the killer strikes, then another one, as a Deployment does."""
    async with replica(world):
        await struck.wait()
    async with replica(world):
        await asyncio.Event().wait()


async def at_each(numbers: Iterable[int], life: Callable[[int], Awaitable[None]]) -> None:
    """Lives that end the assigner at these writes, all at once: most of their time they wait."""

    async def one(number: int) -> None:
        try:
            await life(number)
        except Exception as error:
            error.add_note(f"the assigner was to die at write {number}")
            raise

    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(one(number))


async def while_running(replicas: Awaitable[None], story: Awaitable[None]) -> None:
    running = asyncio.ensure_future(replicas)
    try:
        await story
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
