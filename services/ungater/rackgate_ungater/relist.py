"""Lists of pods that begin after they are asked for: what others wrote before is in them.

Who asks while a list is under way shares the next one; who asks together shares one. So there is
never more than one under way, whatever happens at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.kube.resources import PODS
from rackgate.runtime.backoff import Backoff
from rackgate.wire.depth import tolerant
from rackgate_ungater.rows import PodRow, decode_pod

# Shards that are taken together come in within a few milliseconds of each other.
GATHER_S: Final = 0.05

log = structlog.get_logger()


class _Page(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


_decode_page = tolerant(msgspec.json.Decoder(_Page).decode)


class Relist:
    """Lists pods for those who ask.

    Args:
        client: for the lists.
        params: label selector.
        heard: told of every pod.
    """

    def __init__(
        self, client: Client, params: dict[str, str], heard: Callable[[PodRow], object]
    ) -> None:
        self._client, self._params, self._heard = client, params, heard
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
        try:
            async for page in self._client.list_pages(PODS.path(namespace), self._params):
                for number, raw in enumerate(_decode_page(page).items or ()):
                    self._row(raw)
                    if number % 200 == 199:
                        await asyncio.sleep(0)  # renewals go on during a long list
        except (KubeError, msgspec.DecodeError) as error:
            log.warning("list_failed", resource="pods", error=str(error)[:300])
            return False
        return True

    def _row(self, raw: msgspec.Raw) -> None:
        try:
            row = decode_pod(raw)
        except msgspec.MsgspecError as error:
            log.warning("object_not_decoded", resource="pods", error=str(error)[:300])
            return
        self._heard(row)
