"""What befalls two replicas of the ungater, whatever they work on: rules of the state machines."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.property.ungater_world import ANSWERS, World

COUNTS = st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any)
PASSED = (0.0, 0.5, 2.0, 11.0, 40.0)
CHANGES = ("end", "terminate", "remove", "touch")
LEAPS = (0.1, 5.0, 61.0, 3600.0)
PICK = st.integers(0, 30)


class ReplicasModel(RuleBasedStateMachine):
    """Pods that come and change, requests and what becomes of them, kills, leases, clocks."""

    world: World

    @rule(count=st.integers(1, 4), odd=st.booleans(), seen=st.booleans())
    def create(self, count: int, odd: bool, seen: bool) -> None:
        for _ in range(count):
            self.world.create(odd=odd)
        if seen:
            self.world.deliver_pods(100)

    @rule(pick=PICK, how=st.sampled_from(CHANGES))
    def change_pod(self, pick: int, how: str) -> None:
        self.world.change_pod(pick, how)

    @rule(back=st.integers(1, 40), count=st.integers(1, 10))
    def replay(self, back: int, count: int) -> None:
        self.world.replay(back, count)

    @rule(seconds=st.sampled_from(LEAPS), noticed=st.booleans())
    def leap(self, seconds: float, noticed: bool) -> None:
        self.world.leap(seconds, noticed=noticed)

    @rule(passed=st.sampled_from(PASSED), reads_work=st.booleans())
    def look(self, passed: float, reads_work: bool) -> None:
        self.world.look(passed, reads_work=reads_work)

    @precondition(lambda self: self.world.sent)
    @rule(how=st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=6))
    def answer(self, how: list[str]) -> None:
        for kind in how:
            self.world.answer(kind)

    @precondition(lambda self: self.world.delayed)
    @rule(pick=PICK)
    def arrive(self, pick: int) -> None:
        self.world.arrive(pick)

    @rule(applied=st.booleans(), lag=st.integers(0, 12))
    def kill(self, applied: bool, lag: int) -> None:
        self.world.kill(applied=applied, lag=lag)

    @rule()
    def give_over(self) -> None:
        self.world.give_over()

    @rule(applied=st.booleans())
    def lose_the_lease(self, applied: bool) -> None:
        self.world.lose(applied=applied)

    @invariant()
    def every_machine_agrees_with_itself(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
