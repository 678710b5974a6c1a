"""Creates the Workloads of a load and ends each of them when its time is over: no pod runs.

A Workload's clock starts with condition Admitted, as a watch shows it. When it is evicted, the
clock starts again at its next admission. Kueue leaves it to the job's controller to release the
quota of what it evicts; beside Kueue, this does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bench.measuring.world import CONCURRENCY
from bench.queues.kueue_load import Stream
from bench.queues.objects import Queue, class_name, condition, workload
from bench.queues.recorder import Recorder, SeenWorkload
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.timestamps import rfc3339
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError, NotFoundError
from rackgate.kube.informer import Informer
from rackgate.runtime import clock

PAUSE_S: Final = 0.1
MANAGER: Final = "bench"


class Runner:
    """One run of a load.

    Attributes:
        recorder: what became of each Workload.
        began: seconds on the clock of `recorder` when the first Workload was due.
    """

    def __init__(
        self,
        client: Client,
        queues: Sequence[Queue],
        parts: Sequence[Stream],
        evictions: Mapping[str, int] | None = None,
        *,
        releases: bool = False,
    ) -> None:
        """Prepare; `play` does the work.

        Args:
            client: with cluster-admin rights.
            queues: whose namespaces exist.
            parts: what each of them gets.
            evictions: Workloads whose clock does not start before they were evicted so often.
            releases: the quota of what was evicted.
        """
        self._client, self._queues, self._parts = client, queues, parts
        self._evictions = evictions or {}
        self._classes = {part.of.name: part.of for part in parts}
        self._total = len(queues) * sum(part.count for part in parts)
        self.recorder = Recorder({queue.name: queue.cohort for queue in queues})
        self.began = 0.0
        self._clocks: dict[str, asyncio.TimerHandle] = {}
        # Each with the time of the admission that was timed.
        self._due: asyncio.Queue[tuple[str, float | None]] = asyncio.Queue()
        self._releases = releases
        self._evicted: asyncio.Queue[str] = asyncio.Queue()
        self._done = asyncio.Event()
        self.informer: Informer[SeenWorkload] = Informer(
            client,
            kinds.WORKLOADS,
            msgspec.json.Decoder(SeenWorkload).decode,
            on_upsert=lambda _before, found: self._see(found),
            on_delete=lambda _gone: None,
        )

    async def play(self, limit_s: float) -> None:
        """Play the load; returns when all Workloads have finished, or when time is up."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.informer.run())]
            await self.informer.synced.wait()
            tasks += [group.create_task(self._finish()) for _ in range(CONCURRENCY)]
            if self._releases:
                tasks.append(group.create_task(self._release()))
            self.began = time.perf_counter()
            for queue in self._queues:
                tasks += [group.create_task(self._create(queue, part)) for part in self._parts]
            try:
                async with asyncio.timeout(limit_s):
                    await self._done.wait()
            except TimeoutError:
                pass  # the caller sees what has not finished
            finally:
                for timer in self._clocks.values():
                    timer.cancel()
                for task in tasks:
                    task.cancel()

    def _see(self, found: SeenWorkload) -> None:
        key = found.metadata.key
        of = self._classes[class_name(found.metadata.name)]
        record = self.recorder.see(found, of.cpu, time.perf_counter())
        if not record.runs and key in self._clocks:
            self._clocks.pop(key).cancel()
        elif (
            record.runs
            and key not in self._clocks
            and record.evictions >= self._evictions.get(key, 0)
        ):
            loop = asyncio.get_running_loop()
            due = (key, record.admitted)
            self._clocks[key] = loop.call_later(of.run_s, self._due.put_nowait, due)
        if self._releases and is_to_release(found):
            self._evicted.put_nowait(key)
        if self.recorder.finished == self._total:
            self._done.set()

    async def _create(self, queue: Queue, part: Stream) -> None:
        """One Workload after each interval, as Kueue's generator does: late ones delay the rest."""
        path = kinds.WORKLOADS.path(queue.name)
        for number, name in enumerate(part.names, start=1):
            due = self.began + number * part.interval_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await self._client.create(path, json.dumps(workload(name, queue, part.of)).encode())

    async def _finish(self) -> None:
        while True:
            key, admitted = await self._due.get()
            record = self.recorder.records[key]
            while record.runs and record.admitted == admitted:
                try:
                    await self._write_finished(key)
                except NotFoundError:
                    break
                except KubeError:
                    await asyncio.sleep(PAUSE_S)
                else:
                    break

    async def _write_finished(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        moment = rfc3339(clock.now())
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "Workload",
            "metadata": {"name": name, "namespace": namespace},
            "status": {"conditions": [condition("Finished", moment, "Succeeded")]},
        }
        path = kinds.WORKLOADS.path(namespace, name, "status")
        await self._client.apply(path, json.dumps(body).encode(), MANAGER)

    async def _release(self) -> None:
        while True:
            key = await self._evicted.get()
            found = self.informer.store.get(key)
            if found is None or not is_to_release(found):
                continue
            path = kinds.WORKLOADS.path(found.metadata.namespace, found.metadata.name, "status")
            body = msgspec.json.encode(release(found, rfc3339(clock.now())))
            # After a conflict, the event of the other write comes here.
            with contextlib.suppress(KubeError):
                await self._client.patch(path, body, PatchType.MERGE)


def is_to_release(found: SeenWorkload) -> bool:
    """Whether a Workload was evicted and still holds its quota."""
    return (
        found.is_true("Evicted")
        and found.is_true("QuotaReserved")
        and not found.is_true("Finished")
    )


def release(found: SeenWorkload, moment: str) -> dict[str, Any]:
    """The merge patch that releases the quota of an evicted Workload."""
    ended = [
        condition(type_, moment, "Pending", "False") for type_ in ("QuotaReserved", "Admitted")
    ]
    kept = [one for one in found.status.conditions if one.type not in ("QuotaReserved", "Admitted")]
    return {
        "metadata": {"resourceVersion": found.metadata.resource_version},
        "status": {"admission": None, "conditions": [*kept, *ended]},
    }
