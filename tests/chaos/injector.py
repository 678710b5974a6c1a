"""Carries out the faults of a scenario, each at its time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rackgate_cli.controlplane.state import StateFolder
from tests.chaos.fleet import Fleet, Replica
from tests.chaos.scenario import Fault, FaultPlan, Scenario
from tests.support.playground import Playground
from tests.support.proxy import Proxy, ProxyListener
from tests.support.proxy_faults import Kind, Trap, When
from tests.support.proxy_records import senders

# A write that a trap waits for comes within this time, or the fault happens at once.
TRAP_LIMIT_S = 10.0

WINDOWS = {
    Fault.CONFLICT: Kind.CONFLICT,
    Fault.TOUCH: Kind.TOUCH,
    Fault.LOSE: Kind.LOSE,
    Fault.HANG: Kind.HANG,
    Fault.DROP: Kind.DROP,
    Fault.FAIL: Kind.FAIL,
    Fault.THROTTLE: Kind.THROTTLE,
    Fault.LATENCY: Kind.LATENCY,
}


@dataclass
class Injector:
    """Carries out one scenario's faults.

    Attributes:
        injected: how often each fault struck, by kind.
        at_no_write: how many of those were to strike at a write, and none came.
    """

    playground: Playground
    proxy: Proxy
    fleet: Fleet
    scenario: Scenario
    injected: Counter[str] = field(default_factory=Counter)
    at_no_write: int = 0
    _paused: set[str] = field(default_factory=set)

    async def act(self, begun: float) -> None:
        """Inject everything at its time, counted from loop time `begun`."""
        async with asyncio.TaskGroup() as group:
            for plan in self.scenario.faults:
                group.create_task(self._at(plan, begun))

    def stop_faults(self) -> None:
        """No faults any more: traps, windows, stalls and stopped processes are undone."""
        for replica in self.fleet.replicas.values():
            replica.listener.faults.clear()
            self.proxy.resume_watches(replica.listener)
            replica.signal(signal.SIGCONT)

    async def _at(self, plan: FaultPlan, begun: float) -> None:
        await asyncio.sleep(max(0.0, begun + plan.at - asyncio.get_running_loop().time()))
        await self._inject(plan)

    async def _inject(self, plan: FaultPlan) -> None:
        if plan.fault in WINDOWS:
            self._open(plan)
            return
        match plan.fault:
            case Fault.KILL_BEFORE | Fault.KILL_AFTER:
                when: When = "before" if plan.fault is Fault.KILL_BEFORE else "after"
                await self._at_write(self._busiest(plan.service), plan, when, signal.SIGKILL)
            case Fault.KILL_ALL:
                for replica in self.fleet.of(plan.service):
                    self._kill(replica)
            case Fault.PAUSE:
                await self._pause(plan)
            case Fault.APISERVER:
                await self._restart_apiserver(plan)
            case Fault.CUT:
                await self._streams(plan, self.proxy.cut_watches)
            case Fault.EXPIRE:
                await self._streams(plan, lambda listener: self.proxy.end_watches(listener, 410))
            case Fault.WATCH_500:
                await self._streams(plan, lambda listener: self.proxy.end_watches(listener, 500))
            case Fault.STALL:
                await self._streams(
                    plan, lambda listener: self.proxy.stall_watches(listener, plan.seconds)
                )
            case Fault.SCALE:
                await self.fleet.scale(plan.service, plan.number)
                self.injected[plan.fault.value] += 1

    def _count_injected(self, plan: FaultPlan) -> list[Replica]:
        return self.fleet.of(plan.service) if plan.all_replicas else [self._busiest(plan.service)]

    def _busiest(self, service: str) -> Replica:
        """The replica that wrote last, most likely the one that acts; a stopped one if need be."""
        last = senders(self.proxy.writes)
        replicas = self.fleet.of(service)
        awake = [replica for replica in replicas if replica.name not in self._paused]
        return max(awake or replicas, key=lambda replica: last.get(replica.listener.sender, 0.0))

    def _open(self, plan: FaultPlan) -> None:
        self.injected[plan.fault.value] += 1
        for replica in self._count_injected(plan):
            replica.listener.faults.open(
                WINDOWS[plan.fault],
                start=time.monotonic(),
                seconds=plan.seconds,
                rate=plan.rate,
                value=plan.value,
            )

    async def _streams(self, plan: FaultPlan, action: Callable[[ProxyListener], int]) -> None:
        """Strike the open watches; wait a little when there are none, as after a restart."""
        deadline = time.monotonic() + TRAP_LIMIT_S
        struck = 0
        while not struck and time.monotonic() < deadline:
            struck = sum(action(replica.listener) for replica in self._count_injected(plan))
            await asyncio.sleep(0.2)
        self.injected[plan.fault.value] += bool(struck)

    def _kill(self, replica: Replica) -> None:
        replica.signal(signal.SIGKILL)
        self.injected[Fault.KILL_ALL.value] += 1

    async def _at_write(
        self, replica: Replica, plan: FaultPlan, when: When, number: signal.Signals
    ) -> None:
        """Signal a replica at a write of its own; at once if none comes."""
        if plan.number:
            trap = Trap(plan.number, when, lambda: replica.signal(number))
            trap.breaks = number == signal.SIGKILL
            replica.listener.faults.set_trap(trap)
            if not await _trap_triggered(trap):
                self.at_no_write += 1
                replica.listener.faults.drop_trap(trap)
                replica.signal(number)
        else:
            replica.signal(number)
        self.injected[plan.fault.value] += 1

    async def _pause(self, plan: FaultPlan) -> None:
        replica = self._busiest(plan.service)
        self._paused.add(replica.name)
        await self._at_write(replica, plan, "before", signal.SIGSTOP)
        await asyncio.sleep(plan.seconds)
        replica.signal(signal.SIGCONT)
        self._paused.discard(replica.name)

    async def _restart_apiserver(self, plan: FaultPlan) -> None:
        """kill -9, and start it again with the same command line."""
        record = StateFolder(self.playground.state).load()
        if record is None:
            raise LookupError("the playground has no record")
        os.kill(record.processes["kube-apiserver"].pid, signal.SIGKILL)
        await asyncio.sleep(plan.seconds)
        await asyncio.to_thread(self.playground.run, "start", "kube-apiserver")
        self.injected[plan.fault.value] += 1


async def _trap_triggered(trap: Trap) -> bool:
    deadline = time.monotonic() + TRAP_LIMIT_S
    while not trap.triggered.is_set() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return trap.triggered.is_set()
