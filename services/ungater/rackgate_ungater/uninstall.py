"""Releases all gated pods when the installation is deleted or `rackgate uninstall` runs.

Without the ungater, a gated pod would stay gated forever. So every pod is released to
kube-scheduler, with the node labels of its flavor and without a domain.

Plain pods lose our finalizer. Those that were not admitted stay gated: nothing says that they may
run.

If a pod cannot be released, the others still are: an admission policy may reject the patch, or a
webhook may be down. Such a pod is reported and stays gated.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from rackgate.api import names
from rackgate.api.resources import PODS
from rackgate.installation.uninstall import (
    Failures,
    remove_finalizer_patch,
    run_concurrently,
)
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import KubeError, NotFoundError
from rackgate.wire.core import Meta
from rackgate.wire.lists import page_items
from rackgate_ungater.state_machine.gated_objects import (
    ADMISSION,
    ELASTIC,
    TOPOLOGY,
    GatedPod,
    decode_metadata,
    decode_pod,
)
from rackgate_ungater.writer import patch_body, patch_tail

# A client that keeps creating gated pods must not delay the uninstall indefinitely.
_MAX_PASSES: Final = 60
_CREATED_LATE: Final = "it was created while others were released"
_POLL_S: Final = 0.3
_MAX_LOGGED: Final = 50
_PLAIN_POD_SELECTOR: Final = {"labelSelector": names.MANAGED_LABEL}
_POD_SELECTOR: Final = {"labelSelector": names.PODSET_LABEL}
_TAIL: Final = patch_tail((), (), TOPOLOGY | ELASTIC | ADMISSION)

log = structlog.get_logger()


@dataclass
class ReleaseResult:
    """Results for the gated pods, each `namespace/name`.

    Attributes:
        pods: those that were released.
        gated: pods that stay gated, with the message of the API server.
    """

    pods: set[str] = field(default_factory=set)
    gated: dict[str, str] = field(default_factory=dict)


def log_release_result(released: ReleaseResult) -> None:
    """Log the result: all counts, and as many names as fit a line."""
    log.warning("pods_released", count=len(released.pods), pods=sorted(released.pods)[:_MAX_LOGGED])
    if released.gated:
        log.error(
            "pods_stay_gated",
            count=len(released.gated),
            pods=dict(sorted(released.gated.items())[:_MAX_LOGGED]),
        )


async def release_pods(client: Client) -> ReleaseResult:
    """Remove our gates from every pod that is not being deleted; safe to run again or concurrently.

    Args:
        client: with the rights of the ungater, or more.

    Raises:
        KubeError: listing pods is forbidden, or the credentials are no longer valid.
    """
    released, failures = ReleaseResult(), Failures()

    async def release(pod: GatedPod) -> None:
        path = PODS.path(pod.namespace, pod.name)
        try:
            await client.patch(path, patch_body(pod, _TAIL), PatchType.STRATEGIC)
        except NotFoundError:
            return
        except KubeError as error:
            failures.add(pod.uid, error)
        else:
            released.pods.add(pod.key)

    await _release_plain_pods(client, failures)
    for left in reversed(range(_MAX_PASSES)):
        # Without the right to list pods, another replica has finished: not an error of a pod.
        gated = await _gated(client)
        remaining = [pod for pod in gated if not failures.is_given_up(pod.uid)]
        if not (remaining and left):
            released.gated = {pod.key: failures.message(pod.uid) or _CREATED_LATE for pod in gated}
            break
        before = failures.count
        await run_concurrently(release, remaining)
        if failures.count > before:
            await asyncio.sleep(_POLL_S)
    return released


async def _release_plain_pods(client: Client, failures: Failures) -> None:
    """Remove our finalizer from plain pods. Those that were not admitted stay gated."""

    async def release(meta: Meta) -> None:
        patch = remove_finalizer_patch(meta, names.MANAGED_FINALIZER)
        if patch is None:
            return
        try:
            await client.patch(PODS.path(meta.namespace, meta.name), patch, PatchType.JSON)
        except NotFoundError:
            return
        except KubeError as error:
            failures.add(meta.uid, error)

    for _ in range(_MAX_PASSES):
        held = []
        async for page in client.list_pages(PODS.path(), _PLAIN_POD_SELECTOR):
            held += [
                meta
                for raw in page_items(page)
                if names.MANAGED_FINALIZER in (meta := decode_metadata(raw)).finalizers
            ]
        remaining = [meta for meta in held if not failures.is_given_up(meta.uid)]
        if not remaining:
            break
        before = failures.count
        await run_concurrently(release, remaining)
        if failures.count > before:
            await asyncio.sleep(_POLL_S)


async def gated_pods(client: Client) -> list[str]:
    """`namespace/name` of the pods with one of our gates."""
    return sorted(pod.key for pod in await _gated(client))


async def _gated(client: Client) -> list[GatedPod]:
    found = []
    async for page in client.list_pages(PODS.path(), _POD_SELECTOR):
        for raw in page_items(page):
            try:
                pod = decode_pod(raw)
            except msgspec.MsgspecError as error:
                log.warning("pod_not_read", error=str(error)[:300])
                continue
            if pod.gated and not pod.terminating and not pod.terminal:
                found.append(pod)
    return found
