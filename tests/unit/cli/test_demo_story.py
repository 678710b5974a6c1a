from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate_cli.demo.job import FIRST, SECOND, failed_checks, manifest
from rackgate_cli.demo.story import BLOCK, RACK, BoundPod, bound_pods_of


def rack_of(block: str, rack: str, first: int, count: int = 8) -> list[BoundPod]:
    return [BoundPod(first + i, block, rack, f"{block}-{rack}-{i}") for i in range(count)]


def test_a_kept_promise_is_not_reported() -> None:
    assert failed_checks(FIRST, rack_of("b1", "r1", 0)) == []


def test_a_pod_in_another_rack_breaks_the_required_rack() -> None:
    taken = [*rack_of("b1", "r1", 0, 7), BoundPod(7, "b1", "r2", "x")]
    assert any("required one rack" in line for line in failed_checks(FIRST, taken))


def test_missing_pods_are_reported() -> None:
    assert any("7 of 8" in line for line in failed_checks(FIRST, rack_of("b1", "r1", 0, 7)))


def test_scattered_ranks_are_reported() -> None:
    taken = [BoundPod(i, "b1", f"r{i % 4}", f"h{i}") for i in range(28)]
    assert any("not consecutive" in line for line in failed_checks(SECOND, taken))


def test_two_blocks_break_the_second_promise() -> None:
    taken = [BoundPod(i, f"b{i // 14}", "r1", f"h{i}") for i in range(28)]
    assert any("one block" in line for line in failed_checks(SECOND, taken))


@pytest.mark.parametrize("act", [FIRST, SECOND])
def test_each_manifest_carries_one_queue_label_and_one_topology_annotation(act: object) -> None:
    job = manifest(FIRST if act is FIRST else SECOND)
    annotations = job["spec"]["template"]["metadata"]["annotations"]
    assert job["metadata"]["labels"] == {names.QUEUE_LABEL: "default"}
    assert len([key for key in annotations if key in names.TOPOLOGY_ANNOTATIONS]) == 1


def test_seats_come_in_rank_order_and_skip_unbound_pods() -> None:
    nodes = {"n1": {BLOCK: "b1", RACK: "r1"}, "n2": {BLOCK: "b1", RACK: "r1"}}
    pods: list[dict[str, Any]] = [
        {"metadata": {"labels": {names.COMPLETION_INDEX_LABEL: "1"}}, "spec": {"nodeName": "n1"}},
        {"metadata": {"labels": {names.COMPLETION_INDEX_LABEL: "0"}}, "spec": {"nodeName": "n2"}},
        {"metadata": {"labels": {names.COMPLETION_INDEX_LABEL: "2"}}, "spec": {}},
    ]
    assert [seat.host for seat in bound_pods_of(pods, nodes)] == ["n2", "n1"]
