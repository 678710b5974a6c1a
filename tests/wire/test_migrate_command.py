"""`rackgate migrate` against a fake cluster over real HTTP: what it reads, and no write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate_cli.cluster.roles import OPERATOR
from rackgate_cli.errors import CommandError
from rackgate_cli.migrate.judging import judge
from rackgate_cli.migrate.reading import CONFIG_MAP, KUEUE_NAMESPACE, Found, read_cluster
from tests.support.apiserver import Object, Request
from tests.support.apiserver_objects import RejectedRequest, Target
from tests.support.objects import job
from tests.wire.assigner_world import NAMESPACE, World, furnish

CONFIG = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "waitForPodsReady": {"timeout": "5m"},
}


class Cluster(World):
    """A world with Kueue, in which some reads may be forbidden."""

    def __init__(self) -> None:
        super().__init__()
        self.forbidden: set[str] = set()

    def _do(self, target: Target, seen: Request) -> tuple[int, Object]:
        if target.plural in self.forbidden:
            raise RejectedRequest(403, "Forbidden", f"{target.plural} is forbidden")
        return super()._do(target, seen)


@pytest_asyncio.fixture
async def world() -> AsyncIterator[Cluster]:
    async with Cluster() as running:
        furnish(running)
        running.put(
            kinds.CONFIG_MAPS,
            {
                "metadata": {"name": CONFIG_MAP, "namespace": KUEUE_NAMESPACE},
                "data": {"controller_manager_config.yaml": yaml.safe_dump(CONFIG)},
            },
        )
        running.requests.clear()
        yield running


async def read(world: World, namespace: str = KUEUE_NAMESPACE) -> Found:
    client = world.client()
    try:
        return await read_cluster(client, namespace)
    finally:
        await client.close()


def queued(world: World, name: str, **labels: str) -> None:
    found = job(name, 1, labels=labels)
    found["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{name}"}
    world.put(kinds.JOBS, found)


async def test_everything_of_kueue_is_read_and_nothing_is_written(world: Cluster) -> None:
    queued(world, "train")
    world.requests.clear()
    found = await read(world)
    judged = [item for one in found.objects if (item := judge(one, stored=True)) is not None]
    seen = {(item.kind, item.name) for item in judged}
    assert {
        ("Topology", "dc"),
        ("ResourceFlavor", "tas"),
        ("ClusterQueue", "cq"),
        ("LocalQueue", "queue"),
        ("Job", "train"),
    } <= seen
    assert found.configuration is not None
    assert (found.where, found.notes) == (KUEUE_NAMESPACE, [])
    assert {request.method for request in world.requests} == {"GET"}


async def test_all_missing_rights_are_named_at_once_with_the_role_that_has_them(
    world: Cluster,
) -> None:
    world.forbidden = {"workloads", "clusterqueues", "jobs"}
    with pytest.raises(CommandError) as caught:
        await read(world)
    text = str(caught.value)
    names_of_kinds = "clusterqueues.kueue.x-k8s.io, jobs.batch, workloads.kueue.x-k8s.io"
    assert f"you may not list {names_of_kinds} of the whole cluster" in text
    assert f'"{OPERATOR}"' in text


async def test_a_configuration_that_cannot_be_read_is_a_note(world: Cluster) -> None:
    world.forbidden = {"configmaps"}
    found = await read(world)
    assert found.configuration is None
    assert "you may not read ConfigMap kueue-system/kueue-manager-config" in found.notes[0]
    world.forbidden = set()
    found = await read(world, "elsewhere")
    assert "--kueue-namespace" in found.notes[0]


def put_config(world: World, data: dict[str, Any]) -> None:
    meta = {"name": CONFIG_MAP, "namespace": KUEUE_NAMESPACE}
    world.put(kinds.CONFIG_MAPS, {"metadata": meta, "data": data})


async def test_a_config_map_without_a_configuration_is_a_note(world: Cluster) -> None:
    put_config(world, {"other.yaml": "a: 1"})
    found = await read(world)
    assert found.configuration is None
    assert "has no Configuration of Kueue" in found.notes[0]


async def test_kinds_that_the_cluster_does_not_serve_are_left_out(world: Cluster) -> None:
    found = await asyncio.wait_for(read(world), 30)
    assert not [one for one in found.objects if one["kind"].startswith("MultiKueue")]
    assert all(one["apiVersion"] for one in found.objects)
    assert names.GROUP in {one["apiVersion"].partition("/")[0] for one in found.objects}
