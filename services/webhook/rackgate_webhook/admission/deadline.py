"""How long a caller waits, and how much of that a review may take before it is begun.

API servers tell their `timeoutSeconds` with every call (`?timeout=5s`) and hang up when it is
over: what is computed after that is computed in vain, and takes time from others.
"""

from __future__ import annotations

import re
from typing import Final

DEFAULT_TIMEOUT_S: Final = 5.0  # timeoutSeconds of our registrations
MAX_TIMEOUT_S: Final = 30.0  # the largest that a registration may have
# The rest is for the answer itself and its way back.
TIMEOUT_SHARE: Final = 0.8
_SECONDS: Final = re.compile(r"(\d{1,3})s\Z", re.ASCII)


def caller_timeout_s(timeout: str | None) -> float:
    """Seconds that a caller waits by its own word; that of our registrations without one."""
    found = _SECONDS.match(timeout or "")
    if found is None:
        return DEFAULT_TIMEOUT_S
    return min(max(float(found[1]), 1.0), MAX_TIMEOUT_S)


def start_deadline(arrived: float, timeout: str | None) -> float:
    """Until when a request must be here whole and its review begun; on the clock of `arrived`."""
    return arrived + TIMEOUT_SHARE * caller_timeout_s(timeout)
