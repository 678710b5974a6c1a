from __future__ import annotations

import asyncio
import gc
import re

from rackgate.runtime import metrics
from tests.support import virtualtime


def test_names_and_help_follow_the_rules() -> None:
    for family in metrics.REGISTRY.collect():
        if family.name.startswith("process_"):
            continue
        assert re.fullmatch(r"rackgate_[a-z0-9_]+", family.name)
        assert not family.name.endswith(("_count", "_sum", "_bucket"))
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_bytes", "_pods"))


def test_rendering_names_every_metric() -> None:
    metrics.API_REQUESTS.labels(verb="GET", resource="pods", code="200").inc()
    text = metrics.render().decode()
    for name in (
        "rackgate_api_requests_total",
        "rackgate_watch_restarts_total",
        "rackgate_event_loop_lag_seconds",
        "rackgate_gc_pause_seconds",
        "rackgate_leader",
    ):
        assert f"# TYPE {name} " in text


def test_collections_are_timed_once_however_often_asked() -> None:
    def seen() -> float:
        labels = {"generation": "2"}
        name = "rackgate_gc_pause_seconds_count"
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    callbacks = gc.callbacks[:]
    try:
        metrics.watch_gc()
        metrics.watch_gc()
        before = seen()
        gc.collect()
        assert seen() == before + 1
    finally:
        gc.callbacks[:] = callbacks


def test_a_frozen_heap_is_left_out_of_collections() -> None:
    try:
        metrics.freeze_heap()
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()


def test_loop_lag_is_measured_for_ever() -> None:
    name = "rackgate_event_loop_lag_seconds_count"
    before = metrics.REGISTRY.get_sample_value(name) or 0.0

    async def watch() -> None:
        task = asyncio.create_task(metrics.watch_loop_lag(every_s=1.0))
        await asyncio.sleep(10.5)
        task.cancel()
        await asyncio.wait((task,))

    virtualtime.run(watch())
    assert metrics.REGISTRY.get_sample_value(name) == before + 10


def test_a_counter_shows_every_value_before_the_first_count() -> None:
    """`increase()` does not see a series that begins at 1."""
    counted = metrics.initialize_series(
        metrics.counter("planted_total", "For this test.", ("result",)), "result", ("a", "b")
    )
    assert 'rackgate_planted_total{result="b"} 0.0' in metrics.render().decode()
    metrics.REGISTRY.unregister(counted)
    metrics.DECLARED.pop()
