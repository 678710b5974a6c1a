from __future__ import annotations

from rackgate_assigner.assumed_writes import ASSUMED_FOR_S, AssumedCreations


def test_what_was_created_is_expected_until_it_is_seen() -> None:
    made = AssumedCreations[None]()
    assert made.wait_s("job", 5.0) == 0.0
    made.assume("job", 5.0)
    assert made.wait_s("job", 6.0) == ASSUMED_FOR_S - 1.0
    assert made.wait_s("another", 6.0) == 0.0
    made.forget("job")
    assert made.wait_s("job", 6.0) == 0.0
    assert len(made) == 0


def test_what_is_never_seen_is_expected_for_a_while() -> None:
    made = AssumedCreations[None]()
    made.assume("job", 5.0)
    assert made.wait_s("job", 5.0 + ASSUMED_FOR_S) == 0.0
    made.clear()
    assert len(made) == 0
