"""Admission fair sharing: the order of LocalQueues in a plan, in positions, and of candidates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rackgate.features import Features
from rackgate.wire import kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.queue_position import pending_order
from rackgate_assigner.queues import status
from rackgate_assigner.quota.admission_fair_sharing import AdmissionFairSharing, Moment
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.scheduler.planner import Planner
from rackgate_assigner.visibility.order_cache import OrderCache
from rackgate_assigner.workload.decisions import (
    Admit,
    Assignment,
    Decision,
    PodSetAssignment,
    Preempt,
)
from tests.unit.assigner.builders import cluster_queue, flavor, namespace, podset, workload

USAGE_BASED = {"admissionMode": "UsageBasedAdmissionFairSharing"}
START = "2026-08-01T12:00:00Z"
# An admission counts as half of what the Workload requests.
RULES = AdmissionFairSharing(half_life_s=300, sampling_interval_s=300)
NOW = Moment(100, 1_785_585_600)  # START


def local_queue(name: str, queue: str = "cq", weight: str = "1", **consumed: str) -> Any:
    stored = {"consumedResources": consumed, "lastUpdate": START}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "team", "generation": 1},
            "spec": {"clusterQueue": queue, "fairSharing": {"weight": weight}},
            "status": {"fairSharing": {"admissionFairSharingStatus": stored}},
        },
        kueue.LocalQueue,
    )


def cache_of(
    cpu: int = 4, rules: AdmissionFairSharing | None = RULES, features: Any = None, **spec: Any
) -> Cache:
    """A usage-based ClusterQueue with LocalQueues `a` and `b`, of which `a` consumed more."""
    cache = Cache(features or Features(), admission_fair_sharing=rules)
    cache.set_namespace(namespace())
    cache.set_flavor(flavor("plain", None, {}))
    spec.setdefault("admissionScope", USAGE_BASED)
    cache.set_cluster_queue(cluster_queue("cq", {"plain": {"cpu": str(cpu)}}, **spec))
    cache.set_local_queue(local_queue("a", cpu="5"))
    cache.set_local_queue(local_queue("b", cpu="1"))
    return cache


def waits(cache: Cache, name: str, queue: str, cpu: int = 1, **more: Any) -> None:
    cache.set_workload(workload(name, [podset(count=cpu)], queue=queue, **more))


def runs(cache: Cache, name: str, queue: str, cpu: int = 1, **more: Any) -> None:
    part = PodSetAssignment("main", {"cpu": "plain"}, {"cpu": 1000 * cpu}, cpu)
    waits(cache, name, queue, cpu, version="2", assignment=Assignment("cq", (part,)), **more)


def decide(cache: Cache) -> list[Decision]:
    return plan(cache.snapshot(), cache.features)


def admitted(decisions: list[Decision]) -> list[str]:
    return [one.workload.partition("/")[2] for one in decisions if isinstance(one, Admit)]


def preempted(decisions: list[Decision]) -> list[str]:
    return [one.workload.partition("/")[2] for one in decisions if isinstance(one, Preempt)]


def test_the_local_queue_with_the_least_usage_goes_first_whatever_the_priority() -> None:
    cache = cache_of(cpu=1)
    waits(cache, "of-a", "a", priority=9)
    waits(cache, "of-b", "b")
    assert admitted(decide(cache)) == ["of-b"]


def test_within_a_local_queue_priority_and_age_decide() -> None:
    cache = cache_of(cpu=2)
    waits(cache, "old", "b", created="2026-08-01T11:00:00Z")
    waits(cache, "new", "b", created="2026-08-01T12:00:00Z")
    waits(cache, "high", "b", priority=1, created="2026-08-01T13:00:00Z")
    assert admitted(decide(cache)) == ["high", "old"]


def test_an_admission_moves_the_next_one_of_its_local_queue_back_in_the_same_plan() -> None:
    cache = cache_of(cpu=24)
    for number in range(4):
        waits(cache, f"b{number}", "b", 4)
        waits(cache, f"a{number}", "a", 4)
    # b: 1, 3, 5 (older than a's), 7; a: 5, 7, 9.
    assert admitted(decide(cache)) == ["b0", "b1", "a0", "b2", "a1", "b3"]


class Cycles:
    """Plans one after another with pending Workloads that are kept, as the assigner does."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.planner = cache, Planner(cache)

    def decide(self) -> list[Decision]:
        snapshot, queues = self.planner.prepare(lambda _key: False)
        decisions = plan(snapshot, self.cache.features, queues=queues)
        for one in decisions:
            if isinstance(one, Admit):
                self.cache.assume(one.workload, one.assignment)
        return decisions


