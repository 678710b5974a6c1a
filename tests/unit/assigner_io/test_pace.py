"""How often a Workload is told why it waits."""

from __future__ import annotations

import pytest

from rackgate_assigner.rate_limits import MessageRateLimiter


@pytest.mark.requirement("OPS-11")
def test_new_words_for_the_same_reason_wait_until_the_last_ones_are_old() -> None:
    pace = MessageRateLimiter(3.0)
    assert pace.wait_s("a", "Pending", 100.0) == 0
    pace.record_written("a", "Pending", 100.0)
    assert pace.wait_s("a", "Pending", 101.0) == pytest.approx(2.0)
    assert pace.wait_s("a", "Pending", 103.0) == 0
    assert pace.wait_s("b", "Pending", 101.0) == 0


def test_another_reason_is_reported_at_once() -> None:
    pace = MessageRateLimiter(3.0)
    pace.record_written("a", "Pending", 100.0)
    assert pace.wait_s("a", "Misconfigured", 100.0) == 0


def test_what_is_forgotten_is_new() -> None:
    pace = MessageRateLimiter(3.0)
    pace.record_written("a", "Pending", 100.0)
    pace.forget("a")
    assert pace.wait_s("a", "Pending", 100.0) == 0


def test_many_that_wait_are_reported_in_turn_and_no_faster_than_the_rate() -> None:
    pace = MessageRateLimiter(3.0, per_s=10.0)
    keys = [f"key-{number}" for number in range(50)]
    for key in keys:
        pace.record_written(key, "Pending", 0.0)
    waits = [pace.wait_s(key, "Pending", 100.0) for key in keys]
    assert waits[:10] == [0.0] * 10  # a second's worth at once
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(3.9)
    assert [pace.wait_s(key, "Pending", 101.0) for key in keys[20:]] == pytest.approx(
        [wait - 1.0 for wait in waits[20:]]
    )


def test_a_turn_is_kept_until_its_news_is_reported() -> None:
    pace = MessageRateLimiter(3.0, per_s=1.0)
    for key in ("a", "b", "c"):
        pace.record_written(key, "Pending", 0.0)
    assert [pace.wait_s(key, "Pending", 10.0) for key in ("a", "b", "c")] == [0.0, 0.0, 1.0]
    assert pace.wait_s("c", "Pending", 11.0) == 0.0
    pace.record_written("c", "Pending", 11.0)
    assert pace.wait_s("c", "Pending", 11.0) == pytest.approx(3.0)
