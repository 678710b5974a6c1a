"""The ungater's machine with gangs, under all faults of `ReplicasModel`: no gang starts in part."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule

from tests.property.test_ungater_machine import deeds
from tests.property.ungater_gangs_world import GangWorld
from tests.property.ungater_replicas import COUNTS, PICK, ReplicasModel

LEAST = st.tuples(st.integers(1, 3), st.integers(1, 2))


class GangModel(ReplicasModel):
    """Shrinks a breach to a short story."""

    world: GangWorld

    @initialize(counts=COUNTS, least=LEAST, ranks=st.booleans(), late=st.booleans())
    def start(self, counts: list[int], least: tuple[int, int], ranks: bool, late: bool) -> None:
        self.world = GangWorld(counts, least, ranks=ranks)
        if not late:
            self.world.deliver_gangs()

    @rule(counts=COUNTS, seen=st.booleans())
    def evict_and_admit(self, counts: list[int], seen: bool) -> None:
        self.world.evict()
        if seen:
            self.world.deliver_workloads()
        self.world.admit(counts)

    @rule(least=st.none() | LEAST, seen=st.booleans())
    def change_gangs(self, least: tuple[int, int] | None, seen: bool) -> None:
        self.world.set_gangs(least)
        if seen:
            self.world.deliver_gangs()

    @rule()
    def deliver_gangs(self) -> None:
        self.world.deliver_gangs()

    @rule(pick=PICK)
    def swap_domain(self, pick: int) -> None:
        self.world.swap_domain(pick)

    @rule(count=st.sampled_from([1, 2, 5, 100]))
    def deliver_pods(self, count: int) -> None:
        self.world.deliver_pods(count)

    @rule()
    def deliver_workloads(self) -> None:
        self.world.deliver_workloads()

    @rule()
    def relist(self) -> None:
        self.world.relist()


@pytest.mark.requirement("GNG-10", "GNG-12")
class TestGangs(GangModel.TestCase):  # type: ignore[misc, valid-type]  # made at run time
    settings = settings(
        max_examples=50,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@pytest.mark.requirement("GNG-10", "GNG-12")
@pytest.mark.parametrize("ranks", [False, True])
def test_in_long_histories_no_gang_starts_in_part(ranks: bool) -> None:
    for seed in range(150):
        rng = random.Random(seed)
        least = rng.choice((1, 2, 3)), rng.choice((1, 2))
        world = GangWorld([*rng.choices((0, 1, 2, 2), k=3), 1], least, ranks=ranks)

        def change_gangs(world: GangWorld = world, rng: random.Random = rng) -> None:
            world.set_gangs(rng.choice((None, (1, 1), (2, 1), (3, 2), (2, 2))))

        choices = {**deeds(world, rng), change_gangs: 1, world.deliver_gangs: 4}
        for step, deed in enumerate(rng.choices(list(choices), list(choices.values()), k=150)):
            try:
                deed()
                world.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error
        if world.server.gangs is None:
            world.set_gangs(least)
        try:
            world.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, at the end: {error}") from error
