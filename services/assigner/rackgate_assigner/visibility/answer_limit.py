"""Limits how many answers are in progress, and how much time of the process they take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from rackgate_assigner.visibility.answers import RejectedError

# In progress: an answer waits for the review of access, for the order, or for its turn.
MAX_AT_ONCE: Final = 32
# So answers use at most this part of the time of the process, however many are sent.
MAX_LOAD: Final = 0.1
# What they may use in advance; the largest answer takes some hundredths.
BURST_S: Final = 0.5
RETRY_AFTER_S: Final = 1


class AnswerLimit:
    """Counts the answers in progress, and their time."""

    def __init__(self) -> None:
        self._in_progress = 0
        self._left_s, self._counted = BURST_S, 0.0

    @contextlib.contextmanager
    def in_progress(self) -> Iterator[None]:
        """An answer is in progress.

        Raises:
            RejectedError: there are too many (429).
        """
        if self._in_progress >= MAX_AT_ONCE:
            raise RejectedError(
                429, "too many requests at the same time", retry_after_s=RETRY_AFTER_S
            )
        self._in_progress += 1
        try:
            yield
        finally:
            self._in_progress -= 1

    def check_time(self, now: float) -> None:
        """Return if an answer may be computed now.

        Args:
            now: monotonic time, in seconds.

        Raises:
            RejectedError: the answers of the last time took too long (429).
        """
        self._left_s = min(BURST_S, self._left_s + (now - self._counted) * MAX_LOAD)
        self._counted = now
        if self._left_s <= 0.0:
            raise RejectedError(
                429, "too many different answers were computed", retry_after_s=RETRY_AFTER_S
            )

    def spend(self, used_s: float) -> None:
        """An answer, or a part of one, took so many seconds."""
        self._left_s -= used_s
