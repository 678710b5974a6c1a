"""The pure parts of `bench.queues`: the load, what a watch shows, and what follows from it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from bench.measuring.scrape import requests
from bench.queues import decide, disruption, load, pending, preempt
from bench.queues.bare import Replay, Share, steps
from bench.queues.cycles import Cycles, filled, stored
from bench.queues.ideal import ideal_to_admission
from bench.queues.kueue_load import (
    COHORTS,
    QUEUES_PER_COHORT,
    creation_s,
    quota_s,
    streams,
)
from bench.queues.objects import Queue, class_name, cluster_queue_of, nodes, workload
from bench.queues.recorder import (
    Recorder,
    Round,
    SeenWorkload,
    binding,
    queue_use,
    spread,
    times_to_admission,
)
from bench.queues.runner import is_to_release, release
from rackgate.wire.kueue import Admission
from rackgate_assigner.workload.decisions import Admit
from tests.support.objects import RACK

ADMITTED = {"QuotaReserved": "True", "Admitted": "True"}
EVICTED = {**ADMITTED, "Evicted": "True"}
RELEASED = {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True"}
FINISHED = {**ADMITTED, "Finished": "True"}


# The load.


@pytest.mark.parametrize("topology", [False, True])
def test_the_whole_load_is_kueues(topology: bool) -> None:
    parts = streams(topology=topology)
    assert COHORTS * QUEUES_PER_COHORT * sum(part.count for part in parts) == 15_000
    sizes: Counter[str] = Counter()
    for part in parts:
        size = part.of.name.partition("-")[0]
        sizes[size] += part.count
        assert part.of.cpu == {"small": 1, "medium": 5, "large": 20}[size]
        assert part.of.run_s == {"small": 0.2, "medium": 0.5, "large": 1.0}[size]
        assert part.interval_s == {"small": 0.1, "medium": 0.5, "large": 1.2}[size]
    assert sizes == {"small": 350, "medium": 100, "large": 50}


def test_the_least_time_is_that_of_creating_or_of_the_quota() -> None:
    assert creation_s(streams(topology=False)) == pytest.approx(60)
    assert creation_s(streams(topology=True)) == pytest.approx(20.4)
    for topology in (False, True):
        assert quota_s(streams(topology=topology)) == pytest.approx((70 + 250 + 1000) / 20)


@pytest.mark.parametrize(("scale", "counts"), [(0.1, [35, 10, 5]), (0.01, [4, 1, 1]), (0, [1] * 3)])
def test_a_smaller_load_has_a_share_of_each_class_and_one_at_least(
    scale: float, counts: list[int]
) -> None:
    parts = streams(topology=False, scale=scale)
    assert [part.count for part in parts] == counts
    assert [part.interval_s for part in parts] == [0.1, 0.5, 1.2]


def test_a_workload_tells_its_class_and_asks_for_its_rack() -> None:
    asked = {}
    for part in streams(topology=True):
        made = workload(part.names[0], Queue(7), part.of)
        assert class_name(made["metadata"]["name"]) == part.of.name
        assert made["metadata"]["namespace"] == made["spec"]["queueName"] == "queue-0007"
        (podset,) = made["spec"]["podSets"]
        asked[part.of.name] = podset["topologyRequest"]
        assert podset["count"] == part.of.pods
    assert asked["small-required"] == {"required": RACK}
    assert asked["medium-preferred"] == {"preferred": RACK}
    assert asked["large-balanced"] == {"podSetSliceRequiredTopology": RACK, "podSetSliceSize": 4}
    (plain, *_) = streams(topology=False)
    assert "topologyRequest" not in workload("x-1", Queue(0), plain.of)["spec"]["podSets"][0]


def test_six_queues_share_a_cohort() -> None:
    cohorts = Counter(cluster_queue_of(Queue(n))["spec"]["cohortName"] for n in range(30))
    assert sorted(cohorts.values()) == [6] * 5
    (group,) = cluster_queue_of(Queue(0))["spec"]["resourceGroups"]
    (resource,) = group["flavors"][0]["resources"]
    assert resource == {"name": "cpu", "nominalQuota": "20", "borrowingLimit": "100"}


def test_nodes_are_in_racks_of_64() -> None:
    racks = Counter(node["metadata"]["labels"][RACK] for node in nodes(640))
    assert list(racks.values()) == [64] * 10


# What a watch shows.


def seen(conditions: dict[str, str], name: str = "small-00000", message: str = "") -> SeenWorkload:
    document: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "q"},
        "status": {
            "conditions": [
                {"type": type_, "status": status, "reason": type_, "message": message}
                for type_, status in conditions.items()
            ]
        },
    }
    if conditions.get("QuotaReserved") == "True":
        document["status"]["admission"] = {"clusterQueue": "q"}
    return msgspec.json.decode(json.dumps(document), type=SeenWorkload)


def test_the_clock_runs_from_admission_and_again_after_an_eviction() -> None:
    recorder = Recorder({"q": "c"})
    course: list[tuple[dict[str, str], bool]] = [
        ({}, False),
        (ADMITTED, True),
        (EVICTED, False),
        (RELEASED, False),
        ({**ADMITTED, "Evicted": "False"}, True),
        ({**FINISHED, "Evicted": "False"}, False),
    ]
    for now, (conditions, runs) in enumerate(course):
        assert recorder.see(seen(conditions), cpu=2.0, now=float(now)).runs is runs, now
    (record,) = recorder.records.values()
    assert (record.created, record.admitted, record.finished) == (0.0, 4.0, 5.0)
    assert (record.evictions, recorder.finished) == (1, 1)
    assert record.to_admission_s == 4.0
    assert json.loads(record.admission) == {"clusterQueue": "q"}
    # Reserved from 1 to 3, and from 4 to 5.
    assert record.held_s == 3.0
    assert queue_use([record], nominal_cpu=4.0, wall_s=6.0, end=6.0) == pytest.approx(0.25)


def test_a_reservation_that_has_not_ended_counts_to_the_end() -> None:
    recorder = Recorder({"q": "c"})
    record = recorder.see(seen(ADMITTED), cpu=1.0, now=2.0)
    assert queue_use([record], nominal_cpu=1.0, wall_s=10.0, end=10.0) == pytest.approx(0.8)


def test_what_a_cohort_reserves_at_once_is_noted() -> None:
    recorder = Recorder({"q": "c", "other": "d"})
    for name, conditions in (
        ("a-00000", ADMITTED),
        ("b-00000", ADMITTED),
        ("a-00000", EVICTED),  # its quota is not released yet
        ("c-00000", ADMITTED),
        ("a-00000", RELEASED),
        ("b-00000", FINISHED),
        ("d-00000", ADMITTED),
    ):
        recorder.see(seen(conditions, name), cpu=2.0, now=0.0)
    assert recorder.peaks == {"c": 6.0}


def test_pending_reasons_are_counted_when_they_change_and_releases_are_not() -> None:
    recorder = Recorder({"q": "c"})
    pending = {"QuotaReserved": "False"}
    for conditions, message in (
        ({}, ""),
        (pending, "a"),
        (pending, "a"),
        (pending, "b"),
        (ADMITTED, ""),
        (EVICTED, ""),
        (RELEASED, "released"),
        (RELEASED, "c"),
    ):
        recorder.see(seen(conditions, message=message), cpu=1.0, now=0.0)
    (record,) = recorder.records.values()
    assert record.pending_writes == 3


def test_times_to_admission_are_told_by_class() -> None:
    recorder = Recorder({"q": "c"})
    for number in range(100):
        name = f"small-required-{number:05}"
        recorder.see(seen({}, name), cpu=1.0, now=0.0)
        recorder.see(seen(ADMITTED, name), cpu=1.0, now=float(number))
    recorder.see(seen({}, "large-00000"), cpu=1.0, now=0.0)  # never admitted
    found = times_to_admission(recorder.records, class_name)
    assert found == {"small-required": {"mean": 49.5, "p50": 49.0, "p99": 98.0}}
    assert spread([3.0]) == {"mean": 3.0, "p50": 3.0, "p99": 3.0}


def test_the_bare_client_repeats_each_write_in_order() -> None:
    assert steps(Replay(0, 0, Admission())) == ["admit"]
    assert steps(Replay(2, 1, Admission())) == [
        "pending",
        "pending",
        "admit",
        "evict",
        "release",
        "admit",
    ]
    recorder = Recorder({"q": "c"})
    for conditions in ({"QuotaReserved": "False"}, ADMITTED, EVICTED, RELEASED, ADMITTED):
        recorder.see(seen(conditions), cpu=1.0, now=0.0)
    recorder.see(seen({}, "never-00000"), cpu=1.0, now=0.0)
    expected = {"q/small-00000": Replay(1, 1, Admission(cluster_queue="q"))}
    assert load.replays(recorder.records) == expected


def test_writes_are_spread_over_the_run() -> None:
    share = Share(4)
    taken = [progress for progress in range(0, 101, 5) if share.take(progress / 100)]
    assert taken == [5, 30, 55, 80]
    assert share.taken == 4
    assert not Share(0).take(1.0)


def test_the_requests_of_an_api_server_are_read() -> None:
    lines = [
        "# TYPE apiserver_request_total counter",
        'apiserver_request_total{code="201",resource="events",subresource="",verb="POST"} 3',
        'apiserver_request_total{code="409",resource="events",subresource="",verb="POST"} 9',
        'apiserver_request_total{code="200",resource="x",subresource="status",verb="APPLY"} 2',
        'apiserver_other_total{code="200"} 7',
    ]
    found = requests("\n".join(lines))
    assert found == {("POST", "events"): 3, ("APPLY", "x/status"): 2}


# What follows.


def played(mode: str, wall_s: float, **cpu_s: float) -> Round:
    return Round(mode, 100, 100, wall_s, 0.5, 0.4, 0.9, 0, 0, {}, cpu_s)


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "said"),
    [
        (100, {"assigner": 40, "kube-apiserver": 120, "others": 30}, "the 2 cores: 95% busy"),
        (100, {"assigner": 95, "kube-apiserver": 20}, "assigner: one core full"),
        (100, {"bench": 95, "kube-apiserver": 20}, "bench: one core full"),
        (70, {"assigner": 5, "kube-apiserver": 20}, "the load: the quota takes 66 s"),
        (100, {"assigner": 5, "kube-apiserver": 20}, "nothing is full: kube-apiserver"),
    ],
)
def test_what_binds_is_named(wall_s: float, cpu_s: dict[str, float], said: str) -> None:
    least = {"creating": 60.0, "the quota": 66.0}
    found = binding(played(load.OURS, wall_s, **cpu_s), cores=2, least_s=least)
    assert found.startswith(said)


def test_the_ratio_is_the_median_over_rounds() -> None:
    rounds = [
        one
        for wall_s, ours_s in ((10.0, 10), (20.0, 20), (40.0, 30))
        for one in (
            played(load.OURS, wall_s, assigner=ours_s, others=50),
            played(load.BARE, 10.0, bare=10, others=1),
        )
    ]
    assert load.ratio(rounds) == pytest.approx(0.5)
    assert load.work_ratio(rounds) == pytest.approx(0.5)
    assert load.aims(rounds, topology=False, scale=0.1) == [
        "assigner / bare 0.50, 5 admissions/s: aim 100/s or 0.8 of bare MISSED",
        "bare CPU / our CPU 0.50",
    ]


def test_the_whole_load_is_compared_with_kueues_figures() -> None:
    waits = {size: spread([10.0]) for size in ("small", "medium", "large")}
    rounds = [
        played(load.OURS, 1.0, assigner=1),
        played(load.BARE, 1.0, bare=1),
    ]
    rounds[0].to_admission_s = waits
    lines = load.aims(rounds, topology=False, scale=1.0)
    assert [line.rpartition(" ")[2] for line in lines[2:]] == ["MISSED", "met", "met", "MISSED"]


def test_kueue_on_the_same_machine_is_compared_too() -> None:
    rounds = [
        played(load.OURS, 1.0, assigner=1),
        played(load.BARE, 1.0, bare=1),
        played(load.KUEUE, 3.0, kueue=1),
    ]
    for one, size_s in zip(rounds, (10.0, 1.0, 30.0), strict=True):
        one.to_admission_s = {size: spread([size_s]) for size in ("small", "medium", "large")}
    assert load.ratio(rounds) == 1
    lines = load.aims(rounds, topology=False, scale=0.1)
    assert lines[2] == "queue use 50.0%: aim Kueue's, 50.0% met"
    assert lines[-1].startswith("to admission, large 10.0 s, ")
    assert lines[-1].endswith("; aim half of Kueue's, 15.0 s met")
    assert len(lines) == 6


def test_quota_of_what_was_evicted_is_released_once() -> None:
    """Kueue leaves it to the job's controller, and these Workloads have no job."""
    evicted = seen(EVICTED)
    assert is_to_release(evicted)
    assert not any(
        map(is_to_release, (seen(ADMITTED), seen(RELEASED), seen({**EVICTED, **FINISHED})))
    )
    patch = json.loads(msgspec.json.encode(release(evicted, "2026-01-01T00:00:00Z")))
    assert patch["status"]["admission"] is None
    found = {one["type"]: one["status"] for one in patch["status"]["conditions"]}
    assert found == {"Evicted": "True", "QuotaReserved": "False", "Admitted": "False"}


