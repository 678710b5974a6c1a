"""The ungater's machine under lost answers, late requests, refusals, kills and stale watches.

`World` asserts with every write that no domain and no PodSet gets more than it was granted, and
that foreign gates stay; `settle`, that everything that has a place is released in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule

from tests.property.ungater_replicas import CHANGES, COUNTS, LEAPS, PASSED, PICK, ReplicasModel
from tests.property.ungater_world import ANSWERS, World


class UngaterModel(ReplicasModel):
    """Shrinks a breach to a short story."""

    @initialize(counts=COUNTS, ranks=st.booleans())
    def start(self, counts: list[int], ranks: bool) -> None:
        self.world = World(counts, ranks=ranks)

    @rule(counts=COUNTS, seen=st.booleans())
    def evict_and_admit(self, counts: list[int], seen: bool) -> None:
        self.world.evict()
        if seen:
            self.world.deliver_workloads()
        self.world.admit(counts)

    @rule(pick=PICK)
    def swap_domain(self, pick: int) -> None:
        self.world.swap_domain(pick)

    @rule(count=st.sampled_from([1, 2, 5, 100]))
    def deliver_pods(self, count: int) -> None:
        self.world.deliver_pods(count)

    @rule()
    def deliver_workloads(self) -> None:
        self.world.deliver_workloads()

    @rule(count=st.sampled_from([1, 5, 100]))
    def deliver_to_standby(self, count: int) -> None:
        self.world.deliver_pods(count, to=1)
        self.world.deliver_workloads(to=1)

    @rule()
    def relist(self) -> None:
        self.world.relist()

    @rule(begins=st.booleans())
    def list_for_another_shard(self, begins: bool) -> None:
        if begins:
            self.world.begin_list()
        else:
            self.world.end_list()


@pytest.mark.requirement("UNG-10", "UNG-14", "UNG-15", "UNG-16", "UNG-18")
@pytest.mark.field_note("U1", "U2", "U15")
class TestUngater(UngaterModel.TestCase):  # type: ignore[misc, valid-type]  # made at run time
    settings = settings(
        max_examples=50,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def void(_: object) -> None:
    """Nobody asks whether it could be done."""


def deeds(world: World, rng: random.Random) -> dict[Callable[[], None], int]:
    """Everything that can happen, with weights that keep requests in the air."""

    def answers() -> None:
        for _ in range(rng.randrange(1, 7)):
            world.answer(rng.choice((*ANSWERS, "ok", "ok", "ok")))

    def readmit() -> None:
        world.evict()
        world.deliver_pods(rng.choice((0, 2, 100)))
        world.admit([*rng.choices((0, 1, 1, 2), k=3), 1])

    return {
        lambda: world.look(rng.choice(PASSED), reads_work=rng.random() < 0.8): 30,
        answers: 25,
        lambda: world.create(odd=rng.random() < 0.05): 14,
        lambda: world.deliver_pods(rng.choice((1, 2, 5, 100))): 14,
        lambda: world.change_pod(rng.randrange(100), rng.choice(CHANGES)): 8,
        lambda: world.arrive(rng.randrange(100)): 8,
        lambda: world.swap_domain(rng.randrange(4)): 2,
        world.deliver_workloads: 2,
        lambda: world.deliver_pods(rng.choice((1, 5, 100)), to=1): 3,
        lambda: world.replay(rng.randrange(1, 40), rng.randrange(1, 10)): 2,
        lambda: world.leap(rng.choice(LEAPS), noticed=rng.random() < 0.7): 1,
        world.relist: 1,
        world.begin_list: 2,
        world.end_list: 2,
        readmit: 1,
        lambda: void(world.give_over()): 2,
        lambda: world.lose(applied=rng.random() < 0.5): 1,
        lambda: world.kill(applied=rng.random() < 0.5, lag=rng.randrange(20)): 1,
    }


@pytest.mark.requirement("UNG-10", "UNG-11", "UNG-13", "UNG-14", "UNG-15", "UNG-16", "UNG-18")
@pytest.mark.field_note("U1", "U2", "U15")
@pytest.mark.parametrize("ranks", [False, True])
def test_long_histories_never_exceed_a_count_and_release_all_in_the_end(ranks: bool) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        world = World([*rng.choices((0, 1, 1, 2), k=3), 1], ranks=ranks)
        choices = deeds(world, rng)
        for step, deed in enumerate(rng.choices(list(choices), list(choices.values()), k=150)):
            try:
                deed()
                world.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error
        world.settle()
