from __future__ import annotations

from rackgate_assigner.rate_limits import Spacing


def writes(spacing: Spacing[str], until: float, *, start: float = 0.0) -> list[float]:
    """When a key is written that changes ten times a second."""
    found = []
    for tenth in range(round(start * 10), round(until * 10)):
        now = tenth / 10
        if spacing.wait_s("q", now) <= 0.001:
            spacing.written("q", now)
            found.append(now)
    return found


def test_the_first_change_is_written_at_once_and_others_further_and_further_apart() -> None:
    spacing: Spacing[str] = Spacing(0.5, 4.0)
    assert writes(spacing, 20.0) == [0.0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5, 19.5]


def test_a_key_that_was_quiet_starts_over() -> None:
    spacing: Spacing[str] = Spacing(0.5, 4.0)
    writes(spacing, 10.0)
    assert spacing.wait_s("q", 16.0) == 0.0
    spacing.written("q", 16.0)
    assert spacing.wait_s("q", 16.0) == 0.5


def test_keys_do_not_wait_for_each_other_and_are_forgotten() -> None:
    spacing: Spacing[str] = Spacing(0.5, 4.0)
    spacing.written("q", 0.0)
    assert spacing.wait_s("other", 0.0) == 0.0
    assert spacing.wait_s("q", 0.0) == 0.5
    spacing.forget("q")
    assert spacing.wait_s("q", 0.0) == 0.0
