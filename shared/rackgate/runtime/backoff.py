"""Exponential backoff with jitter, kept per key."""

from __future__ import annotations

import random
from collections.abc import Hashable


class Backoff:
    """Growing waits for what fails repeatedly.

    The n-th wait of a key lies between half of and the full `base_s * factor**n`, at most
    `cap_s`: spread, so that many clients do not return together, and never close to zero.
    """

    def __init__(
        self,
        base_s: float = 0.2,
        cap_s: float = 30.0,
        factor: float = 2.0,
        rng: random.Random | None = None,
    ) -> None:
        self.base_s, self.cap_s, self.factor = base_s, cap_s, factor
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._failures: dict[Hashable, int] = {}

    def next(self, key: Hashable = None) -> float:
        """Count one more failure of `key` and say how many seconds to wait."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # The exponent is bounded: a float power overflows after a few hundred failures.
        full = min(self.cap_s, self.base_s * self.factor ** min(failures, 64))
        return full * (0.5 + self._rng.random() / 2)

    def failures(self, key: Hashable = None) -> int:
        """How often `key` failed since its last success."""
        return self._failures.get(key, 0)

    def reset(self, key: Hashable = None) -> None:
        """`key` succeeded, or is gone: start over."""
        self._failures.pop(key, None)
