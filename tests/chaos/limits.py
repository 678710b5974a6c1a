"""How long chaos may take: it stops by itself, whatever hangs."""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = 20
# So many seeds together, the playground's start included; more seeds may take more in proportion.
ALL_LIMIT_S = 40 * 60.0
# One scenario takes a minute and a half; a full machine has taken nine.
SCENARIO_LIMIT_S = 600.0
# With less left, a scenario is not begun: it would be given up, and look like one that hangs.
LEAST_S = 150.0


@dataclass(frozen=True, slots=True)
class Allowance:
    """The time of one run.

    Attributes:
        begun: monotonic second of its beginning.
        seeds: how many there are.
    """

    begun: float
    seeds: int

    @property
    def ends(self) -> float:
        """Monotonic second at which it is over."""
        return self.begun + ALL_LIMIT_S * max(1.0, self.seeds / SEEDS)

    def scenario_s(self, now: float) -> float:
        """How long a scenario may take that begins now; 0 when it must not begin."""
        left_s = self.ends - now
        return min(left_s, SCENARIO_LIMIT_S) if left_s >= LEAST_S else 0.0
