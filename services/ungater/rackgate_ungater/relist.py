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
from rackgate_ungater.machine.rows import PodRow, PodUid, decode_pod

# Shards that are taken together come in within a few milliseconds of each other.
GATHER_S: Final = 0.05

log = structlog.get_logger()


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Page(msgspec.Struct):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


_decode_page = tolerant(msgspec.json.Decoder(_Page).decode)


class Relist:
    """Lists pods for those who ask.

    Args:
        client: for the lists.
        params: label selector.
        heard: told of every pod.
        known: UIDs of the pods of a namespace, None for all, that are known now.
        gone: told of every pod known when a list began that was not in it, and of its version.
    """

    def __init__(
        self,
        client: Client,
        params: dict[str, str],
        heard: Callable[[PodRow], object],
        *,
        known: Callable[[str | None], Collection[PodUid]],
        gone: Callable[[PodUid, int], object],
    ) -> None:
        self._client, self._params = client, params
        self._heard, self._known, self._gone = heard, known, gone
        self._waiting: list[tuple[str | None, asyncio.Future[None]]] = []
        self._asked = asyncio.Event()

    async def fresh(self, namespace: str | None = None) -> None:
        """Return when a list of a namespace's pods, or of all, is complete that began after this.

        Args:
            namespace: None for all.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((namespace, done))
        self._asked.set()
        await done

    async def run(self) -> None:
        """Serve those who ask, until cancelled."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        while True:
            await self._asked.wait()
            await asyncio.sleep(GATHER_S)
            self._asked.clear()
            waiting, self._waiting = self._waiting, []
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
                self._waiting += waiting
                self._asked.set()
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
                    uid = self._row(raw)
                    whole &= uid is not None
                    known.discard(uid or PodUid(""))
                    if number % 200 == 199:
                        await asyncio.sleep(0)  # renewals go on during a long list
        except (KubeError, msgspec.DecodeError) as error:
            log.warning("list_failed", resource="pods", error=str(error)[:300])
            return False
        # One that could not be read may be any of those that seem to be missing.
        for uid in known if whole else ():
            self._gone(uid, int(version) if version.isdecimal() else 0)
        return True

    def _row(self, raw: msgspec.Raw) -> PodUid | None:
        """Tell of one pod; None if it cannot be read."""
        try:
            row = decode_pod(raw)
        except msgspec.MsgspecError as error:
            log.warning("object_not_decoded", resource="pods", error=str(error)[:300])
            return None
        self._heard(row)
        return row.uid
