from __future__ import annotations

import pytest

from rackgate_ungater.shards.handover import (
    ANNOTATION_PREFIX,
    SHARDS,
    HandoverPolicy,
    HandoverTimings,
    Members,
    annotation_value,
    lease_name,
    member_annotation,
    ranking,
    shard_of,
)

TIMINGS = HandoverTimings(grace_s=4.0, stable_s=2.0, skip_s=60.0, skip_max_s=960.0)
ME, OTHER, THIRD = "me", "other", "third"


def shard_led_by(first: str, *others: str) -> int:
    """A shard whose ranking begins with `first`."""
    members = [first, *others]
    return next(n for n in range(SHARDS) if ranking(n, members)[0] == first)


def shard_ranked(*members: str) -> int:
    return next(n for n in range(SHARDS) if ranking(n, members) == list(members))


@pytest.mark.requirement("UNG-15")
def test_the_shard_of_a_workload_never_changes() -> None:
    # Another answer would let two versions act on one Workload under different Leases.
    assert [shard_of(f"uid-{n}") for n in range(8)] == [2, 12, 9, 2, 15, 8, 15, 4]
    assert lease_name(3) == "rackgate-ungater-03"
    assert lease_name(15) == "rackgate-ungater-15"


def test_workloads_spread_over_all_shards() -> None:
    counts = [0] * SHARDS
    for number in range(1600):
        counts[shard_of(f"uid-{number}")] += 1
    assert min(counts) > 60


def test_the_first_takes_a_free_shard_at_once_and_others_wait_for_those_before_them() -> None:
    shard = shard_ranked(OTHER, THIRD, ME)
    policy = HandoverPolicy(ME, TIMINGS)
    members = {OTHER, THIRD, ME}
    assert policy.acquire_at(shard, 100.0, members, 90.0) == 100.0 + 2 * TIMINGS.grace_s
    assert policy.acquire_at(shard, 100.0, {THIRD, ME}, 91.0) == 100.0 + TIMINGS.grace_s
    assert policy.acquire_at(shard, 100.0, {ME}, 101.0) == 100.0


def test_a_member_that_came_after_the_shard_was_free_gets_its_time_too() -> None:
    shard = shard_led_by(OTHER, ME)
    policy = HandoverPolicy(ME, TIMINGS)
    policy.acquire_at(shard, 0.0, {OTHER, ME}, 50.0)
    assert policy.acquire_at(shard, 0.0, {OTHER, ME}, 53.0) == 50.0 + TIMINGS.grace_s


def test_a_holder_yields_to_a_better_placed_member_that_stays() -> None:
    shard = shard_led_by(OTHER, ME)
    policy = HandoverPolicy(ME, TIMINGS)
    assert policy.hand_over_at(shard, {ME}, 0.0) is None
    assert policy.hand_over_at(shard, {ME, OTHER}, 10.0) == 12.0
    assert policy.hand_over_at(shard, {ME, OTHER}, 11.0) == 12.0
    assert policy.hand_over_at(shard, {ME}, 11.5) is None
    assert policy.hand_over_at(shard, {ME, OTHER}, 11.6) == 13.6


def test_a_holder_keeps_what_it_should_hold() -> None:
    shard = shard_led_by(ME, OTHER)
    assert HandoverPolicy(ME, TIMINGS).hand_over_at(shard, {ME, OTHER}, 0.0) is None


def test_a_member_that_does_not_take_its_shard_costs_fewer_and_fewer_hand_overs() -> None:
    shard = shard_led_by(OTHER, ME)
    policy, now, pauses = HandoverPolicy(ME, TIMINGS), 0.0, []
    for _ in range(7):
        policy.acquired(shard, {OTHER, ME}, now)
        assert policy.hand_over_at(shard, {OTHER, ME}, now) is None
        began = now
        while policy.hand_over_at(shard, {OTHER, ME}, now) is None:
            now += 1.0
        pauses.append(now - began)
    assert pauses == [60, 120, 240, 480, 960, 960, 960]


def test_a_member_seen_to_hold_its_shard_is_trusted_again() -> None:
    shard = shard_led_by(OTHER, ME)
    policy = HandoverPolicy(ME, TIMINGS)
    policy.acquired(shard, {OTHER, ME}, 0.0)
    policy.holder_seen(shard, THIRD)
    assert policy.hand_over_at(shard, {OTHER, ME}, 1.0) is None
    policy.holder_seen(shard, OTHER)
    assert policy.hand_over_at(shard, {OTHER, ME}, 2.0) == 4.0


def test_taking_what_is_ours_anyway_doubts_no_one() -> None:
    shard = shard_led_by(ME, OTHER)
    policy = HandoverPolicy(ME, TIMINGS)
    policy.acquired(shard, {OTHER, ME}, 0.0)
    other = shard_led_by(OTHER, ME)
    assert policy.hand_over_at(other, {OTHER, ME}, 1.0) == 3.0


def members() -> Members:
    return Members(ME, live_within_s=10.0, remove_after_s=15.0)


def written(*names: str, stamp: str = "t0") -> dict[str, str]:
    return {member_annotation(name): annotation_value(name, stamp) for name in names}


def test_a_replica_always_counts_itself() -> None:
    assert members().live(0.0) == {ME}


def test_an_entry_that_does_not_change_is_away_then_lost() -> None:
    found = members()
    found.update(written(OTHER), 0.0)
    found.update(written(OTHER), 9.0)
    assert found.live(9.9) == {ME, OTHER}
    assert found.live(10.0) == {ME}
    assert found.expired(14.9) == []
    assert found.expired(15.0) == [member_annotation(OTHER)]
    found.update(written(OTHER, stamp="older"), 16.0)
    assert found.live(16.0) == {ME, OTHER}
    assert found.expired(16.0) == []


def test_our_own_entry_is_never_taken_out_for_its_age() -> None:
    found = members()
    found.update(written(ME), 0.0)
    assert found.expired(1000.0) == []
    assert found.is_alone()


def test_an_entry_that_was_taken_out_is_gone_at_once() -> None:
    found = members()
    found.update(written(OTHER, THIRD), 0.0)
    found.update(written(THIRD), 1.0)
    assert found.live(1.0) == {ME, THIRD}
    assert not found.is_alone()


def test_without_the_list_members_count_on_for_their_time() -> None:
    found = members()
    found.update(written(OTHER), 0.0)
    found.update(None, 1.0)
    assert found.live(9.0) == {ME, OTHER}
    assert found.live(10.0) == {ME}


def test_foreign_annotations_are_no_members_and_names_may_hold_anything() -> None:
    name = "a name with spaces/and more_" + "x" * 100
    found = members()
    found.update({**written(name), "example.com/x": "t0 nobody"}, 0.0)
    assert found.live(0.0) == {ME, name}
    assert len(member_annotation(name).removeprefix(ANNOTATION_PREFIX)) == 16
