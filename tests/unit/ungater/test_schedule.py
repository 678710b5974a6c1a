"""When Workloads are due."""

from __future__ import annotations

import pytest

from rackgate_ungater.state_machine.queue import DelayQueue


@pytest.mark.requirement("UNG-04")
def test_the_first_event_opens_the_window_and_later_ones_fall_in() -> None:
    schedule = DelayQueue[str]()
    assert schedule.add("a", 1.0)
    assert not any(schedule.add("a", 1.0 + n / 1000) for n in range(1000))
    assert schedule.pop_due(0.9) is None
    assert schedule.pop_due(1.0) == "a"
    assert schedule.pop_due(5.0) is None


def test_windows_of_different_keys_are_independent() -> None:
    schedule = DelayQueue[str]()
    schedule.add("a", 1.0)
    schedule.add("b", 1.5)
    assert schedule.pop_due(1.2) == "a"
    assert schedule.pop_due(1.2) is None
    assert schedule.next_at() == 1.5


def test_an_earlier_time_replaces_a_later_one() -> None:
    schedule = DelayQueue[str]()
    schedule.add("a", 9.0)
    schedule.add("b", 5.0)
    assert schedule.add("a", 2.0)
    assert [schedule.pop_due(9.0) for _ in range(3)] == ["a", "b", None]
    assert len(schedule) == 0
