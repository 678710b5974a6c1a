from __future__ import annotations

from rackgate_assigner.own_writes import UNSEEN_S, OwnCreations


def test_what_was_created_is_expected_until_it_is_seen() -> None:
    made = OwnCreations()
    assert made.wait_s("job", 5.0) == 0.0
    made.expect("job", 5.0)
    assert made.wait_s("job", 6.0) == UNSEEN_S - 1.0
    assert made.wait_s("another", 6.0) == 0.0
    made.settle("job")
    assert made.wait_s("job", 6.0) == 0.0
    assert len(made) == 0


def test_what_is_never_seen_is_expected_for_a_while() -> None:
    made = OwnCreations()
    made.expect("job", 5.0)
    assert made.wait_s("job", 5.0 + UNSEEN_S) == 0.0
    made.clear()
    assert len(made) == 0
