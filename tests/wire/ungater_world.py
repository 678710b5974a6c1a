"""A fake API server with Workloads and gated pods, and ungater replicas inside this process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from typing import Any

from rackgate.api import names
from rackgate.api.resources import EVENTS, NODES, PODS, WORKLOADS
from rackgate.kube.client import Client
from rackgate.kube.events import EventRecorder
from rackgate.runtime import clock, metrics
from rackgate.topology.assignment import Domain, TopologyAssignment, encode
from rackgate_ungater.reporter import Reporter
from rackgate_ungater.settings import UngaterConfiguration, UngatingSettings
from rackgate_ungater.shards.handover import SHARDS, shard_of
from rackgate_ungater.ungater import Ungater
from rackgate_ungater.writer import Writer
from tests.support.apiserver import FakeApiServer, Request
from tests.support.ungater_invariants import check_invariants
from tests.support.waiting import until

Object = dict[str, Any]
LEVELS = ("block", "rack")
R1, R2 = ("b1", "r1"), ("b1", "r2")
FOREIGN = "example.com/wait"
WINDOW_S = 0.02
STREAMS = 4  # pods, Workloads, child Jobs, nodes


def uid_in(shard: int, nth: int = 0) -> str:
    """The n-th UID of that shard."""
    found = (uid for n in itertools.count() if shard_of(uid := f"uid-{n}") == shard)
    return next(itertools.islice(found, nth, None))


def sample(metric: str, /, **labels: str) -> float:
    """A metric's value; 0 before the first."""
    return metrics.REGISTRY.get_sample_value(f"rackgate_{metric}", labels) or 0.0


def condition(kind: str, status: str = "True") -> Object:
    return {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}


