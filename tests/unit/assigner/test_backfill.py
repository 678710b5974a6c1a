"""Workloads ahead of the head of a StrictFIFO queue: who is admitted, and what is reported."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from rackgate.api.timestamps import rfc3339
from rackgate.features import Features
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.backfill import MARGIN_S
from rackgate_assigner.scheduler.cycle import pending_queues, plan
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    Decision,
    PodSetAssignment,
    Preempt,
    Requeue,
)
from tests.unit.assigner.builders import (
    RACK,
    cache_with,
    cluster_queue,
    flavor,
    local_queue,
    node,
    podset,
    workload,
)
from tests.unit.assigner.test_activity import check

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
HOUR = 3600
SLACK = 30 + int(MARGIN_S)  # the default grace period of pods, and the margin
GATE = Features.of({"RackgateBackfill": True})
BEHIND = "waiting for the workloads ahead in StrictFIFO ClusterQueue cq"


def ago(seconds: float) -> str:
    return rfc3339(NOW - timedelta(seconds=seconds))


def queue(cpu: int = 10, **spec: Any) -> Cache:
    """ClusterQueue `cq` with quota in flavor `plain`."""
    cache = cache_with()
    cache.set_flavor(flavor("plain", None, {}))
    quotas = {"plain": {"cpu": str(cpu)}}
    cache.set_cluster_queue(cluster_queue("cq", quotas, queueingStrategy="StrictFIFO", **spec))
    cache.set_local_queue(local_queue("lq", "cq"))
    return cache


def waits(cache: Cache, name: str, cpu: int, limit: int | None = None, **more: Any) -> None:
    if limit is not None:
        more["maximumExecutionTimeSeconds"] = limit
    podsets = more.pop("podsets", [podset(count=cpu)])
    cache.set_workload(workload(name, podsets, **more))


def runs(
    cache: Cache, name: str, cpu: int, limit: int | None = None, since: float = 0, **more: Any
) -> None:
    part = PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 1000 * cpu}, cpu)
    more |= {"assignment": Assignment("cq", (part,)), "reserved_at": ago(since), "version": "2"}
    waits(cache, name, cpu, limit, **more)


def decide(cache: Cache, features: Features = GATE) -> list[Decision]:
    return plan(cache.snapshot(), features, now=NOW.timestamp())


def admitted(decisions: list[Decision]) -> dict[str, str]:
    """By name, the uid of the head that it is ahead of."""
    return {
        found.workload.partition("/")[2]: found.ahead_of
        for found in decisions
        if isinstance(found, Admit)
    }


def messages(decisions: list[Decision]) -> dict[str, str]:
    return {
        found.workload.partition("/")[2]: found.message
        for found in decisions
        if isinstance(found, Requeue)
    }


def test_a_workload_that_ends_before_the_head_can_start_is_admitted_ahead_of_it() -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, HOUR - SLACK)
    decisions = decide(cache)
    assert admitted(decisions) == {"b-short": "uid-a-head"}
    assert messages(decisions)["a-head"].endswith(
        ". Expected to start by 2026-11-01T13:00:00Z, when 1 workload has reached its maximum "
        "execution time"
    )


def test_one_that_might_end_a_second_too_late_stays_pending() -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, HOUR - SLACK + 1)
    decisions = decide(cache)
    assert admitted(decisions) == {}
    assert messages(decisions)["b-short"] == (
        f"{BEHIND}; not admitted ahead of them: it may run until after the expected start of the "
        "first one, and would delay it"
    )


def test_pods_with_a_long_grace_period_count_as_running_until_its_end() -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10)
    slow = [podset(count=2, terminationGracePeriodSeconds=HOUR)]
    waits(cache, "b-slow", 2, 60, podsets=slow)
    waits(cache, "c-quick", 2, 60)
    assert admitted(decide(cache)) == {"c-quick": "uid-a-head"}


def test_one_without_a_maximum_is_admitted_if_it_leaves_what_the_head_needs() -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 9)
    waits(cache, "b-endless", 2)
    waits(cache, "c-endless", 1)
    waits(cache, "d-endless", 1)
    decisions = decide(cache)
    assert admitted(decisions) == {"c-endless": "uid-a-head"}
    assert messages(decisions)["d-endless"] == (
        f"{BEHIND}; not admitted ahead of them: it has no maximum execution time (label "
        "kueue.x-k8s.io/max-exec-time-seconds) and would delay the first one"
    )


def test_without_an_expected_start_nothing_is_admitted_ahead_of_the_head() -> None:
    cache = queue()
    runs(cache, "endless", 8)
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, 60)
    decisions = decide(cache)
    assert admitted(decisions) == {}
    assert messages(decisions)["a-head"].endswith(
        ". Its start cannot be predicted: workloads without a maximum execution time use what it "
        "needs"
    )
    assert messages(decisions)["b-short"] == (
        f"{BEHIND}; not admitted ahead of them: the start of the first one cannot be predicted"
    )


def test_without_the_gate_or_the_time_the_queue_is_strict() -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, 60)
    for decisions in (decide(cache, Features()), plan(cache.snapshot(), GATE)):
        assert admitted(decisions) == {}
        assert messages(decisions)["b-short"] == BEHIND
        assert "xpected" not in messages(decisions)["a-head"]


def test_the_time_of_earlier_admissions_and_of_this_one_counts() -> None:
    cache = queue()
    used = workload(
        "long",
        [podset(count=8)],
        version="2",
        reserved_at=ago(600),
        assignment=Assignment(
            "cq", (PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 8000}, 8),)
        ),
        maximumExecutionTimeSeconds=HOUR,
    )
    status = replace(used.status, accumulated_past_execution_time_seconds=1000)
    cache.set_workload(replace(used, status=status))
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, HOUR - 1600 - SLACK + 1)
    waits(cache, "c-shorter", 2, HOUR - 1600 - SLACK)
    assert admitted(decide(cache)) == {"c-shorter": "uid-a-head"}


def test_one_whose_admission_is_not_visible_yet_counts_as_admitted_now() -> None:
    cache = queue()
    waits(cache, "long", 8, HOUR)
    cache.assume(
        "team/long",
        Assignment("cq", (PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 8000}, 8),)),
    )
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, HOUR - SLACK)
    assert admitted(decide(cache)) == {"b-short": "uid-a-head"}


def test_while_workloads_are_being_stopped_the_head_starts_soon() -> None:
    cache = queue()
    runs(cache, "leaves", 8, HOUR, conditions={"Evicted": ("True", "Preempted", "")})
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, 1)
    decisions = decide(cache)
    assert admitted(decisions) == {}
    assert messages(decisions)["a-head"].endswith(
        ". Expected to start when the workloads that are being stopped are gone"
    )


def test_a_head_that_waits_for_its_preemption_has_no_one_admitted_ahead_of_it() -> None:
    cache = queue(preemption={"withinClusterQueue": "LowerPriority"})
    runs(cache, "low", 8, HOUR)
    waits(cache, "a-head", 10, priority=1)
    waits(cache, "b-short", 2, 60)
    decisions = decide(cache)
    assert [found.workload for found in decisions if isinstance(found, Preempt)] == ["team/low"]
    assert admitted(decisions) == {}


def test_with_admission_checks_no_one_is_admitted_ahead_as_its_time_starts_later() -> None:
    cache = queue(admissionChecksStrategy={"admissionChecks": [{"name": "quality"}]})
    cache.set_admission_check(check("quality", "example.com/quality", active=True))
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, 60)
    decisions = decide(cache)
    assert admitted(decisions) == {}
    assert messages(decisions)["b-short"].endswith("it would have to pass admission checks")


def test_with_a_blocked_admission_no_one_is_admitted_ahead() -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10)
    waits(cache, "b-short", 2, 60)
    snapshot = cache.snapshot()
    snapshot.unready = frozenset()
    assert admitted(plan(snapshot, GATE, now=NOW.timestamp())) == {}


def racks(count: int) -> Cache:
    """ClusterQueue `cq` with racks of two nodes, each of 4 cpu."""
    nodes = [node(f"n{i}", f"b1/r{i // 2}") for i in range(2 * count)]
    cache = cache_with(nodes=nodes)
    cache.set_cluster_queue(cluster_queue("cq", queueingStrategy="StrictFIFO"))
    cache.set_local_queue(local_queue("lq", "cq"))
    return cache


def test_the_domains_of_the_head_are_kept_for_the_time_of_its_start() -> None:
    cache = racks(2)
    whole = {"required": RACK}
    for index, limit in enumerate((HOUR, 2 * HOUR)):
        name, cpu = f"run{index}", 5
        waits(cache, name, cpu, limit, podsets=[podset(count=cpu, topology=whole)])
    for found in decide(cache):
        assert isinstance(found, Admit)
        run = workload(
            found.workload.partition("/")[2],
            [podset(count=5, topology=whole)],
            version="2",
            reserved_at=ago(0),
            assignment=found.assignment,
            maximumExecutionTimeSeconds=HOUR if found.workload.endswith("0") else 2 * HOUR,
        )
        cache.set_workload(run)
    waits(cache, "a-head", 8, podsets=[podset(count=8, topology=whole)])
    for index in range(3):
        waits(cache, f"b-endless{index}", 2, podsets=[podset(count=2, topology=whole)])
    decisions = decide(cache)
    # Best fit takes the first rack, which is the one of the head; the third fits in no rack.
    assert "Expected to start by 2026-11-01T13:00:00Z" in messages(decisions)["a-head"]
    for found in decisions:
        if isinstance(found, Admit):
            (part,) = found.assignment.podsets
            assert part.topology is not None
            assert {values[1] for values, _ in part.topology.domains} == {"r1"}


def test_room_that_another_queue_waits_for_after_a_preemption_is_not_taken() -> None:
    cache = racks(2)
    preemption = {"withinClusterQueue": "LowerPriority"}
    cache.set_cluster_queue(cluster_queue("other", preemption=preemption))
    cache.set_local_queue(local_queue("lo", "other"))
    for name, lq, cpu in (("long", "lq", 8), ("low", "lo", 6)):
        podsets = [podset(count=cpu, topology={"required": RACK})]
        waits(cache, name, cpu, HOUR, podsets=podsets, queue=lq)
        (found,) = decide(cache)
        assert isinstance(found, Admit)
        holds = {"assignment": found.assignment, "reserved_at": ago(0), "version": "2"}
        waits(cache, name, cpu, HOUR, podsets=podsets, queue=lq, **holds)
    waits(cache, "a-head", 16, podsets=[podset(count=16, topology={"preferred": RACK})])
    waits(cache, "b-short", 2, 60, podsets=[podset(count=2, topology={"required": RACK})])
    high = [podset(count=8, topology={"required": RACK})]
    waits(cache, "high", 8, podsets=high, queue="lo", priority=1)
    decisions = decide(cache)
    assert [found.workload for found in decisions if isinstance(found, Preempt)] == ["team/low"]
    assert "Expected to start by" in messages(decisions)["a-head"]
    assert messages(decisions)["b-short"] == BEHIND
    cache.drop_workload("team/high")
    assert admitted(decide(cache)) == {"b-short": "uid-a-head"}


def test_an_answer_about_backfill_is_taken_back_when_it_no_longer_holds() -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10)
    waits(cache, "b-late", 2, HOUR)
    snapshot = cache.snapshot()
    queues = pending_queues(snapshot)
    now = NOW.timestamp()
    assert "not admitted ahead" in messages(plan(snapshot, GATE, queues=queues, now=now))["b-late"]
    queues.wake_all()
    snapshot = cache.snapshot()
    snapshot.pending = []
    assert messages(plan(snapshot, Features(), queues=queues, now=now))["b-late"] == BEHIND


@pytest.mark.parametrize("limit", [HOUR - SLACK, HOUR - SLACK + 1])
def test_a_head_that_accepts_fewer_pods_is_not_left_with_fewer(limit: int) -> None:
    cache = queue()
    runs(cache, "long", 8, HOUR)
    waits(cache, "a-head", 10, podsets=[{**podset(count=10), "minCount": 5}])
    waits(cache, "b-short", 2, limit)
    assert bool(admitted(decide(cache))) == (limit == HOUR - SLACK)


def test_a_head_that_starts_with_less_free_and_not_with_more_is_searched_time_by_time() -> None:
    cache = cache_with()
    quotas = {"first": {"cpu": "10"}, "second": {"cpu": "10"}}
    cache.set_flavor(flavor("first", None, {"pool": "first"}))
    cache.set_flavor(flavor("second", None, {"pool": "second"}))
    cache.set_cluster_queue(cluster_queue("cq", quotas, queueingStrategy="StrictFIFO"))
    cache.set_local_queue(local_queue("lq", "cq"))

    def holds(name: str, pool: str, cpu: int, limit: int) -> None:
        part = PodSetAssignment("main", {"cpu": pool}, {"cpu": 1000 * cpu}, cpu)
        assignment = Assignment("cq", (part,))
        more = {"reserved_at": ago(0), "version": "2", "assignment": assignment}
        waits(cache, name, cpu, limit, **more)

    # The first PodSet takes the first flavor as soon as it can, and leaves none for the second.
    holds("blocker", "second", 10, HOUR)
    holds("small", "first", 5, 2 * HOUR)
    podsets = [
        podset("any", 8),
        podset("only-first", 5, nodeSelector={"pool": "first"}),
    ]
    waits(cache, "a-head", 13, podsets=podsets)
    waits(cache, "b-short", 1, HOUR - SLACK)
    # With more free it exceeds the quota, so it would be skipped.
    gates = {"RackgateBackfill": True, "RackgateStrictFIFOSkipsImpossible": False}
    decisions = decide(cache, Features.of(gates))
    assert "Expected to start by 2026-11-01T13:00:00Z" in messages(decisions)["a-head"]
    assert admitted(decisions) == {"b-short": "uid-a-head"}


def test_if_too_many_end_before_the_head_starts_only_short_ones_are_admitted_ahead() -> None:
    cache = queue(35)
    for hours in range(1, 35):
        runs(cache, f"run{hours}", 1, hours * HOUR)
    # With `minCount` the first 32 ends are tried, and it starts at the next one.
    waits(cache, "a-head", 35, podsets=[{**podset(count=35), "minCount": 34}])
    waits(cache, "b-endless", 1)
    assert admitted(decide(cache)) == {}
    waits(cache, "c-short", 1, 33 * HOUR - SLACK)
    decisions = decide(cache)
    assert admitted(decisions) == {"c-short": "uid-a-head"}
    assert messages(decisions)["a-head"].endswith(
        ". Not expected before 2026-11-02T21:00:00Z, when 33 workloads have reached their maximum "
        "execution time"
    )
