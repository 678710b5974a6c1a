"""Releases all gated pods when the installation is deleted or `rackgate uninstall` runs.

Without the ungater, a gated pod would stay gated forever. So every pod is released to
kube-scheduler, with the node labels of its flavor and without a domain. Pods of gangs are released
too, whatever created them: the gate is on every pod that names a Workload of gangs.

Plain pods lose our finalizer. Those that were not admitted stay gated: nothing says that they may
run.

If a pod cannot be released, the others still are: an admission policy may reject the patch, or a
webhook may be down. Such a pod is reported and stays gated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
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
from rackgate.wire.core import Meta, SchedulingGate, View
from rackgate.wire.lists import page_items
from rackgate_ungater.state_machine.gated_objects import decode_metadata

# A client that keeps creating gated pods must not delay the uninstall indefinitely.
_MAX_PASSES: Final = 60
_CREATED_LATE: Final = "it was created while others were released"
_POLL_S: Final = 0.3
_MAX_LOGGED: Final = 50
_PLAIN_POD_SELECTOR: Final = {"labelSelector": names.MANAGED_LABEL}
# A gated pod has no node. No label is on all of them.
_POD_SELECTOR: Final = {"fieldSelector": "spec.nodeName="}
GATES: Final = frozenset(
    {names.TOPOLOGY_GATE, names.ELASTIC_GATE, names.GANG_GATE, names.ADMISSION_GATE}
)

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


async def release_pods(client: Client, gates: Collection[str] = GATES) -> ReleaseResult:
    """Remove our gates from every pod that is not being deleted; safe to run again or concurrently.

    Args:
        client: with the rights of the ungater, or more.
        gates: those of our gates that are removed.

    Raises:
        KubeError: listing pods is forbidden, or the credentials are no longer valid.
    """
    released, failures = ReleaseResult(), Failures()

    async def release(pod: _Pod) -> None:
        meta = pod.metadata
        path = PODS.path(meta.namespace, meta.name)
        try:
            await client.patch(path, _patch(pod, gates), PatchType.STRATEGIC)
        except NotFoundError:
            return
        except KubeError as error:
            failures.add(meta.uid, error)
        else:
            released.pods.add(meta.key)

    await _release_plain_pods(client, failures)
    for left in reversed(range(_MAX_PASSES)):
        # Without the right to list pods, another replica has finished: not an error of a pod.
        gated = await _gated(client, gates)
        remaining = [pod for pod in gated if not failures.is_given_up(pod.metadata.uid)]
        if not (remaining and left):
            stay = (pod.metadata for pod in gated)
            released.gated = {one.key: failures.message(one.uid) or _CREATED_LATE for one in stay}
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


async def gated_pods(client: Client, gates: Collection[str] = GATES) -> list[str]:
    """`namespace/name` of the pods that `release_pods` would release."""
    return sorted(pod.metadata.key for pod in await _gated(client, gates))


class _PodSpec(View, frozen=True):
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class _PodStatus(View, frozen=True):
    phase: str = ""


class _Pod(View, frozen=True):
    metadata: Meta = Meta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


_pods: Final = msgspec.json.Decoder(_Pod)


def _removable(pod: _Pod, gates: Collection[str]) -> list[str]:
    """The gates to remove. A plain pod that was not admitted, so has no PodSet, keeps its own."""
    kept = () if names.PODSET_LABEL in pod.metadata.labels else (names.ADMISSION_GATE,)
    found = [gate.name for gate in pod.spec.scheduling_gates]
    return [name for name in found if name in gates and name not in kept]


def _patch(pod: _Pod, gates: Collection[str]) -> bytes:
    """Removes gates by name, bound to what was read: gates of other owners stay."""
    gone = [{"$patch": "delete", "name": gate} for gate in _removable(pod, gates)]
    bound = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
    return msgspec.json.encode({"metadata": bound, "spec": {"schedulingGates": gone}})


async def _gated(client: Client, gates: Collection[str]) -> list[_Pod]:
    found = []
    async for page in client.list_pages(PODS.path(), _POD_SELECTOR):
        for raw in page_items(page):
            try:
                pod = _pods.decode(raw)
            except msgspec.MsgspecError as error:
                log.warning("pod_not_read", error=str(error)[:300])
                continue
            ended = pod.status.phase in ("Succeeded", "Failed")
            gated = _removable(pod, gates)
            if gated and not ended and pod.metadata.deletion_timestamp is None:
                found.append(pod)
    return found
