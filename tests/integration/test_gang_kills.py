"""kill -9 of each service between any two gates of one gang, on a real control plane.

The ungater's requests pass a proxy, which counts its patches of pods. When the patch for a gate
arrives, a service is killed before this patch is applied. The ungater reaches nothing from then on,
dies when the patches before are applied, and the next one reaches nothing until the test has
looked: exactly the gates before are off.

Three pods in each gang, so two kills of each service; GANG_KILL_PODS=n for gangs of n pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from tests.chaos import administrator
from tests.chaos.checks import LEASE_EXPIRED_SIGNAL, invariants_hold, nothing_left
from tests.chaos.fleet import Fleet
from tests.chaos.gangs import GATES
from tests.chaos.queues import QuotaPlan
from tests.chaos.runner import chaos_playground, furnished
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object, job
from tests.support.playground import SERVICES, Playground
from tests.support.proxy import Proxy
from tests.support.proxy_faults import Kind, Trap

PODS = int(os.environ.get("GANG_KILL_PODS") or 3)
QUEUE = QuotaPlan("kills", "", 64, preemption={})
RESTART_S = 0.5
# Longer than a test may take: it ends when the test has looked.
UNTIL_CLEARED_S = 3600.0
TAKEOVER_LIMIT_S = 60.0

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600 + 60 * PODS)]


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A control plane of its own, whose services the test runs itself."""
    with chaos_playground(tmp_path_factory.mktemp("kills") / "state", with_gangs=True) as running:
        yield running


@contextlib.asynccontextmanager
async def services(playground: Playground) -> AsyncIterator[tuple[Fleet, Cluster]]:
    """One replica of each service behind a proxy, started again when it dies."""
    with Proxy(playground.server, playground.state / "pki") as proxy:
        gates = dict.fromkeys(GATES, True)
        fleet = Fleet(playground, proxy, "kills", {}, itertools.repeat(RESTART_S), gates)
        try:
            async with furnished(playground) as cluster, asyncio.TaskGroup() as group:
                supervisor = group.create_task(fleet.supervise())
                for service in SERVICES:
                    await fleet.scale(service, 1)
                await fleet.ready()
                await administrator.set_up(cluster, (QUEUE,))
                yield fleet, cluster
                supervisor.cancel()
        finally:
            fleet.kill_all()


def kill_at_gate(fleet: Fleet, service: str, number: int) -> Trap:
    """Kill a service when the patch of this pod of a gang arrives, the first one is 1."""
    (ungater,), (struck,) = fleet.of("ungater"), fleet.of(service)

    def strike() -> None:
        if service != "ungater":
            struck.signal(signal.SIGKILL)
            return
        # Its death would break the connections of patches before this one that are under way. So
        # it reaches nothing from here on, and is killed when those are applied.
        start = time.monotonic()
        ungater.listener.faults.open(Kind.DROP, start=start, seconds=UNTIL_CLEARED_S)

    trap = Trap(number, "before", strike, breaks=service == "ungater")
    ungater.listener.faults.set_trap(trap)
    return trap


def released(pods: list[Object]) -> list[Object]:
    return [pod for pod in pods if not pod["spec"].get("schedulingGates")]


def runs(pods: list[Object]) -> set[str | None]:
    return {pod["metadata"]["annotations"].get(names.GANG_RUN_ANNOTATION) for pod in pods}


def uids(pods: list[Object]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods}


@pytest.mark.requirement("OPS-12", "GNG-12")
@pytest.mark.parametrize("service", SERVICES)
async def test_a_gang_is_whole_though_a_service_dies_between_two_of_its_gates(
    playground: Playground, service: str
) -> None:
    async with services(playground) as (fleet, cluster):
        (ungater,), (struck,) = fleet.of("ungater"), fleet.of(service)
        for number in range(2, PODS + 1):
            name = f"{service}-{number}"
            trap = kill_at_gate(fleet, service, number)
            made = job(name, PODS, queue=QUEUE.name, cpu="1", required=RACK)

            async def is_triggered(trap: Trap = trap) -> bool:
                return trap.triggered.is_set()

            await cluster.create(kinds.JOBS, made)
            await until(f"{service} is killed before gate {number}", is_triggered)
            if service == "ungater":

                async def are_off(name: str = name, number: int = number) -> bool:
                    return len(released(await cluster.pods_of(name))) >= number - 1

                await until(f"{number - 1} gates are off", are_off)
                struck.signal(signal.SIGKILL)
                pods = await cluster.pods_of(name)
                assert len(released(pods)) == number - 1
                assert len(runs(released(pods))) == 1
                before = uids(pods)
                ungater.listener.faults.clear()
            else:
                before = uids(await cluster.pods_of(name))
            assert len(before) == PODS

            bound = await cluster.bound(name, PODS)
            assert uids(bound) == before, "no pod was lost"
            assert len(runs(bound)) == 1, "all were released in the run that the first one records"
            assert None not in runs(bound)
            await until(f"{struck.name} is ready again", struck.ready, timeout_s=TAKEOVER_LIMIT_S)
            assert await invariants_hold(playground) == []
            await cluster.finish(name)
            workload = await cluster.condition(name, "Finished")
            assert not workload["status"].get("requeueState"), "it never gave way"
        ends = [end.code for end in fleet.exits if end.name == struck.name]
        assert len(ends) >= PODS - 1
        assert set(ends) <= {-signal.SIGKILL, LEASE_EXPIRED_SIGNAL}
        assert await nothing_left(cluster) == []
