"""Gives back what the ungater holds, when its installation is deleted or `rackgate uninstall` runs.

A gated pod would stay gated for ever: nobody is left who takes the gate off. So every pod is
released to the scheduler, with the node labels of its flavor and without a place of its own.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ConflictError, NotFoundError, UnprocessableError
from rackgate.kube.resources import PODS
from rackgate.kube.uninstall import at_once
from rackgate.wire.depth import tolerant
from rackgate_ungater.rows import ELASTIC, TOPOLOGY, PodRow, decode_pod
from rackgate_ungater.writer import patch_body, patch_tail

_PASSES: Final = 30
_POLL_S: Final = 0.3
_OURS: Final = {"labelSelector": names.PODSET_LABEL}
_TAIL: Final = patch_tail((), (), TOPOLOGY | ELASTIC)

log = structlog.get_logger()


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_decode_page = tolerant(msgspec.json.Decoder(_Page).decode)


async def release_pods(client: Client) -> set[str]:
    """Take our gates off every pod that is not being deleted; may be run again, and beside itself.

    Args:
        client: with the rights of the ungater, or more.

    Returns:
        `namespace/name` of the pods that were released.

    Raises:
        KubeError: the API server does not let us.
    """
    released: set[str] = set()

    async def release(pod: PodRow) -> None:
        path = PODS.path(pod.namespace, pod.name)
        try:
            await client.patch(path, patch_body(pod, _TAIL), PatchType.STRATEGIC)
        except (NotFoundError, ConflictError, UnprocessableError):
            return  # gone, or written meanwhile: it is read again
        released.add(pod.key)

    for _ in range(_PASSES):
        gated = await _gated(client)
        if not gated:
            break
        before = len(released)
        await at_once(release, gated)
        if len(released) < before + len(gated):
            await asyncio.sleep(_POLL_S)
    return released


async def gated_pods(client: Client) -> list[str]:
    """`namespace/name` of the pods that a gate of ours holds."""
    return sorted(pod.key for pod in await _gated(client))


async def _gated(client: Client) -> list[PodRow]:
    found = []
    async for page in client.list_pages(PODS.path(), _OURS):
        for raw in _decode_page(page).items or ():
            try:
                pod = decode_pod(raw)
            except msgspec.MsgspecError as error:
                log.warning("pod_not_read", error=str(error)[:300])
                continue
            if pod.gated and not pod.terminating and not pod.terminal:
                found.append(pod)
    return found
