"""Writes whose review took longer than the API server waits: the machine stood still meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from rackgate.kube.errors import ForbiddenError, ServerError, UnprocessableError

# What the API server says then: by our policies, and where a webhook must answer.
UNANSWERED: Final = (
    "did not answer",
    "the webhook of Rackgate sets it",
    "failed calling webhook",
)
# The shortest time after which anybody gives a review up: the webhook's own 0.8 of 5 s.
PATIENCE_S: Final = 4.0
LIMIT_S: Final = 60.0


async def reviewed(write: Callable[[], Awaitable[bytes]]) -> bytes:
    """Send a write, again for a minute while its review is given up for the time it took.

    Nothing was stored then. A webhook that is away, refuses or breaks down is told at once, and
    so is every other refusal.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_S
    while True:
        begun = loop.time()
        try:
            return await write()
        except (ForbiddenError, ServerError, UnprocessableError) as error:
            now = loop.time()
            unanswered = any(words in error.message for words in UNANSWERED)
            if not unanswered or now - begun < PATIENCE_S or now > end:
                raise