def test_local_queues_take_turns_over_several_cycles() -> None:
    cache = cache_of(cpu=1)
    for name in "ab":
        cache.set_local_queue(local_queue(name))
    cycles, turns = Cycles(cache), list[str]()
    for number in range(3):
        waits(cache, f"a{number}", "a")
    for number in range(3):
        waits(cache, f"b{number}", "b")
    for _ in range(6):
        (found,) = admitted(cycles.decide())
        turns.append(found)
        assert admitted(cycles.decide()) == []
        queue = found[0]
        history = cache.usage_history
        assert history is not None
        history.settle(f"team/{found}")
        cache.drop_workload(f"team/{found}")
        assert history.charged(f"team/{queue}")["cpu"] > 0
    assert turns == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_when_usage_alone_changes_another_head_of_a_strict_queue_is_decided_about() -> None:
    cache = cache_of(cpu=4, queueingStrategy="StrictFIFO")
    runs(cache, "running", "a", 2)
    waits(cache, "large", "b", 3)
    waits(cache, "small", "a", 1)
    cycles = Cycles(cache)
    assert admitted(cycles.decide()) == []
    cache.set_local_queue(local_queue("b", cpu="9"))
    assert not cache.changes
    assert admitted(cycles.decide()) == ["small"]
    assert not cycles.planner.is_due


@pytest.mark.parametrize(
    ("rules", "features", "spec"),
    [
        (None, Features(), {}),
        (RULES, Features(), {"admissionScope": {"admissionMode": "NoAdmissionFairSharing"}}),
        (RULES, Features(), {"admissionScope": None}),
    ],
)
def test_without_it_priority_decides(rules: Any, features: Features, spec: Any) -> None:
    cache = cache_of(1, rules, features, **spec)
    waits(cache, "of-a", "a", priority=9)
    waits(cache, "of-b", "b")
    assert admitted(decide(cache)) == ["of-a"]


def test_the_weight_of_a_local_queue_divides_its_usage() -> None:
    cache = cache_of(cpu=1)
    cache.set_local_queue(local_queue("a", weight="10", cpu="5"))
    waits(cache, "of-a", "a")
    waits(cache, "of-b", "b", priority=9)
    assert admitted(decide(cache)) == ["of-a"]


def test_a_local_queue_of_weight_zero_comes_last_without_any_usage() -> None:
    cache = cache_of(cpu=1)
    cache.set_local_queue(local_queue("idle", weight="0"))
    waits(cache, "of-idle", "idle", priority=9)
    waits(cache, "of-a", "a")
    assert admitted(decide(cache)) == ["of-a"]


def test_a_strict_queue_is_blocked_by_the_head_of_the_local_queue_with_the_least_usage() -> None:
    cache = cache_of(cpu=4, queueingStrategy="StrictFIFO")
    runs(cache, "running", "a", 2)
    waits(cache, "large", "b", 3)
    waits(cache, "small", "a", 1, priority=9)
    assert admitted(decide(cache)) == []
    cache.set_local_queue(local_queue("b", cpu="9"))
    assert admitted(decide(cache)) == ["small"]


def test_in_a_best_effort_queue_others_pass_a_head_that_does_not_fit() -> None:
    cache = cache_of(cpu=4)
    runs(cache, "running", "a", 2)
    waits(cache, "large", "b", 3)
    waits(cache, "small", "a", 1)
    assert admitted(decide(cache)) == ["small"]


def test_the_local_queue_with_the_most_usage_loses_its_workloads_first() -> None:
    cache = cache_of(cpu=4, preemption={"withinClusterQueue": "LowerPriority"})
    runs(cache, "low", "b", 2)
    runs(cache, "middle", "a", 2, priority=1)
    waits(cache, "high", "b", 2, priority=2)
    assert preempted(decide(cache)) == ["middle"]
    cache.set_cluster_queue(
        cluster_queue(
            "cq",
            {"plain": {"cpu": "4"}},
            preemption={"withinClusterQueue": "LowerPriority"},
            cohortName="all",
        )
    )
    assert preempted(decide(cache)) == ["low"]


@pytest.mark.parametrize("strategies", [None, ("LessThanOrEqualToFinalShare",)])
def test_usage_is_not_compared_between_cluster_queues(strategies: Any) -> None:
    reclaim: dict[str, Any] = {"preemption": {"reclaimWithinCohort": "Any"}, "cohortName": "all"}
    cache = cache_of(cpu=2, **reclaim)
    cache.set_cluster_queue(cluster_queue("mine", {"plain": {"cpu": "4"}}, **reclaim))
    cache.set_local_queue(local_queue("m", "mine"))
    runs(cache, "low", "b", 3)
    runs(cache, "middle", "a", 3, priority=1)
    waits(cache, "high", "m", 3, priority=2)
    decisions = plan(cache.snapshot(), cache.features, fair_sharing=strategies)
    assert preempted(decisions) == ["middle"]


