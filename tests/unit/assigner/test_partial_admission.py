"""PodSets with `minCount`: how many pods are admitted when not all of them fit."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Admit, Preempt, Requeue
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    cache_with,
    domains,
    fx_a,
    plan_cycle,
    podset,
    workload,
)
from tests.unit.assigner.test_preemption import preempted, runs, waits, world


def asks(cache: Cache, name: str, count: int, fewest: int, **more: Any) -> None:
    podsets = [{**podset(count=count, **more.pop("podset", {})), "minCount": fewest}]
    cache.set_workload(workload(name, podsets, **more))


@pytest.mark.parametrize(("taken", "admitted"), [(0, 8), (2, 8), (3, 7), (6, 4)])
def test_as_many_pods_as_the_quota_allows_are_admitted(taken: int, admitted: int) -> None:
    cache = world("Never")
    runs(cache, "other", taken)
    asks(cache, "some", 8, 4)
    (part,) = admissions(plan_cycle(cache))["some"].podsets
    assert (part.count, part.usage) == (admitted, {"cpu": 1000 * admitted})


def test_with_fewer_than_the_smallest_count_it_waits_with_the_message_of_all_pods() -> None:
    cache = world("Never")
    runs(cache, "other", 7)
    asks(cache, "some", 8, 4)
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Requeue)
    assert "5 more needed" in decision.message


def test_what_is_left_over_is_not_given_twice_in_a_cycle() -> None:
    cache = world("Never")
    asks(cache, "first", 8, 4, priority=1)
    asks(cache, "second", 8, 2)
    found = admissions(plan_cycle(cache))
    assert [found[name].podsets[0].count for name in ("first", "second")] == [8, 2]


def test_podsets_shrink_in_proportion() -> None:
    cache = world("Never")
    podsets = [podset("head"), {**podset("workers", 12), "minCount": 4}]
    cache.set_workload(workload("some", podsets))
    assert [part.count for part in admissions(plan_cycle(cache))["some"].podsets] == [1, 9]


def test_fewer_pods_are_placed_in_the_rack_that_is_required() -> None:
    cache = cache_with(fx_a())
    asks(cache, "some", 6, 2, podset={"requests": {"cpu": "4"}, "topology": {"required": RACK}})
    placed = domains(admissions(plan_cycle(cache))["some"])
    assert sum(placed.values()) == 4
    assert len({host.rpartition("-")[0] for host in placed}) == 1


def test_others_are_preempted_for_all_pods_before_fewer_are_admitted() -> None:
    cache = world()
    runs(cache, "low", 8)
    asks(cache, "some", 8, 2, priority=1)
    assert preempted(plan_cycle(cache)) == [("low", "some")]


def test_others_are_preempted_for_fewer_pods_if_not_all_fit_after_it() -> None:
    cache = world()
    runs(cache, "high", 4, 2)
    runs(cache, "low", 5)
    asks(cache, "some", 8, 3, priority=1)
    decisions = plan_cycle(cache)
    assert preempted(decisions) == [("low", "some")]
    (waiting,) = (found for found in decisions if isinstance(found, Requeue))
    assert "1 more needed" not in waiting.message
    assert waiting.message.endswith("Pending the preemption of 1 workload(s)")


def test_a_trial_chooses_no_targets_and_charges_nothing() -> None:
    cache = world()
    runs(cache, "high", 9, 3)
    asks(cache, "some", 8, 3, priority=2)
    waits(cache, "last", 1)
    decisions = plan_cycle(cache)
    assert not [found for found in decisions if isinstance(found, Preempt)]
    assert [found.workload for found in decisions if isinstance(found, Admit)] == ["team/last"]


def test_a_strict_queue_is_not_blocked_by_what_can_never_fit_with_its_fewest_pods() -> None:
    queue = {"queueingStrategy": "StrictFIFO"}
    cache = world("Never", **queue)
    asks(cache, "never", 30, 20, priority=1)
    waits(cache, "next", 1)
    assert "next" in admissions(plan_cycle(cache))
    cache = world("Never", **queue)
    runs(cache, "other", 9)
    asks(cache, "later", 30, 5, priority=1)
    waits(cache, "next", 1)
    assert admissions(plan_cycle(cache)) == {}


@pytest.mark.parametrize("fewest", [0, -3, 8, 9])
def test_a_number_that_allows_no_fewer_pods_changes_nothing(fewest: int) -> None:
    cache = world("Never")
    runs(cache, "other", 3)
    asks(cache, "some", 8, fewest)
    assert admissions(plan_cycle(cache)) == {}


@pytest.mark.parametrize(("taken", "admitted"), [(6, 4), (7, None)])
def test_the_smallest_count_includes_pods_that_are_done(taken: int, admitted: int | None) -> None:
    cache = world("Never")
    runs(cache, "other", taken)
    asks(cache, "some", 8, 4, reclaimable={"main": 2})
    found = admissions(plan_cycle(cache))
    assert [one.podsets[0].count for one in found.values()] == ([admitted] if admitted else [])
