"""What a LocalQueue has consumed: it decays by half-lives, and an admission counts at once."""

from __future__ import annotations

from math import inf

import pytest

from rackgate_assigner.quota.admission_fair_sharing import (
    AdmissionFairSharing,
    LocalQueueUsage,
    Moment,
    UsageHistory,
    amounts_of,
)

DAY = 86_400.0
RULES = AdmissionFairSharing(half_life_s=DAY, sampling_interval_s=DAY)


def at(days: float, *, wall: float | None = None) -> Moment:
    """Both clocks; they start at different times."""
    return Moment(1_000 + days * DAY, 5_000_000 + (days if wall is None else wall) * DAY)


def history(**consumed: float) -> UsageHistory:
    """LocalQueue `lq` that consumed this at the start, and uses nothing."""
    found = UsageHistory(RULES)
    found.observe("lq", consumed, at(0))
    found.observe("lq", {}, at(0))
    return found


def consumed(found: UsageHistory, queue: str = "lq") -> dict[str, float]:
    return dict(found.consumed(queue)[0])


def test_what_was_used_counts_half_after_a_half_life() -> None:
    found = history(cpu=8.0)
    found.observe("lq", {}, at(1))
    assert consumed(found) == {"cpu": 4.0}
    found.observe("lq", {}, at(3))
    assert consumed(found) == {"cpu": 1.0}


def test_constant_usage_is_reached_by_half_of_the_rest_in_each_half_life() -> None:
    found = history()
    found.observe("lq", {"gpu": 8.0}, at(0))
    found.observe("lq", {"gpu": 8.0}, at(1))
    assert consumed(found) == {"gpu": 4.0}
    found.observe("lq", {"gpu": 8.0}, at(2))
    assert consumed(found) == {"gpu": 6.0}


def test_a_local_queue_that_is_seen_for_the_first_time_starts_with_its_usage() -> None:
    found = UsageHistory(RULES)
    found.observe("lq", {"gpu": 8.0}, at(0))
    assert consumed(found) == {"gpu": 8.0}


def test_usage_counts_only_while_it_lasted_whenever_it_is_sampled() -> None:
    found = history()
    found.observe("lq", {"gpu": 8.0}, at(1))
    found.observe("lq", {}, at(2))
    assert consumed(found) == {"gpu": 4.0}


def test_a_stored_history_goes_on_with_the_usage_of_the_takeover() -> None:
    found = UsageHistory(RULES)
    found.restore("lq", {"gpu": 8.0}, at(0).wall_s)
    found.observe("lq", {"gpu": 2.0}, at(40, wall=1))
    assert consumed(found) == {"gpu": 5.0}


def test_a_time_in_the_future_decays_nothing() -> None:
    found = UsageHistory(RULES)
    found.restore("lq", {"gpu": 8.0}, at(9).wall_s)
    found.observe("lq", {}, at(0))
    assert consumed(found) == {"gpu": 8.0}


def test_an_idle_local_queue_is_not_charged_for_the_time_since_its_last_status() -> None:
    found = UsageHistory(RULES)
    found.restore("lq", {}, at(0).wall_s)
    found.observe("lq", {"gpu": 8.0}, at(30))
    assert consumed(found)["gpu"] == 0


def test_a_step_of_the_wall_clock_decays_nothing() -> None:
    found = history(gpu=8.0)
    found.observe("lq", {}, at(0, wall=365))
    assert consumed(found) == {"gpu": 8.0}
    assert found.consumed("lq")[1] == at(365).wall_s


def test_what_this_process_observed_is_not_replaced_by_its_own_status() -> None:
    found = history(gpu=8.0)
    found.restore("lq", {"gpu": 1.0}, at(0).wall_s)
    assert consumed(found) == {"gpu": 8.0}


def test_a_standby_follows_the_status() -> None:
    found = UsageHistory(RULES)
    for amount in (8.0, 3.0):
        found.restore("lq", {"gpu": amount}, at(0).wall_s)
        assert found.charged("lq") == {"gpu": amount}


def test_a_penalty_counts_from_the_decision_on_and_once() -> None:
    found = history(gpu=1.0)
    for _ in range(2):
        found.reserve("w", "lq", {"gpu": 8.0})
        assert found.charged("lq") == {"gpu": 5.0}
        assert consumed(found) == {"gpu": 1.0}
    for _ in range(2):
        found.settle("w")
        assert consumed(found) == found.charged("lq") == {"gpu": 5.0}
    assert found.pending == []


def test_a_workload_that_is_not_admitted_has_no_penalty() -> None:
    found = history(gpu=1.0)
    found.reserve("w", "lq", {"gpu": 8.0})
    found.release("w")
    found.settle("w")
    assert found.charged("lq") == {"gpu": 1.0}


def test_nothing_is_kept_of_a_deleted_local_queue() -> None:
    found = history(gpu=1.0)
    found.reserve("w", "lq", {"gpu": 8.0})
    found.forget("lq")
    found.settle("w")
    found.release("w")
    assert found.charged("lq") == {}
    assert found.pending == []
    assert "lq" not in found


def test_with_a_half_life_of_zero_only_weights_count() -> None:
    rules = AdmissionFairSharing(half_life_s=0)
    found = UsageHistory(rules)
    found.restore("lq", {"gpu": 8.0}, at(0).wall_s)
    found.observe("lq", {"gpu": 8.0}, at(0))
    found.reserve("w", "lq", {"gpu": 8.0})
    assert found.charged("lq") == {}
    weights = {"lq": 2.0, "none": 0.0}
    usage = LocalQueueUsage(found, weights.__getitem__)
    assert (usage.of("lq"), usage.of("none")) == (0.0, inf)


def test_resources_count_by_their_weight_and_the_sum_by_that_of_the_local_queue() -> None:
    rules = AdmissionFairSharing(DAY, resource_weights={"gpu": 10.0, "memory": 0.0})
    amounts = {"cpu": 3.0, "gpu": 2.0, "memory": 1e12}
    assert rules.weighted(amounts, 1.0) == 23.0
    assert rules.weighted(amounts, 4.0) == 5.75
    assert rules.weighted({}, 0.0) == inf


def test_an_admission_of_the_cycle_counts_for_the_next_head() -> None:
    found = history(gpu=1.0)
    usage = LocalQueueUsage(found, lambda _queue: 1.0)
    assert usage.of("lq") == 1.0
    usage.admit("lq", {"gpu": 8.0})
    assert usage.of("lq") == 5.0
    assert found.charged("lq") == {"gpu": 1.0}


@pytest.mark.parametrize(("resource", "amount", "units"), [("cpu", 1500, 1.5), ("gpu", 2, 2.0)])
def test_amounts_are_in_units_whatever_the_flavor(resource: str, amount: int, units: float) -> None:
    assert amounts_of({("a", resource): amount, ("b", resource): amount}) == {resource: 2 * units}
