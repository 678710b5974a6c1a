"""Replicas that share 16 shards inside this process, each with an actor that notes what it does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from rackgate.api.resources import LEASES
from rackgate.kube.config import ConnectionSettings
from rackgate.runtime.settings import LeaderElectionSettings
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_ungater.shards.elector import ShardElector
from rackgate_ungater.shards.handover import SHARDS, lease_name, ranking
from tests.support.apiserver import FakeApiServer
from tests.support.steadytime import monotonic

SYSTEM = "rackgate-system"
DURATION_S = 2.0
REQUEST_S = 0.5
ALL = set(range(SHARDS))


class NotedFence:
    """A fence for tests inside this process: notes what the timer would have been told."""

    def __init__(self) -> None:
        self.deadlines: dict[str, float] = {}

    def arm(self, name: str, deadline: float) -> None:
        self.deadlines[name] = deadline

    def disarm(self, name: str) -> None:
        self.deadlines.pop(name, None)


class Owners:
    """Who acts on which shard, over all replicas; two on one is a breach."""

    def __init__(self) -> None:
        self.of: dict[int, str] = {}
        self.breaches: list[str] = []
        self.begun: Counter[int] = Counter()

    def begin(self, shard: int, name: str) -> None:
        if shard in self.of:
            self.breaches.append(f"{name} acts on {shard} beside {self.of[shard]}")
        self.of[shard] = name
        self.begun[shard] += 1

    def end(self, shard: int, name: str) -> None:
        if self.of.get(shard) == name:
            del self.of[shard]

    def shards(self, name: str) -> set[int]:
        return {shard for shard, owner in self.of.items() if owner == name}


class Actor:
    """Acts on nothing, but notes when it could."""

    def __init__(self, name: str, owners: Owners, fence: NotedFence) -> None:
        self.unsettled: set[int] = set()
        self.finishing: set[int] = set()
        self.finish_s = 0.0
        self._name, self._owners, self._fence = name, owners, fence

    async def synced(self) -> None:
        await asyncio.sleep(0)

    async def lead(self, shard: int, deadline: Callable[[], float], leave: asyncio.Event) -> None:
        assert self._fence.deadlines[f"{SYSTEM}/{lease_name(shard)}"] >= deadline()
        # Told to stop in this very moment, nothing may be sent.
        assert deadline() > monotonic() or deadline() == float("-inf")
        self._owners.begin(shard, self._name)
        try:
            await leave.wait()
            assert deadline() == float("-inf")
            self.finishing.add(shard)
            await asyncio.sleep(self.finish_s)
        finally:
            self.finishing.discard(shard)
            self._owners.end(shard, self._name)

    def has_no_open_requests(self, shard: int) -> bool:
        return shard not in self.unsettled


class Replica:
    """One keeper with its client, fence and actor."""

    def __init__(self, server: FakeApiServer, name: str, owners: Owners) -> None:
        self.name, self.owners = name, owners
        self.client = server.client(request_timeout_s=REQUEST_S)
        self.fence = NotedFence()
        self.actor = Actor(name, owners, self.fence)
        self.stopping = asyncio.Event()
        self.keeper = ShardElector(
            self.client,
            UngaterConfiguration(
                identity=name,
                connection=ConnectionSettings(request_timeout=REQUEST_S),
                leader_election=LeaderElectionSettings(lease_duration=DURATION_S),
            ),
            self.actor,
            self.stopping,
            fence=self.fence,
        )
        self.task = asyncio.create_task(self.keeper.run())

    @property
    def shards(self) -> set[int]:
        return self.owners.shards(self.name)

    async def stop(self) -> None:
        """As SIGTERM does."""
        self.stopping.set()
        await self.task

    async def kill(self) -> None:
        """End without a word to anybody."""
        self.task.cancel()
        await asyncio.wait((self.task,))
        await self.client.close()


class Shards:
    """The server's Leases, and what tests do with replicas."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.owners = Owners()
        self.replicas: list[Replica] = []

    def start(self, name: str) -> Replica:
        self.replicas.append(Replica(self.server, name, self.owners))
        return self.replicas[-1]

    def spec(self, name: str | int) -> dict[str, Any]:
        lease_of = lease_name(name) if isinstance(name, int) else name
        lease = self.server.get(LEASES, lease_of, SYSTEM) or {}
        spec: dict[str, Any] = lease.get("spec", {})
        return spec

    def put(self, name: str | int, holder: str) -> None:
        """Somebody else writes a Lease."""
        lease_of = lease_name(name) if isinstance(name, int) else name
        meta = {"name": lease_of, "namespace": SYSTEM}
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 2, "acquireTime": "x"}
        self.server.put(LEASES, {"metadata": meta, "spec": spec})

    def rightly(self, *replicas: Replica) -> bool:
        """Each shard is acted on by the replica that should hold it."""
        names = [replica.name for replica in replicas]
        return self.owners.of == {n: ranking(n, names)[0] for n in range(SHARDS)}

    def asked(self, method: str, since: int = 0) -> int:
        return sum(
            request.method == method and "/leases" in request.path and not request.watch
            for request in self.server.requests[since:]
        )
