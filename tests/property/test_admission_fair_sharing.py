"""Drawn histories: what was consumed is the integral, and equal LocalQueues get equal work."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import isclose
from typing import Any

import msgspec
import pytest

from rackgate.api.names import PendingReason
from rackgate.features import Features
from rackgate.wire import kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.usage import QueueTotals
from rackgate_assigner.queues.status import local_queue_status
from rackgate_assigner.quota.admission_fair_sharing import (
    AdmissionFairSharing,
    Moment,
    UsageHistory,
    amounts_of,
)
from rackgate_assigner.quota.queues import cluster_queue_info
from rackgate_assigner.scheduler.cycle import cycle_key, plan
from rackgate_assigner.scheduler.eligibility import Eligible
from rackgate_assigner.scheduler.pending_queues import PendingQueues
from rackgate_assigner.workload.decisions import Admit, Assignment, Requeue
from rackgate_assigner.workload.info import WorkloadInfo, workload_info
from tests.unit.assigner.builders import (
    cluster_queue,
    flavor,
    local_queue,
    namespace,
    podset,
    workload,
)

WALL = 1_785_585_600.0


def moment(seconds: float) -> Moment:
    return Moment(50.0 + seconds, WALL + seconds)


def integral(steps: Sequence[tuple[float, float]], end: float, half_life: float) -> float:
    """The mean of the usage over all time, each moment by how long ago it was.

    Args:
        steps: time and usage from then on; the first usage held for ever before.
        end: the time to look from.
        half_life: in the unit of the times.
    """

    def weight(at: float) -> float:
        return float(0.5 ** ((end - at) / half_life))

    found = steps[0][1] * weight(steps[0][0])
    ends = [at for at, _ in steps[1:]] + [end]
    for (start, usage), stop in zip(steps, ends, strict=True):
        found += usage * (weight(stop) - weight(start))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_what_was_consumed_is_the_integral_of_the_usage(seed: int) -> None:
    rng = random.Random(seed)
    half_life = rng.choice((1.0, 60.0, 86_400.0, 604_800.0))
    history = UsageHistory(AdmissionFairSharing(half_life))
    now, steps = 0.0, list[tuple[float, float]]()
    for _ in range(rng.randrange(1, 60)):
        if not steps or rng.random() < 0.6:
            steps.append((now, float(rng.randrange(0, 100_000)) * rng.choice((1.0, 1e9))))
        # Often it is observed without a change, as by a sample.
        history.observe("lq", {"gpu": steps[-1][1]}, moment(now))
        if rng.random() < 0.1:
            # The next process continues from what is stored, with the usage of then.
            stored, wall = history.consumed("lq")
            history = UsageHistory(history.rules)
            history.restore("lq", stored, wall)
            history.observe("lq", {"gpu": steps[-1][1]}, moment(now))
        now += rng.expovariate(1 / half_life)
    history.observe("lq", {"gpu": steps[-1][1]}, moment(now))
    expected = integral(steps, now, half_life)
    assert isclose(history.consumed("lq")[0]["gpu"], expected, rel_tol=1e-6, abs_tol=1e-3)


@pytest.mark.parametrize("seed", range(100))
def test_the_head_is_the_one_with_the_smallest_rank_of_all_that_are_active(seed: int) -> None:
    rng = random.Random(seed)
    queue = cluster_queue_info(cluster_queue("cq"))
    pending = PendingQueues(lambda info: cycle_key(info, {}), str, lambda _: (), lambda _: True)
    usage = {f"team/{name}": 0.0 for name in "abcde"}
    active: dict[str, WorkloadInfo] = {}
    decided: WorkloadInfo | None = None

    def expected() -> WorkloadInfo | None:
        key = cycle_key
        rows = active.values()
        return min(rows, key=lambda info: (usage[info.queue], key(info, {})), default=None)

    for number in range(60):
        row = workload(
            f"w{number:02}", [podset(count=rng.randrange(1, 4))], queue=rng.choice("abcde")
        )
        info = workload_info(row)
        if pending.put(info, Eligible(info, queue)) is None:
            active[info.key] = info
        usage[rng.choice(list(usage))] = rng.random()  # between plans it may be anything
        for gone in rng.sample(list(active), min(len(active), rng.randrange(2))):
            pending.drop(gone)
            del active[gone]
        is_other = expected() is not None and expected() != decided
        lines = pending.due(lambda info: usage[info.queue])
        assert "cq" in lines or not is_other
        for _ in range(rng.randrange(4) if lines else 0):
            head = lines["cq"].head()
            assert (head.info if head else None) == expected()
            if head is None:
                break
            usage[rng.choice(list(usage))] += rng.random()  # in a plan it grows
            if rng.random() < 0.5:
                assert lines["cq"].pop() == head
                del active[head.info.key]
                usage[head.info.queue] += rng.random()
            else:
                answer = Requeue(head.info.key, PendingReason.WAITING_FOR_QUOTA, "no quota")
                for one in lines["cq"].park(answer, same_shape=True):
                    assert one.info.queue == head.info.queue
                    del active[one.info.key]
        if lines:
            last = lines["cq"].head()
            decided = last.info if last else None
            pending.done(lines)


@pytest.mark.parametrize("seed", range(200))
def test_any_order_of_events_keeps_each_pending_penalty_once(seed: int) -> None:
    rng = random.Random(seed)
    rules = AdmissionFairSharing(60.0, 60.0)
    history, now = UsageHistory(rules), 0.0
    # By Workload: its LocalQueue and half of its request.
    pending: dict[str, tuple[str, float]] = {}
    for _ in range(80):
        queue, name = rng.choice("ab"), rng.choice("vwxyz")
        match rng.choice(("restore", "observe", "reserve", "settle", "release", "forget")):
            case "restore":
                history.restore(queue, {"gpu": rng.random()}, moment(now).wall_s)
            case "observe":
                now += rng.random() * 100
                history.observe(queue, {"gpu": rng.random()}, moment(now))
            case "reserve":
                request = rng.random()
                history.reserve(name, queue, {"gpu": request})
                if queue in history:
                    pending.setdefault(name, (queue, request / 2))
            case "settle":
                found = pending.pop(name, None)
                before = history.charged(found[0]) if found else {}
                history.settle(name)
                if found:
                    assert history.charged(found[0]) == pytest.approx(before)
            case "release":
                pending.pop(name, None)
                history.release(name)
            case _:
                pending = {key: found for key, found in pending.items() if found[0] != queue}
                history.forget(queue)
        assert set(history.pending) == set(pending)
        for key in "ab":
            charged = history.charged(key).get("gpu", 0.0)
            consumed = history.consumed(key)[0].get("gpu", 0.0) if key in history else 0.0
            penalties = sum(amount for other, amount in pending.values() if other == key)
            assert charged == pytest.approx(consumed + penalties)


class Factory:
    """A cluster in virtual time: LocalQueues with more work than fits, and one scheduler.

    Attributes:
        admitted: by LocalQueue, cpu seconds of what was admitted.
    """

    def __init__(self, rng: random.Random, weights: dict[str, float], half_life: float) -> None:
        rules = AdmissionFairSharing(half_life, half_life / 10)
        self.rng, self.now, self.number = rng, 0.0, 0
        self.cache = Cache(Features(), admission_fair_sharing=rules)
        self.cache.set_namespace(namespace())
        self.cache.set_flavor(flavor("plain", None, {}))
        scope = {"admissionMode": "UsageBasedAdmissionFairSharing"}
        self.cache.set_cluster_queue(
            cluster_queue("cq", {"plain": {"cpu": "16"}}, admissionScope=scope)
        )
        for name, weight in weights.items():
            self.cache.set_local_queue(local_queue(name, fairSharing={"weight": str(weight)}))
        self.weights = weights
        self.admitted = dict.fromkeys(weights, 0.0)
        self.ends: dict[str, float] = {}

    def submit(self, queue: str, cpu: int, priority: int) -> None:
        self.number += 1
        created = f"2026-08-01T12:{self.number // 60 % 60:02}:{self.number % 60:02}Z"
        self.cache.set_workload(
            workload(
                f"w{self.number}",
                [podset(count=cpu)],
                queue=queue,
                priority=priority,
                created=created,
            )
        )

    def observe(self) -> None:
        assert self.cache.usage_history is not None
        for queue in self.weights:
            total = self.cache.totals.local_queues.get(f"team/{queue}", QueueTotals())
            self.cache.usage_history.observe(
                f"team/{queue}", amounts_of(total.admitted_quota), moment(self.now)
            )

    def cycle(self) -> None:
        history = self.cache.usage_history
        assert history is not None
        self.observe()
        for decision in plan(self.cache.snapshot(), self.cache.features):
            if isinstance(decision, Admit):
                self._admit(decision.workload, decision.assignment)
        self.observe()

    def _admit(self, key: str, assignment: Assignment) -> None:
        row = self.cache.workloads[key]
        cpu = sum(podset.request.count for podset in row.podsets)
        name, queue = key.partition("/")[2], row.queue.partition("/")[2]
        self.cache.assume(key, assignment)
        self.cache.set_workload(
            workload(name, [podset(count=cpu)], queue=queue, version="2", assignment=assignment)
        )
        assert self.cache.usage_history is not None
        self.cache.usage_history.settle(key)
        lasts = self.rng.uniform(5, 50)
        self.ends[key] = self.now + lasts
        self.admitted[queue] += cpu * lasts

    def run_until_an_end(self) -> None:
        key = min(self.ends, key=self.ends.__getitem__)
        self.now = self.ends.pop(key)
        self.observe()
        self.cache.drop_workload(key)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_local_queues_get_work_in_proportion_to_their_weights(seed: int, weight: float) -> None:
    rng = random.Random(seed)
    weights = {"modest": 1.0, "greedy": weight}
    found = Factory(rng, weights, half_life=500.0)
    for step in range(500):
        # Both have more work than fits; `greedy` sends more, and calls it urgent.
        for queue in weights:
            pending = sum(row.queue == f"team/{queue}" for row in found.cache.pending())
            for _ in range(max(0, 6 - pending)):
                found.submit(queue, rng.randrange(1, 5), 9 if queue == "greedy" else 0)
        found.cycle()
        if step == 100:
            found.admitted = dict.fromkeys(weights, 0.0)
        found.run_until_an_end()
    share = found.admitted["greedy"] / found.admitted["modest"]
    assert share == pytest.approx(weight, rel=0.15)


@pytest.mark.parametrize("seed", range(20))
def test_a_history_that_goes_through_the_status_stays_the_same(seed: int) -> None:
    rng = random.Random(seed)
    rules = AdmissionFairSharing(600.0)
    kept, cache = UsageHistory(rules), Cache(Features(), admission_fair_sharing=rules)
    cache.set_local_queue(local_queue("lq"))
    now = 0.0
    for _ in range(30):
        usage = {"cpu": rng.randrange(64) / 2, "memory": float(rng.randrange(2**40))}
        assert cache.usage_history is not None
        for history in (kept, cache.usage_history):
            history.observe("team/lq", usage, moment(now))
        shown: dict[str, Any] = local_queue_status(cache, "team/lq", cache.features)
        cache = Cache(Features(), admission_fair_sharing=rules)
        stored = msgspec.convert({"fairSharing": shown["fairSharing"]}, kueue.QueueStatus)
        cache.set_local_queue(msgspec.structs.replace(local_queue("lq"), status=stored))
        # It is stored in whole seconds; the usage is that of the takeover.
        assert cache.usage_history is not None
        cache.usage_history.observe("team/lq", usage, moment(now))
        for resource, amount in kept.consumed("team/lq")[0].items():
            found = cache.usage_history.consumed("team/lq")[0].get(resource, 0.0)
            assert found == pytest.approx(amount, abs=0.05, rel=1e-6)
        now += rng.randrange(1, 900)
