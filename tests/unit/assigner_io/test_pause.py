"""How long a scheduling cycle leaves the event loop to watches and writes."""

from __future__ import annotations

import pytest

from rackgate_assigner.rate_limits import pause_after_cycle_s


def test_short_cycles_start_at_the_minimum_interval() -> None:
    for spent_s in (0.0, 0.001, 0.024):
        assert spent_s + pause_after_cycle_s(spent_s, 0.1) == pytest.approx(0.1)


@pytest.mark.requirement("OPS-11")
def test_cycles_take_a_quarter_of_the_time_at_most() -> None:
    for spent_s in (0.03, 0.1, 0.3):
        assert pause_after_cycle_s(spent_s, 0.1) == pytest.approx(3 * spent_s)


def test_no_cycle_is_followed_by_a_long_pause() -> None:
    assert pause_after_cycle_s(20.0, 0.1) == 1.0


def test_other_work_comes_between_two_cycles_in_any_case() -> None:
    assert pause_after_cycle_s(0.0, 0.0) > 0
