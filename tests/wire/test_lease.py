from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from rackgate.api.resources import LEASES, PODS
from rackgate.kube.lease.holder import LeaseHolder
from rackgate.runtime import metrics
from tests.support.apiserver import FakeApiServer, Fault
from tests.support.steadytime import monotonic
from tests.support.waiting import until

pytestmark = pytest.mark.steady_clock

SYSTEM = "rackgate-system"
DURATION_S = 1.0
REQUEST_S = 0.3


class NotedFence:
    """A fence for tests inside this process: notes what a timer would have been told."""

    def __init__(self) -> None:
        self.deadlines: dict[str, float] = {}
        self.armed: list[float] = []

    def arm(self, name: str, deadline: float) -> None:
        self.deadlines[name] = deadline
        self.armed.append(deadline)

    def disarm(self, name: str) -> None:
        self.deadlines.pop(name, None)


class Replica:
    """A holder whose work notes when it ran."""

    def __init__(self, server: FakeApiServer, identity: str, **options: Any) -> None:
        self.fence = NotedFence()
        self.client = server.client(request_timeout_s=REQUEST_S)
        self.holder = LeaseHolder(
            self.client,
            SYSTEM,
            "lease",
            identity,
            duration_s=DURATION_S,
            fence=self.fence,
            **options,
        )
        self.spans: list[list[float]] = []
        self.deadline_at_stop = 0.0
        self.task: asyncio.Task[None] | None = None

    @property
    def working(self) -> bool:
        return bool(self.spans) and len(self.spans[-1]) == 1

    async def work(self) -> None:
        assert self.holder.held
        assert self.fence.deadlines, "nothing may act before the fence stands"
        self.spans.append([monotonic()])
        try:
            await asyncio.Event().wait()
        finally:
            self.spans[-1].append(monotonic())
            self.deadline_at_stop = self.holder.deadline()

    def start(self) -> Replica:
        self.task = asyncio.create_task(self.holder.run(self.work))
        return self

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait((self.task,))
        await self.client.close()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as running:
        yield running


@pytest_asyncio.fixture
async def replicas(server: FakeApiServer) -> AsyncIterator[list[Replica]]:
    made = [Replica(server, "one"), Replica(server, "two")]
    yield made
    for replica in made:
        await replica.stop()


def record(server: FakeApiServer) -> dict[str, Any]:
    lease = server.get(LEASES, "lease", SYSTEM)
    assert lease is not None
    spec: dict[str, Any] = lease["spec"]
    return spec


