"""Tells what the assigner has heard of: by the fate of who wants the newest node.

The assigner follows nodes, pods and Workloads by separate watches, and on a full machine each may
be late. What comes on one watch comes in the order of its writes, though: whoever gives away the
newest node has heard of all that was written about nodes before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client
from rackgate.kube.errors import AlreadyExistsError, NotFoundError
from tests.support.deadlines import until
from tests.support.objects import HOST, Object, cluster_queue, flavor, local_queue, topology_object

NAME: Final = "beacon"
MARK: Final = "test.rackgate.dev/beacon"
LEASE: Final = "rackgate-assigner"
EVERY_S: Final = 0.03
_RESOURCES: Final = {"cpu": "1", "memory": "1Gi", "pods": "10"}


async def wait_nodes_seen(client: Client) -> None:
    """Wait until the assigner has heard of all that was written about nodes before this call.

    Where none acts there is nothing to wait for.
    """
    if await _has_leader(client):
        async with _probe_round(client):
            return


async def wait_queues_seen(client: Client) -> None:
    """As `wait_nodes_seen`, for nodes, Topologies, flavors and queues: all of them are new."""
    if not await _has_leader(client):
        return
    frame_name = _new_name()
    try:
        async with _probe_round(client, frame_name):
            return
    finally:
        for kind, obj in reversed(frame(frame_name)):
            await _delete(client, _path(kind, obj["metadata"]["name"]))


async def wait_pods_seen(client: Client) -> None:
    """As `wait_nodes_seen`, for what was written about bound pods: a further one takes the node."""
    if not await _has_leader(client):
        return
    numbers = itertools.count()
    async with _probe_round(client) as name:
        plug = _path(kinds.PODS, name)
        await _create(client, kinds.PODS, pod(name, name))

        async def is_full() -> bool:
            another = f"{name}-{next(numbers)}"
            await _create(client, kinds.WORKLOADS, workload(another, name))
            try:
                return not await _fits(client, another)
            finally:
                await _delete(client, _path(kinds.WORKLOADS, another))

        try:
            await until("the assigner hears of a pod", is_full)
        finally:
            await _delete(client, plug)


async def _has_leader(client: Client) -> bool:
    """Whether some assigner holds the Lease, in whatever namespace the services are."""
    found = json.loads(
        await client.get(kinds.LEASES.path(), {"fieldSelector": f"metadata.name={LEASE}"})
    )
    return any(lease["spec"].get("holderIdentity") for lease in found["items"])


@asynccontextmanager
async def _probe_round(client: Client, frame_name: str = NAME) -> AsyncIterator[str]:
    """A new node's name; the assigner has given the node away and taken it back."""
    await _prepare(client, frame_name)
    name = _new_name()
    wish = _path(kinds.WORKLOADS, name)
    try:
        await _create(client, kinds.NODES, node(name, frame_name))
        await _create(client, kinds.WORKLOADS, workload(name, name, frame_name))

        async def given() -> bool:
            return await _fits(client, name)

        await until("the assigner hears of a node", given, every_s=EVERY_S)
        await _delete(client, wish)
        yield name
    finally:
        await asyncio.gather(_delete(client, wish), _delete(client, _path(kinds.NODES, name)))


async def _fits(client: Client, name: str) -> bool:
    """Whether a Workload is admitted; waits until it is or has no place."""

    async def judged() -> tuple[bool] | None:
        status = json.loads(await client.get(_path(kinds.WORKLOADS, name))).get("status", {})
        if "admission" in status:
            return (True,)
        reasons = {entry["reason"] for entry in status.get("conditions", [])}
        return (False,) if "TopologyPlacementFailed" in reasons else None

    answer = await until("a beacon is judged", judged, every_s=EVERY_S)
    assert answer is not None
    return answer[0]


async def _prepare(client: Client, frame_name: str) -> None:
    try:
        await client.get(_path(kinds.LOCAL_QUEUES, frame_name))
    except NotFoundError:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}}
        for kind, obj in ((kinds.NAMESPACES, namespace), *frame(frame_name)):
            with suppress(AlreadyExistsError):
                await _create(client, kind, obj)


def _new_name() -> str:
    return f"{NAME}-{uuid.uuid4().hex[:10]}"


def _path(kind: Resource, name: str) -> str:
    return kind.path(NAME if kind.namespaced else None, name)


async def _create(client: Client, kind: Resource, obj: Object) -> None:
    namespace = NAME if kind.namespaced else None
    await client.create(kind.path(namespace), json.dumps(obj).encode())


async def _delete(client: Client, path: str) -> None:
    with suppress(NotFoundError):
        await client.delete(path, b'{"gracePeriodSeconds":0}')


def frame(name: str) -> list[tuple[Resource, Object]]:
    """A queue for nodes of its own, in the order of its making."""
    own = flavor(name, name, name)
    own["spec"]["nodeLabels"] = {MARK: name}
    return [
        (kinds.TOPOLOGIES, topology_object(name, (HOST,))),
        (kinds.FLAVORS, own),
        (kinds.CLUSTER_QUEUES, cluster_queue(name, name, {"cpu": "1000"})),
        (kinds.LOCAL_QUEUES, local_queue(name, name)),
    ]


def node(name: str, frame_name: str) -> Object:
    """A node of one CPU that says of itself that it is ready, and that nobody keeps alive."""
    ready = {"type": "Ready", "status": "True", "reason": "Beacon", "message": ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {MARK: frame_name, HOST: name}},
        "status": {"allocatable": _RESOURCES, "capacity": _RESOURCES, "conditions": [ready]},
    }


def pod(name: str, host: str) -> Object:
    """A pod that takes the whole node, bound by its maker."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"nodeName": host, "containers": [_container()]},
    }


def workload(name: str, host: str, queue: str = NAME) -> Object:
    """A Workload that wants all of that node, whatever taints it bears."""
    spec = {
        "nodeSelector": {HOST: host},
        "tolerations": [{"operator": "Exists"}],
        "containers": [_container()],
    }
    podset = {"name": "main", "count": 1, "template": {"spec": spec}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"queueName": queue, "podSets": [podset]},
    }


def _container() -> Object:
    requests = {"cpu": "1"}
    image = "registry.example/beacon:1"
    return {"name": "main", "image": image, "resources": {"requests": requests}}