def test_somebody_who_decides_at_once_waits_for_writes_and_quota_alone() -> None:
    """A fast API server: large Workloads find quota, and others wait until it is left."""
    parts = streams(topology=False)
    fast = ideal_to_admission(parts, 1e6)
    assert fast["large"] == pytest.approx(0.2, abs=0.1)
    assert fast["large"] < fast["medium"] < fast["small"]
    slow = ideal_to_admission(parts, 250.0)
    assert all(slow[size] > fast[size] for size in fast)
    few = [part for part in streams(topology=False, scale=0.0) if part.of.name == "small"]
    assert ideal_to_admission(few, 100.0)["small"] == pytest.approx(0.3)


def test_one_size_grows_at_a_time_and_then_all() -> None:
    assert decide.sizes([1, 2], [3, 4], [5, 6]) == [
        decide.Size(1, 3, 5),
        decide.Size(2, 3, 5),
        decide.Size(1, 4, 5),
        decide.Size(1, 3, 6),
        decide.Size(2, 4, 6),
    ]
    assert decide.sizes([1], [2], [3]) == [decide.Size(1, 2, 3)]


def test_every_queue_gets_all_classes_as_often_as_in_the_load() -> None:
    queues = [Queue(index) for index in range(25)]
    found: dict[str, Counter[str]] = {}
    for made in decide.workloads(queues, 50 * len(queues)):
        found.setdefault(made.metadata.namespace, Counter()).update(
            [class_name(made.metadata.name)]
        )
    assert len(found) == 25
    assert all(of == found["queue-0000"] for of in found.values())
    assert found["queue-0000"]["small-required"] == 12
    assert found["queue-0000"]["large-balanced"] == 2


