from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rackgate.api.timestamps import parse_rfc3339, rfc3339, rfc3339_micro
from rackgate.runtime import clock
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.batching import Batcher
from tests.support import virtualtime


def now() -> float:
    return asyncio.get_running_loop().time() - 1_000_000


def test_a_burst_becomes_one_batch_in_order_of_first_addition() -> None:
    async def burst() -> None:
        batcher = Batcher[str](window_s=1.0)
        taken = asyncio.create_task(batcher.take())
        await asyncio.sleep(5)
        for key in ("a", "b", "a"):
            batcher.add(key)
            await asyncio.sleep(0.3)
        assert await taken == ["a", "b"]
        assert now() == pytest.approx(6.0)
        assert len(batcher) == 0

    virtualtime.run(burst())


def test_a_key_added_after_the_window_opens_the_next_one() -> None:
    async def two() -> None:
        batcher = Batcher[str](window_s=1.0)
        batcher.add("a")
        assert await batcher.take() == ["a"]
        batcher.add("a")
        assert await batcher.take() == ["a"]
        assert now() == pytest.approx(2.0)

    virtualtime.run(two())


def test_a_busy_taker_gets_an_old_batch_at_once() -> None:
    async def busy() -> None:
        batcher = Batcher[str](window_s=1.0)
        batcher.add("a")
        await asyncio.sleep(3)
        batcher.add("b")
        assert await batcher.take() == ["a", "b"]
        assert now() == pytest.approx(3.0)

    virtualtime.run(busy())


def test_backoff_doubles_within_its_jitter_up_to_the_cap() -> None:
    backoff = Backoff(base_s=1.0, cap_s=8.0, rng=random.Random(7))
    for full in (1, 2, 4, 8, 8, 8):
        assert full / 2 <= backoff.next("x") <= full
    assert backoff.next("y") <= 1, "keys fail apart"
    backoff.reset("x")
    assert backoff.next("x") <= 1


def test_backoff_survives_any_number_of_failures() -> None:
    backoff = Backoff()
    waits = [backoff.next() for _ in range(5000)]
    assert max(waits) <= 30
    assert backoff.failures() == 5000


def test_timestamps_are_written_as_kubernetes_does() -> None:
    moment = datetime(2026, 3, 4, 7, 6, 7, 891, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(moment) == "2026-03-04T05:06:07Z"
    assert rfc3339_micro(moment) == "2026-03-04T05:06:07.000891Z"


@pytest.mark.parametrize(
    "text", ["2026-03-04T05:06:07Z", "2026-03-04T07:06:07+02:00", "2026-03-04T05:06:07.000000Z"]
)
def test_timestamps_are_read_in_every_form(text: str) -> None:
    assert parse_rfc3339(text) == datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:00", "0001-01-01T00:00:00+23:00"])
def test_a_timestamp_outside_of_the_calendar_is_rejected(text: str) -> None:
    """The API server accepts it in an object."""
    with pytest.raises(ValueError, match="out of range"):
        parse_rfc3339(text)


def test_a_timestamp_without_an_offset_is_rejected() -> None:
    with pytest.raises(ValueError, match="no offset"):
        parse_rfc3339("2026-03-04T05:06:07")


@pytest.mark.requirement("OPS-12")
def test_a_shifted_clock_moves_the_wall_clock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_offset", timedelta())
    before, monotonic = datetime.now(UTC), clock.monotonic()
    clock.shift(-1800)
    clock.shift(1800)
    assert timedelta(seconds=1800) <= clock.now() - before < timedelta(seconds=1810)
    assert 0 <= clock.monotonic() - monotonic < 10
