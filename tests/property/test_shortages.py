"""Results and nominations that are used again, because what they read is still the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rackgate_assigner.quota.state import QuotaState
from rackgate_assigner.quota_scenario.scenario import PendingQueues, build_state
from rackgate_assigner.scheduler import quota_cycle, scheduling_cycles
from rackgate_assigner.scheduler.nomination.kept_nominations import KeptNominations
from rackgate_assigner.scheduler.nomination.nominate_head import nominate_head
from rackgate_assigner.scheduler.nomination.nomination import Nomination, PendingWorkload
from rackgate_assigner.scheduler.quota_cycle import HeadRequeue, HeadResult, run_cycle
from tests.property.kept_world import KeptWorld
from tests.property.test_quota_cycle import SETS, scenarios

STEPS = 50
CHANGES = 6
seeds = st.integers(min_value=0, max_value=2**32)


def by_key(results: Iterable[HeadResult]) -> dict[str, HeadResult]:
    return {one.head.key: one for one in results}


def change(state: QuotaState, rng: Random) -> None:
    """One that runs is gone, or runs in another ClusterQueue or with another priority."""
    before = state.remove(rng.choice(sorted(one.key for one in state.running)))
    match rng.choice("mmp-"):
        case "m":
            state.add(replace(before, cluster_queue=rng.choice(sorted(state.queues))))
        case "p":
            state.add(replace(before, priority=rng.randint(-2, 2)))
        case _:
            pass


@pytest.mark.requirement("STR-07")
@pytest.mark.parametrize("name", SETS)
def test_a_head_gets_the_same_whether_or_not_an_earlier_result_is_known(name: str) -> None:
    """In the data of Kueue: each head alone first, then all in one cycle, after each change."""
    rng, known_results = Random(name), 0
    for scenario in scenarios(name):
        state = build_state(scenario)
        state.always_asks_empty = False
        heads = PendingQueues(scenario, state).heads()
        alone = (one for head in heads for one in run_cycle(state, [head], {}))
        known = {
            one.head.key: one for one in alone if isinstance(one, HeadRequeue) and one.shortage
        }
        known_results += len(known)
        for _ in range(CHANGES if known else 0):
            again = run_cycle(state, heads, {}, known=known)
            assert by_key(again) == by_key(run_cycle(state, heads, {})), scenario.id
            if any(True for _ in state.running):
                change(state, rng)
    assert known_results > 40


@dataclass
class Comparing:
    """Runs each cycle three times: without anything, with the known results, and all that is kept.

    Attributes:
        used_again: heads that got a known result.
        kept: nominations that were not made again.
    """

    nominated: int = 0
    used_again: int = 0
    kept: int = 0

    def run(
        self,
        state: QuotaState,
        heads: Iterable[PendingWorkload],
        namespaces: Mapping[str, Mapping[str, str]],
        first: AbstractSet[str] = frozenset(),
        known: Mapping[str, HeadRequeue] = {},
        *,
        kept: KeptNominations | None = None,
    ) -> list[HeadResult]:
        heads = list(heads)
        without = run_cycle(state, heads, namespaces, first)
        self.nominated = 0
        with patch.object(quota_cycle, "nominate_head", self._nominate):
            found = run_cycle(state, heads, namespaces, first, known)
            nominated, self.nominated = self.nominated, 0
            with_kept = run_cycle(state, heads, namespaces, first, known, kept=kept)
        assert by_key(found) == by_key(without) == by_key(with_kept)
        self.used_again += max(0, len(heads) - nominated)
        self.kept += nominated - self.nominated
        return with_kept

    def _nominate(
        self, state: QuotaState, head: PendingWorkload, only: Nomination | None = None
    ) -> Nomination:
        self.nominated += only is None
        return nominate_head(state, head, only)


def compared(seed: int) -> Comparing:
    world, comparing = KeptWorld(seed), Comparing()
    with patch.object(scheduling_cycles, "run_cycle", comparing.run):
        for _ in range(STEPS):
            world.step()
    return comparing


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_a_result_that_is_used_again_is_what_another_nomination_would_give(seed: int) -> None:
    compared(seed)


def test_results_and_nominations_are_used_again() -> None:
    found = [compared(seed) for seed in range(10)]
    assert sum(one.used_again for one in found) > 50
    assert sum(one.kept for one in found) > 50
