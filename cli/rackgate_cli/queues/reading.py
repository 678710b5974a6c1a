"""Reads queues and Workloads of a cluster, and positions from the visibility API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rackgate.api import resources as kinds
from rackgate.api.names import VISIBILITY_GROUP, VISIBILITY_VERSIONS
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, KubeError, NotFoundError
from rackgate.wire.core import Meta, View
from rackgate.wire.kueue import ClusterQueue, LocalQueue, Workload, WorkloadPriorityClass
from rackgate_assigner.watches import decode_workload, decoder
from rackgate_cli.cluster import rights
from rackgate_cli.cluster.lists import Decode, list_decoded
from rackgate_cli.cluster.rights import Right
from rackgate_cli.cluster.roles import VIEWER, ask_for
from rackgate_cli.errors import CommandError
from rackgate_cli.queues.model import (
    Position,
    order_of,
    positions_of,
    queues_with_pending,
    usage_ranks,
)

_NEEDED: Final = (Right("list", kinds.LOCAL_QUEUES), Right("list", kinds.WORKLOADS))
PAGE: Final = 4000
MAX_CONCURRENT: Final = 8


@dataclass(slots=True)
class Queues:
    """What was read of queues.

    Attributes:
        cluster_queues: by name; None if they may not be listed.
        local_queues: by `namespace/name`.
        notes: what could not be read.
    """

    cluster_queues: dict[str, ClusterQueue] | None
    local_queues: dict[str, LocalQueue]
    notes: list[str] = field(default_factory=list)

    @property
    def cluster_queue_of(self) -> dict[str, str]:
        """LocalQueue (`namespace/name`) to the name of its ClusterQueue."""
        return {key: queue.spec.cluster_queue for key, queue in self.local_queues.items()}


@dataclass(slots=True)
class Positions:
    """Positions of pending Workloads.

    Attributes:
        found: by key of the Workload.
        source: `visibility` or `objects`; "" if no Workload is pending.
        notes: why they were computed, or are unknown.
    """

    found: Mapping[str, Position] = field(default_factory=dict)
    source: str = ""
    notes: list[str] = field(default_factory=list)


class _Item(View, frozen=True):
    metadata: Meta = Meta()
    position_in_cluster_queue: int = 0
    position_in_local_queue: int = 0


class _Summary(View, frozen=True):
    items: tuple[_Item, ...] = ()


_decode_summary = msgspec.json.Decoder(_Summary).decode


async def read_queues(client: Client, namespace: str | None) -> Queues:
    """Read queues; LocalQueues of one namespace, or of all for None.

    Raises:
        CommandError: LocalQueues may not be listed, or Rackgate is not installed.
    """
    local = await _list_required(client, kinds.LOCAL_QUEUES, namespace, decoder(LocalQueue))
    notes: list[str] = []
    try:
        found = await list_decoded(client, kinds.CLUSTER_QUEUES, decoder(ClusterQueue))
        cluster = {queue.metadata.name: queue for queue in found}
    except ForbiddenError:
        cluster = None
        notes.append("you may not list ClusterQueues: nominal quotas are unknown")
    return Queues(cluster, {queue.metadata.key: queue for queue in local}, notes)


async def read_workloads(
    client: Client, namespace: str | None, selectors: Mapping[str, str]
) -> list[Workload]:
    """Workloads of a namespace, or of all for None.

    Args:
        client: only reads.
        namespace: of the Workloads.
        selectors: `labelSelector` and `fieldSelector`.

    Raises:
        CommandError: they may not be listed, or Rackgate is not installed.
    """
    return await _list_required(client, kinds.WORKLOADS, namespace, decode_workload, selectors)


async def read_classes(client: Client) -> dict[str, int]:
    """WorkloadPriorityClass name to value; empty if they may not be listed.

    Nearly all Workloads carry their priority, so this is not reported.
    """
    kind, decode = kinds.WORKLOAD_PRIORITY_CLASSES, decoder(WorkloadPriorityClass)
    try:
        found: list[WorkloadPriorityClass] = await list_decoded(client, kind, decode)
    except (ForbiddenError, NotFoundError):
        return {}
    return {one.metadata.name: one.value for one in found}


async def _list_required(
    client: Client,
    kind: kinds.Resource,
    namespace: str | None,
    decode: Decode,
    params: Mapping[str, str] | None = None,
) -> list[Any]:
    try:
        return await list_decoded(client, kind, decode, namespace=namespace, params=params)
    except NotFoundError as error:
        raise CommandError(
            f"the cluster does not serve {kind.full_name}: Rackgate is not installed"
        ) from error
    except ForbiddenError as error:
        if namespace is not None:
            raise await rights.explain(client, namespace, _NEEDED, error) from error
        raise CommandError(
            f"{kind.full_name} cannot be listed: {error.message}; name a namespace with -n, or "
            + ask_for(VIEWER, "with a ClusterRoleBinding")
        ) from error


async def read_positions(
    client: Client, workloads: Iterable[Workload], queues: Queues, classes: Mapping[str, int]
) -> Positions:
    """Positions of the pending ones: from the visibility API, else computed from all objects.

    Args:
        client: only reads.
        workloads: those to show.
        queues: read before.
        classes: WorkloadPriorityClass name to value.
    """
    wanted = sorted(queues_with_pending(workloads) & queues.local_queues.keys())
    if not wanted:
        return Positions()
    try:
        return Positions(await _ask(client, wanted), "visibility")
    except KubeError as error:
        note = (
            "positions are computed from objects, because the API "
            f"{VISIBILITY_GROUP} does not answer: {error.message or error.reason}"
        )
    return await _compute(client, queues, classes, note)


async def _ask(client: Client, keys: Iterable[str]) -> dict[str, Position]:
    """Positions in these LocalQueues (`namespace/name`).

    Raises:
        KubeError: the API is not served, does not answer, or the user has no right.
    """
    gate = asyncio.Semaphore(MAX_CONCURRENT)
    found: dict[str, Position] = {}

    async def one(key: str) -> None:
        namespace, _, name = key.partition("/")
        root = f"/apis/{VISIBILITY_GROUP}/{VISIBILITY_VERSIONS[0]}"
        path = f"{root}/namespaces/{namespace}/localqueues/{name}/pendingworkloads"
        offset = 0
        while True:
            async with gate:
                params = {"limit": str(PAGE), "offset": str(offset)}
                page = _decode_summary(await client.get(path, params))
            for item in page.items:
                found[item.metadata.key] = Position(
                    item.position_in_cluster_queue, item.position_in_local_queue
                )
            offset += PAGE
            if len(page.items) < PAGE:
                return

    results = await asyncio.gather(*(one(key) for key in keys), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return found


async def _compute(
    client: Client, queues: Queues, classes: Mapping[str, int], note: str
) -> Positions:
    """Positions by the assigner's own order of all Workloads that the user may list."""
    notes = [note]
    try:
        everything: list[Workload] = await list_decoded(client, kinds.WORKLOADS, decode_workload)
        local: list[LocalQueue] = await list_decoded(
            client, kinds.LOCAL_QUEUES, decoder(LocalQueue)
        )
        whole = True
    except ForbiddenError:
        namespaces = sorted({key.partition("/")[0] for key in queues.local_queues})
        everything = [
            workload
            for namespace in namespaces
            for workload in await read_workloads(client, namespace, {})
        ]
        local, whole = list(queues.local_queues.values()), False
        notes.append("you may not list Workloads of all namespaces: only positions in LocalQueues")
    cluster_queue_of = {queue.metadata.key: queue.spec.cluster_queue for queue in local}
    ranks = usage_ranks(queues.cluster_queues or {}, local)
    if ranks is None:
        order = order_of(everything, cluster_queue_of, classes)
    else:
        order = order_of(everything, cluster_queue_of, classes, ranks)
        notes.append(
            "LocalQueues are ordered by their usage, with weight 1 for each resource: "
            "admissionFairSharing.resourceWeights of the assigner are unknown"
        )
    return Positions(positions_of(order, whole_cluster=whole), "objects", notes)
