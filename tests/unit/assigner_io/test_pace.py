"""How often a Workload is told why it waits."""

from __future__ import annotations

import pytest

from rackgate_assigner.pace import Pace


@pytest.mark.requirement("OPS-11")
def test_new_words_for_the_same_reason_wait_until_the_last_ones_are_old() -> None:
    pace = Pace(3.0)
    assert pace.wait_s("a", "Pending", 100.0) == 0
    pace.told("a", "Pending", 100.0)
    assert pace.wait_s("a", "Pending", 101.0) == pytest.approx(2.0)
    assert pace.wait_s("a", "Pending", 103.0) == 0
    assert pace.wait_s("b", "Pending", 101.0) == 0


def test_another_reason_is_told_at_once() -> None:
    pace = Pace(3.0)
    pace.told("a", "Pending", 100.0)
    assert pace.wait_s("a", "Misconfigured", 100.0) == 0


def test_what_is_forgotten_is_new() -> None:
    pace = Pace(3.0)
    pace.told("a", "Pending", 100.0)
    pace.forget("a")
    assert pace.wait_s("a", "Pending", 100.0) == 0
