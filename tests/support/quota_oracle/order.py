"""Whose turn it is in a cycle (section 13)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.quota_oracle.fair import Share, share
from tests.support.quota_oracle.plan import Head, Plan
from tests.support.quota_oracle.tree import Held, Node, State, sub
from tests.support.quota_oracle.world import World


@dataclass(eq=False)
class Entry:
    """A head and its first plan."""

    head: Head
    plan: Plan


def in_turn(world: World, entries: list[Entry], present: list[State]) -> Iterator[Entry]:
    """The entries in order; the last of `present` is the state when the next one is chosen."""
    if not world.fair:
        yield from sorted(entries, key=lambda e: (e.plan.level, -e.head.priority, e.head.age))
        return
    left = list(entries)
    while left:
        entry = _winner(left[0].head.queue.root, left, present[-1])
        assert entry is not None
        left.remove(entry)
        yield entry


def _winner(node: Node, entries: list[Entry], state: State) -> Entry | None:
    if node.spec is not None:
        return next((entry for entry in entries if entry.head.queue is node), None)
    contenders = []
    for child in node.children:
        entry = _winner(child, entries, state)
        if entry is not None:
            contenders.append((_judged(child, entry, state), entry))
    return min(contenders, key=lambda pair: pair[0])[1] if contenders else None


def _judged(node: Node, entry: Entry, state: State) -> tuple[bool, Share, int, float]:
    usage = entry.plan.usage
    after = state.plus(Held(f"+{entry.head.key}", entry.head.queue, usage))
    borrows = any(after.usage(node, fr) > sub(node, fr) for fr, v in usage.items() if v > 0)
    return borrows, share(after, node), -entry.head.priority, entry.head.age
