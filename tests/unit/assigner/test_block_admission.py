"""`waitForPodsReady.blockAdmission` and `requeuingStrategy.timestamp`: what the scheduler sees."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.features import DEFAULTS
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.workload.decisions import Admit, Evict, Requeue
from rackgate_assigner.workload.info import workload_info
from tests.unit.assigner.builders import (
    CREATED,
    admissions,
    cluster_queue,
    flavor,
    fx_a,
    local_queue,
    namespace,
    plan_cycle,
    podset,
    topology,
    workload,
)

pytestmark = pytest.mark.requirement("TAS-32")

PODSETS = [podset(count=4, requests={"cpu": "4"})]
BLOCKED = "waiting for all admitted workloads to be in PodsReady condition"
READY = {"PodsReady": ("True", "Started", "")}
LOST = {"PodsReady": ("False", "WaitForRecovery", "")}


def cache_with_block(*, block: bool = True) -> Cache:
    cache = Cache(DEFAULTS, block_admission=block)
    cache.set_namespace(namespace())
    cache.set_topology(topology())
    cache.set_flavor(flavor())
    cache.set_cluster_queue(cluster_queue())
    cache.set_local_queue(local_queue())
    for found in fx_a():
        cache.set_node(found)
    return cache


def admit(cache: Cache, name: str, version: str = "2", **more: Any) -> None:
    """Admit the next Workload, and let the watch show it."""
    assignment = admissions(plan_cycle(cache))[name]
    cache.assume(f"team/{name}", assignment)
    cache.confirm(f"team/{name}", version)
    cache.set_workload(workload(name, PODSETS, version=version, assignment=assignment, **more))


def test_one_workload_is_admitted_at_a_time() -> None:
    cache = cache_with_block()
    cache.set_workload(workload("a", PODSETS))
    cache.set_workload(workload("b", PODSETS))
    first, second = plan_cycle(cache)
    assert isinstance(first, Admit)
    assert second == Requeue("team/b", "WaitingForPodsReady", BLOCKED)
    assert len(admissions(plan_cycle(cache_off()))) == 2


def cache_off() -> Cache:
    cache = cache_with_block(block=False)
    cache.set_workload(workload("a", PODSETS))
    cache.set_workload(workload("b", PODSETS))
    return cache


def test_one_that_waits_for_its_admission_checks_blocks_as_well() -> None:
    cache = cache_with_block()
    cache.set_workload(workload("a", PODSETS))
    admit(cache, "a", conditions={"Admitted": ("False", "UnsatisfiedAdmissionChecks", "")})
    cache.set_workload(workload("b", PODSETS))
    assert plan_cycle(cache) == [Requeue("team/b", "WaitingForPodsReady", BLOCKED)]


def test_an_admission_that_is_only_assumed_blocks_as_well() -> None:
    cache = cache_with_block()
    cache.set_workload(workload("a", PODSETS))
    cache.assume("team/a", admissions(plan_cycle(cache))["a"])
    cache.set_workload(workload("b", PODSETS))
    (decision,) = plan_cycle(cache)
    assert isinstance(decision, Requeue)
    assert decision.reason == "WaitingForPodsReady"


@pytest.mark.parametrize("before", [{}, LOST], ids=["starting", "lost"])
def test_all_ready_wakes_the_next(before: dict[str, tuple[str, str, str]]) -> None:
    cache = cache_with_block()
    cache.set_workload(workload("a", PODSETS))
    assignment = admissions(plan_cycle(cache))["a"]
    admit(cache, "a", conditions=before)
    cache.set_workload(workload("b", PODSETS))
    assert admissions(plan_cycle(cache)) == {}
    epoch = cache.epoch
    cache.set_workload(workload("a", PODSETS, version="3", assignment=assignment, conditions=READY))
    assert cache.epoch > epoch
    assert list(admissions(plan_cycle(cache))) == ["b"]


def test_an_elastic_job_blocks_nobody() -> None:
    """It has no timeout."""
    cache = cache_with_block()
    cache.set_workload(workload("a", PODSETS, elastic=True))
    admit(cache, "a", elastic=True)
    cache.set_workload(workload("b", PODSETS))
    assert list(admissions(plan_cycle(cache))) == ["b"]


@pytest.mark.parametrize("end", ["finished", "deleted", "released"])
def test_one_that_is_gone_blocks_nobody(end: str) -> None:
    cache = cache_with_block()
    cache.set_workload(workload("a", PODSETS))
    assignment = admissions(plan_cycle(cache))["a"]
    admit(cache, "a")
    cache.set_workload(workload("b", PODSETS))
    epoch = cache.epoch
    if end == "deleted":
        cache.drop_workload("team/a")
    elif end == "finished":
        done = {"Finished": ("True", "Succeeded", "")}
        cache.set_workload(
            workload("a", PODSETS, version="3", assignment=assignment, conditions=done)
        )
    else:
        cache.set_workload(workload("a", PODSETS, version="3", active=False))
    assert cache.epoch > epoch
    assert list(admissions(plan_cycle(cache))) == ["b"]


@pytest.mark.parametrize("by_creation", [False, True])
def test_the_timestamp_orders_only_those_that_were_evicted_for_missing_pods(
    by_creation: bool,
) -> None:
    at = "2027-01-01T00:00:00Z"
    for reason, renewed in (
        ("PodsReadyTimeout", not by_creation),
        ("JobSuspended", True),
        ("Preempted", False),
    ):
        evicted = workload("w", conditions={"Evicted": ("True", reason, "")}, reserved_at=at)
        row = workload_info(evicted, requeue_by_creation=by_creation)
        assert row.queue_timestamp == (at if renewed else CREATED), reason


@pytest.mark.parametrize(
    ("target", "reason", "message", "cause"),
    [
        (
            ("True", "RequeuingLimitExceeded", "exceeding it"),
            "DeactivatedDueToRequeuingLimitExceeded",
            "The workload is deactivated due to exceeding it",
            "RequeuingLimitExceeded",
        ),
        (("False", "RequeuingLimitExceeded", ""), "Deactivated", "The workload is deactivated", ""),
        (("True", "Invented", "by others"), "Deactivated", "The workload is deactivated", ""),
    ],
)
def test_a_deactivated_workload_is_evicted_for_its_cause(
    target: tuple[str, str, str], reason: str, message: str, cause: str
) -> None:
    cache = cache_with_block(block=False)
    cache.set_workload(workload("a", PODSETS))
    assignment = admissions(plan_cycle(cache))["a"]
    found = {"DeactivationTarget": target}
    cache.set_workload(
        workload("a", PODSETS, version="2", assignment=assignment, active=False, conditions=found)
    )
    assert plan_cycle(cache) == [Evict("team/a", reason, message, cause)]


def test_one_workload_is_admitted_at_a_time_in_a_cohort_too() -> None:
    cache = cache_with_block()
    cache.set_cluster_queue(cluster_queue(cohortName="all"))
    cache.set_workload(workload("a", PODSETS))
    cache.set_workload(workload("b", PODSETS))
    decisions = {found.workload: found for found in plan_cycle(cache)}
    assert isinstance(decisions["team/a"], Admit)
    assert decisions["team/b"] == Requeue("team/b", "WaitingForPodsReady", BLOCKED)


def test_fewer_pods_wait_as_well() -> None:
    cache = cache_with_block()
    cache.set_cluster_queue(cluster_queue("cq", {"tas": {"cpu": "24"}}))
    cache.set_workload(workload("a", PODSETS))
    cache.set_workload(workload("b", [{**PODSETS[0], "minCount": 1}]))
    decisions = {found.workload: found for found in plan_cycle(cache)}
    assert isinstance(decisions["team/a"], Admit)
    assert decisions["team/b"] == Requeue("team/b", "WaitingForPodsReady", BLOCKED)
