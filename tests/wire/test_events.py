from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rackgate.api.resources import CLUSTER_QUEUES, EVENTS, WORKLOADS
from rackgate.kube.events import OBJECT_BURST, EventRecorder, EventType, Regarding
from rackgate.runtime import metrics
from rackgate.wire.core import Meta
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.waiting import until

WORKLOAD = Regarding.of(WORKLOADS, Meta(name="job-a", namespace="team", uid="u1"))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


class Running:
    """A recorder whose writing task is under way."""

    def __init__(self, server: FakeApiServer, **options: Any) -> None:
        self.client = server.client()
        self.recorder = EventRecorder(self.client, "assigner", instance="host-1", **options)
        self.task = asyncio.create_task(self.recorder.run())

    def pending(self, note: str, about: Regarding = WORKLOAD, reason: str = "Pending") -> None:
        self.recorder.record(about, EventType.WARNING, reason, "Admit", note)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))
        await self.client.close()


@pytest_asyncio.fixture
async def running(server: FakeApiServer) -> AsyncIterator[Running]:
    made = Running(server)
    yield made
    await made.stop()


def stored(server: FakeApiServer, namespace: str = "team") -> list[dict[str, Any]]:
    events = server._objects.get(EVENTS.full_name, {}).values()
    return [event for event in events if event["metadata"]["namespace"] == namespace]


async def test_an_event_names_its_object_and_its_reporter(
    server: FakeApiServer, running: Running
) -> None:
    running.pending("no room in rack r1")
    await until(lambda: stored(server))
    event = stored(server)[0]
    assert event["regarding"] == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "name": "job-a",
        "namespace": "team",
        "uid": "u1",
    }
    assert event["reportingController"] == "rackgate.dev/assigner"
    assert event["reportingInstance"] == "host-1"
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "Pending", "Admit")
    assert event["note"] == "no room in rack r1"
    assert event["eventTime"].endswith("Z")
    assert event["metadata"]["name"].startswith("job-a.")


@pytest.mark.requirement("OPS-09")
async def test_equal_events_within_the_window_are_written_once(
    server: FakeApiServer, running: Running
) -> None:
    for _ in range(50):
        running.pending("same")
    running.pending("other note")
    running.pending("same", reason="OtherReason")
    running.pending("same", about=Regarding.of(WORKLOADS, Meta("job-b", "team", "u2")))
    await until(lambda: len(stored(server)) == 4)
    running.pending("last")
    await until(lambda: len(stored(server)) >= 5)
    assert len(stored(server)) == 5


async def test_after_the_window_it_is_news_again(server: FakeApiServer) -> None:
    running = Running(server, window_s=0.0)
    running.pending("same")
    running.pending("same")
    await until(lambda: len(stored(server)) == 2)
    await running.stop()


async def test_what_may_be_written_again_is_not_remembered(server: FakeApiServer) -> None:
    """Jobs that are long gone take no memory."""
    running = Running(server, window_s=0.2)
    for number in range(100):
        running.pending("no room", about=Regarding.of(WORKLOADS, Meta(f"job-{number}", "team")))
    assert len(running.recorder._recent) > 50  # no other sign of a leak
    await until(lambda: _told_more(running) <= 2)
    await running.stop()


def _told_more(running: Running) -> int:
    running.pending("one more")
    return len(running.recorder._recent)


async def test_events_of_cluster_scoped_objects_live_in_default(
    server: FakeApiServer, running: Running
) -> None:
    running.pending("stopped", about=Regarding.of(CLUSTER_QUEUES, Meta(name="cq", uid="u")))
    await until(lambda: stored(server, "default"))
    assert "namespace" not in stored(server, "default")[0]["regarding"]


async def test_long_notes_and_names_are_cut_to_what_the_server_takes(
    server: FakeApiServer, running: Running
) -> None:
    running.pending("é" * 2000, about=Regarding.of(WORKLOADS, Meta("n" * 253, "team", "u")))
    await until(lambda: stored(server))
    event = stored(server)[0]
    assert len(event["note"].encode()) <= 1024
    assert event["note"].endswith("é...")
    assert len(event["metadata"]["name"]) <= 253


async def test_a_full_queue_drops_and_counts_and_never_blocks(server: FakeApiServer) -> None:
    def dropped() -> float:
        sample = metrics.REGISTRY.get_sample_value(
            "rackgate_events_dropped_total", {"reason": "queue_full"}
        )
        return sample or 0.0

    before = dropped()
    running = Running(server, queue_size=3)
    for number in range(10):
        running.pending(f"note {number}")
    assert dropped() - before == 7
    await until(lambda: len(stored(server)) == 3)
    await running.stop()


async def test_a_rejected_event_is_dropped_and_the_next_one_written(
    server: FakeApiServer, running: Running
) -> None:
    server.faults += [Fault.status(403, "Forbidden", "namespace is being terminated"), Fault.cut()]
    for note in ("refused", "lost", "written"):
        running.pending(note)
    await until(lambda: stored(server))
    assert [event["note"] for event in stored(server)] == ["written"]


async def test_a_drain_writes_what_waits(server: FakeApiServer) -> None:
    running = Running(server)
    running.task.cancel()
    running.pending("one")
    running.pending("two")
    await running.recorder.drain()
    assert len(stored(server)) == 2
    await running.stop()


async def test_many_events_about_one_object_leave_room_for_those_of_others(
    server: FakeApiServer, running: Running
) -> None:
    dropped = ("rackgate_events_dropped_total", {"reason": "object_limit"})
    before = metrics.REGISTRY.get_sample_value(*dropped) or 0.0
    for number in range(1000):
        running.pending(f"no room: {number}")
    running.pending("it runs", reason="Admitted")
    running.pending("no room", about=Regarding.of(WORKLOADS, Meta(name="job-b", namespace="team")))
    await until(lambda: len(stored(server)) == OBJECT_BURST + 2)
    assert metrics.REGISTRY.get_sample_value(*dropped) == before + 1000 - OBJECT_BURST
    assert {event["reason"] for event in stored(server)} == {"Pending", "Admitted"}
