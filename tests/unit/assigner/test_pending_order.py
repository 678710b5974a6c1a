"""Positions of pending Workloads are those of the scheduling cycle, and are found in steps."""

from __future__ import annotations

import random
from collections.abc import Generator

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.cycle import cycle_order
from rackgate_assigner.visibility import pending_order
from rackgate_assigner.visibility.pending_order import PendingOrder, order_in_steps
from tests.unit.assigner.builders import cache_with, cluster_queue, local_queue, workload


def order_of(cache: Cache) -> tuple[PendingOrder, int]:
    """The order, and the number of steps that it took."""
    queues = {key: queue.cluster_queue for key, queue in cache.local_queues.items()}
    steps: Generator[None, None, PendingOrder] = order_in_steps(
        cache.pending(), queues, cache.priorities
    )
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value, count
        count += 1


def at(minute: int) -> str:
    return f"2026-08-01T12:{minute:02}:00Z"


def two_queues() -> Cache:
    cache = cache_with()
    cache.set_cluster_queue(cluster_queue("other"))
    for name, queue in (("second", "cq"), ("elsewhere", "other"), ("lost", "gone")):
        cache.set_local_queue(local_queue(name, queue))
    return cache


@pytest.mark.field_note("C19")
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_each_queue_has_the_order_of_the_cycle(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_order, "STEP", step)
    cache, rng = two_queues(), random.Random(7)
    for number in range(40):
        queue = rng.choice(["lq", "second", "elsewhere"])
        cache.set_workload(
            workload(f"w{number}", queue=queue, priority=rng.randrange(3), created=at(number % 5))
        )
    order, steps = order_of(cache)
    assert steps >= 40 // step
    expected = cycle_order(cache.pending(), cache.priorities)
    for name, queues in (("cq", ("team/lq", "team/second")), ("other", ("team/elsewhere",))):
        keys = [info.key for info in expected if info.queue in queues]
        assert [found.key for found in order.cluster_queues[name]] == keys
        assert [found.in_cluster_queue for found in order.cluster_queues[name]] == [
            *range(len(keys))
        ]
    for queue in ("team/lq", "team/second", "team/elsewhere"):
        found = order.local_queues[queue]
        assert [one.key for one in found] == [info.key for info in expected if info.queue == queue]
        assert [one.in_local_queue for one in found] == [*range(len(found))]


def test_a_higher_priority_and_an_earlier_creation_come_first() -> None:
    cache = two_queues()
    cache.set_workload(workload("late", created=at(9)))
    cache.set_workload(workload("early", created=at(1), queue="second"))
    cache.set_workload(workload("urgent", created=at(59), priority=5))
    order, _ = order_of(cache)
    found = [(one.key, one.priority, one.in_local_queue) for one in order.cluster_queues["cq"]]
    assert found == [("team/urgent", 5, 0), ("team/early", 0, 0), ("team/late", 0, 1)]


def test_a_workload_without_a_queue_has_no_position() -> None:
    cache = two_queues()
    cache.set_workload(workload("nowhere", queue="unknown"))
    cache.set_workload(workload("lost", queue="lost"))
    cache.set_workload(workload("idle", active=False))
    order, _ = order_of(cache)
    assert set(order.local_queues) == {"team/lost"}
    assert [found.key for found in order.cluster_queues["gone"]] == ["team/lost"]
