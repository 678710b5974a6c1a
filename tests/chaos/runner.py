"""Runs one scenario on a playground: fire, then peace, then the checks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rackgate.api import resources as kinds
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS
from tests.chaos import administrator, checks, gangs, rayjobs
from tests.chaos.checks_elastic import wait_all_resized
from tests.chaos.elastic_users import ElasticUsers
from tests.chaos.fleet import Exit, Fleet
from tests.chaos.gang_users import GangUsers
from tests.chaos.injector import Injector
from tests.chaos.leases import lease_of
from tests.chaos.limits import SCENARIO_LIMIT_S
from tests.chaos.queues import priority_classes
from tests.chaos.rayjob_users import RayJobUsers
from tests.chaos.scenario import (
    CPU_PER_HOST,
    HOSTS_PER_RACK,
    LEASE_S,
    RACKS,
    Scenario,
)
from tests.chaos.users import Users
from tests.chaos.watcher import Watcher, as_drawn
from tests.support.cluster import Cluster
from tests.support.objects import flavor, node, topology_object
from tests.support.playground import SERVICES, Playground, start_playground
from tests.support.proxy import Proxy
from tests.support.proxy_records import SLACK_S, late_writes
from tests.support.write_points import WritePoints

POOL = "chaos"
# Set: the logs of scenarios that went well are kept, too.
KEEP_VARIABLE = "CHAOS_KEEP"
# A killed replica comes back after so many seconds.
RESTART_S = (0.2, 2.0)


@dataclass
class Report:
    """What came of one scenario.

    Attributes:
        faults: what was injected, by kind.
        at_no_write: how many of them were to strike at a write that did not come in time.
        counts: requests that came, and how many each kind struck.
        problems: everything that must not be; empty when all is well.
        breaches, late: those of `problems` that are lasting breaches, and late writes.
        exits: how each process ended.
        lag_s: the longest time that the proxy was late itself.
        phases: seconds of each part.
        last: the Jobs that ended last.
        preemptions: as many as were seen, by reason.
        borrowed_cpu: the most that all queues together borrowed at a time.
        gang_runs: Workloads of gangs whose pods were seen released, once for each run.
        gang_evictions: as many as were seen, by reason.
    """

    scenario: Scenario
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    at_no_write: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    writes: int = 0
    readings: int = 0
    breaches: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unfinished: int = 0
    exits: list[Exit] = field(default_factory=list)
    lag_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    last: set[str] = field(default_factory=set)
    preemptions: Counter[str] = field(default_factory=Counter)
    borrowed_cpu: int = 0
    gang_runs: int = 0
    gang_evictions: Counter[str] = field(default_factory=Counter)

    @property
    def lease_expired_exits(self) -> int:
        """Processes that ended themselves because their lease had run out."""
        return sum(end.code == checks.LEASE_EXPIRED_SIGNAL for end in self.exits)


@contextlib.contextmanager
def chaos_playground(
    folder: Path, operators: tuple[str, ...] = (), *, with_gangs: bool = False
) -> Iterator[Playground]:
    """A playground whose services have credentials and configuration, and do not run.

    With gangs, it has what `deploy` installs for them; a scenario has them or not.
    """
    gates = (ELASTIC_JOBS, ELASTIC_INDEXED_JOBS, *(gangs.GATES if with_gangs else ()))
    playground = start_playground(
        folder, nodes=0, operators=operators, gates=gates, lease_s=LEASE_S
    )
    try:
        for service in SERVICES:
            playground.run("stop", service)
        yield playground
    finally:
        playground.stop()


@contextlib.asynccontextmanager
async def furnished(playground: Playground) -> AsyncIterator[Cluster]:
    """Nodes, their flavor and priority classes for scenarios, made once."""
    async with playground.client() as client:
        cluster = Cluster(client, "default", POOL)
        if await cluster.find(kinds.FLAVORS, POOL) is None:
            for made in priority_classes(POOL):
                await cluster.create(kinds.WORKLOAD_PRIORITY_CLASSES, made)
            await cluster.add_nodes(
                node(
                    POOL,
                    f"block-{rack // 4}",
                    f"rack-{rack}",
                    f"n{rack * HOSTS_PER_RACK + host:02}",
                    cpu=str(CPU_PER_HOST),
                )
                for rack in range(RACKS)
                for host in range(HOSTS_PER_RACK)
            )
            await cluster.create(kinds.TOPOLOGIES, topology_object(POOL))
            await cluster.create(kinds.FLAVORS, flavor(POOL, POOL, POOL))
        yield cluster


async def run_scenario(
    playground: Playground,
    scenario: Scenario,
    *,
    limit_s: float = SCENARIO_LIMIT_S,
    points: WritePoints | None = None,
    beside: Callable[[Cluster], Coroutine[Any, Any, None]] | None = None,
) -> Report:
    """Run one scenario and judge it, also when it had to be given up after `limit_s` seconds.

    Args:
        playground: without services of its own.
        scenario: as drawn.
        limit_s: most seconds.
        points: kills at each kind of write, beside the scenario's faults.
        beside: what an administrator does meanwhile; it has to end by itself.
    """
    report = Report(scenario)
    begun = time.monotonic()
    dice = random.Random(f"restarts {scenario.seed}")
    restarts = (dice.uniform(*RESTART_S) for _ in itertools.count())
    with Proxy(playground.server, playground.state / "pki", points) as proxy:
        async with contextlib.AsyncExitStack() as stack:
            gates = dict.fromkeys(gangs.GATES, bool(scenario.gangs))
            fleet = Fleet(playground, proxy, str(scenario.seed), scenario.offsets, restarts, gates)
            stack.callback(fleet.kill_all)
            cluster = await stack.enter_async_context(furnished(playground))
            run = _Run(playground, proxy, fleet, cluster, report, limit_s, beside)
            await run.through()
    report.seconds = time.monotonic() - begun
    return report


@dataclass
class _Run:
    playground: Playground
    proxy: Proxy
    fleet: Fleet
    cluster: Cluster
    report: Report
    limit_s: float
    beside: Callable[[Cluster], Coroutine[Any, Any, None]] | None = None
    phase: str = ""

    async def through(self) -> None:
        report = self.report
        logs = _log_sizes(self.playground)
        drawn = as_drawn(report.scenario.tree, POOL)
        watcher = Watcher(self.cluster.client, self._evidence(), drawn)
        users = Users(self.cluster, report.scenario)
        injector = Injector(self.playground, self.proxy, self.fleet, report.scenario)
        limit = asyncio.timeout(self.limit_s)
        try:
            async with limit:
                await self._act(watcher, users, injector)
        except Exception:  # noqa: BLE001 - whatever it was, the scenario is judged and told
            over = f"given up after {self.limit_s:.0f} s, in phase {self.phase}"
            report.problems.append(over if limit.expired() else traceback.format_exc())
        report.faults, report.readings = injector.injected, watcher.readings
        report.at_no_write = injector.at_no_write
        report.breaches = watcher.found
        report.preemptions = Counter(watcher.preemptions.values())
        report.borrowed_cpu = watcher.borrowed_cpu
        report.gang_runs = len(watcher.gang_runs)
        report.gang_evictions = Counter(watcher.gang_evictions.values())
        self._judge(users, watcher, logs)
        if report.problems or os.environ.get(KEEP_VARIABLE):
            self._keep()

    async def _act(self, watcher: Watcher, users: Users, injector: Injector) -> None:
        # From the start: on a full machine a fence may end a replica before all are ready.
        async with _background(self.fleet.supervise()):
            with self._phase("start"):
                for service, count in self.report.scenario.replicas.items():
                    await self.fleet.scale(service, count)
                await self.fleet.ready()
                # A scenario that failed may have left jobs.
                await checks.nothing_left(self.cluster)
                scenario = self.report.scenario
                own = [gangs.QUEUE] if scenario.gangs else []
                own += [rayjobs.QUEUE] if scenario.rayjobs else []
                await administrator.set_up(self.cluster, (*scenario.tree, *own))
            growers, ganging, ray = ElasticUsers(users), GangUsers(users), RayJobUsers(users)
            async with _background(
                watcher.run(), users.lift_gates(), growers.autoscale(), ganging.keep_groups()
            ):
                with self._phase("fire"):
                    acts = (users.act, growers.act, ganging.act, ray.act, injector.act)
                    await self._inject_faults(users, acts, injector)
                await self._wait_for_recovery(users, ganging, ray)
        with self._phase("end"):
            await self.fleet.end_all()

    def _keep(self) -> None:
        """Leave the services' logs and the problems beside the playground, which is removed."""
        logs, folder = self.playground.state / "logs", self._evidence()
        shutil.copytree(logs, folder / "logs", dirs_exist_ok=True)
        (folder / "problems.txt").write_text("\n".join(self.report.problems))

    def _evidence(self) -> Path:
        """Folder for what a failure leaves behind."""
        return self.playground.state.parent / f"evidence-{self.report.scenario.seed}"

    async def _inject_faults(
        self,
        users: Users,
        acts: Iterable[Callable[[float], Coroutine[Any, Any, None]]],
        injector: Injector,
    ) -> None:
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                for act in acts:
                    group.create_task(act(begun))
                group.create_task(administrator.act(users, begun))
                if self.beside is not None:
                    group.create_task(self.beside(self.cluster))
        finally:
            injector.stop_faults()

    async def _wait_for_recovery(self, users: Users, ganging: GangUsers, ray: RayJobUsers) -> None:
        """No faults any more: all must come to its end."""
        report, problems = self.report, self.report.problems
        with self._phase("recover"):
            await self.fleet.ready()
            unfinished, report.last = await checks.wait_all_finished(users)
            unfinished += await ganging.ended()
            unfinished += await ray.running()
            unsettled = await wait_all_resized(users) if not unfinished else []
        report.unfinished = len(unfinished)
        problems += unfinished + unsettled
        with self._phase("check"):
            problems += await checks.templates_restored(users)
            problems += await checks.invariants_hold(self.playground)
            problems += await checks.nothing_left(self.cluster)
            problems += await checks.caches_agree(self.fleet)

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begun, self.phase = time.monotonic(), name
        yield
        self.report.phases[name] = time.monotonic() - begun

    def _judge(self, users: Users, watcher: Watcher, logs: dict[Path, int]) -> None:
        report, writes = self.report, self.proxy.writes
        report.writes = sum(write.counts for write in writes)
        report.counts = self.proxy.counts
        report.lag_s = self.proxy.lag_s
        # What the proxy was late itself is not the services' fault.
        slack_s = SLACK_S + self.proxy.lag_s
        found = late_writes(writes, lease_of(watcher.uids), slack_s)
        report.late = [str(late) for late in found]
        report.exits = self.fleet.exits
        problems = report.problems
        problems += report.breaches + report.late
        problems += [f"proxy: {error}" for error in self.proxy.errors]
        problems += [f"pod {name} lost its own gate" for name in sorted(users.lost_gates)]
        problems += checks.odd_exits(self.fleet.exits)
        for log in _log_sizes(self.playground):
            problems += [
                f"{log.name}: {line[:1500]}" for line in checks.errors_logged(log, logs.get(log, 0))
            ]


@contextlib.asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these beside the block; one that fails fails the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in work]
        yield
        for task in tasks:
            task.cancel()


def _log_sizes(playground: Playground) -> dict[Path, int]:
    folder = playground.state / "logs"
    return {log: log.stat().st_size for log in folder.glob("*.chaos.log")}


def say(text: str) -> None:
    """A line of progress, past what pytest captures at its usual level."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
