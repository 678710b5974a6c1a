"""Whether the API server answers, as the watches see it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Connection:
    """State of the connection to the API server.

    Attributes:
        since: RFC 3339 time since when watches fail; "" while all work.
        problem: of the first watch that fails.
    """

    since: str = ""
    problem: str = ""

    @property
    def reachable(self) -> bool:
        """Whether all watches work."""
        return not self.since

    def after(self, problems: Iterable[str], now: str) -> Connection:
        """The state with these problems of the watches; "" for a watch that works."""
        problem = next((one for one in problems if one), "")
        if not problem:
            return Connection()
        return Connection(self.since or now, problem)

    def encoded(self) -> bytes:
        """JSON for the page."""
        return msgspec.json.encode(
            {"reachable": self.reachable, "since": self.since or None, "problem": self.problem}
        )
