"""Race 21: the time of a gang while wall clocks differ."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from rackgate.api.names import EvictionReason
from rackgate.gang.forms.expand import expand
from rackgate.gang.runs.done_pods import DonePods
from rackgate.gang.runs.run_spec import encode_run_spec
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import PodSet, Workload, WorkloadSpec, WorkloadStatus
from rackgate_assigner.gangs.pods_controller import GangPods
from rackgate_assigner.gangs.reactions import GangEviction, clock_skew_s
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.workload.elapsed import ElapsedTimes, Moment

ADMITTED = datetime(2026, 8, 1, 12, tzinfo=UTC)
SPEC = expand({"gangGroups": [{"name": "gg", "minCount": 2, "scheduleTimeoutSeconds": 60}]})
GANG = JobGang({"main": "w"}, encode_run_spec({"main": "w"}, SPEC), started=True)


@dataclass
class Server:
    """An API server without pods. Seconds count from the admission."""

    server_date: str = ""

    async def list_pages(self, _path: str, _params: Mapping[str, str]) -> AsyncIterator[bytes]:
        yield b'{"items": []}'


@dataclass
class Replica:
    """The assigner, whose wall clock is `ahead_s` seconds ahead of the server."""

    monkeypatch: pytest.MonkeyPatch
    ahead_s: float
    server: Server = field(default_factory=Server)
    times: ElapsedTimes = field(default_factory=ElapsedTimes)
    done_pods: DonePods = field(default_factory=dict)

    def __post_init__(self) -> None:
        at = Condition("Admitted", "True", last_transition_time="2026-08-01T12:00:00Z")
        status = WorkloadStatus(conditions=(at,))
        meta = Meta(name="k", namespace="n", uid="u")
        spec = WorkloadSpec(pod_sets=(PodSet(name="main", count=2),))
        self.workload = Workload(metadata=meta, spec=spec, status=status)
        self.job = Job(metadata=Meta(name="train", namespace="n", uid="j"))
        self.pods = GangPods(cast("Client", self.server), {"n/k": self.workload})

    async def look(self, true_s: float) -> tuple[GangEviction | None, float]:
        """What is decided, and the seconds until the next look."""
        now = ADMITTED + timedelta(seconds=true_s)
        wall = now + timedelta(seconds=self.ahead_s)
        self.server.server_date = format_datetime(now, usegmt=True)
        self.monkeypatch.setattr(clock, "now", lambda: wall)
        elapsed = self.times.at("n/k", Moment(wall, true_s))
        check, later_s = self.pods.check(
            self.job, self.workload, GANG, elapsed, live=0, done_pods=self.done_pods
        )
        if check is None:
            return None, later_s
        return await self.pods.decide(self.job, self.workload, check, {"j"}), later_s


@pytest.mark.requirement("GNG-11")
async def test_pods_that_child_jobs_have_done_count_as_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica(monkeypatch, ahead_s=0, done_pods={"main": {"one": 1, "two": 1}})
    assert await replica.look(61) == (None, 0)
    replica.done_pods = {"main": {"one": 1}}
    replica.pods.forget("n/k")
    assert (await replica.look(62))[0] is not None


async def test_a_clock_that_differs_little_ends_the_time_early_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = Replica(monkeypatch, ahead_s=20)
    assert await replica.look(0) == (None, 40)
    eviction, _ = await replica.look(40)
    assert eviction is not None
    assert eviction.reason == EvictionReason.GANG_TIMEOUT


@pytest.mark.requirement("GNG-11")
@pytest.mark.parametrize("ahead_s", [31, 3600])
async def test_a_clock_that_differs_by_more_than_half_of_the_time_does_not_count(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    replica = Replica(monkeypatch, ahead_s=ahead_s)
    with capture_logs() as logs:
        await replica.look(5)
        assert (await replica.look(30))[0] is None
        assert await replica.look(31) == (None, 34)
    warnings = [entry["skew_s"] for entry in logs if entry["log_level"] == "warning"]
    assert warnings == [ahead_s], "once"
    assert (await replica.look(64))[0] is None
    eviction, _ = await replica.look(65)
    assert eviction is not None, "60 s after the first look"


async def test_without_a_time_of_the_server_the_own_clock_is_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now: Any = ADMITTED
    assert clock_skew_s("", now) == 0
    assert clock_skew_s("yesterday", now) == 0
    assert clock_skew_s("Sat, 01 Aug 2026 11:59:30 GMT", now) == 30
    replica = Replica(monkeypatch, ahead_s=0)
    assert (await replica.look(60))[0] is not None