class World:
    """What other actors of a cluster do, and what the tests look at."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server

    def node(self, name: str, host: str | None = None) -> Object:
        labels = {names.HOSTNAME_LABEL: host or name}
        return self.server.put(NODES, {"metadata": {"name": name, "labels": labels}})

    def workload(
        self,
        counts: dict[Domain, int],
        *,
        name: str = "train",
        conditions: tuple[str, ...] = (),
        levels: tuple[str, ...] = LEVELS,
        uid: str | None = None,
    ) -> Object:
        total = sum(counts.values())
        assigned = encode(TopologyAssignment(levels, tuple(counts.items())))
        return self.server.put(
            WORKLOADS,
            {
                "metadata": {
                    "name": name,
                    "namespace": "team",
                    **({"uid": uid} if uid else {}),
                    "ownerReferences": [
                        {"kind": "Job", "name": name, "uid": f"{name}-job", "controller": True}
                    ],
                },
                "spec": {
                    "podSets": [{"name": "main", "count": total, "template": {"spec": {}}}],
                },
                "status": {
                    "conditions": [condition(kind) for kind in ("Admitted", *conditions)],
                    "admission": {
                        "clusterQueue": "cq",
                        "podSetAssignments": [
                            {"name": "main", "count": total, "topologyAssignment": assigned}
                        ],
                    },
                },
            },
        )

    def pod(self, number: int, *, workload: str = "train", **spec: Any) -> Object:
        gates = [{"name": FOREIGN}, {"name": names.TOPOLOGY_GATE}]
        return self.server.put(
            PODS,
            {
                "metadata": {
                    "name": f"{workload}-{number}",
                    "namespace": "team",
                    "labels": {
                        names.PODSET_LABEL: "main",
                        names.TAS_LABEL: "true",
                        names.COMPLETION_INDEX_LABEL: str(number),
                    },
                    "annotations": {names.WORKLOAD_ANNOTATION: workload},
                    "ownerReferences": [
                        {"kind": "Job", "name": "j", "uid": f"{workload}-job", "controller": True}
                    ],
                },
                "spec": {"schedulingGates": gates, "nodeSelector": {"disk": "ssd"}, **spec},
                "status": {"phase": "Pending"},
            },
        )

    def pods(self, *numbers: int, **options: Any) -> None:
        for number in numbers:
            self.pod(number, **options)

    def change(self, number: int, **sections: Object) -> None:
        """Somebody else changes a pod."""
        pod = json.loads(json.dumps(self.server.get(PODS, f"train-{number}", "team")))
        for section, values in sections.items():
            pod[section].update(values)
        self.server.put(PODS, pod)

    def domains(self) -> dict[str, Domain]:
        """Released pods by name, with the domain their selector names."""
        found = {}
        for key, pod in self.server._objects.get("pods", {}).items():
            gates = [gate["name"] for gate in pod["spec"].get("schedulingGates", [])]
            if names.TOPOLOGY_GATE not in gates:
                selector = pod["spec"].get("nodeSelector", {})
                found[key.partition("/")[2]] = tuple(selector.get(key, "") for key in LEVELS)
        return found

    def counts(self) -> Counter[Domain]:
        return Counter(self.domains().values())

    async def released(self, count: int, within_s: float = 60.0) -> None:
        await until(lambda: len(self.domains()) >= count, within_s)

    def asked(self, method: str, part: str = "/pods/") -> list[Request]:
        return [r for r in self.server.requests if r.method == method and part in r.path]

    def events(self) -> list[Object]:
        return list(self.server._objects.get(EVENTS.full_name, {}).values())


class Replica:
    """One ungater that leads all shards at once, without a Lease."""

    def __init__(self, server: FakeApiServer, **settings: Any) -> None:
        self.client: Client = server.client()
        qps = settings.pop("qps", 0)
        # A resync would do late what an event should have done, and the test would pass.
        settings.setdefault("resync_period", 3600)
        self.settings = UngaterConfiguration(
            batch_window=settings.pop("batch_window", WINDOW_S),
            ungating=UngatingSettings(qps=qps, concurrency=settings.pop("concurrency", 16)),
            **settings,
        )
        self.stop = asyncio.Event()
        recorder = EventRecorder(self.client, "ungater", qps=0)
        writer = Writer(
            self.client.budget(qps, 1, self.settings.ungating.concurrency),
            concurrency=self.settings.ungating.concurrency,
            gangs=self.settings.features.gang_scheduling,
        )
        self.ungater = Ungater(self.settings, self.client, writer, Reporter(recorder))
        self._background = [
            asyncio.create_task(self.ungater.watch()),
            asyncio.create_task(recorder.run()),
        ]
        self.leading: asyncio.Task[None] | None = None

    def lead(self) -> asyncio.Task[None]:
        self.leading = asyncio.create_task(self._lead())
        return self.leading

    async def _lead(self) -> None:
        """Act on all shards."""

        def deadline() -> float:
            return float("-inf") if self.stop.is_set() else float("inf")

        async with asyncio.TaskGroup() as group:
            for shard in range(SHARDS):
                group.create_task(self.ungater.lead(shard, deadline, self.stop))

    @property
    def leads(self) -> bool:
        """Acts on all shards."""
        return len(self.ungater.leading) == SHARDS

    async def synced(self) -> None:
        await until(lambda: not self.ungater.missing())

    async def knows(self, pods: int) -> None:
        """Its watch has shown that many pods."""
        await until(lambda: len(self.ungater.pods.store) == pods)

    async def has_no_open_requests(self) -> None:
        """Nothing is expected any more."""
        await until(lambda: not self.ungater.machine.expectations)
        check_invariants(self.ungater.machine)

    def is_idle(self) -> bool:
        """No look is under way, and none is due but those that only watch over a time limit."""
        due = self.ungater._queue.next_at()
        return not self.ungater._active and (due is None or due > clock.monotonic() + 1)

    async def idle(self) -> None:
        await until(self.is_idle)

    async def kill(self) -> None:
        """End at once, in the middle of whatever happens."""
        tasks = [*self._background, *([self.leading] if self.leading else [])]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.client.close()
