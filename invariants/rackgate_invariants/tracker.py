"""Decides when a breach counts.

Objects of several kinds are never read at one moment, so one reading of a changing cluster may show
a state that never existed. A breach counts when it lasts: for a moment if a correct cluster never
shows it, and longer (`patience_s`) if a correct cluster may show it for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rackgate_invariants.rules.catalog import RULES, Breach


@dataclass(frozen=True, slots=True)
class Change:
    """A breach started to count, or ended.

    Attributes:
        since: Unix time since which it was seen, or since which the objects show it.
        at: Unix time of the reading that showed the change.
    """

    breach: Breach
    since: float
    at: float
    ended: bool = False


@dataclass(slots=True)
class _TrackedBreach:
    breach: Breach
    first: float
    counts: bool = False
    since: float = 0.0


@dataclass(slots=True)
class Tracker:
    """Keeps breaches from the first reading that shows them to the last.

    Attributes:
        min_duration_s: how long a breach must last.
        patience_s: how long a breach of a patient rule must last.
        trust_object_times: also count the time before the first reading, as the objects show it.
            `--watch` does not, because objects do not show what is gone (a pod that used the
            domain).
        total: breaches that ever counted.
    """

    min_duration_s: float
    patience_s: float
    trust_object_times: bool = False
    total: int = 0
    _seen: dict[tuple[str, str], _TrackedBreach] = field(default_factory=dict)

    def update(self, now: float, found: Iterable[Breach]) -> list[Change]:
        """Add one reading.

        Args:
            now: Unix time of the reading.
            found: all that it shows.
        """
        present = {(breach.rule, breach.subject): breach for breach in found}
        changes = [
            self._end(key, seen, now)
            for key, seen in list(self._seen.items())
            if key not in present
        ]
        changes += [self._keep(key, breach, now) for key, breach in present.items()]
        return [change for change in changes if change is not None]

    def event(self, now: float, breach: Breach) -> Change:
        """Add a breach that happened once and cannot end."""
        self.total += 1
        return Change(breach, now, now)

    def reset_unconfirmed(self) -> None:
        """After a pause: restart the time of breaches that do not count yet."""
        self._seen = {key: seen for key, seen in self._seen.items() if seen.counts}

    @property
    def active_breaches(self) -> list[Breach]:
        """Breaches that count and that the last reading shows."""
        return sorted(seen.breach for seen in self._seen.values() if seen.counts)

    def _end(self, key: tuple[str, str], seen: _TrackedBreach, now: float) -> Change | None:
        del self._seen[key]
        return Change(seen.breach, seen.since, now, ended=True) if seen.counts else None

    def _keep(self, key: tuple[str, str], breach: Breach, now: float) -> Change | None:
        seen = self._seen.setdefault(key, _TrackedBreach(breach, now))
        seen.breach = breach
        if seen.counts:
            return None
        since = seen.first
        if RULES[breach.rule].patient:
            # The time in the objects may be later than the first reading that showed it: they
            # changed.
            since = breach.since or seen.first
            since = since if self.trust_object_times else max(since, seen.first)
            if now - since < self.patience_s:
                return None
        if now - seen.first < self.min_duration_s:
            return None
        seen.counts, seen.since = True, since
        self.total += 1
        return Change(breach, since, now)
