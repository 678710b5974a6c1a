"""The time of the gangs of child Jobs: it begins when their Job starts, not with the admission."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, cast

import pytest

from rackgate.api.names import EvictionReason
from rackgate.api.timestamps import rfc3339
from rackgate.gang.forms.expand import expand
from rackgate.gang.lifecycle import ChildGangs
from rackgate.gang.link import PER_JOB
from rackgate.gang.runs.done_pods import DonePods
from rackgate.gang.runs.run_spec import decode_run_text, encode_child_specs
from rackgate.jobframework.jobset.wire import JobSet
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.wire.batch import Job, JobSpec, JobStatus
from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import PodSet, Workload, WorkloadSpec, WorkloadStatus
from rackgate_assigner.gangs.child_jobs import ChildGang, started_at
from rackgate_assigner.gangs.pods_controller import GangPods
from rackgate_assigner.gangs.reactions import GangEviction
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.workload.elapsed import ElapsedTimes, Moment

ADMITTED = datetime(2026, 8, 1, 12, tzinfo=UTC)
SPEC: Any = {"gangGroups": [{"name": "gg", "minCount": 2, "scheduleTimeoutSeconds": 60}]}
GANG = JobGang({"workers": PER_JOB}, encode_child_specs({"workers": expand(SPEC)}), started=True)
JOBSET = JobSet(metadata=Meta(name="train", namespace="n", uid="j"))


def at(seconds: float) -> str:
    return rfc3339(ADMITTED + timedelta(seconds=seconds))


def condition(kind: str, status: str, seconds: float = 0) -> Condition:
    return Condition(kind, status, last_transition_time=at(seconds))


def job(started_s: float | None, *, ready: int = 0, suspend: bool = False, **status: Any) -> Job:
    start = None if started_s is None else at(started_s)
    return Job(
        metadata=Meta(name="train-workers-0", namespace="n", uid="12345678-c"),
        spec=JobSpec(suspend=suspend, parallelism=2),
        status=JobStatus(start_time=start, ready=ready, **status),
    )


@dataclass
class Server:
    """An API server without pods. Seconds count from the admission."""

    server_date: str = ""
    lists: int = 0

    async def list_pages(self, _path: str, _params: Mapping[str, str]) -> AsyncIterator[bytes]:
        self.lists += 1
        yield b'{"items": []}'


@dataclass
class Replica:
    """The assigner, with one child Job."""

    monkeypatch: pytest.MonkeyPatch
    child: Job
    ahead_s: float = 0
    more: tuple[Condition, ...] = ()
    server: Server = field(default_factory=Server)
    times: ElapsedTimes = field(default_factory=ElapsedTimes)
    done_pods: DonePods = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pods = GangPods(cast("Client", self.server), {}, self._children)

    def _children(self, uid: str) -> list[ChildGang]:
        assert uid == "j"
        gangs = ChildGangs("path", SPEC, expand(SPEC), jobs=1, pods=2)
        return [ChildGang(self.child, JOBSET, "workers", gangs)]

    async def look(self, true_s: float) -> tuple[GangEviction | None, float]:
        """What is decided, and the seconds until the next look."""
        now = ADMITTED + timedelta(seconds=true_s)
        wall = now + timedelta(seconds=self.ahead_s)
        self.server.server_date = format_datetime(now, usegmt=True)
        self.monkeypatch.setattr(clock, "now", lambda: wall)
        workload = Workload(
            metadata=Meta(name="k", namespace="n", uid="u"),
            spec=WorkloadSpec(pod_sets=(PodSet(name="workers", count=2),)),
            status=WorkloadStatus(conditions=(condition("Admitted", "True"), *self.more)),
        )
        elapsed = self.times.at("n/k", Moment(wall, true_s))
        check, later_s = self.pods.check(
            JOBSET, workload, GANG, elapsed, live=0, done_pods=self.done_pods
        )
        if check is None:
            return None, later_s
        return await self.pods.decide(JOBSET, workload, check, {"j", "12345678-c"}), later_s


@pytest.mark.requirement("GNG-29", "GNG-11")
async def test_the_time_runs_from_the_start_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(monkeypatch, job(None))
    assert await replica.look(1000) == (None, 0)
    replica.child = job(1000)
    assert await replica.look(1010) == (None, 50)
    eviction, _ = await replica.look(1060)
    assert eviction is not None
    assert eviction.reason == EvictionReason.GANG_TIMEOUT
    assert eviction.message == (
        "none of the 2 pods of gang gg exists 60 s after the start of Job train-workers-0"
    )


@pytest.mark.requirement("GNG-29", "GNG-11")
@pytest.mark.parametrize(("done", "evicted"), [(2, False), (1, True)])
async def test_pods_that_the_job_has_done_count_as_bound(
    monkeypatch: pytest.MonkeyPatch, done: int, *, evicted: bool
) -> None:
    """They are gone, and are not created again."""
    replica = Replica(monkeypatch, job(0))
    replica.done_pods = {"workers": {replica.child.metadata.uid: done, "other": 2}}
    eviction, _ = await replica.look(1060)
    assert (eviction is not None) is evicted


@pytest.mark.requirement("GNG-29")
@pytest.mark.parametrize(
    "child",
    [
        job(None),
        job(0, suspend=True),
        # It is resumed, and its controller has not seen that: the time is that of the last start.
        job(0, conditions=(condition("Suspended", "True"),)),
        job(0, conditions=(condition("Complete", "True"),)),
        job(0, conditions=(condition("Failed", "True"),)),
    ],
)
async def test_a_job_that_does_not_run_has_no_time(
    monkeypatch: pytest.MonkeyPatch, child: Job
) -> None:
    assert started_at(child) == ""
    replica = Replica(monkeypatch, child)
    assert await replica.look(1000) == (None, 0)
    assert replica.server.lists == 0


async def test_a_start_before_the_admission_was_that_of_an_earlier_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica(monkeypatch, job(-500))
    assert await replica.look(10) == (None, 50)


async def test_a_job_that_was_ready_once_has_no_time_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica(monkeypatch, job(0, ready=2))
    assert await replica.look(1) == (None, 0)
    replica.child = job(0, ready=1)
    assert await replica.look(100) == (None, 0)
    # It was suspended, and started again.
    replica.child = job(100, ready=1)
    assert await replica.look(101) == (None, 59)


@pytest.mark.parametrize(("ready_s", "later_s"), [(5, 59), (10, 59), (11, 0)])
async def test_that_the_jobset_was_ready_counts_only_after_the_start(
    monkeypatch: pytest.MonkeyPatch, ready_s: float, later_s: float
) -> None:
    """It is ready while a Job that waits for the completion of others does not have to run yet."""
    replica = Replica(monkeypatch, job(10), more=(condition("PodsReady", "True", ready_s),))
    assert await replica.look(11) == (None, later_s)


async def test_race_21_a_wall_clock_that_is_ahead_starts_the_time_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica(monkeypatch, job(100), ahead_s=3600)
    assert (await replica.look(101))[0] is None
    assert await replica.look(131) == (None, 30)
    assert (await replica.look(160))[0] is None
    assert (await replica.look(161))[0] is not None


def test_the_run_keeps_the_numbers_of_all_child_jobs() -> None:
    found = decode_run_text(GANG.run_spec)
    assert found is not None
    assert found.links == GANG.links
    (group,) = found.children["workers"]["gangGroups"]
    assert (group["minCount"], group["scheduleTimeoutSeconds"]) == (2, 60)
    assert found.spec["gangGroups"] == []
