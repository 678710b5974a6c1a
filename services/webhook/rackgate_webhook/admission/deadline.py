"""Deadlines of reviews, from the timeout that the caller sends.

API servers send their `timeoutSeconds` with every call (`?timeout=5s`) and hang up when it is over.
A response that is computed after that is never read, and it delays other reviews.
"""

from __future__ import annotations

import re
from typing import Final

DEFAULT_TIMEOUT_S: Final = 5.0  # timeoutSeconds of our webhook configurations
MAX_TIMEOUT_S: Final = 30.0  # the largest value that the API allows
# The rest of the time is for computing the response and sending it.
TIMEOUT_SHARE: Final = 0.8
_SECONDS: Final = re.compile(r"(\d{1,3})s\Z", re.ASCII)


def caller_timeout_s(timeout: str | None) -> float:
    """The caller's timeout in seconds; by default that of our webhook configurations."""
    found = _SECONDS.match(timeout or "")
    if found is None:
        return DEFAULT_TIMEOUT_S
    return min(max(float(found[1]), 1.0), MAX_TIMEOUT_S)


def start_deadline(arrived: float, timeout: str | None) -> float:
    """When a request must be complete and its review started; on the clock of `arrived`."""
    return arrived + TIMEOUT_SHARE * caller_timeout_s(timeout)
