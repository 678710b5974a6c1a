"""What befalls two replicas of the ungater, whatever they work on: rules of the state machines."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.property.ungater_world import ANSWERS, World

COUNTS = st.lists(st.sampled_from([0, 1, 1, 2]), min_size=4, max_size=4).filter(any)
PASSED = (0.0, 0.5, 2.0, 11.0, 40.0)
CHANGES = ("end", "terminate", "remove", "touch")
LEAPS = (0.1, 5.0, 61.0, 3600.0)
PICK = st.integers(0, 30)
ENDS = ("killed", "lost its lease", "handed over")
# One at a time these would be too rare: no place would ever be taken, and so none taken twice.
TRAFFIC = ("pod", "pod", "look", "look", "all ok", "all ok", "see one", "see all", "come first")
STEP = st.sampled_from((*TRAFFIC, "arrive", *ANSWERS))
STEPS = st.lists(STEP, min_size=5, max_size=40)


class ReplicasModel(RuleBasedStateMachine):
    """Pods that come and change, requests and what becomes of them, kills, leases, clocks."""

    world: World

    @rule(steps=STEPS, more=STEPS, late=st.booleans())
    def traffic(self, steps: list[str], more: list[str], late: bool) -> None:
        """Much of what happens all the time, and perhaps a pause before the rest of it."""
        for step in steps:
            self._step(step)
        if late:
            self.world.leap(61.0, noticed=True)
        for step in more:
            self._step(step)

    def _step(self, step: str) -> None:
        match step:
            case "pod":
                self.world.create(odd=False)
            case "look":
                self.world.look(0.5, reads_work=True)
            case "all ok":
                for _ in tuple(self.world.sent):
                    self.world.answer("ok")
            case "come first":  # and are seen, before anything is seen of requests on their way
                self.world.create(odd=False)
                unseen = len(self.world.server.pod_log) - self.world.active.pods_seen
                self._step("all ok")
                self.world.deliver_pods(unseen)
            case "see one":
                self.world.deliver_pods(1)
            case "see all":
                self.world.deliver_pods(100)
            case "arrive":
                self.world.arrive(0)
            case _:
                self.world.answer(step)

    @rule(
        steps=st.lists(STEP, max_size=40),
        what=st.sampled_from(ENDS),
        applied=st.booleans(),
        lag=st.integers(0, 12),
    )
    def the_next_one_acts(self, steps: list[str], what: str, applied: bool, lag: int) -> None:
        """In the middle of it one ends, and another one takes over, or comes after it."""
        for step in steps:
            self._step(step)
        if what == "killed":
            self.world.kill(applied=applied, lag=lag)
        elif what == "lost its lease":
            self.world.lose(applied=applied)
        else:
            self.world.give_over()

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

    @invariant()
    def every_machine_agrees_with_itself(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()
