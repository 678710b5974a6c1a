"""What both ways to preempt share (sections 8 and 10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from tests.support.quota_oracle.placing import fits_nodes
from tests.support.quota_oracle.plan import Head, PodSetPlan, Victim
from tests.support.quota_oracle.tree import Fr, Held, Json, Node, State
from tests.support.quota_oracle.world import World, age_of, condition, priority_of, uid_of


@dataclass(frozen=True)
class Question:
    """Who leaves so that the request fits, and `podsets` find nodes; `need` is what is short."""

    world: World
    state: State
    head: Head
    request: Mapping[Fr, int]
    need: Set[Fr]
    podsets: tuple[PodSetPlan, ...] = ()

    def fits(self, state: State, borrowing: bool = True) -> bool:
        queue = self.head.queue
        for fr, amount in self.request.items():
            if amount > state.available(queue, fr):
                return False
            if not borrowing and state.borrows(queue, fr, amount):
                return False
        return not self.podsets or fits_nodes(self.world, state, self.podsets)

    def qualified(self, queue: Node, policy: str) -> list[Held]:
        """Running workloads of a queue that use something needed and that the policy lets go."""
        if queue.stopped:
            return []
        return [
            held
            for held in self.state.held
            if held.queue is queue
            and held.workload is not None
            and any(fr in held.usage for fr in self.need)
            and self._allowed(held.workload, policy)
        ]

    def _allowed(self, workload: Json, policy: str) -> bool:
        if policy in ("Any", "Never"):
            return policy == "Any"
        if priority_of(workload) < self.head.priority:
            return True
        equal = priority_of(workload) == self.head.priority
        newer = age_of(workload) > self.head.age
        return policy == "LowerOrNewerEqualPriority" and equal and newer


def is_evicted(held: Held) -> bool:
    return held.workload is not None and condition(held.workload, "Evicted") is not None


def order_of(held: Held) -> tuple[int, float, str]:
    """The order within a list, of those that are equally evicted."""
    assert held.workload is not None
    return priority_of(held.workload), -float(held.workload["reservedAt"]), uid_of(held.workload)


def keys(victims: list[Victim]) -> set[str]:
    return {victim.held.key for victim in victims}


def put_back(state: State, victims: list[Victim], fits: Callable[[State], bool]) -> list[Victim]:
    """Spare whom the head fits with, from the last but one to the first.

    `state` still has all of them.
    """
    left = list(victims)
    for at in range(len(left) - 2, -1, -1):
        if fits(state.without(keys(left[:at] + left[at + 1 :]))):
            left[at] = left[-1]
            left.pop()
    return left
