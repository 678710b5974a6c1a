"""Over any membership: one should hold each shard, and changes move only what they must.

A story of replicas that come, go, stall and see different members, with the Leases as the only
truth, ends with each shard held by the one that should.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from rackgate_ungater.shards.handover import SHARDS, HandoverPolicy, HandoverTimings, ranking

MEMBERS = st.sets(st.text(st.characters(codec="ascii"), min_size=1, max_size=12), max_size=8)
SOME = MEMBERS.filter(bool)
TIMINGS = HandoverTimings.of(15.0)
STEP_S = 0.5


@pytest.mark.requirement("UNG-15")
@settings(max_examples=100)
@given(members=SOME)
def test_every_replica_ranks_the_same_members_alike(members: set[str]) -> None:
    for shard in range(SHARDS):
        ranked = ranking(shard, members)
        assert set(ranked) == members
        assert ranked == ranking(shard, sorted(members))
        assert ranked == ranking(shard, sorted(members, reverse=True))


@settings(max_examples=100)
@given(members=SOME, new=st.text(min_size=1, max_size=12))
def test_a_newcomer_takes_shards_and_moves_no_other(members: set[str], new: str) -> None:
    for shard in range(SHARDS):
        before, after = ranking(shard, members)[0], ranking(shard, members | {new})[0]
        assert after in (before, new)


@settings(max_examples=100)
@given(members=SOME, data=st.data())
def test_who_leaves_gives_away_only_its_own_shards(members: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(members)))
    for shard in range(SHARDS):
        before = ranking(shard, members)
        after = ranking(shard, members - {gone})
        assert after == [member for member in before if member != gone]


@settings(max_examples=100)
@given(members=SOME, doubtful=MEMBERS, data=st.data())
def test_who_is_first_takes_at_once_and_yields_to_no_one(
    members: set[str], doubtful: set[str], data: st.DataObject
) -> None:
    for shard in range(SHARDS):
        first, *others = ranking(shard, members)
        assert HandoverPolicy(first, TIMINGS).acquire_at(shard, 7.0, members, 9.0) == 7.0
        assert HandoverPolicy(first, TIMINGS).hand_over_at(shard, members, 9.0) is None
        for place, other in enumerate(others, 1):
            policy = HandoverPolicy(other, TIMINGS)
            at = policy.acquire_at(shard, 7.0, members, 9.0)
            assert at == 9.0 + place * TIMINGS.grace_s
            assert policy.hand_over_at(shard, members, 9.0) == 9.0 + TIMINGS.stable_s


class Story:
    """Replicas and one shard; a view of the members for each of them."""

    def __init__(self, names: list[str], shard: int) -> None:
        self.shard, self.now = shard, 0.0
        self.policy = {name: HandoverPolicy(name, TIMINGS) for name in names}
        self.views = {name: {name} for name in names}
        self.stalled: set[str] = set()
        self.holder: str | None = None
        self.free_since = 0.0
        self.moves = 0

    def step(self) -> None:
        self.now += STEP_S
        for name, policy in self.policy.items():
            view = self.views[name]
            policy.holder_seen(self.shard, self.holder or "")
            if name in self.stalled:
                continue
            if self.holder == name:
                at = policy.hand_over_at(self.shard, view, self.now)
                if at is not None and self.now >= at:
                    self.holder, self.free_since = None, self.now
            elif self.holder is None:
                at = policy.acquire_at(self.shard, self.free_since, view, self.now)
                if self.now >= at:
                    policy.acquired(self.shard, view, self.now)
                    self.holder = name
                    self.moves += 1

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / STEP_S)):
            self.step()


NAMES = ["a", "b", "c", "d"]
VIEWS = st.fixed_dictionaries({name: st.sets(st.sampled_from(NAMES)) for name in NAMES})


@settings(max_examples=60)
@given(shard=st.integers(0, SHARDS - 1), views=st.lists(VIEWS, max_size=4))
def test_whatever_replicas_saw_in_the_end_the_right_one_holds_the_shard(
    shard: int, views: list[dict[str, set[str]]]
) -> None:
    story = Story(NAMES, shard)
    for seen in views:
        story.views = {name: others | {name} for name, others in seen.items()}
        story.run(20)
    story.views = {name: set(NAMES) for name in NAMES}
    # Doubts that wrong views have raised pass.
    story.run(TIMINGS.skip_max_s)
    assert story.holder == ranking(shard, NAMES)[0]
    moves = story.moves
    story.run(300)
    assert story.moves == moves, "and nothing moves any more"


@settings(max_examples=60)
@given(shard=st.integers(0, SHARDS - 1), views=VIEWS, stalled=st.sampled_from(NAMES))
def test_one_that_is_there_but_takes_nothing_leaves_no_shard_alone(
    shard: int, views: dict[str, set[str]], stalled: str
) -> None:
    story = Story(NAMES, shard)
    story.views = {name: others | {name} for name, others in views.items()}
    story.stalled = {stalled}
    story.run(len(NAMES) * TIMINGS.grace_s + 2 * STEP_S)
    assert story.holder not in (None, stalled)
    moves = story.moves
    story.run(600)
    # At most one hand-over for each time that a doubt passed, whoever had it.
    assert story.moves - moves <= 4 * len(NAMES)
