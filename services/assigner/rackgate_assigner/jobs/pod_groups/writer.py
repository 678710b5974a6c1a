"""Writes on plain pods: start, stop, release and delete.

A start, and the deletion of a surplus pod, are bound to the version that was read. A pod that was
started under an admission that ended is deleted whatever else changes in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.resources import PODS
from rackgate.installation.uninstall import remove_finalizer_patch
from rackgate.jobframework.injection import PodSetInfo, StartConflict
from rackgate.jobframework.pod_group.gang_group import GangGroup
from rackgate.jobframework.pod_group.membership import MANAGED
from rackgate.jobframework.pod_group.pod_group import (
    PlainPod,
    PodGroup,
    PodGroupSpec,
    assemble,
)
from rackgate.jobframework.pod_group.pods import GroupPod, decode_group_pod
from rackgate.jobframework.registry import PLAIN_POD, kind_of
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError
from rackgate.wire.core import Meta, MetadataOnly
from rackgate.wire.kueue import Workload
from rackgate.wire.lists import page_items
from rackgate_assigner.assumed_writes import AssumedWrites
from rackgate_assigner.jobs.pod_groups.patches import release_patch, start_patch
from rackgate_assigner.jobs.pod_groups.state import (
    pods_to_delete,
    pods_to_release,
    pods_to_start,
    pods_to_stop,
)

# Requests about one group that are under way at the same time.
CONCURRENCY: Final = 16
_decode_metadata = msgspec.json.Decoder(MetadataOnly).decode

log = structlog.get_logger()


class PodGroupWriter:
    """Writes the pods of groups. All methods raise `KubeError` when a write is rejected."""

    def __init__(self, client: Client, pods: Callable[[str], object]) -> None:
        """Use a client.

        Args:
            client: with the rate limit of jobs.
            pods: the pod of that key as watched, None for none.
        """
        self._client, self._pod = client, pods
        self._assumed_writes = AssumedWrites()

    def is_behind(self, group: PodGroup) -> bool:
        """Whether the watch does not show yet what was written about one of its pods."""
        return any(self._assumed_writes.is_stale(PODS.kind, pod.metadata) for pod in group.pods)

    def forget(self, meta: Meta) -> None:
        """A pod is gone."""
        self._assumed_writes.forget(PODS.kind, meta.key)

    def clear(self) -> None:
        """Forget all."""
        self._assumed_writes.clear()

    async def start(
        self, group: PodGroup, workload: Workload, infos: Mapping[str, PodSetInfo]
    ) -> StartConflict | int:
        """Start the pods that have room; how many, or why none can start."""
        pods = pods_to_start(group, workload)
        gang = group.metadata.uid if isinstance(group, GangGroup) else ""
        patches = []
        for pod in pods:
            info = infos.get(pod.role.name)
            if info is None:
                continue
            patch = start_patch(pod, info, workload.metadata, gang=gang)
            if isinstance(patch, StartConflict):
                return patch
            patches.append((pod, patch))
        await concurrently([partial(self._start_pod, *one) for one in patches])
        return len(patches)

    async def stop(self, group: PodGroup) -> int:
        """Delete the pods that run; how many."""
        return await self._delete(pods_to_stop(group), in_any_version=True)

    async def delete(self, group: PodGroup) -> int:
        """Delete all its pods; how many."""
        pods = [pod for pod in group.pods if not pod.terminating]
        return await self._delete(pods, in_any_version=True)

    async def tidy(self, group: PodGroup, workload: Workload | None) -> list[GroupPod]:
        """Delete surplus pods, and release those that need not be kept; the surplus pods."""
        released = pods_to_release(group, workload)
        await concurrently([partial(self._release, pod) for pod in released])
        # Pods that a gang does not need may belong to its next run.
        surplus = [] if isinstance(group, GangGroup) else pods_to_delete(group)
        await self._delete(surplus)
        return surplus

    async def release(self, group: GangGroup) -> int:
        """Remove the gate of gangs from pods that are in no gang and in no queue; how many."""
        held = [pod for pod in group.pods if names.GANG_GATE in pod.gates and pod.active]
        await concurrently([partial(self._start_pod, pod, release_patch(pod)) for pod in held])
        return len(held)

    async def read(self, kind: str, key: str, known: object = None) -> PodGroup | None:
        """A group as stored now, None if it has no pods.

        Args:
            kind: of the group.
            key: `namespace/name`.
            known: the group as watched. Of a gang, its started pods are read.
        """
        namespace, _, name = key.partition("/")
        if isinstance(known, GangGroup):
            selector = f"{names.MANAGED_LABEL}={MANAGED},{kind_of(known).pod_selector(known)}"
            pods = await self._list(namespace, selector)
            return msgspec.structs.replace(known, spec=PodGroupSpec(pods=tuple(pods)))
        if kind == PLAIN_POD.name:
            try:
                pods = [decode_group_pod(await self._client.get(PODS.path(namespace, name)))]
            except NotFoundError:
                return None
        else:
            selector = f"{names.MANAGED_LABEL}={MANAGED},{names.POD_GROUP_LABEL}={name}"
            pods = await self._list(namespace, selector)
        if not pods:
            return None
        group = assemble(pods)
        alone = isinstance(group, PlainPod)
        return group if alone == (kind == PLAIN_POD.name) else None

    async def _list(self, namespace: str, selector: str) -> list[GroupPod]:
        pages = self._client.list_pages(PODS.path(namespace), {"labelSelector": selector})
        return [decode_group_pod(raw) async for page in pages for raw in page_items(page)]

    async def _delete(self, pods: Sequence[GroupPod], *, in_any_version: bool = False) -> int:
        delete = partial(self._delete_pod, in_any_version=in_any_version)
        await concurrently([partial(delete, pod) for pod in pods])
        return len(pods)

    async def _delete_pod(self, pod: GroupPod, *, in_any_version: bool) -> None:
        meta = pod.metadata
        wanted = {"uid": meta.uid}
        if not in_any_version:
            wanted["resourceVersion"] = meta.resource_version
        options = {"preconditions": wanted}
        path = PODS.path(meta.namespace, meta.name)
        try:
            answer = await self._client.delete(path, msgspec.json.encode(options))
        except NotFoundError:
            return
        self._assume(meta, _decode_metadata(answer).metadata)

    async def _start_pod(self, pod: GroupPod, patch: Mapping[str, object]) -> None:
        await self._patch(pod, msgspec.json.encode(patch), PatchType.STRATEGIC)

    async def _release(self, pod: GroupPod) -> None:
        # What is over stays over, so the version of the pod does not matter.
        patch = remove_finalizer_patch(pod.metadata, names.MANAGED_FINALIZER)
        if patch is not None:
            await self._patch(pod, patch, PatchType.JSON)

    async def _patch(self, pod: GroupPod, patch: bytes, type_: PatchType) -> None:
        meta = pod.metadata
        try:
            answer = await self._client.patch(PODS.path(meta.namespace, meta.name), patch, type_)
        except NotFoundError:
            return
        self._assume(meta, _decode_metadata(answer).metadata)

    def _assume(self, meta: Meta, answer: Meta) -> None:
        """Record a write, unless the watch has already shown the deletion."""
        if answer.uid == meta.uid and self._pod(meta.key) is not None:
            self._assumed_writes.written(PODS.kind, meta, answer)


async def concurrently(writes: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Execute writes; one that fails does not stop the others.

    Raises:
        KubeError: of one of those that failed. A conflict means that the watch will show a change.
    """
    slots = asyncio.Semaphore(CONCURRENCY)

    async def execute(write: Callable[[], Awaitable[None]]) -> None:
        async with slots:
            await write()

    results = await asyncio.gather(*map(execute, writes), return_exceptions=True)
    errors = [found for found in results if isinstance(found, BaseException)]
    other = [error for error in errors if not isinstance(error, ConflictError)]
    for error in (*other, *errors):
        raise error
