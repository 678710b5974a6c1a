"""Lists of pods that begin after they are asked for: what others wrote before is in them.

A list tells of the pods that are there, and of those known before that are not: a watch that lags
would go on showing the pods of an earlier run beside their successors.

Who asks while a list is under way shares the next one; who asks together shares one. So there is
never more than one under way, whatever happens at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import msgspec
import structlog

from rackgate.api.resources import PODS
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.runtime.backoff import Backoff
from rackgate.wire.depth import tolerant
from rackgate_ungater.state_machine.gated_objects import GatedPod, PodUid, decode_pod

# Shards that are taken together come in within a few milliseconds of each other.
GATHER_S: Final = 0.05

log = structlog.get_logger()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Page(msgspec.Struct):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


_decode_page = tolerant(msgspec.json.Decoder(_Page).decode)


class PodRelister:
    """Lists pods for those who ask.

    Args:
        client: for the lists.
        params: label selector.
        on_pod: called with every pod.
        known: UIDs of the pods of a namespace, None for all, that are known now.
        on_deleted: called for every pod known when a list began that was not in it, and of its
            version.
    """

    def __init__(
        self,
        client: Client,
        params: dict[str, str],
        on_pod: Callable[[GatedPod], object],
        *,
        known: Callable[[str | None], Collection[PodUid]],
        on_deleted: Callable[[PodUid, int], object],
    ) -> None:
        self._client, self._params = client, params
        self._on_pod, self._known, self._on_deleted = on_pod, known, on_deleted
        self._waiters: list[tuple[str | None, asyncio.Future[None]]] = []
        self._requested = asyncio.Event()

    async def relist(self, namespace: str | None = None) -> None:
        """Return when a list of a namespace's pods, or of all, is complete that began after this.

        Args:
            namespace: None for all.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiters.append((namespace, done))
        self._requested.set()
        await done

    async def run(self) -> None:
        """Serve those who ask, until cancelled."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        while True:
            await self._requested.wait()
            await asyncio.sleep(GATHER_S)
            self._requested.clear()
            waiting, self._waiters = self._waiters, []
            waiting = [asked for asked in waiting if not asked[1].done()]
            if not waiting:
                continue
            namespaces = {namespace for namespace, _ in waiting}
            if await self._list(namespaces.pop() if len(namespaces) == 1 else None):
                backoff.reset()
                for _, done in waiting:
                    if not done.done():
                        done.set_result(None)
            else:
                self._waiters += waiting
                self._requested.set()
                await asyncio.sleep(backoff.next())

    async def _list(self, namespace: str | None) -> bool:
        """List the pods of a namespace, None for all; False when that failed."""
        known = set(self._known(namespace))
        version = ""
        whole = True
        try:
            async for body in self._client.list_pages(PODS.path(namespace), self._params):
                page = _decode_page(body)
                version = version or page.metadata.resource_version
                for number, raw in enumerate(page.items or ()):
                    uid = self._handle_pod(raw)
                    whole &= uid is not None
                    known.discard(uid or PodUid(""))
                    if number % 200 == 199:
                        await asyncio.sleep(0)  # renewals go on during a long list
        except (KubeError, msgspec.DecodeError) as error:
            log.warning("list_failed", resource="pods", error=str(error)[:300])
            return False
        # One that could not be read may be any of those that seem to be missing.
        for uid in known if whole else ():
            self._on_deleted(uid, int(version) if version.isdecimal() else 0)
        return True

    def _handle_pod(self, raw: msgspec.Raw) -> PodUid | None:
        """Tell of one pod; None if it cannot be read."""
        try:
            pod = decode_pod(raw)
        except msgspec.MsgspecError as error:
            log.warning("object_not_decoded", resource="pods", error=str(error)[:300])
            return None
        self._on_pod(pod)
        return pod.uid
