"""A flavor with quota and no place: the next one is tried in the same plan.

tas: b1                    far: b2
r1: a, b  (4 cpu each)     r2: c, d  (4 cpu each)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from rackgate.features import Features
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.workload.decisions import Admit, Requeue, TopologyNotFound
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    admit_all,
    cache_with,
    cluster_queue,
    domains,
    flavor,
    local_queue,
    node,
    plan_cycle,
    podset,
    rebuild_matches,
    workload,
)

QUOTAS = {"tas": {"cpu": "100"}, "far": {"cpu": "100"}}
IN_RACK = {"required": RACK}


def world(
    quotas: Mapping[str, Mapping[str, str]] | None = None, far_cpu: str = "4", **queue: Any
) -> Cache:
    near = [node(name, "b1/r1") for name in "ab"]
    far = [node(name, "b2/r2", cpu=far_cpu, labels={"pool": "far"}) for name in "cd"]
    cache = cache_with([*near, *far], queue=cluster_queue("cq", quotas or QUOTAS, **queue))
    cache.set_flavor(flavor("far", node_labels={"pool": "far"}))
    return cache


def racked(name: str, count: int, **more: Any) -> Any:
    return workload(name, [podset(count=count, topology=IN_RACK, **more)])


def only_hold(cache: Cache) -> Requeue:
    (hold,) = plan_cycle(cache)
    assert isinstance(hold, Requeue)
    return hold


@pytest.mark.requirement("TAS-20")
def test_a_full_first_flavor_gives_way_to_the_next_in_the_same_cycle() -> None:
    cache = world()
    cache.set_workload(racked("w1", 8))
    cache.set_workload(racked("w2", 8))
    granted = admissions(plan_cycle(cache))
    assert {name: set(domains(assignment)) for name, assignment in granted.items()} == {
        "w1": {"a", "b"},
        "w2": {"c", "d"},
    }
    assert granted["w2"].podsets[0].flavors == {"cpu": "far"}


@pytest.mark.requirement("TAS-20")
def test_heads_of_a_cohort_try_the_next_flavor_where_another_one_took_their_domains() -> None:
    cache = world(cohortName="all")
    cache.set_cluster_queue(cluster_queue("cq1", QUOTAS, cohortName="all"))
    cache.set_local_queue(local_queue("lq1", "cq1"))
    cache.set_workload(racked("w1", 8))
    cache.set_workload(workload("w2", [podset(count=8, topology=IN_RACK)], queue="lq1"))
    cache.set_workload(workload("w3", [podset(count=1, topology=IN_RACK)], queue="lq1"))
    decisions = plan_cycle(cache)
    assert {name: set(domains(found)) for name, found in admissions(decisions).items()} == {
        "w1": {"a", "b"},
        "w2": {"c", "d"},
    }
    (hold,) = [found for found in decisions if isinstance(found, Requeue)]
    assert (hold.workload, hold.reason) == ("team/w3", "TopologyPlacementFailed")
    assert {one.flavor for one in hold.rejected_flavors} == {"tas", "far"}


def test_quota_and_room_stay_exact_over_a_change_of_flavor() -> None:
    cache = world({"tas": {"cpu": "16"}, "far": {"cpu": "12"}}, far_cpu="8")
    for index in range(3):
        cache.set_workload(racked(f"w{index}", 6))
    assert {
        name: assignment.podsets[0].flavors for name, assignment in admit_all(cache).items()
    } == {
        "w0": {"cpu": "tas"},
        "w1": {"cpu": "far"},
        "w2": {"cpu": "far"},
    }
    used = {("tas", "cpu"): 6000, ("far", "cpu"): 12000}
    assert cache.totals.cluster_queues["cq"].reserved_quota == used
    assert rebuild_matches(cache) == []
    cache.set_workload(racked("w3", 1))
    hold = [found for found in plan_cycle(cache) if isinstance(found, Requeue)]
    assert hold == []  # two cpu of the first flavor are still free


@pytest.mark.requirement("TAS-20")
def test_when_none_has_a_place_every_flavor_says_why() -> None:
    cache = world()
    cache.set_workload(racked("w", 9))
    hold = only_hold(cache)
    assert hold.reason == "TopologyPlacementFailed"
    assert hold.message == (
        "couldn't assign flavors to pod set main: "
        'flavor far: topology "default" allows to fit only 8 out of 9 pod(s), '
        'flavor tas: topology "default" allows to fit only 8 out of 9 pod(s)'
    )
    text = 'topology "default" allows to fit only 8 out of 9 pod(s)'
    assert hold.rejected_flavors == (
        TopologyNotFound("main", "tas", text, fits_when_empty=False),
        TopologyNotFound("main", "far", text, fits_when_empty=False),
    )


def test_quota_rejections_are_reported_beside_the_topologys() -> None:
    cache = world({"tas": {"cpu": "4"}, "far": {"cpu": "100"}})
    cache.set_workload(racked("w", 9))
    hold = only_hold(cache)
    assert hold.reason == "TopologyPlacementFailed"
    assert hold.message == (
        "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor tas, "
        "previously considered podsets requests (0) + current podset request (9) > maximum "
        'capacity (4), topology "default" allows to fit only 8 out of 9 pod(s)'
    )


@pytest.mark.requirement("TAS-20")
def test_an_empty_cluster_is_not_asked_where_the_words_stay_the_same() -> None:
    cache = world({"tas": {"cpu": "100"}})
    cache.set_workload(racked("first", 8))
    admit_all(cache)
    cache.set_workload(racked("later", 8))
    cache.set_workload(racked("never", 9))
    holds = {found.workload: found for found in plan_cycle(cache) if isinstance(found, Requeue)}
    # As much work as the placement itself, for each shape that waits.
    for hold in holds.values():
        assert [one.fits_when_empty for one in hold.rejected_flavors] == [None]
    assert {hold.reason for hold in holds.values()} == {"TopologyPlacementFailed"}
    assert holds["team/later"].message == (
        "couldn't assign flavors to pod set main: "
        'topology "default" doesn\'t allow to fit any of 8 pod(s). Total nodes: 2; '
        'excluded: resource "cpu": 2'
    )


@pytest.mark.requirement("TAS-20")
def test_a_flavor_that_never_fits_leaves_the_word_to_the_one_that_is_waited_for() -> None:
    cache = world({"tas": {"cpu": "100"}, "far": {"cpu": "9"}}, far_cpu="8")
    cache.set_workload(workload("first", [podset(count=1, nodeSelector={"pool": "far"})]))
    admit_all(cache)
    cache.set_workload(racked("later", 9))
    hold = only_hold(cache)
    assert hold.reason == "WaitingForQuota"
    assert "insufficient unused quota for cpu in flavor far, 1 more needed" in hold.message
    assert 'topology "default" allows to fit only 8 out of 9 pod(s)' in hold.message


@pytest.mark.requirement("TAS-20")
def test_a_place_that_others_hold_is_waited_for_rather_than_quota_elsewhere() -> None:
    cache = world({"tas": {"cpu": "100"}, "far": {"cpu": "9"}}, far_cpu="8")
    cache.set_workload(workload("first", [podset(count=2, nodeSelector={"pool": "far"})]))
    cache.set_workload(racked("near", 1))
    admit_all(cache)
    cache.set_workload(racked("later", 8))
    hold = only_hold(cache)
    assert hold.reason == "TopologyPlacementFailed"
    assert "insufficient unused quota for cpu in flavor far, 1 more needed" in hold.message
    assert [one.fits_when_empty for one in hold.rejected_flavors] == [True]


def test_only_the_podset_without_place_moves_to_another_flavor() -> None:
    cache = world()
    cache.set_workload(workload("w", [podset("one", 6), podset("two", 6), podset("three", 2)]))
    (admit,) = plan_cycle(cache)
    assert isinstance(admit, Admit)
    flavors = {part.name: part.flavors["cpu"] for part in admit.assignment.podsets}
    assert flavors == {"one": "tas", "two": "far", "three": "tas"}


def test_leader_and_workers_move_together() -> None:
    cache = world(far_cpu="5")
    grouped = {**IN_RACK, "podSetGroupName": "g"}
    cache.set_workload(
        workload("w", [podset("lead", 1, topology=grouped), podset("work", 8, topology=grouped)])
    )
    (admit,) = plan_cycle(cache)
    assert isinstance(admit, Admit)
    assert {part.flavors["cpu"] for part in admit.assignment.podsets} == {"far"}


def test_a_group_that_no_flavor_holds_is_rejected_for_both_members() -> None:
    cache = world()
    grouped = {**IN_RACK, "podSetGroupName": "g"}
    cache.set_workload(
        workload("w", [podset("lead", 1, topology=grouped), podset("work", 8, topology=grouped)])
    )
    hold = only_hold(cache)
    assert {(one.podset, one.flavor) for one in hold.rejected_flavors} == {
        (podset_name, name) for podset_name in ("lead", "work") for name in ("tas", "far")
    }
    assert hold.message.count("couldn't assign flavors to pod set ") == 2


def test_what_was_tried_in_vain_leaves_nothing_charged() -> None:
    cache = world()
    big = [podset("one", 8), podset("two", 8), podset("three", 1)]
    cache.set_workload(workload("a", big, priority=9))
    cache.set_workload(racked("b", 8))
    cache.set_workload(racked("c", 8))
    decisions = plan_cycle(cache)
    assert sorted(admissions(decisions)) == ["b", "c"]


@pytest.mark.requirement("CAP-11")
def test_flavors_that_share_nodes_share_their_room_within_a_workload() -> None:
    cache = world({"tas": {"cpu": "8"}, "all": {"cpu": "100"}})
    cache.set_flavor(flavor("all", node_labels={"kind": "any"}))
    for name in "ab":
        cache.set_node(node(name, "b1/r1", labels={"kind": "any"}))
    cache.set_workload(workload("nine", [podset("one", 5), podset("two", 4)], priority=9))
    cache.set_workload(workload("eight", [podset("all", 8)]))
    decisions = plan_cycle(cache)
    # Neither does the one that finds no place leave anything charged to the one that follows.
    assert list(admissions(decisions)) == ["eight"]
    assert [found.workload for found in decisions if isinstance(found, Requeue)] == ["team/nine"]


@pytest.mark.requirement("TAS-20")
@pytest.mark.field_note("P14")
def test_podsets_without_place_in_a_flavor_are_found_in_one_try() -> None:
    pools = [f"p{index}" for index in range(8)]
    nodes = [node(f"{pool}-0", f"b/{pool}", labels={"pool": pool}) for pool in pools]
    cache = cache_with(nodes, queue=cluster_queue("cq", {pool: {"cpu": "999"} for pool in pools}))
    for pool in pools:
        cache.set_flavor(flavor(pool, node_labels={"pool": pool}))
    cache.set_workload(workload("w", [podset(f"part-{index}", 3) for index in range(9)]))
    placements: list[str] = []

    def counting(name: str) -> AbstractContextManager[object]:
        placements.append(name)
        return nullcontext()

    (hold,) = plan(cache.snapshot(), Features(), counting)
    assert isinstance(hold, Requeue)
    # One for each refusal, and for each try one of each flavor before.
    assert len(hold.rejected_flavors) == sum(range(9))
    assert len(placements) <= len(hold.rejected_flavors) + sum(range(len(pools) + 1))
