"""How the tests wait for what a cluster is to show."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.deadlines import WaitedTooLongError, until


async def test_an_object_without_the_field_yet_is_asked_again() -> None:
    answers: list[dict[str, Any]] = [{}, {"status": None}, {"status": {"list": []}}]
    answers.append({"status": {"list": [7]}})

    async def probe() -> int:
        (only,) = answers.pop(0)["status"]["list"]
        return int(only)

    assert await until("a number is there", probe, every_s=0) == 7


async def test_what_the_probe_raised_last_is_told_at_the_end() -> None:
    async def probe() -> object:
        found: dict[str, object] = {}
        return found["status"]

    with pytest.raises(WaitedTooLongError, match=r"a status: .* KeyError\('status'\)") as raised:
        await until("a status", probe, timeout_s=0, every_s=0)
    assert isinstance(raised.value.__cause__, KeyError)


async def test_a_claim_of_a_probe_that_fails_is_not_asked_again() -> None:
    asked = []

    async def probe() -> None:
        asked.append(1)
        raise AssertionError("no breach")

    with pytest.raises(AssertionError, match="no breach"):
        await until("nothing", probe, every_s=0)
    assert len(asked) == 1