async def test_the_first_takes_the_lease_and_renews_it(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    first = dict(record(server))
    assert first["holderIdentity"] == "one"
    assert first["leaseDurationSeconds"] == 1
    assert first["leaseTransitions"] == 0
    await until(lambda: record(server)["renewTime"] != first["renewTime"])
    assert record(server)["acquireTime"] == first["acquireTime"]
    await until(lambda: len(one.fence.armed) >= 4)
    assert one.working
    assert metrics.REGISTRY.get_sample_value("rackgate_leader", {"lease": "lease"}) == 1


@pytest.mark.requirement("OPS-06")
async def test_of_two_that_start_together_one_works(replicas: list[Replica]) -> None:
    for replica in replicas:
        replica.start()
    await until(lambda: any(replica.working for replica in replicas))
    until_s = monotonic() + DURATION_S
    while monotonic() < until_s:
        assert sum(replica.working for replica in replicas) <= 1
        await asyncio.sleep(0.01)


@pytest.mark.requirement("OPS-08")
async def test_a_clean_stop_hands_over_at_once(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one, two = replicas
    one.start()
    await until(lambda: one.working)
    two.start()
    await until(lambda: len(server.requests) > 3)
    await one.stop()
    assert record(server)["holderIdentity"] == ""
    assert not one.fence.deadlines
    stopped = monotonic()
    await until(lambda: two.working)
    assert monotonic() - stopped < DURATION_S
    assert record(server)["leaseTransitions"] == 1
    assert one.spans[0][1] < two.spans[0][0]


@pytest.mark.requirement("OPS-06")
async def test_a_lost_holder_is_followed_after_its_time_and_the_longest_request(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    # Written once and never renewed. Its renewTime lies far in the past: clocks do not count.
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4}
    spec["renewTime"] = "2001-01-01T00:00:00.000000Z"
    meta = {"name": "lease", "namespace": SYSTEM}
    server.put(LEASES, {"metadata": meta, "spec": spec})
    started = monotonic()
    one = replicas[0].start()
    await until(lambda: one.working)
    waited = one.spans[0][0] - started
    assert waited >= 1.0 + REQUEST_S
    assert record(server)["leaseTransitions"] == 5


async def test_the_time_counts_from_sending_the_renewal(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    sent: list[float] = []

    async def slow(_: Any, handle: Any) -> Any:
        sent.append(monotonic())
        await asyncio.sleep(0.1)
        return await handle()

    known = len(one.fence.armed)
    server.faults.append(Fault(slow, method="PUT"))
    await until(lambda: len(one.fence.armed) > known)
    assert one.fence.armed[known] <= sent[0] + DURATION_S


@pytest.mark.requirement("OPS-06")
async def test_without_an_api_server_work_stops_before_the_fence_and_begins_again(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    await server.stop()
    await until(lambda: not one.working)
    assert one.spans[0][1] < one.deadline_at_stop
    await until(lambda: not one.holder.held)
    await server.start()
    await until(lambda: one.working)


async def test_a_lease_taken_by_somebody_else_ends_the_work(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    spec = {**record(server), "holderIdentity": "thief", "acquireTime": "x"}
    server.put(LEASES, {"metadata": {"name": "lease", "namespace": SYSTEM}, "spec": spec})
    await until(lambda: not one.working)
    await one.stop()
    assert record(server)["holderIdentity"] == "thief", "not ours to release"


async def test_a_deleted_lease_ends_the_work(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    server.remove(LEASES, "lease", SYSTEM)
    await until(lambda: len(one.spans[0]) == 2)
    assert one.spans[0][1] < one.deadline_at_stop


async def test_deleting_the_lease_of_a_holder_does_not_hurry_a_standby(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    spec = {"holderIdentity": "alive", "leaseDurationSeconds": 1}
    server.put(LEASES, {"metadata": {"name": "lease", "namespace": SYSTEM}, "spec": spec})
    two = replicas[1].start()
    await until(lambda: server.requests)
    seen_at = monotonic()
    server.remove(LEASES, "lease", SYSTEM)
    await until(lambda: two.working)
    assert two.spans[0][0] - seen_at >= 1.0


@pytest.mark.requirement("OPS-06")
async def test_a_holder_whose_time_runs_out_clears_nothing(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    # Requests that its work gave up may still be on their way: others wait until they are over.
    one, two = replicas
    one.start()
    await until(lambda: one.working)
    two.start()
    server.faults.append(Fault.status(500, method="PUT", times=10**6))
    await until(lambda: not one.working)
    lost = monotonic()
    server.faults.clear()
    await until(lambda: two.working or len(one.spans) == 2)
    assert not any(b'"holderIdentity":""' in request.body for request in server.requests)
    if two.working:  # what is left of the duration, and the longest request
        assert two.spans[0][0] - lost >= REQUEST_S


async def test_a_holder_that_lost_its_lease_takes_its_own_record_back_at_once(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    fault = Fault.status(500, method="PUT", times=10**6)
    server.faults.append(fault)
    await until(lambda: not one.working)
    fault.times = 0
    lost = monotonic()
    await until(lambda: one.working)
    assert monotonic() - lost < 1.0 + REQUEST_S, "as others would have to wait"


async def test_a_renewal_applied_without_an_answer_keeps_the_lease(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    fault = Fault.cut(applied=True, method="PUT")
    server.faults.append(fault)
    await until(lambda: fault.times == 0)
    known = len(one.fence.armed)
    await until(lambda: len(one.fence.armed) >= known + 2)
    assert len(one.spans) == 1
    assert one.working


async def test_a_creation_applied_without_an_answer_is_ours(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    server.faults.append(Fault.cut(applied=True, method="POST"))
    started = monotonic()
    one = replicas[0].start()
    await until(lambda: one.working)
    assert monotonic() - started < DURATION_S + REQUEST_S


async def test_a_hanging_renewal_leaves_time_for_another(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one = replicas[0].start()
    await until(lambda: one.working)
    server.faults.append(Fault.slow(3.0, method="PUT"))
    known = len(one.fence.armed)
    await until(lambda: len(one.fence.armed) >= known + 2)
    assert len(one.spans) == 1


async def test_a_failure_of_the_work_passes_through_after_release(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    async def fail() -> None:
        raise LookupError("planted")

    with pytest.raises(LookupError, match="planted"):
        await replicas[0].holder.run(fail)
    assert record(server)["holderIdentity"] == ""


async def test_a_standby_asks_at_most_four_times_per_duration(
    server: FakeApiServer, replicas: list[Replica]
) -> None:
    one, two = replicas
    one.start()
    await until(lambda: one.working)
    before, started = gets(server), monotonic()
    two.start()
    await asyncio.sleep(DURATION_S)  # a rate is measured
    asked, span = gets(server) - before, (monotonic() - started) / DURATION_S
    assert asked <= 4 * span + 1
    await until(lambda: gets(server) > before)


def gets(server: FakeApiServer) -> int:
    return sum(request.method == "GET" for request in server.requests)


WRITER = """
import asyncio, contextlib, sys
from rackgate.kube.client import PatchType
from rackgate.kube.config import ConnectionSettings, connect
from rackgate.kube.errors import KubeError
from rackgate.kube.lease.holder import LeaseHolder
from rackgate.api.resources import PODS

async def main(server, name):
    settings = ConnectionSettings(server=server, request_timeout=0.5)
    client = await connect(settings, user_agent="writer")
    holder = LeaseHolder(client, "rackgate-system", name, name, duration_s=8.0)
    async def work():
        while True:
            with contextlib.suppress(KubeError):
                await client.patch(PODS.path("ns", name), b"{}", PatchType.MERGE)
    await holder.run(work)

asyncio.run(main(*sys.argv[1:]))
"""


def writes(server: FakeApiServer, name: str) -> int:
    return sum(
        request.method == "PATCH" and request.path.endswith(f"/{name}")
        for request in server.requests
    )


def renewals_of(server: FakeApiServer, name: str) -> int:
    return sum(
        request.method == "PUT" and request.path.endswith(f"/{name}") for request in server.requests
    )


@pytest.mark.requirement("OPS-06")
async def test_a_process_stopped_beyond_its_lease_dies_before_its_next_write(
    server: FakeApiServer,
) -> None:
    names = [f"w{number}" for number in range(4)]
    processes = {}
    for name in names:
        server.put(PODS, {"metadata": {"name": name, "namespace": "ns"}})
        processes[name] = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WRITER, server.url, name
        )
    try:
        await until(lambda: all(writes(server, name) > 5 for name in names))
        known = {name: renewals_of(server, name) for name in names}
        await until(lambda: all(renewals_of(server, name) > known[name] for name in names))
        for process in processes.values():
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.013)
        await asyncio.sleep(8.1)  # longer than the lease: this is what is tested
        before = {name: writes(server, name) for name in names}
        renewals = sum(request.method == "PUT" for request in server.requests)
        for process in processes.values():
            process.send_signal(signal.SIGCONT)
        for name, process in processes.items():
            async with asyncio.timeout(60):
                assert await process.wait() == -signal.SIGALRM
            assert writes(server, name) == before[name]
        assert sum(request.method == "PUT" for request in server.requests) == renewals
    finally:
        for process in processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()
