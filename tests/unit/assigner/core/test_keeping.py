"""Values cache with what changed since: bounded, and never out of date without saying so."""

from __future__ import annotations

from rackgate_assigner.topology.capacity import CACHE_SIZE, CHANGES_LIMIT, CapacityCache


def changed(cache: CapacityCache[str], key: str) -> list[int] | None:
    found = cache.pop(key)
    if found is None:
        return None
    cache.put(key, found[0])
    return [int(leaf) for leaf in found[1]]


def test_a_value_comes_with_what_changed_since_it_was_taken_each_leaf_once_and_in_order() -> None:
    cache: CapacityCache[str] = CapacityCache()
    cache.put("a", "A")
    cache.mark_changed([5, 3])
    cache.put("b", "B")
    cache.mark_changed([3, 4])
    assert changed(cache, "a") == [3, 4, 5]
    assert changed(cache, "a") == []
    assert changed(cache, "b") == [3, 4]
    assert changed(cache, "never put") is None


def test_what_is_not_put_back_is_not_kept() -> None:
    cache: CapacityCache[str] = CapacityCache()
    cache.put("a", "A")
    cache.mark_changed([1])
    assert cache.pop("a") is not None
    assert cache.pop("a") is None


def test_the_value_used_least_lately_goes_first() -> None:
    cache: CapacityCache[str] = CapacityCache()
    for number in range(CACHE_SIZE):
        cache.put(str(number), "")
    assert changed(cache, "0") == []
    cache.put("one more", "")
    assert len(cache) == CACHE_SIZE
    assert changed(cache, "1") is None
    assert changed(cache, "0") == []


def test_changes_are_bounded_and_who_lags_behind_is_forgotten() -> None:
    cache: CapacityCache[str] = CapacityCache()
    cache.put("old", "")
    for leaf in range(CHANGES_LIMIT - 10):
        cache.mark_changed([leaf])
    cache.put("new", "")
    cache.mark_changed(range(20))
    assert changed(cache, "old") is None
    assert changed(cache, "new") == list(range(20))


def test_nothing_is_noted_while_nothing_is_kept() -> None:
    cache: CapacityCache[str] = CapacityCache()
    cache.mark_changed([1, 2])
    cache.put("a", "A")
    assert changed(cache, "a") == []
    cache.clear()
    assert changed(cache, "a") is None
