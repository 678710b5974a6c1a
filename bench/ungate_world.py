"""Gated pods in Workloads, made without assigner and Job controller, so that all wait at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

from bench.measuring.world import CONCURRENCY, GATE, NAMESPACE, create, node_name
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import ServerError, TransportError
from rackgate.topology.assignment import TopologyAssignment, encode
from tests.support.objects import HOST, RACK, Object

T = TypeVar("T")

REMOVE_LIMIT_S: Final = 600.0
MOMENT: Final = "2026-01-01T00:00:00Z"
BARE: Final = "bare"
OURS: Final = "ours"


@dataclass(frozen=True)
class Shape:
    """How many of everything. Pods fill the nodes evenly, a Workload's pods side by side."""

    nodes: int
    workloads: int
    pods: int

    @property
    def each(self) -> int:
        """Pods of one Workload."""
        return self.pods // self.workloads

    @property
    def total(self) -> int:
        return self.each * self.workloads

    @cached_property
    def per_node(self) -> int:
        return -(-self.total // self.nodes)

    def host(self, number: int) -> str:
        """The node that pod `number` of all is to run on."""
        return node_name(number // self.per_node)

    def assignment(self, workload: int) -> TopologyAssignment:
        """Hosts in the order of ranks."""
        counts: dict[str, int] = {}
        for rank in range(self.each):
            host = self.host(workload * self.each + rank)
            counts[host] = counts.get(host, 0) + 1
        return TopologyAssignment((HOST,), tuple(((host,), n) for host, n in counts.items()))


def workload_name(kind: str, number: int) -> str:
    return f"{kind}-{number:03}"


def pod_name(kind: str, number: int) -> str:
    return f"{kind}-pod-{number:06}"


def pod(kind: str, number: int, shape: Shape, owner: Object) -> Object:
    """A gated pod as a Job controller makes it; both kinds are equal but for whose gate it is."""
    workload = workload_name(kind, number // shape.each)
    rank = str(number % shape.each)
    ours = kind == OURS
    marks = (names.PODSET_LABEL, names.TAS_LABEL, names.WORKLOAD_ANNOTATION)
    podset, tas, held_by = marks if ours else tuple(f"bench.rackgate.dev/{n}" for n in "abc")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(kind, number),
            "labels": {
                "batch.kubernetes.io/job-name": workload,
                names.COMPLETION_INDEX_LABEL: rank,
                podset: "main",
                tas: "true",
            },
            "annotations": {
                names.COMPLETION_INDEX_LABEL: rank,
                held_by: workload,
                "bench.rackgate.dev/required-topology": RACK,
            },
            "ownerReferences": [owner],
        },
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": [{"name": names.TOPOLOGY_GATE if ours else GATE}],
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "resources": {"requests": {"cpu": "1"}},
                }
            ],
        },
    }


def workload(number: int, shape: Shape, owner: Object) -> Object:
    """A Workload that asks for its pods by rank."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "Workload",
        "metadata": {"name": workload_name(OURS, number), "ownerReferences": [owner]},
        "spec": {
            "queueName": "bench",
            "podSets": [
                {
                    "name": "main",
                    "count": shape.each,
                    "template": {
                        "spec": {
                            "restartPolicy": "Never",
                            "containers": [{"name": "main", "image": "registry.example/train:1"}],
                        }
                    },
                    "topologyRequest": {
                        "required": RACK,
                        "podIndexLabel": names.COMPLETION_INDEX_LABEL,
                    },
                }
            ],
        },
    }


def admission(number: int, shape: Shape) -> Object:
    """The status that admits a Workload."""
    assigned = {
        "name": "main",
        "count": shape.each,
        "flavors": {"cpu": "bench"},
        "resourceUsage": {"cpu": str(shape.each)},
        "topologyAssignment": encode(shape.assignment(number)),
    }
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": kind,
            "message": "by the bench",
            "lastTransitionTime": MOMENT,
        }
        for kind in ("QuotaReserved", "Admitted")
    ]
    return {
        "conditions": conditions,
        "admission": {"clusterQueue": "bench", "podSetAssignments": [assigned]},
    }


async def side_by_side(items: Iterable[T], call: Callable[[T], Awaitable[object]]) -> None:
    """Call for each item, several at a time."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await call(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(work())


async def make(client: Client, kind: str, shape: Shape) -> None:
    """Make owners, Workloads (of ours) and gated pods; nothing is released by that."""
    owners: dict[int, Object] = {}

    async def owned(number: int) -> None:
        # Nobody but the garbage collector looks at who owns these: no Job controller interferes.
        wish = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": workload_name(kind, number),
                "labels": {"bench.rackgate.dev/owner": ""},
            },
        }
        answer = await client.create(kinds.CONFIG_MAPS.path(NAMESPACE), json.dumps(wish).encode())
        owners[number] = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": workload_name(kind, number),
            "uid": json.loads(answer)["metadata"]["uid"],
            "controller": True,
        }
        if kind == OURS:
            await create(client, kinds.WORKLOADS, workload(number, shape, owners[number]))

    await side_by_side(range(shape.workloads), owned)
    await side_by_side(
        range(shape.total),
        lambda number: create(
            client, kinds.PODS, pod(kind, number, shape, owners[number // shape.each])
        ),
    )


async def admit(client: Client, shape: Shape) -> None:
    """Admit all Workloads at once."""

    async def one(number: int) -> None:
        path = kinds.WORKLOADS.path(NAMESPACE, workload_name(OURS, number), "status")
        body: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": "Workload",
            "status": admission(number, shape),
        }
        await client.apply(path, json.dumps(body).encode(), "bench")

    await side_by_side(range(shape.workloads), one)


async def remove(client: Client) -> None:
    """Delete everything that `make` made; returns when it is gone."""
    options = json.dumps({"propagationPolicy": "Background", "gracePeriodSeconds": 0}).encode()
    params = {"labelSelector": "bench.rackgate.dev/owner"}
    async with asyncio.timeout(REMOVE_LIMIT_S):
        for kind, which in (
            (kinds.PODS, {}),
            (kinds.WORKLOADS, {}),
            (kinds.CONFIG_MAPS, params),
        ):
            path = kind.path(NAMESPACE)
            while json.loads(await client.get(path, {"limit": "1", **which}))["items"]:
                # Deleting thousands takes longer than one request may.
                with contextlib.suppress(TransportError, ServerError):
                    await client.delete(path, options, which)
                await asyncio.sleep(0.25)


def bare_patch(uid: str, host: str) -> str:
    """What the baseline sends for one pod."""
    return json.dumps(
        {
            "metadata": {"uid": uid},
            "spec": {
                "schedulingGates": [{"$patch": "delete", "name": GATE}],
                "nodeSelector": {HOST: host},
            },
        }
    )
