"""Large workflows, and what a submission adds to a cluster."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import threading
import time

import pytest

from bench.osmo import POOL, document
from rackgate_osmo import PodMembership, TaskGroup, build_podgroups, read_pool, read_workflow


@pytest.mark.requirement("OSM-21")
def test_ten_thousand_tasks_at_four_levels_take_less_than_a_second() -> None:
    data = document(10_000, 18)
    before = time.process_time()
    pool = read_pool(POOL)
    built = build_podgroups(pool, read_workflow(data, pool))
    spent = time.process_time() - before
    assert len(built.pods) == 10_000
    assert spent < 1.0


@pytest.mark.requirement("OSM-21", "OSM-22", "OSM-26")
def test_a_submission_makes_one_pod_group_for_each_task_group_and_marks_pods() -> None:
    data = document(40, 4)
    tasks = data["workflow"]["groups"][0]["tasks"]
    data["workflow"]["groups"] = [
        {"name": f"g{index}", "tasks": tasks[index::4]} for index in range(4)
    ]
    pool = read_pool(POOL)
    built = build_podgroups(pool, read_workflow(data, pool))
    assert [one["kind"] for one in built.pod_groups] == ["PodGroup"] * 4
    assert {field.name for field in dataclasses.fields(PodMembership)} == {
        "pod_group",
        "annotations",
        "labels",
        "scheduler_name",
    }


@pytest.mark.requirement("OSM-21")
def test_threads_have_their_turn_while_one_large_group_is_read() -> None:
    data = {"name": "g", "tasks": [{"name": f"t{index}"} for index in range(20_000)]}
    turns, done = itertools.count(), threading.Event()

    def others() -> None:
        while not done.is_set():
            next(turns)
            time.sleep(0)  # gives the interpreter away

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=others)
    thread.start()
    try:
        before = next(turns)
        TaskGroup.model_validate(data)
        taken = next(turns) - before
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert taken > 20, "two or three around the call are no sign"
