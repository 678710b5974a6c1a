"""Writes what the assigner wrote for the same load, without a decision: the baseline of the load.

Reads JSON from its input: `state`, the playground's folder, `replays`, by `namespace/name` how
many pending reasons were written, how often the Workload was evicted, and its admission, and how
many Events and statuses of queues were written in the same run. Its writes are the assigner's own,
as many at a time, without a limit of requests per second; Events and statuses of queues are spread
over the run. Prints a line when it watches, and runs until it is terminated.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final

import msgspec

from bench.measuring.world import quiet
from rackgate.api.names import (
    EvictionReason,
    FieldManager,
    PendingReason,
    PreemptedReason,
    WorkloadCondition,
)
from rackgate.api.resources import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS, Resource
from rackgate.kube.client import Client
from rackgate.kube.events import EventRecorder, EventType, Regarding
from rackgate.kube.informer import Informer
from rackgate.wire.core import Condition, Meta
from rackgate.wire.kueue import Admission, Workload, WorkloadStatus
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.scheduler.writer import WorkloadWriter
from rackgate_assigner.settings import BudgetSettings, BudgetsSettings
from rackgate_assigner.watches import decode_workload
from rackgate_assigner.workload.decisions import Assignment
from rackgate_assigner.workload.info import workload_info
from rackgate_assigner.workload.status import status_apply
from rackgate_assigner.workqueue import WorkQueue
from rackgate_cli.playground.playground import open_client

READY: Final = "ready"
# Events, and statuses of queues, that are written at the same time.
BACKGROUND_WORKERS: Final = 4
# The condition that the step before has written.
NEEDED: Final = {"evict": WorkloadCondition.ADMITTED, "release": WorkloadCondition.EVICTED}
_RESERVED: Final = Condition(type=WorkloadCondition.QUOTA_RESERVED, status="True")
_MESSAGE: Final = "insufficient unused quota for cpu in flavor bench, {} more needed"


class Replay(msgspec.Struct, frozen=True):
    """What was written for one Workload."""

    pending: int
    evictions: int
    admission: Admission


class Order(msgspec.Struct, frozen=True):
    """What the process reads.

    Attributes:
        events: as many Events are written.
        statuses: as many statuses of ClusterQueues and LocalQueues are written.
    """

    state: str
    replays: dict[str, Replay]
    events: int = 0
    statuses: int = 0


@dataclass(slots=True)
class Share:
    """Writes that are spread over a run.

    Attributes:
        total: of the whole run.
        taken: so far.
    """

    total: int
    taken: int = 0

    def take(self, progress: float) -> bool:
        """Whether one more is due, at this share of the run; it counts from now on."""
        is_due = self.taken < self.total * progress
        self.taken += is_due
        return is_due


class _Events(EventRecorder):
    """Records an Event when one is due."""

    def __init__(self, client: Client, is_due: Callable[[], bool]) -> None:
        super().__init__(client, "bench", qps=0)
        self._is_due = is_due

    def record(
        self, regarding: Regarding, type_: EventType | str, reason: str, action: str, note: str
    ) -> None:
        if self._is_due():
            super().record(regarding, type_, reason, action, note)


class _Statuses:
    """Writes statuses of queues in turns: what they are, with another number of Workloads."""

    def __init__(self, client: Client) -> None:
        self._client, self._number = client, 0
        self._found: dict[str, tuple[Resource, dict[str, Any]]] = {}
        self.queue = WorkQueue[str]("statuses", self._write, workers=BACKGROUND_WORKERS)

    async def read(self) -> None:
        """Read all queues."""
        for resource in (CLUSTER_QUEUES, LOCAL_QUEUES):
            for item in json.loads(await self._client.get(resource.path()))["items"]:
                self._found[f"{resource.kind}/{item['metadata']['name']}"] = resource, item
        self._turns = cycle(self._found)

    def add(self) -> None:
        """Write the next one soon."""
        self.queue.add(next(self._turns))

    async def _write(self, key: str) -> None:
        resource, item = self._found[key]
        self._number += 1
        meta = msgspec.convert(item["metadata"], Meta)
        status = {**item["status"], "pendingWorkloads": self._number}
        path = resource.path(meta.namespace or None, meta.name, "status")
        body = status_apply(resource, meta, status)
        written = await self._client.apply(path, body, FieldManager.QUEUES)
        self._found[key] = resource, json.loads(written)


def steps(replay: Replay) -> list[str]:
    """The writes for one Workload, in order."""
    again = ["admit", "evict", "release"] * replay.evictions
    return [*["pending"] * replay.pending, *again, "admit"]


def assignment_of(workload: Workload, admission: Admission) -> Assignment:
    """The assignment that an admission states.

    Raises:
        ValueError: it cannot be read.
    """
    status = WorkloadStatus(conditions=(_RESERVED,), admission=admission)
    row = workload_info(msgspec.structs.replace(workload, status=status))
    if row.reserved is None:
        raise ValueError(f"{row.key}: {row.admission_error}")
    return row.reserved


class Replayer:
    """Writes one step for each event of a Workload: its last write has been seen then."""

    def __init__(self, client: Client, order: Order) -> None:
        budgets = BudgetsSettings()
        self._done = 0
        self._steps = sum(len(steps(replay)) for replay in order.replays.values())
        events, self._status_share = Share(order.events), Share(order.statuses)
        self._recorder = _Events(client, lambda: events.take(self._progress))
        self._statuses = _Statuses(client)
        self._writer = WorkloadWriter(
            _budget(client, budgets.admission),
            _budget(client, budgets.pending),
            _budget(client, budgets.jobs),
            Reporter(self._recorder),
        )
        self._order = order
        self._left = {key: steps(replay)[::-1] for key, replay in order.replays.items()}
        self._queue = WorkQueue[str]("writes", self._write, workers=budgets.admission.concurrency)
        self._informer: Informer[Workload] = Informer(
            client,
            WORKLOADS,
            decode_workload,
            on_upsert=lambda _before, found: self._queue.add(found.metadata.key),
            on_delete=lambda _gone: None,
        )

    @property
    def _progress(self) -> float:
        return self._done / max(1, self._steps)

    async def run(self) -> None:
        """Write until cancelled."""
        await self._statuses.read()
        async with asyncio.TaskGroup() as group:
            for _ in range(BACKGROUND_WORKERS):
                group.create_task(self._recorder.run())
            group.create_task(self._statuses.queue.run())
            group.create_task(self._queue.run())
            group.create_task(self._informer.run())
            await self._informer.synced.wait()
            sys.stdout.write(f"{READY}\n")
            sys.stdout.flush()

    async def _write(self, key: str) -> None:
        workload = self._informer.store.get(key)
        left = self._left.get(key)
        if workload is None or not left or workload.is_true(WorkloadCondition.FINISHED):
            return
        step = left[-1]
        needed = NEEDED.get(step)
        if needed is not None and not workload.is_true(needed):
            return  # the watch does not show the step before yet
        writer = self._writer
        if step == "pending":
            reason = PendingReason.WAITING_FOR_QUOTA
            await writer.write_pending(workload, reason, _MESSAGE.format(len(left)))
        elif step == "admit":
            admission = self._order.replays[key].admission
            await writer.admit(workload, assignment_of(workload, admission))
        elif step == "evict":
            cause = PreemptedReason.IN_CLUSTER_QUEUE
            await writer.evict(workload, EvictionReason.PREEMPTED, "replayed", cause)
        else:
            await writer.release(workload)
        left.pop()
        self._done += 1
        if self._status_share.take(self._progress):
            self._statuses.add()


def _budget(client: Client, settings: BudgetSettings) -> Client:
    return client.budget(0, settings.burst, settings.concurrency)


async def run(order: Order) -> None:
    """Replay until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with open_client(order.state) as client, asyncio.TaskGroup() as group:
        replaying = group.create_task(Replayer(client, order).run())
        await ended.wait()
        replaying.cancel()


def main() -> int:
    """The command."""
    quiet()
    asyncio.run(run(msgspec.json.decode(sys.stdin.buffer.read(), type=Order)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
