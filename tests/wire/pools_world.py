"""The fake cluster with KAI's Topologies: levels that cannot change, and a garbage collector."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from rackgate.api.resources import KAI_TOPOLOGIES, OSMO_POOLS
from rackgate.features import OSMO_POOLS as GATE
from rackgate.kube.events import EventRecorder
from rackgate_assigner import watches
from rackgate_assigner.osmo_pools.controller import PoolController, start_pool_controller
from rackgate_assigner.reporter import Reporter
from rackgate_assigner.settings import AssignerSettings
from rackgate_assigner.watches import PoolWatches
from tests.support.apiserver import Object, Request
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.wire.assigner_world import World, eventually, settings, tasks_of
from tests.wire.kinds_world import KindsWorld

TOPOLOGY: Final = "osmo-pool-my-pool-topology"
ZONE: Final = {"key": "zone", "label": "topology.kubernetes.io/zone"}
SPINE: Final = {"key": "spine", "label": "topology.kubernetes.io/spine"}
RACK: Final = {"key": "rack", "label": "topology.kubernetes.io/rack"}
IN_STEP: Final = ("True", "InStep")
NO_KEYS: Final = ("True", "NoTopologyKeys")


def labels(*keys: Object) -> list[str]:
    """The node labels of keys."""
    return [key["label"] for key in keys]


class PoolsWorld(KindsWorld):
    """A world of Pools and Topologies.

    Attributes:
        collects: the garbage collector runs: what a Pool owns goes with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collects = True

    # What the API server and the garbage collector do.

    def _store(self, target: Target, item: Object, known: Object | None) -> Object:
        fixed = target.full_name == KAI_TOPOLOGIES.full_name and known is not None
        if fixed and known and known["spec"]["levels"] != item["spec"]["levels"]:
            raise RejectedRequest(422, "Invalid", "spec.levels: Invalid value: field is immutable")
        return super()._store(target, item, known)

    def _drop(self, full_name: str, key: str) -> None:
        gone = self._objects[full_name][key]
        super()._drop(full_name, key)
        if full_name != OSMO_POOLS.full_name or not self.collects:
            return
        for name, found in self.topologies().items():
            owners = found["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == gone["metadata"]["uid"] for owner in owners):
                self.remove(KAI_TOPOLOGIES, name)

    # What users do and tests ask.

    def pool(self, *keys: Object, name: str = "my-pool", **spec: Any) -> Object:
        """Make a Pool, or give it other keys."""
        known = self.get(OSMO_POOLS, name) or {"metadata": {"name": name}}
        changed = copy.deepcopy(known)
        changed["spec"] = {"backend": "b", "scheduler": "kai", "topology_keys": [*keys], **spec}
        return self.put(OSMO_POOLS, changed)

    def topologies(self) -> dict[str, Object]:
        """All Topologies by name."""
        found = self._objects.get(KAI_TOPOLOGIES.full_name, {}).values()
        return {item["metadata"]["name"]: item for item in found}

    def levels(self, name: str = TOPOLOGY) -> list[str] | None:
        """Levels of a Topology, None when there is none."""
        found = self.topologies().get(name)
        if found is None:
            return None
        return [level["nodeLabel"] for level in found["spec"]["levels"]]

    def topology(self, *keys: Object, name: str = TOPOLOGY, **metadata: Any) -> Object:
        """Make a Topology by hand."""
        levels = [{"nodeLabel": key["label"]} for key in keys]
        meta = {"name": name, **metadata}
        return self.put(KAI_TOPOLOGIES, {"metadata": meta, "spec": {"levels": levels}})

    def status(self, name: str = "my-pool") -> Object:
        """Status of a Pool that is there and has one."""
        found = self.get(OSMO_POOLS, name)
        assert found is not None, f"no Pool {name}"
        status: Object = found["status"]
        return status

    def said(self, name: str = "my-pool") -> tuple[str, str]:
        """Status and reason of the Synced condition, empty when it is not about what is asked."""
        found = self.get(OSMO_POOLS, name) or {"metadata": {}}
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"].get("generation"):
            return "", ""
        for condition in status.get("conditions", []):
            if condition["type"] == "Synced":
                return condition["status"], condition["reason"]
        return "", ""

    def message(self, name: str = "my-pool") -> str:
        """Message of the Synced condition."""
        (found,) = self.status(name)["conditions"]
        return str(found["message"])

    def osmo_writes(self) -> list[Request]:
        """Writes of Topologies and Pools."""
        return [r for r in self.writes() if "/topologies" in r.path or "/pools" in r.path]


@pytest.fixture
async def pools_world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PoolsWorld]:
    """A world in which it is soon noticed whether kinds are served."""
    for name in ("SERVED_POLL_S", "UNKNOWN_POLL_S"):
        monkeypatch.setattr(watches, name, 0.02)
    async with PoolsWorld() as found:
        yield found


async def settled(world: PoolsWorld, said: tuple[str, str], levels: list[str] | None) -> None:
    """Wait until the Pool's condition says that, and its Topology has these levels."""
    await eventually(lambda: (world.said(), world.levels()) == (said, levels))


@dataclass(frozen=True)
class Keeper:
    """What keeps Topologies in step in a replica of the assigner, without all the rest."""

    watches: PoolWatches
    controller: PoolController


@asynccontextmanager
async def pool_keeper(world: World) -> AsyncIterator[Keeper]:
    """A replica that acts on Pools alone."""
    client = world.client()
    watches = PoolWatches(client)
    recorder = EventRecorder(client, "assigner", instance="test")
    controller = start_pool_controller(watches, client, Reporter(recorder))
    followed = (watches.pools, watches.topologies)
    async with tasks_of(client, recorder.run(), *(watch.run() for watch in followed)) as tasks:
        for watch in followed:
            await asyncio.wait_for(watch.synced(), 60)
        tasks.append(asyncio.create_task(controller.run()))
        yield Keeper(watches, controller)


def gated() -> AssignerSettings:
    """Settings of a whole replica with the gate on."""
    return settings(featureGates={GATE: True})
