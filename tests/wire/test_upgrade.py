"""Objects as older versions stored them, under the services of this one.

`stored/VERSION.jsonl` was read from a real API server, one object a line, when that version ran:
jobs that run, wait, are gated, have ended and were stopped. A new version adds a file and never
changes one.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.crd import CRD_KINDS
from rackgate.api.resources import Resource
from tests.support.apiserver import Object
from tests.support.waiting import until
from tests.wire.assigner_world import World, assigner
from tests.wire.ungater_world import Replica

STORED = sorted((Path(__file__).parent / "stored").glob("*.jsonl"))
BY_KIND = {
    (kind.group, kind.kind): kind for kind in vars(kinds).values() if isinstance(kind, Resource)
}
MODELS = {kind.model.__name__: kind.model for kind in CRD_KINDS}
pytestmark = pytest.mark.parametrize("stored", STORED, ids=lambda path: path.stem)


def read(stored: Path) -> list[Object]:
    return [json.loads(line) for line in stored.read_text().splitlines()]


def kind_of(item: Object) -> Resource:
    return BY_KIND[item["apiVersion"].rpartition("/")[0], item["kind"]]


def load(world: World, stored: Path) -> None:
    for item in read(stored):
        world.put(kind_of(item), item)


def gated(world: World) -> dict[str, Object]:
    """Pods that carry our gate, by name."""
    pods = world._objects[kinds.PODS.full_name].values()
    return {
        pod["metadata"]["name"]: pod
        for pod in pods
        if {"name": names.TOPOLOGY_GATE} in pod["spec"].get("schedulingGates", [])
    }


@pytest.mark.requirement("OPS-14")
def test_what_was_stored_is_what_the_models_take(stored: Path) -> None:
    seen = set()
    for item in read(stored):
        if item["kind"] in MODELS:
            MODELS[item["kind"]].model_validate(item)
            seen.add(item["kind"])
    assert seen >= {"Workload", "ClusterQueue", "LocalQueue", "ResourceFlavor", "Topology"}


def settled(world: World, stored: Path) -> dict[str, Object]:
    """What must stay of each stored object: all but versions and what tells the pods' state."""
    found = {}
    for item in read(stored):
        kind, name = kind_of(item), item["metadata"]["name"]
        if kind is kinds.CLUSTER_QUEUES or kind is kinds.LOCAL_QUEUES:
            continue  # their status counts
        now = copy.deepcopy(world.get(kind, name, item["metadata"].get("namespace", "")))
        assert now is not None, f"{item['kind']} {name} is gone"
        del now["metadata"]["resourceVersion"]
        if kind is kinds.JOBS:
            del now["status"]  # the fake cluster's Job controller has ready pods at once
        if kind is kinds.WORKLOADS:
            conditions = now["status"]["conditions"]
            now["status"]["conditions"] = [c for c in conditions if c["type"] != "PodsReady"]
        found[f"{item['kind']} {name}"] = now
    return found


@pytest.mark.requirement("OPS-14")
async def test_a_new_assigner_leaves_what_it_finds_as_it_is(stored: Path) -> None:
    async with World() as world:
        load(world, stored)
        before = settled(world, stored)
        async with assigner(world) as replica:
            await until(lambda: replica.scheduler.cycles > 0)
            # One more job, decided beside those that were there: everything was looked at.
            world.submit("fresh", 1, required="cloud.provider.com/topology-rack")
            await until(world.started("fresh"))
            await until(lambda: len(replica.jobs.queue) == 0)
        assert settled(world, stored) == before
        assert world.broken_rules == []


@pytest.mark.requirement("OPS-14")
async def test_pods_gated_under_an_older_version_are_released(stored: Path) -> None:
    async with World() as world:
        load(world, stored)
        waiting = gated(world)
        pods = dict(world._objects[kinds.PODS.full_name])
        assert len(waiting) == 2
        replica = Replica(world)
        replica.lead()
        try:
            await until(lambda: not gated(world))
        finally:
            await replica.kill()
        changed = {
            pod["metadata"]["name"]
            for key, pod in world._objects[kinds.PODS.full_name].items()
            if pod != pods[key]
        }
        assert changed == set(waiting)
