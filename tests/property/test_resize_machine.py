"""Resizes under kills between writes, lost answers, stale views, evictions and a flapping size.

`World` asserts with every write that what is held changes by exactly what the write is about, that
no more is granted than is held, and that quota is never given twice; `converge`, that the family
ends at the size of the job, whatever happened before.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.property.resize_world import PLAIN, TAS, World

PICK = st.integers(0, 9)
SIZE = st.integers(0, 5)
PODSET = st.sampled_from([TAS, PLAIN])
WRITES = st.sampled_from([0, 1, 2, 3, 1000])


class SlicesModel(RuleBasedStateMachine):
    """Shrinks a breach to a short story."""

    @initialize(first=SIZE, second=SIZE)
    def start(self, first: int, second: int) -> None:
        self.world = World({TAS: 2 * first, PLAIN: second})

    @rule(podset=PODSET, replicas=SIZE)
    def scale(self, podset: str, replicas: int) -> None:
        self.world.scale(podset, replicas)

    @rule(podset=PODSET, sizes=st.lists(SIZE, min_size=2, max_size=4), writes=WRITES)
    def flap(self, podset: str, sizes: list[int], writes: int) -> None:
        for size in sizes:
            self.world.scale(podset, size)
            self.world.deliver(1)
            self.world.look(writes)

    @rule(count=st.sampled_from([1, 2, 5, 10_000]))
    def deliver(self, count: int) -> None:
        self.world.deliver(count)

    @rule(writes=WRITES)
    def look_and_die(self, writes: int) -> None:
        self.world.look(writes)

    @rule()
    def look_twice_at_the_same(self) -> None:
        self.world.look()
        self.world.look()

    @rule(pick=PICK, rack=st.integers(0, 2), times=st.integers(1, 4))
    def admit(self, pick: int, rack: int, times: int) -> None:
        for _ in range(times):
            self.world.admit(pick, rack)

    @rule(pods=st.integers(0, 24))
    def compete(self, pods: int) -> None:
        self.world.compete(pods)

    @rule(pick=PICK)
    def evict_slice(self, pick: int) -> None:
        self.world.evict_slice(pick)

    @rule(pick=PICK)
    def remove_slice(self, pick: int) -> None:
        self.world.remove_slice(pick)

    @rule()
    def evict(self) -> None:
        self.world.evict()

    @rule()
    def stop(self) -> None:
        self.world.stop()

    @rule()
    def admit_anew(self) -> None:
        self.world.admit_anew()

    @rule(behind=st.integers(0, 5), made=st.booleans())
    def pods(self, behind: int, made: bool) -> None:
        if made:
            self.world.make_pods()
        self.world.ungate(behind)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.converge()


@pytest.mark.requirement("SLC-15", "SLC-19", "SLC-20", "SLC-21", "SLC-23", "SLC-27", "SLC-35")
@pytest.mark.field_note("E1", "E2", "E7", "E8", "E15", "E17")
class TestSlices(SlicesModel.TestCase):  # type: ignore[misc, valid-type]  # made at run time
    """All stories end well."""

    settings = settings(
        max_examples=120,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
