"""The running service compares its cache with a rebuild, says so, and mends what is wrong."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from rackgate.runtime.metrics import REGISTRY
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.verification_controller import Verification, verify
from tests.support import virtualtime
from tests.support.waiting import until
from tests.unit.assigner.builders import (
    admissions,
    cache_with,
    cluster_queue_status_of,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    workload,
)


def counted(name: str, **labels: str) -> float:
    found = REGISTRY.get_sample_value(f"rackgate_assigner_cache_{name}_total", labels)
    return found or 0.0


def busy() -> Cache:
    """Two nodes, an admitted Workload, a foreign pod."""
    cache = cache_with([node("a"), node("b")])
    cache.set_workload(workload("w", [podset(count=2)]))
    grant = admissions(plan_cycle(cache))["w"]
    cache.set_workload(workload("w", [podset(count=2)], version="2", assignment=grant))
    cache.set_pod(pod("foreign", "a"))
    return cache


def damage(cache: Cache) -> None:
    """Charge what nobody asked for."""
    cache.flavor_topologies().by_flavor["tas"].capacity.charge(0, {"cpu": 1}, 1)


@asynccontextmanager
async def running(verification: Verification) -> AsyncIterator[None]:
    task = asyncio.create_task(verification.run())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def events(logs: list[MutableMapping[str, Any]]) -> list[str]:
    return [line["event"] for line in logs]


@pytest.mark.requirement("CAP-09")
async def test_a_signal_verifies_the_cache_and_logs_one_line() -> None:
    matches = counted("verifications", result="match")
    verification = Verification(busy(), lambda: None)
    with capture_logs() as logs:
        async with running(verification):
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: logs)
    assert events(logs) == ["cache_verified"]
    assert (logs[0]["log_level"], logs[0]["nodes"]) == ("info", 2)
    assert counted("verifications", result="match") == matches + 1


@pytest.mark.requirement("CAP-09")
async def test_a_mismatch_is_logged_as_an_error_counted_and_healed() -> None:
    cache = busy()
    damage(cache)
    before = counted("mismatches", what="usage"), cache.epoch
    replans: list[None] = []
    verification = Verification(cache, lambda: replans.append(None))
    with capture_logs() as logs:
        async with running(verification):
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: replans)
    assert [(line["event"], line["log_level"]) for line in logs] == [("cache_mismatch", "error")]
    assert logs[0]["rows"] == ["flavor tas: usage", "flavor tas: free"]
    assert counted("mismatches", what="usage") == before[0] + 1
    assert cache.epoch > before[1]
    assert rebuild_matches(cache) == []


def test_the_clock_verifies_where_a_period_is_set() -> None:
    async def three_periods() -> float:
        matches = counted("verifications", result="match")
        async with running(Verification(busy(), lambda: None, period_s=60)):
            await asyncio.sleep(185)
        return counted("verifications", result="match") - matches

    assert virtualtime.run(three_periods()) == 3


async def test_a_verification_that_fails_is_reported_and_the_next_one_runs() -> None:
    cache = busy()
    (row,) = cache.workloads.values()
    cache.workloads["team/w"] = None  # type: ignore[assignment]  # a defect, planted
    failed = counted("verifications", result="failed")
    with capture_logs() as logs:
        async with running(Verification(cache, lambda: None)):
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: logs)
            cache.workloads["team/w"] = row
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: len(logs) > 1)
    assert events(logs) == ["cache_verification_failed", "cache_verified"]
    assert counted("verifications", result="failed") == failed + 1


@pytest.mark.requirement("CAP-09")
def test_healing_keeps_what_is_assumed_and_covered_and_who_waits() -> None:
    cache = busy()
    cache.set_pod(pod("w-0", "a", workload="w"))
    cache.set_workload(workload("next", [podset(count=2)]))
    cache.set_workload(workload("last", [podset(count=1)]))
    cache.assume("team/next", admissions(plan_cycle(cache))["next"])
    words, planned = (
        cache.flavor_topologies().by_flavor["tas"].capacity.free.tolist(),
        plan_cycle(cache),
    )
    status = cluster_queue_status_of(cache, "cq")
    cache.rebuild_derived_state()
    assert cache.flavor_topologies().by_flavor["tas"].capacity.free.tolist() == words
    assert plan_cycle(cache) == planned
    assert cluster_queue_status_of(cache, "cq") == status
    assert verify(cache) == []
