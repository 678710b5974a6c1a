"""Rules on slices of elastic Workloads: each planted broken, beside what is legal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api.names import slice_ordinal
from rackgate_invariants.cluster import group_by_job
from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.judge import judge
from rackgate_invariants.reading import SOURCES
from rackgate_invariants.rows.workloads import workload_row
from rackgate_invariants.rules.workload_slices import check_growth
from tests.support.sound_cluster import (
    LATE,
    NOW,
    conditions,
    found,
    queue_status,
    rules,
)
from tests.support.sound_slices import (
    PARENT,
    grant,
    merge_slices,
    piece,
    ray,
    want,
)

WORKERS = f"team/{PARENT}/workers"


# Slices by themselves.


def test_a_slice_that_was_settled_twice_or_elsewhere_is_found() -> None:
    world = ray()
    want(world, 4)
    merge_slices(world, piece(0, ""))
    entries = world.workload["status"]["foldedSlices"]
    entries.append(dict(entries[0]))
    assert "slice-counted-twice" in rules(world)
    entries.pop()
    assert "slice-counted-twice" not in rules(world)
    entries[0]["podSet"] = "head"
    world.workloads.append(piece(0, ""))
    assert "slice-counted-twice" in rules(world)
    entries[0]["podSet"] = "gone"
    assert "slice-counted-twice" in rules(world)


@pytest.mark.parametrize("wrong", ["podset", "flavor", "template", "queue"])
def test_a_slice_that_is_no_part_of_its_parent_is_found(wrong: str) -> None:
    world = ray()
    want(world, 4)
    one = piece(0, "")
    world.workloads.append(one)
    assert "slice-shape" not in rules(world)
    given = one["status"]["admission"]
    if wrong == "podset":
        one["spec"]["podSets"][0]["name"] = "others"
    elif wrong == "flavor":
        given["podSetAssignments"][0]["flavors"] = {"cpu": "spot"}
    elif wrong == "template":
        one["spec"]["podSets"][0]["template"]["spec"]["nodeSelector"] = {"pool": "a"}
    else:
        given["clusterQueue"] = "other"
    assert ("slice-shape", f"team/{PARENT}-workers-0") in [
        (breach.rule, breach.subject) for breach in found(world)
    ]


def test_slices_count_in_the_order_in_which_their_parent_takes_them_in() -> None:
    world = ray(topology=True)
    world.workloads += [piece(10, "n1"), piece(2, "n2"), piece(0, "n3")]
    families = [
        one
        for group in group_by_job(world.cluster()).values()
        for one in group.workloads_with_slices()
    ]
    (family,) = [one for one in families if one.slices]
    assert [slice_ordinal(one.name) for one in family.slices] == [0, 2, 10]
    workers = family.parent.podsets[1]
    assert list(family.domains(workers, may_ungate=True)) == [("n1",), ("n2",), ("n3",)]


@pytest.mark.field_note("E17")
def test_what_is_left_of_settled_slices_is_found() -> None:
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, ""))
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("slice-not-settled", f"team/{PARENT}-workers-0")
    assert "not merged into" in breach.found
    merge_slices(world, world.workloads[-1])
    assert "not deleted" in found(world)[0].found
    world.workloads.pop()
    (breach,) = found(world)
    assert "still recorded" in breach.found
    world.workload["status"]["foldedSlices"] = []
    assert rules(world) == []


def test_a_slice_that_cannot_be_written_into_its_parent_runs_beside_it() -> None:
    """The flavor got a topology while the cluster ran."""
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, "n2"))
    assert rules(world) == []


@pytest.mark.requirement("SLC-32")
@pytest.mark.parametrize("why", ["gone", "not elastic", "holds nothing", "another namespace"])
def test_a_slice_without_a_parent_that_it_can_join_is_found(why: str) -> None:
    world = ray()
    want(world, 4)
    world.workloads.append(piece(0, None))
    assert rules(world) == []
    if why == "gone":
        world.workloads.pop(0)
    elif why == "not elastic":
        world.workload["metadata"]["annotations"] = {}
    elif why == "holds nothing":
        world.workload["status"] = {"conditions": conditions(QuotaReserved=False)}
    else:
        world.workloads[-1]["metadata"]["namespace"] = "other"
    assert "slice-orphaned" in rules(world)


def test_a_slice_of_a_parent_that_is_gone_holds_no_quota() -> None:
    world = ray()
    world.workloads = [piece(0, "")]
    world.rayclusters, world.pods = [], []
    for queue in (*world.local_queues, *world.cluster_queues):
        queue["status"] = queue_status(0, 0, 0)
    assert [one.rule for one in judge(world.cluster())] == ["slice-orphaned"]


# The counts of parent, spec and job.


@pytest.mark.requirement("SLC-23")
def test_a_spec_that_does_not_follow_is_found() -> None:
    world = ray()
    world.workload["spec"]["podSets"][1]["count"] = 5
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("counts-differ", WORKERS)


@pytest.mark.requirement("SLC-35")
def test_counts_that_do_not_add_up_to_what_the_job_asks_are_found() -> None:
    world = ray()
    want(world, 5)
    (breach,) = found(world)
    assert breach.rule == "counts-differ"
    assert "requests 5 pods, 3 are admitted and slices request 0" in breach.found
    world.workloads += [piece(0, None), piece(1, None)]
    assert rules(world) == []
    want(world, 2)
    assert rules(world) == ["counts-differ"]


def test_a_cluster_that_was_just_resized_tells_so() -> None:
    world = ray()
    want(world, 5)
    world.rayclusters[0]["metadata"]["managedFields"] = [{"manager": "ray", "time": LATE}]
    assert found(world)[0].since == NOW - 3600


@pytest.mark.parametrize(
    ("bounds", "pods"),
    [({}, 4), ({"maxReplicas": 1}, 2), ({"minReplicas": 3}, 6), ({"suspend": True}, 0)],
)
def test_replicas_are_counted_within_their_bounds_and_with_their_hosts(
    bounds: dict[str, Any], pods: int
) -> None:
    world = ray()
    want(world, 2, numOfHosts=2, **bounds)
    grant(world, pods)
    world.pods = world.pods[: pods + 1]
    assert "counts-differ" not in rules(world)


# Between two versions.


def _grown(count: int, *pieces: dict[str, Any]) -> list[str]:
    world = ray()
    before = workload_row(json.dumps(world.workload).encode())
    merge_slices(world, *pieces)
    grant(world, count)
    after = workload_row(json.dumps(world.workload).encode())
    rows = [workload_row(json.dumps(one).encode()) for one in pieces]
    return [one.rule for one in check_growth(before, after, {row.uid: row for row in rows})]


@pytest.mark.requirement("SLC-18")
def test_a_parent_grows_by_the_slices_that_it_takes_in_alone() -> None:
    assert _grown(4, piece(0, "")) == []
    assert _grown(5, piece(0, ""), piece(1, "")) == []
    assert _grown(2) == []
    assert _grown(4) == ["grown-without-slice"]
    assert _grown(5, piece(0, "")) == ["grown-without-slice"]
    assert _grown(4, piece(0, None)) == ["grown-without-slice"], "it was never admitted"


def test_slices_followed_in_any_order_show_what_a_reading_shows() -> None:
    story = ray(topology=True)
    want(story, 6)
    story.workloads += [piece(0, "n3"), piece(1, None), piece(2, "n2")]
    merge_slices(story, story.workloads[-1], places={"n1": 2, "n2": 2})
    for order in (SOURCES, tuple(reversed(SOURCES))):
        for items in (list, lambda found: list(reversed(found))):
            world = ClusterState()
            keys = []
            for source in order:
                for item in items(getattr(story, source.attribute)):
                    row = source.decode(json.dumps(item).encode())
                    keys.append((source.attribute, str(getattr(row, "key", "") or row.name)))
                    world.put(*keys[-1], row)
                    assert world.judge(NOW) == judge(world.cluster(NOW)), keys[-1]
            shown = {one.rule for one in world.judge(NOW)}
            assert {"slice-not-settled", "level-split"} <= shown
            for attribute, key in keys:
                world.drop(attribute, key)
                assert world.judge(NOW) == judge(world.cluster(NOW)), (attribute, key)
