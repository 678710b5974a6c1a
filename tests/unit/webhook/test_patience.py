"""How long a caller waits, and until when a review may begin."""

from __future__ import annotations

import pytest

from rackgate_webhook.admission.deadline import DEFAULT_TIMEOUT_S, caller_timeout_s, start_deadline


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("5s", 5), ("1s", 1), ("30s", 30), ("0s", 1), ("99s", 30), ("999s", 30)],
)
def test_the_callers_own_word_counts_within_what_a_registration_may_say(
    told: str, seconds: float
) -> None:
    assert caller_timeout_s(told) == seconds


@pytest.mark.parametrize("told", [None, "", "5", "s", "-5s", "5s ", "5m", "1m0s", "٥s", "5s\n"])
def test_anything_else_is_the_patience_of_our_registrations(told: str | None) -> None:
    assert caller_timeout_s(told) == DEFAULT_TIMEOUT_S


@pytest.mark.requirement("HOOK-14")
@pytest.mark.field_note("W3")
def test_a_fifth_of_the_callers_time_is_left_for_the_answer() -> None:
    assert start_deadline(100.0, "10s") == 108.0
    assert start_deadline(100.0, None) == 104.0
