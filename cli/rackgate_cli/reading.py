"""Reads a cluster's objects for the checks: one list per kind, partial views."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rackgate.kube import resources as kinds
from rackgate.kube.client import Client
from rackgate.runtime import clock
from rackgate.wire.batch import Job
from rackgate.wire.core import Node, Pod, View
from rackgate.wire.kueue import ResourceFlavor, Workload
from rackgate_cli.invariants import Cluster

T = TypeVar("T", bound=View)


class _Page(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] = ()


async def read_all(client: Client, kind: kinds.Resource, view: type[T]) -> tuple[T, ...]:
    """All objects of a kind in all namespaces, as partial views."""
    found: list[T] = []
    async for page in client.list_pages(kind.path()):
        items = msgspec.json.decode(page, type=_Page).items
        found.extend(msgspec.json.decode(raw, type=view) for raw in items)
    return tuple(found)


async def read_cluster(client: Client) -> Cluster:
    """One reading of everything the invariants speak of.

    Workloads are read after pods: a pod may only be ungated under an admission that was there
    before, so this order does not invent breaches of a cluster that moves.
    """
    nodes = await read_all(client, kinds.NODES, Node)
    pods = await read_all(client, kinds.PODS, Pod)
    workloads = await read_all(client, kinds.WORKLOADS, Workload)
    jobs = await read_all(client, kinds.JOBS, Job)
    flavors = await read_all(client, kinds.FLAVORS, ResourceFlavor)
    return Cluster(nodes, pods, jobs, workloads, flavors, clock.now().timestamp())
