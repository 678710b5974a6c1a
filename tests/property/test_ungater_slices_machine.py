"""The ungater's machine under slices that come, are admitted, evicted, merged, pruned and go.

`SlicesWorld` asserts that a machine grants what the server did at that point of its history, and
that no request goes out beyond what is granted at that moment; `settle`, that all of it is
released in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, rule

from tests.property.ungater_replicas import CHANGES, COUNTS, LEAPS, PASSED, PICK, ReplicasModel
from tests.property.ungater_slices_world import SlicesWorld
from tests.property.ungater_world import ANSWERS

STEPS = ("add", "admit", "admit", "fold", "fold", "vanish", "evict", "delete")


class SlicesModel(ReplicasModel):
    """Shrinks a breach to a short story."""

    world: SlicesWorld

    @initialize(counts=COUNTS, topology=st.booleans())
    def start(self, counts: list[int], topology: bool) -> None:
        self.world = SlicesWorld(counts, topology=topology)

    @rule(steps=st.lists(st.tuples(PICK, st.sampled_from(STEPS)), min_size=1, max_size=4))
    def slices(self, steps: list[tuple[int, str]]) -> None:
        for pick, what in steps:
            self.world.slice_event(pick, what)

    @rule()
    def prune(self) -> None:
        self.world.prune()

    @rule(pick=PICK)
    def shrink(self, pick: int) -> None:
        self.world.shrink(pick)

    @rule(counts=COUNTS)
    def evict_and_admit(self, counts: list[int]) -> None:
        self.world.evict()
        self.world.admit(counts)

    @rule(count=st.sampled_from([1, 2, 3, 100]), to=st.sampled_from([0, 0, 1]))
    def tell_workloads(self, count: int, to: int) -> None:
        self.world.tell_workloads(count, to=to)

    @rule(count=st.sampled_from([1, 2, 5, 100]), to=st.sampled_from([0, 0, 1]))
    def deliver_pods(self, count: int, to: int) -> None:
        self.world.deliver_pods(count, to=to)

    @rule(of_pods=st.booleans())
    def relist(self, of_pods: bool) -> None:
        if of_pods:
            self.world.relist()
        else:
            self.world.relist_workloads()


@pytest.mark.requirement("SLC-14", "SLC-15", "SLC-17", "SLC-35", "UNG-20")
@pytest.mark.field_note("E1", "E2", "E7")
class TestSlices(SlicesModel.TestCase):  # type: ignore[misc, valid-type]  # made at run time
    settings = settings(
        max_examples=40,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def deeds(world: SlicesWorld, rng: random.Random) -> dict[Callable[[], object], int]:
    """Everything that can happen, with weights that keep slices and requests in the air."""

    def answers() -> None:
        for _ in range(rng.randrange(1, 7)):
            world.answer(rng.choice((*ANSWERS, "ok", "ok", "ok")))

    def readmit() -> None:
        world.evict()
        world.deliver_pods(rng.choice((0, 2, 100)))
        world.admit(rng.choices((0, 1, 1, 2), k=4))

    def half() -> bool:
        return rng.random() < 0.5

    return {
        lambda: world.look(rng.choice(PASSED), reads_work=rng.random() < 0.8): 30,
        answers: 25,
        lambda: world.slice_event(rng.randrange(30), rng.choice(STEPS)): 25,
        lambda: world.create(odd=rng.random() < 0.2): 14,
        lambda: world.deliver_pods(rng.choice((1, 2, 5, 100))): 14,
        lambda: world.tell_workloads(rng.choice((1, 2, 3, 100))): 18,
        lambda: world.tell_workloads(rng.choice((1, 3, 100)), to=1): 4,
        lambda: world.change_pod(rng.randrange(100), rng.choice(CHANGES)): 8,
        lambda: world.shrink(rng.randrange(30)): 4,
        world.prune: 4,
        lambda: world.arrive(rng.randrange(100)): 8,
        lambda: world.deliver_pods(rng.choice((1, 5, 100)), to=1): 3,
        lambda: world.replay(rng.randrange(1, 40), rng.randrange(1, 10)): 2,
        lambda: world.leap(rng.choice(LEAPS), noticed=rng.random() < 0.7): 1,
        world.relist: 1,
        world.relist_workloads: 1,
        readmit: 1,
        world.give_over: 2,
        lambda: world.lose(applied=half()): 1,
        lambda: world.kill(applied=half(), lag=rng.randrange(20)): 1,
    }


@pytest.mark.requirement("SLC-14", "SLC-15", "SLC-17", "SLC-35", "SLC-36", "UNG-20")
@pytest.mark.field_note("E1", "E2", "E5")
@pytest.mark.parametrize("topology", [False, True])
def test_long_resizes_never_exceed_an_admission_and_release_all_of_it_in_the_end(
    topology: bool,
) -> None:
    for seed in range(80):
        rng = random.Random(seed)
        world = SlicesWorld(rng.choices((0, 1, 1, 2), k=4), topology=topology)
        choices = deeds(world, rng)
        for step, deed in enumerate(rng.choices(list(choices), list(choices.values()), k=150)):
            try:
                deed()
                world.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {step}: {error}") from error
        world.settle()
