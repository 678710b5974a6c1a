"""When a breach counts, and what is seen only between two versions of an object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate_invariants.cluster_state import ClusterState, check_removed_gates
from rackgate_invariants.judge import judge
from rackgate_invariants.reading import SOURCES
from rackgate_invariants.rows.projections import pod_row
from rackgate_invariants.rows.rows import PodRow
from rackgate_invariants.rules.catalog import Breach
from rackgate_invariants.tracker import Change, Tracker
from tests.support.sound_cluster import HOST, LATE, NOW, pod, sound

HARD = Breach("over-domain", "a", "2 live")
SOFT = Breach("not-started", "b", "suspended")


def tracker() -> Tracker:
    return Tracker(min_duration_s=3, patience_s=60)


def test_a_breach_counts_once_it_has_stayed_and_is_reported_once() -> None:
    seen = tracker()
    assert seen.update(100, [HARD]) == []
    assert seen.update(102, [HARD]) == []
    (change,) = seen.update(103, [HARD])
    assert (change.breach, change.since, change.at, change.ended) == (HARD, 100, 103, False)
    assert seen.update(104, [HARD]) == []
    (change,) = seen.update(105, [])
    assert (change.breach, change.ended) == (HARD, True)
    assert (seen.total, seen.active_breaches) == (1, [])


@pytest.mark.requirement("OPS-12")
def test_a_breach_that_goes_away_in_between_starts_again() -> None:
    seen = tracker()
    seen.update(100, [HARD])
    assert seen.update(102, []) == []
    assert seen.update(103, [HARD]) == []
    assert seen.update(105, [HARD]) == []
    assert len(seen.update(106, [HARD])) == 1


def test_who_cannot_wait_believes_what_the_objects_tell() -> None:
    told = Breach("not-started", "c", "suspended", since=50)
    seen = Tracker(min_duration_s=3, patience_s=60, trust_object_times=True)
    assert seen.update(107, [told]) == []
    assert seen.update(110, [told, SOFT]) == [Change(told, since=50, at=110)]
    assert seen.update(169, [told, SOFT]) == [], "nothing tells of the other one"
    assert seen.update(170, [told, SOFT]) == [Change(SOFT, since=110, at=170)]


def test_who_watches_believes_what_was_seen() -> None:
    """The objects do not tell of a pod that had the place until now."""
    told = Breach("not-released", "b", "1 gated pod has room", since=50)
    seen = tracker()
    seen.update(100, [told])
    assert seen.update(159, [told]) == []
    (change,) = seen.update(160, [told])
    assert change.since == 100


def test_a_cluster_that_moves_on_is_never_late() -> None:
    seen = tracker()
    for now in range(100, 400, 2):
        moving = Breach("queue-counts", "cq", "pendingWorkloads", since=now - 5)
        assert seen.update(now, [moving]) == []


def test_what_did_not_count_before_an_interruption_has_to_stay_again() -> None:
    seen = tracker()
    other = Breach("over-domain", "z", "2 live")
    seen.update(100, [HARD])
    seen.update(103, [HARD, other])
    seen.reset_unconfirmed()
    assert seen.active_breaches == [HARD]
    assert seen.update(110, [HARD, other]) == []
    assert len(seen.update(113, [HARD, other])) == 1


def test_what_happened_once_counts_at_once() -> None:
    seen = tracker()
    assert seen.event(7, HARD).since == 7
    assert (seen.total, seen.active_breaches) == (1, [])


def version(**more: Any) -> PodRow:
    item = pod("train", 0, None)
    gates = more.pop("gates", [names.TOPOLOGY_GATE, "example.com/other"])
    item["spec"] |= {"schedulingGates": [{"name": gate} for gate in gates]}
    if more.get("host"):
        item["spec"]["nodeSelector"] = {HOST: more["host"]}
    if more.get("manager"):
        entry = {"manager": more["manager"], "time": LATE}
        item["metadata"]["managedFields"] = [entry]
    return pod_row(json.dumps(item).encode())


def taken(before: PodRow, after: PodRow) -> list[str]:
    return [breach.rule for breach in check_removed_gates(before, after)]


def test_the_ungater_takes_its_own_gate() -> None:
    after = version(gates=["example.com/other"], host="n1", manager="rackgate-ungater")
    assert taken(version(), after) == []


@pytest.mark.parametrize("gate", [names.GANG_GATE, names.ELASTIC_GATE, names.ADMISSION_GATE])
def test_a_gate_of_rackgate_is_no_foreign_one(gate: str) -> None:
    before = version(gates=[gate, "example.com/other"])
    after = version(gates=["example.com/other"], manager="rackgate-ungater")
    assert taken(before, after) == []


@pytest.mark.requirement("OPS-12")
def test_a_foreign_gate_that_the_ungater_took_is_found() -> None:
    after = version(gates=[], host="n1", manager="rackgate-ungater")
    assert taken(version(), after) == ["foreign-gate-taken"]


def test_a_foreign_gate_that_its_owner_took_is_no_breach() -> None:
    released = version(gates=["example.com/other"], host="n1", manager="rackgate-ungater")
    after = version(gates=[], host="n1", manager="rackgate-ungater")
    assert taken(released, after) == []


@pytest.mark.parametrize(("host", "expected"), [("n1", ["gate-taken"]), (None, [])])
def test_our_gate_that_somebody_else_took_with_a_place_is_found(
    host: str | None, expected: list[str]
) -> None:
    after = version(gates=["example.com/other"], host=host, manager="kubectl")
    assert taken(version(), after) == expected


def follow(world: ClusterState, attribute: str, item: dict[str, Any]) -> str:
    source = next(one for one in SOURCES if one.attribute == attribute)
    row = source.decode(json.dumps(item).encode())
    key = str(getattr(row, "key", "") or row.name)
    world.put(attribute, key, row)
    return key


def test_a_followed_cluster_shows_what_a_reading_shows_at_every_step() -> None:
    story = sound()
    story.pods.append(pod("train", 3, "n2"))
    del story.nodes[1]
    world = ClusterState()
    keys: list[tuple[str, str]] = []
    for source in SOURCES:
        items, kept = getattr(story, source.attribute), []
        for item in items:
            kept.append(item)
            keys.append((source.attribute, follow(world, source.attribute, item)))
            assert world.judge(NOW) == judge(world.cluster(NOW)), keys[-1]
    assert "over-granted" in [one.rule for one in world.judge(NOW)]
    for attribute, key in keys:
        world.drop(attribute, key)
        assert world.judge(NOW) == judge(world.cluster(NOW)), (attribute, key)
    assert world.judge(NOW) == []


def test_a_deletion_that_becomes_overdue_is_judged_without_an_event() -> None:
    story = sound()
    story.pod("train-2")["metadata"]["deletionTimestamp"] = LATE
    story.place({("n1",): 2, ("n3",): 1})
    story.workload["spec"]["podSets"][0]["topologyRequest"]["required"] = None
    replacement = pod("train", 2, "n3")
    replacement["metadata"] |= {"name": "train-2b", "uid": "train-2b"}
    story.pods.append(replacement)
    story.nodes[1]["status"]["conditions"] = []
    world = ClusterState()
    for source in SOURCES:
        for item in getattr(story, source.attribute):
            follow(world, source.attribute, item)
    ends = pod_row(json.dumps(story.pod("train-2")).encode()).ends_at
    assert [one.rule for one in world.judge(ends + 29)] == ["over-granted"]
    assert world.judge(ends + 31) == []


def test_what_nodes_report_all_the_time_is_nothing_new() -> None:
    story, world = sound(), ClusterState()
    follow(world, "nodes", story.nodes[0])
    world.judge(NOW)
    story.nodes[0]["metadata"]["resourceVersion"] = "77"
    follow(world, "nodes", story.nodes[0])
    assert not world.changed
    story.nodes[0]["status"]["allocatable"]["cpu"] = "2"
    follow(world, "nodes", story.nodes[0])
    assert world.changed