@pytest.mark.parametrize(("slots", "parts"), [(24_000, 700), (24_000, 10_000), (3, 3)])
def test_candidates_share_all_slots(slots: int, parts: int) -> None:
    found = preempt.shares(slots, parts)
    assert sum(found) == slots
    assert max(found) - min(found) <= 1


def test_more_candidates_than_slots_are_rejected() -> None:
    with pytest.raises(ValueError, match="2 slots in 3 parts"):
        preempt.shares(2, 3)


# Cycles of whatever engine there is.


def test_what_a_cycle_decides_is_written_before_the_next() -> None:
    queue = Queue(0)
    world = Cycles(filled([queue], 64))
    large = next(p.of for p in streams(topology=True) if p.of.name == "large-required")
    world.put(stored(workload(f"{large.name}-{n:05}", queue, large), n) for n in range(3))
    spent_ms, decisions = world.cycle()
    assert spent_ms > 0
    assert any(isinstance(one, Admit) for one in decisions)
    world.settle()
    first = next(iter(world.admitted))
    assert world.cycle()[1] == []
    _, decisions = world.cycle(world.finish(first))
    assert [one.workload for one in decisions if isinstance(one, Admit)] not in ([], [first])


def test_a_preemptor_frees_quota_of_its_own_queue() -> None:
    found = preempt.measure(20, preempt.WITHIN, 80, topology=False)
    assert found.targets
    assert found.preempted_cpu >= 64 * 96


# Pending Workloads kept from plan to plan.


def test_a_change_that_costs_more_where_more_waits_misses_the_aim() -> None:
    few = pending.Found(1_500, fill_us=1, put_us=10, new_us=40, drop_us=2, wake_us=1, buckets=1)
    many = pending.Found(150_000, fill_us=9, put_us=30, new_us=121, drop_us=6, wake_us=9, buckets=9)
    assert pending.missed([few, many]) == [
        "put and due: 40.0 us among 1,500, 121.0 us among 150,000"
    ]


def test_all_that_waits_in_the_bench_of_pending_workloads_is_parked() -> None:
    world = pending.World(600)
    for row in world.rows[:600]:
        world.put(row)
    assert world.park() == 600  # two in each queue, of two shapes
    assert not world.queues.is_due


@pytest.mark.parametrize("where", disruption.WHERE)
def test_a_smaller_disruption_is_measured_against_kueues_choice(where: str) -> None:
    found = disruption.measure(128, where, 0.3, 6)
    assert found.decisions > 0
    assert found.more == 0
    assert found.pods[1] <= found.pods[0]
    assert found.workloads > 2
