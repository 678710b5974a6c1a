"""A queue of keys for level-triggered reconcilers, and turns for work that can wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

import structlog

from rackgate.kube.errors import KubeError
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.tasks import spawn

K = TypeVar("K", bound=Hashable)

log = structlog.get_logger()


class WorkQueue(Generic[K]):
    """Runs `work(key)` for every added key, never twice at once for one key.

    A key added while its work runs is run again afterwards. Work that raises is retried with
    exponential backoff, while other keys continue.

    `run` may be cancelled and called again. Keys added while it does not run are dropped (a
    standby would collect every name), so its owner passes all existing keys as `first`.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[K], Awaitable[None]],
        *,
        workers: int,
        backoff: Backoff | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self._workers = workers
        self._backoff = backoff or Backoff(base_s=0.1, cap_s=60.0)
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()
        self._open = False

    def __len__(self) -> int:
        return len(self._ready) + len(self._running)

    def add(self, key: K) -> None:
        """Run `key` soon, also if a later retry is pending. Loop thread only."""
        if not self._open:
            return
        timer = self._delayed.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._running:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
            self._filled.set()

    def add_later(self, key: K, delay_s: float) -> None:
        """Run `key` after `delay_s` seconds, unless it is added or due earlier."""
        if not self._open or key in self._queued:
            return
        loop = asyncio.get_running_loop()
        timer = self._delayed.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._delayed[key] = loop.call_later(delay_s, self.add, key)

    async def wait_until_few_wait(self, most: int) -> None:
        """Return as soon as at most `most` keys wait for a worker."""
        while len(self._ready) > most:
            self._taken.clear()
            await self._taken.wait()

    async def run(self, first: Iterable[K] = ()) -> None:
        """Work on `first`, then on all added keys, until cancelled."""
        self._open = True
        for key in first:
            self.add(key)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._workers):
                    spawn(group, self._worker(), f"{self.name}-{number}")
        finally:
            self._open = False
            for timer in self._delayed.values():
                timer.cancel()
            for kept in (self._delayed, self._ready, self._queued, self._again):
                kept.clear()
            self._taken.set()

    async def _worker(self) -> None:
        while True:
            while not self._ready:
                self._filled.clear()
                await self._filled.wait()
            key = self._ready.popleft()
            self._taken.set()
            self._queued.discard(key)
            self._running.add(key)
            try:
                failed = await self._attempt(key)
            finally:
                self._running.discard(key)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            elif failed:
                self.add_later(key, self._backoff.next(key))

    async def _attempt(self, key: K) -> bool:
        """Run the work once; whether it failed."""
        try:
            await self._work(key)
        except KubeError as error:
            level = log.debug if error.status in (404, 409, 422) else log.warning
            level("reconcile_failed", queue=self.name, key=str(key), error=str(error))
            return True
        except Exception:  # the outermost line of a task: other keys must go on
            log.exception("reconcile_failed", queue=self.name, key=str(key))
            return True
        self._backoff.reset(key)
        return False


class Turns:
    """Lets others go first: while they work, one turn at a time, `gap_s` apart."""

    def __init__(self, is_busy: Callable[[], bool], gap_s: float) -> None:
        """Prepare.

        Args:
            is_busy: whether others work now.
            gap_s: seconds between two turns while they do.
        """
        self._is_busy, self._gap_s = is_busy, gap_s
        self._lock = asyncio.Lock()

    async def wait(self) -> None:
        """Wait for a turn; none waits once the others have nothing to do."""
        async with self._lock:
            if self._is_busy():
                await asyncio.sleep(self._gap_s)
