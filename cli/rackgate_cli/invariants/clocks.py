"""Whose clock: what objects tell is compared with the API server's time, not with this machine's.

Deletions that are overdue, and the patience of a check that reads once, are the only places where
time of this machine meets times in objects. It is corrected by what the API server's answers say.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Final

from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.runtime import clock

# A `Date` has whole seconds and is written before the answer arrives: less than this is no
# difference of clocks.
TOLERANCE_S: Final = 5.0
# Any path that needs no right of its own.
VERSION_PATH: Final = "/version"


async def clock_skew_s(client: Client) -> float:
    """Seconds that this machine's clock is ahead of the API server's; 0.0 while they agree.

    Raises:
        KubeError: the API server does not answer.
    """
    try:
        await client.get(VERSION_PATH)
    except KubeError as error:
        # A refusal has a date like any other answer.
        if not error.status:
            raise
    return difference(client.server_date, clock.now().timestamp())


def difference(date: str, own: float) -> float:
    """Seconds that `own` is later than a `Date` header.

    Args:
        date: the header; one that cannot be read is no difference.
        own: Unix time at the arrival of the answer.

    Returns:
        0.0 where the difference may come from rounding and the way; else negative when `own` is
        behind.
    """
    try:
        found = own - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return 0.0
    return found if abs(found) > TOLERANCE_S else 0.0


def warning(clock_skew: float) -> str:
    """Words for a difference that was found; "" for none."""
    if not clock_skew:
        return ""
    way = "ahead of" if clock_skew > 0 else "behind"
    return (
        f"this machine's clock is {abs(clock_skew):.0f} s {way} the API server's, "
        "whose time is used instead"
    )
