"""Keeps the encoded answers of one order of pending Workloads."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from rackgate_assigner.visibility.answers import PageRange, PendingRequest
from rackgate_assigner.visibility.pending_order import PendingOrder

# 4,000 Workloads take about 1 MB.
MAX_BYTES: Final = 16 * 2**20


class AnswerCache:
    """Answers by what is asked; the longest unused ones go first.

    An answer holds for the order that it was made from, so another order empties the cache.
    """

    def __init__(self) -> None:
        self._order: PendingOrder | None = None
        self._answers: OrderedDict[tuple[PendingRequest, PageRange], bytes] = OrderedDict()
        self._bytes = 0

    def get(self, order: PendingOrder, asked: PendingRequest, part: PageRange) -> bytes | None:
        """The answer from this order, if it is kept."""
        self._use(order)
        found = self._answers.get((asked, part))
        if found is not None:
            self._answers.move_to_end((asked, part))
        return found

    def put(
        self, order: PendingOrder, asked: PendingRequest, part: PageRange, answer: bytes
    ) -> None:
        """Keep an answer from this order."""
        self._use(order)
        self._bytes += len(answer) - len(self._answers.pop((asked, part), b""))
        self._answers[asked, part] = answer
        while self._bytes > MAX_BYTES:
            self._bytes -= len(self._answers.popitem(last=False)[1])

    def _use(self, order: PendingOrder) -> None:
        if order is not self._order:
            self._order, self._bytes = order, 0
            self._answers.clear()
