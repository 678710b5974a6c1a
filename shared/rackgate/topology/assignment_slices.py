"""Cut a list of topology domains into slices that take the fewest bytes of JSON.

A slice stores the common prefix and suffix of its values per level once, so a cut saves bytes where
the neighbors on one side share more than those on both.

Phases: `cut_candidates` finds the positions where a cut may save more than it costs;
`find_cheapest_slices` is a shortest path over them, with at most `_MAX_STATES` open slices;
`merge_down_to` merges neighbors if there are too many slices. The order of domains never changes.
Time is about linear in the number of domains for names of machines, as few cuts are candidates.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

# Common prefix of equal values: longer than any value.
EQUAL: Final = 1000
# Lengths of the constant JSON, including commas.
_SLICE: Final = len('{"domainCount":,"valuesPerLevel":[],"podCounts":},') - 1
_UNIVERSAL: Final = len('{"universal":""},')
_INDIVIDUAL: Final = len('{"individual":{"roots":[]}},') - 1
_ROOT: Final = len('"",')
_END: Final = len('"prefix":"",')
_COUNT: Final = len('{"universal":}')
_COUNTS: Final = len('{"individual":[]}') - 1
# Bytes that a cut must save on one side: less than half of the cost of a slice.
_MIN_SAVING: Final = 40
# One character is one digit of 32 bits.
_CODEC: Final = "utf-32-be"
_BITS: Final = 32
# Open slices per position. Names of machines need fewer than ten; hostile names any number.
_MAX_STATES: Final = 24

# For a run of domains, by level: common prefix, common suffix, shortest value; finally 1 if all pod
# counts are equal, else 0. The values of a merged run are the minimum of each.
Shared: TypeAlias = tuple[int, ...]


def common_prefix(values: Sequence[str]) -> str:
    """Longest common prefix: that of the first and the last value in alphabetical order."""
    low, high = min(values), max(values)
    length = next(
        (i for i, (left, right) in enumerate(zip(low, high, strict=False)) if left != right),
        min(len(low), len(high)),
    )
    return low[:length]


def slice_starts(
    columns: Sequence[Sequence[str]], counts: Sequence[int], *, max_slices: int, max_length: int
) -> list[int]:
    """Indexes at which slices start; the first is 0.

    Near the optimum: of open slices that share the same, only the cheapest is followed, and
    positions where a cut is unlikely to save bytes are skipped.

    Args:
        columns: shape (levels, domains): label values.
        counts: shape (domains,): pods.
        max_slices: maximum number of slices.
        max_length: maximum number of domains in a slice.
    """
    costs = _SliceCosts(columns, counts, max_length)
    found = costs.find_cheapest_slices()
    if len(found) > max_slices:
        found = costs.merge_down_to(found, max_slices)
    whole = costs.run(0, len(counts))
    if len(found) > max_slices or costs.cost(whole) <= sum(map(costs.cost, found)):
        return list(range(0, len(counts), max_length))
    return [part.start for part in found]


@dataclass(frozen=True, slots=True, order=True)
class _Run:
    """Neighboring domains `[start, stop)` and what they share."""

    start: int
    stop: int
    shared: Shared


@dataclass(frozen=True, slots=True)
class _State:
    """An open slice, and the bytes of all slices before it."""

    run: _Run
    before: int


class _SliceCosts:
    """Measures slices of one list of domains."""

    def __init__(
        self, columns: Sequence[Sequence[str]], counts: Sequence[int], max_length: int
    ) -> None:
        self.width, self.size, self.max_length = len(columns), len(counts), max_length
        lengths = [list(map(len, column)) for column in columns]
        texts = [len(str(count)) for count in counts]
        # What each domain shares with the previous one.
        self.shared: list[list[int]] = []
        for column, row_lengths in zip(columns, lengths, strict=True):
            self.shared += [*_common_ends(column), row_lengths]
        self.shared.append([0, *(int(left == right) for left, right in pairwise(counts))])
        self.texts = texts
        self.length_sums = [list(accumulate(row_lengths, initial=0)) for row_lengths in lengths]
        self.text_sums = list(accumulate(texts, initial=0))

    def cut_candidates(self) -> list[int]:
        """Where a cut may pay, with both ends."""
        found = set(range(0, self.size, self.max_length))
        for index, row in enumerate(self.shared):
            if index % 3 == 2 and index < 3 * self.width:
                continue  # shortest values: they only limit prefix and suffix
            top = max(self.texts) + 1 if index == 3 * self.width else _ROOT + 63
            found |= _worthwhile_cuts(row, top)
        return [*sorted(found), self.size]

    def run(self, start: int, stop: int) -> _Run:
        """The run of domains `[start, stop)`."""
        shared = [min(row[start + 1 : stop], default=EQUAL) for row in self.shared]
        for level in range(self.width):
            index = 3 * level + 2
            shared[index] = min(shared[index], self.shared[index][start])
        return _Run(start, stop, tuple(shared))

    def merge(self, left: _Run, right: _Run) -> _Run:
        """Two neighboring runs as one."""
        between = [row[right.start] for row in self.shared]
        return _Run(left.start, right.stop, tuple(map(min, left.shared, between, right.shared)))

    def cost(self, run: _Run) -> int:
        """Bytes of the run as a slice; more than any list if it is too long for one."""
        count = run.stop - run.start
        if count > self.max_length:
            return 1 << 60
        total = _SLICE + len(str(count))
        for level, sums in enumerate(self.length_sums):
            prefix, suffix, shortest = run.shared[3 * level : 3 * level + 3]
            if prefix >= EQUAL:
                total += _UNIVERSAL + shortest
                continue
            suffix = min(suffix, shortest - prefix)
            ends = prefix + suffix
            total += _INDIVIDUAL + _END * ((prefix > 0) + (suffix > 0)) + ends
            total += sums[run.stop] - sums[run.start] + count * (_ROOT - ends)
        if run.shared[-1]:
            return total + _COUNT + self.texts[run.start]
        return total + _COUNTS + self.text_sums[run.stop] - self.text_sums[run.start] + count

    def find_cheapest_slices(self) -> list[_Run]:
        """The cheapest slices found."""
        cut_candidates = self.cut_candidates()
        states: list[_State] = []
        best = [0]
        last_runs: list[_Run] = []
        for start, stop in pairwise(cut_candidates):
            atom = self.run(start, stop)
            states = self._extend(states, atom, best[-1])
            costs_by_state = [state.before + self.cost(state.run) for state in states]
            lowest = min(costs_by_state)
            best.append(lowest)
            last_runs.append(states[costs_by_state.index(lowest)].run)
            if len(states) > _MAX_STATES:
                del states[costs_by_state.index(max(costs_by_state))]
        found: list[_Run] = []
        index = len(last_runs)
        while index:
            found.append(last_runs[index - 1])
            index = bisect_left(cut_candidates, found[-1].start)
        return found[::-1]

    def _extend(self, states: Iterable[_State], atom: _Run, before: int) -> list[_State]:
        """The open slices extended by one atom, and a new one that starts with it."""
        found: list[_State] = []
        for state in states:
            extended = _State(self.merge(state.run, atom), state.before)
            if found and found[-1].run.shared == extended.run.shared:
                # From here on both share the same, so only the cheaper one is kept.
                candidates = (found.pop(), extended)
                extended = min(candidates, key=lambda one: one.before + self.cost(one.run))
            found.append(extended)
        return [*found, _State(atom, before)]

    def merge_down_to(self, parts: Sequence[_Run], max_slices: int) -> list[_Run]:
        """At most `max_slices` slices: neighbors are merged where that costs least."""
        alive: dict[int, _Run] = {part.start: part for part in parts}
        before = {right.start: left.start for left, right in pairwise(parts)}
        heap = [self._merge_cost(left, right) for left, right in pairwise(parts)]
        heapq.heapify(heap)
        while heap and len(alive) > max_slices:
            cost, left, right = heapq.heappop(heap)
            fresh = alive.get(left.start) == left and alive.get(right.start) == right
            if not fresh or cost >= 1 << 59:
                continue
            del alive[right.start]
            merge = alive[left.start] = self.merge(left, right)
            previous, following = before.get(left.start), alive.get(merge.stop)
            if previous is not None:
                heapq.heappush(heap, self._merge_cost(alive[previous], merge))
            if following is not None:
                before[following.start] = merge.start
                heapq.heappush(heap, self._merge_cost(merge, following))
        return [alive[start] for start in sorted(alive)]

    def _merge_cost(self, left: _Run, right: _Run) -> tuple[int, _Run, _Run]:
        cost = self.cost(self.merge(left, right)) - self.cost(left) - self.cost(right)
        return cost, left, right


def _common_ends(column: Sequence[str]) -> tuple[list[int], list[int]]:
    """Lengths of the common prefix and suffix of each value with the previous one.

    Values are compared as integers whose digits are their characters, after the prefix and suffix
    common to all of them is removed.
    """
    head = common_prefix(column)
    middles = [value[len(head) :] for value in column]
    tail = common_prefix([rest[::-1] for rest in middles])
    middles = [rest[: len(rest) - len(tail)] for rest in middles]
    width = max(map(len, middles))
    if not width:
        return [0] + [EQUAL] * (len(middles) - 1), [0] * len(middles)
    left = _numbers(middles, width, str.ljust)
    right = left if min(map(len, middles)) == width else _numbers(middles, width, str.rjust)
    prefixes, suffixes = [0], [0]
    most, least = len(head) + width, len(tail)
    for one, other in pairwise(left):
        differing = (one ^ other).bit_length()
        prefixes.append(most - (differing + _BITS - 1) // _BITS if differing else EQUAL)
    for one, other in pairwise(right):
        differing = one ^ other
        equal = (differing & -differing).bit_length() - 1 if differing else 0
        suffixes.append(least + equal // _BITS if differing else EQUAL)
    return prefixes, suffixes


def _numbers(texts: Sequence[str], width: int, align: Callable[[str, int, str], str]) -> list[int]:
    """Each text as an integer of `width` digits, one for each character."""
    # A label value does not contain the padding; if it did, only another cut would be chosen.
    encoded = "".join([align(text, width, "\0") for text in texts]).encode(_CODEC, "surrogatepass")
    step = width * _BITS // 8
    return [int.from_bytes(encoded[at : at + step], "big") for at in range(0, len(encoded), step)]


def _worthwhile_cuts(row: Sequence[int], top: int) -> set[int]:
    """Positions that are lower than a run of neighbors, by more in total than a cut must save.

    Args:
        row: shape (domains,): what each domain shares with the previous one.
        top: maximum bytes that a domain can save.
    """
    found: set[int] = set()
    if len(set(row[1:])) < 2:
        return found
    # Position, its value, and the highest value between it and the lower position before it.
    waiting: list[tuple[int, int, int]] = []
    for place in range(1, len(row)):
        value = row[place]
        high = below = 0
        while waiting and waiting[-1][1] > value:
            other, level, before = waiting.pop()
            if (min(high, top) - level) * (place - other) > _MIN_SAVING:
                found.add(other)
            high = max(high, level, before)
        first = waiting[-1][0] if waiting else 0
        if waiting and waiting[-1][1] == value:
            _, _, before = waiting.pop()
            below = max(high, before)
            if (min(high, top) - value) * (place - first) > _MIN_SAVING:
                found.add(first)
        if (min(high, top) - value) * (place - first) > _MIN_SAVING:
            found.add(place)
        waiting.append((place, value, max(high, below)))
    high = 0
    while waiting:
        other, level, before = waiting.pop()
        if (min(high, top) - level) * (len(row) - other) > _MIN_SAVING:
            found.add(other)
        high = max(high, level, before)
    return found
