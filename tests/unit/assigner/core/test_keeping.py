"""Values kept with what changed since: bounded, and never out of date without saying so."""

from __future__ import annotations

from rackgate_assigner.topology.kept import CHANGES_LIMIT, KEPT_LIMIT, Kept


def changed(kept: Kept[str], key: str) -> list[int] | None:
    found = kept.take(key)
    if found is None:
        return None
    kept.put(key, found[0])
    return [int(leaf) for leaf in found[1]]


def test_a_value_comes_with_what_changed_since_it_was_taken_each_leaf_once_and_in_order() -> None:
    kept: Kept[str] = Kept()
    kept.put("a", "A")
    kept.note([5, 3])
    kept.put("b", "B")
    kept.note([3, 4])
    assert changed(kept, "a") == [3, 4, 5]
    assert changed(kept, "a") == []
    assert changed(kept, "b") == [3, 4]
    assert changed(kept, "never put") is None


def test_what_is_not_put_back_is_not_kept() -> None:
    kept: Kept[str] = Kept()
    kept.put("a", "A")
    kept.note([1])
    assert kept.take("a") is not None
    assert kept.take("a") is None


def test_the_value_used_least_lately_goes_first() -> None:
    kept: Kept[str] = Kept()
    for number in range(KEPT_LIMIT):
        kept.put(str(number), "")
    assert changed(kept, "0") == []
    kept.put("one more", "")
    assert len(kept) == KEPT_LIMIT
    assert changed(kept, "1") is None
    assert changed(kept, "0") == []


def test_changes_are_bounded_and_who_lags_behind_is_forgotten() -> None:
    kept: Kept[str] = Kept()
    kept.put("old", "")
    for leaf in range(CHANGES_LIMIT - 10):
        kept.note([leaf])
    kept.put("new", "")
    kept.note(range(20))
    assert changed(kept, "old") is None
    assert changed(kept, "new") == list(range(20))


def test_nothing_is_noted_while_nothing_is_kept() -> None:
    kept: Kept[str] = Kept()
    kept.note([1, 2])
    kept.put("a", "A")
    assert changed(kept, "a") == []
    kept.forget()
    assert changed(kept, "a") is None
