"""Large answers that their callers have not read yet.

An answer stays in memory until its caller has read it. The API server reads it at once. Anyone else
who reaches the port may read slowly, or not at all. So all these answers together have a limit: for
the next one, the caller that has taken the longest is cut off, and others wait a second at most.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from rackgate.runtime.serving.connections import BUSY_S, Connection, ConnectionMetrics

# One larger answer is sent if there is no other.
MAX_UNSENT_BYTES: Final = 32 * 2**20


@dataclass(frozen=True, slots=True)
class _Unsent:
    size: int
    since: float


class UnsentAnswers:
    """The large answers that are being sent.

    Attributes:
        size: bytes of all of them.
    """

    def __init__(self, metrics: ConnectionMetrics, limit: int = MAX_UNSENT_BYTES) -> None:
        """Prepare.

        Args:
            metrics: count the callers that are cut off.
            limit: bytes of all answers.
        """
        self.size = 0
        self._metrics, self._limit = metrics, limit
        self._answers: dict[Connection, _Unsent] = {}  # the oldest first
        self._removed = asyncio.Event()

    async def add(self, connection: Connection, size: int) -> None:
        """Wait until there is room for an answer; then it counts until it is sent or dropped."""
        loop = asyncio.get_running_loop()
        while self._answers and self.size + size > self._limit:
            connection_of_oldest, oldest = next(iter(self._answers.items()))
            left_s = oldest.since + BUSY_S - loop.time()
            if left_s <= 0:
                self._metrics.closed.labels(reason="slow").inc()
                connection_of_oldest.abort()
                self._remove(connection_of_oldest)
                continue
            self._removed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._removed.wait(), left_s)
        self._answers[connection] = _Unsent(size, loop.time())
        self.size += size
        connection.on_answered = partial(self._remove, connection)

    def _remove(self, connection: Connection) -> None:
        found = self._answers.pop(connection, None)
        if found is not None:
            self.size -= found.size
            self._removed.set()
