"""Pods of gangs that child Jobs had completed when a run started."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api.names import GANG_DONE_PODS_ANNOTATION
from rackgate.gang.runs.done_pods import (
    MAX_CHILD_JOBS,
    decode_done_pods,
    encode_done_pods,
    of_children,
    sum_of_done_pods,
)

DONE = {"workers": {"b": 2, "a": 1}, "leader": {"c": 1}}


@pytest.mark.requirement("GNG-10")
def test_what_is_written_is_read_and_equal_values_are_equal_texts() -> None:
    text = encode_done_pods(DONE)
    assert text == '{"leader":{"c":1},"workers":{"a":1,"b":2}}'
    assert decode_done_pods({GANG_DONE_PODS_ANNOTATION: text}) == DONE
    assert encode_done_pods({}) == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"w":1}', '{"w":{"a":"1"}}', '{"w":{"a":1.5}}'])
def test_what_is_not_readable_says_nothing(text: str) -> None:
    assert decode_done_pods({GANG_DONE_PODS_ANNOTATION: text}) == {}
    assert decode_done_pods({}) == {}


def test_no_more_child_jobs_are_written_than_an_object_has_room_for() -> None:
    many = {f"{number:036}": 1 for number in range(10_000)}
    text = encode_done_pods({"a": {"x": 1}, "workers": many})
    found = decode_done_pods({GANG_DONE_PODS_ANNOTATION: text})
    assert sum(len(one) for one in found.values()) == MAX_CHILD_JOBS
    assert len(text) < 100_000
    assert found["a"] == {"x": 1}


@pytest.mark.requirement("GNG-10")
def test_child_jobs_that_exist_count() -> None:
    assert of_children(DONE, {"a", "c"}) == {"workers": {"a": 1}, "leader": {"c": 1}}
    assert of_children({"workers": {"a": -5}}, {"a"}) == {"workers": {"a": 0}}


@pytest.mark.requirement("GNG-10")
@pytest.mark.parametrize(
    ("done", "reclaimable", "expected"),
    [
        (DONE, {}, {"workers": 3, "leader": 1}),
        (DONE, {"workers": 8}, {"workers": 8, "leader": 1}),
        ({"workers": {}}, {}, {}),
        ({}, {"workers": 1, "leader": 0}, {"workers": 1}),
    ],
)
def test_no_pod_counts_twice(
    done: dict[str, Any], reclaimable: dict[str, int], expected: dict[str, int]
) -> None:
    assert sum_of_done_pods(done, reclaimable) == expected