def test_a_workload_that_others_were_preempted_for_comes_before_less_usage() -> None:
    waiting = {"QuotaReserved": ("False", "WaitingForPreemptedWorkloads", "")}
    for sticky, expected in ((True, ["of-a"]), (False, ["of-b"])):
        cache = cache_of(1, features=Features(sticky_preemptors=sticky))
        cache.set_local_queue(local_queue("b"))  # no usage is less
        waits(cache, "of-a", "a", conditions=waiting)
        waits(cache, "of-b", "b")
        assert admitted(decide(cache)) == expected
        line = pending_order(cache, cache.workloads["team/of-b"])
        assert [row.key.partition("/")[2] for row in line][:1] == expected


async def test_positions_are_those_of_the_cycle() -> None:
    cache = cache_of(cpu=1)
    waits(cache, "of-a", "a", priority=9)
    waits(cache, "first", "b", priority=1)
    waits(cache, "second", "b")
    line = pending_order(cache, cache.workloads["team/of-a"])
    assert [row.key for row in line] == ["team/first", "team/second", "team/of-a"]
    order = await OrderCache(cache).order()
    assert [found.key for found in order.cluster_queues["cq"]] == [row.key for row in line]
    assert [found.in_local_queue for found in order.local_queues["team/b"]] == [0, 1]


def test_a_pending_penalty_counts_until_the_admission_is_forgotten() -> None:
    cache = cache_of(cpu=9)
    waits(cache, "w", "b", 8)
    history = cache.usage_history
    assert history is not None
    (decision,) = decide(cache)
    assert isinstance(decision, Admit)
    cache.assume("team/w", decision.assignment)
    assert history.pending == ["team/w"]
    assert history.charged("team/b") == {"cpu": 5.0}


def test_no_penalty_is_charged_in_a_cluster_queue_without_admission_scope() -> None:
    cache = cache_of(cpu=9, admissionScope=None)
    waits(cache, "w", "b", 8)
    (decision,) = decide(cache)
    assert isinstance(decision, Admit)
    cache.assume("team/w", decision.assignment)
    assert cache.usage_history is not None
    assert cache.usage_history.pending == []


def test_a_status_shows_what_was_consumed_and_is_read_back() -> None:
    cache = cache_of()
    history = cache.usage_history
    assert history is not None
    history.observe("team/a", {"cpu": 2.0, "memory": 3.6e9}, NOW)
    history.observe("team/a", {}, Moment(NOW.monotonic_s + 300, NOW.wall_s + 300))
    written = status.local_queue_status(cache, "team/a", cache.features)["fairSharing"]
    assert written == {
        "weightedShare": 0,
        "admissionFairSharingStatus": {
            "consumedResources": {"cpu": "3500m", "memory": "1800000000"},
            "lastUpdate": "2026-08-01T12:05:00Z",
        },
    }
    other = cache_of()
    shown = msgspec.convert({"fairSharing": written}, kueue.QueueStatus)
    other.set_local_queue(msgspec.structs.replace(local_queue("a"), status=shown))
    assert other.usage_history is not None
    assert other.usage_history.consumed("team/a") == ({"cpu": 3.5, "memory": 1.8e9}, 1_785_585_900)


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"consumedResources": {"cpu": "1"}},
        {"consumedResources": {"cpu": "much"}, "lastUpdate": START},
        {"consumedResources": ["cpu"], "lastUpdate": START},
        {"consumedResources": {"cpu": "1"}, "lastUpdate": "yesterday"},
        {"consumedResources": {"cpu": "1"}, "lastUpdate": 7},
        "x",
    ],
)
def test_a_status_in_another_form_is_not_read(stored: Any) -> None:
    cache = cache_of()
    shown = {"fairSharing": {"admissionFairSharingStatus": stored}}
    queue = local_queue("new")
    cache.set_local_queue(
        msgspec.structs.replace(queue, status=msgspec.convert(shown, kueue.QueueStatus))
    )
    assert cache.usage_history is not None
    assert "team/new" not in cache.usage_history


def test_an_idle_local_queue_is_written_once_and_another_one_in_each_interval() -> None:
    def shown(consumed: Any, minute: int) -> dict[str, Any]:
        stored = {"consumedResources": consumed, "lastUpdate": f"2026-08-01T12:{minute:02}:00Z"}
        return {"weightedShare": 0, "admissionFairSharingStatus": stored}

    def differs(present: Any, wanted: Any) -> bool:
        conditions: dict[str, Any] = {"conditions": []}
        queue = kueue.QueueStatus(fair_sharing=present)
        return status.status_differs(queue, {**conditions, "fairSharing": wanted})

    assert differs(None, shown({}, 0))
    assert not differs(shown({}, 0), shown({}, 5))
    assert differs(shown({}, 0), shown({"cpu": "1"}, 5))
    assert differs(shown({"cpu": "1"}, 0), shown({"cpu": "1"}, 5))
    assert differs(shown({"cpu": "1"}, 0), None)
