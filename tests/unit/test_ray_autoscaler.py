"""The test driver that plays Ray's autoscaler writes what Ray writes, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ray_autoscaler import (
    clearing_patch,
    live_workers,
    pending_deletes,
    scale_patch,
)

Object = dict[str, Any]


def group(name: str, replicas: int, listed: list[str] | None = None) -> Object:
    found: Object = {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": 5,
    }
    if listed is not None:
        found["scaleStrategy"] = {"workersToDelete": listed}
    return found


def cluster(*groups: Object) -> Object:
    return {"spec": {"workerGroupSpecs": list(groups)}}


def worker(name: str, group_name: str = "small", **metadata: Any) -> Object:
    labels = {"ray.io/node-type": "worker", "ray.io/group": group_name}
    return {"metadata": {"name": name, "labels": labels, **metadata}}


HEAD = {"metadata": {"name": "h", "labels": {"ray.io/node-type": "head"}}}
CLEANUP = {"metadata": {"name": "c", "labels": {"ray.io/node-type": "redis-cleanup"}}}
LEAVING = worker("leaving", deletionTimestamp="2026-08-01T12:00:00Z")


def replicas(index: int, value: int) -> Object:
    path = f"/spec/workerGroupSpecs/{index}/replicas"
    return {"op": "replace", "path": path, "value": value}


def listing(index: int, *pods: str) -> Object:
    path = f"/spec/workerGroupSpecs/{index}/scaleStrategy"
    return {"op": "replace", "path": path, "value": {"workersToDelete": list(pods)}}


@pytest.mark.requirement("USR-09")
def test_only_workers_that_stay_count() -> None:
    pods = [worker("a"), worker("b", "large"), HEAD, CLEANUP, LEAVING]
    assert live_workers(pods) == {"small": ["a"], "large": ["b"]}


def test_a_launch_counts_from_the_pods_there_are_not_from_the_field() -> None:
    found = scale_patch(cluster(group("small", 4)), [worker("a"), LEAVING], {"small": 2}, ())
    assert found == [replicas(0, 3)]


def test_the_later_autoscaler_counts_from_the_field() -> None:
    asked = cluster(group("small", 2))
    assert scale_patch(asked, [worker("a")], {"small": 2}, (), "replicas") == [replicas(0, 4)]


def test_a_launch_stops_at_the_groups_maximum() -> None:
    pods = [worker(name) for name in "abcd"]
    assert scale_patch(cluster(group("small", 4)), pods, {"small": 9}, ()) == [replicas(0, 5)]


def test_a_number_that_is_right_already_is_not_written() -> None:
    assert scale_patch(cluster(group("small", 2)), [worker("a")], {"small": 1}, ()) == []


def test_going_down_writes_the_number_and_the_names_in_one_patch() -> None:
    pods = [worker("a"), worker("b"), worker("c", "large")]
    asked = cluster(group("small", 2), group("large", 1))
    found = scale_patch(asked, pods, {}, ["b", "c", "gone"])
    assert found == [replicas(0, 1), replicas(1, 0), listing(0, "b"), listing(1, "c")]


def test_every_group_with_workers_is_set_to_what_it_has() -> None:
    asked = cluster(group("small", 1), group("large", 3), group("idle", 2))
    pods = [worker("a"), worker("b", "large")]
    assert scale_patch(asked, pods, {"small": 1}, ()) == [replicas(0, 2), replicas(1, 1)]


@pytest.mark.parametrize(("pods", "waits"), [([worker("a")], {"small"}), ([LEAVING], set())])
def test_listed_workers_are_waited_for_until_they_go(pods: list[Object], waits: set[str]) -> None:
    asked = cluster(group("small", 1, ["a", "leaving"]))
    assert pending_deletes(asked, pods) == waits


def test_lists_of_workers_that_have_gone_are_emptied() -> None:
    asked = cluster(group("small", 1, []), group("large", 1, ["x"]), group("idle", 0))
    assert clearing_patch(asked) == [listing(1)]
