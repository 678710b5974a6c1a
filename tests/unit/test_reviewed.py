"""Which refusals tests take for those of a machine that stood still."""

from __future__ import annotations

import asyncio

import pytest

from rackgate.kube.errors import ForbiddenError, KubeError, ServerError, UnprocessableError
from tests.support import virtualtime
from tests.support.reviewed import LIMIT_S, PATIENCE_S, reviewed

POLICY = "must be created suspended, and the webhook that suspends it did not answer"
LINKED = "do not have the annotation: the webhook of Rackgate sets it; try again when it runs"
WEBHOOK = 'failed calling webhook "m.rackgate.dev": context deadline exceeded'


def played(kind: type[KubeError], message: str, takes_s: float, times: int) -> tuple[bytes, int]:
    """Refuse a write so many times, each time after so many seconds: the answer, and the writes."""
    count = 0

    async def write() -> bytes:
        nonlocal count
        count += 1
        if count > times:
            return b"stored"
        await asyncio.sleep(takes_s)
        raise kind("POST", "/x", message=message)

    return virtualtime.run(reviewed(write)), count


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ForbiddenError, POLICY),
        (UnprocessableError, POLICY),
        (UnprocessableError, LINKED),
        (ServerError, WEBHOOK),
    ],
)
def test_a_review_that_took_too_long_is_asked_for_again(
    kind: type[KubeError], message: str
) -> None:
    assert played(kind, message, PATIENCE_S, 2) == (b"stored", 3)


@pytest.mark.parametrize(
    ("message", "takes_s", "times"),
    [
        (POLICY, PATIENCE_S - 0.1, 1),
        (WEBHOOK, 0.0, 1),
        ("more than one topology request", 30.0, 1),
        (POLICY, 5.0, int(LIMIT_S / 5) + 2),
    ],
    ids=["answered soon", "refused at once", "other words", "again and again"],
)
def test_every_other_rejection_is_reported(message: str, takes_s: float, times: int) -> None:
    with pytest.raises(ForbiddenError):
        played(ForbiddenError, message, takes_s, times)
