"""Native PodGroups of a cluster: whether it serves them, in which generation, and a watch of them.

The generation is checked at the start and then every `CHECK_S` seconds, so an API that is enabled,
disabled or upgraded while the service runs is noticed. While it is not served, a check is the only
request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec
import structlog

from rackgate.gang.native.adapter import Adapter, decode_pod_group
from rackgate.gang.native.model import ObservedPodGroup
from rackgate.gang.native.versions import (
    GROUP_PATH,
    candidates,
    serves_pod_groups,
    version_path,
)
from rackgate.kube.client import Client
from rackgate.kube.errors import (
    BadRequestError,
    KubeError,
    NotFoundError,
    UnprocessableError,
)
from rackgate.kube.informer import Informer
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.tasks import spawn

CHECK_S: Final = 30.0
UNKNOWN_S: Final = 1.0
_NONE: Final[Mapping[str, ObservedPodGroup]] = MappingProxyType({})

log = structlog.get_logger()


class NativeGroups:
    """The PodGroups of a cluster.

    Attributes:
        adapter: of the newest known generation that is served; None if there is none.
        checked: set once that is known.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_change: Callable[[ObservedPodGroup | None, ObservedPodGroup | None], None],
        on_served: Callable[[], None] = lambda: None,
        probe_namespace: str = "",
        check_s: float = CHECK_S,
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            client: for discovery and the watch.
            on_change: called with a PodGroup before and after a change; None if it was not there.
            on_served: called when another generation, or none, is served.
            probe_namespace: where a PodGroup is created by a dry run, to see that no field of it is
                dropped. "" for no such check.
            check_s: see `CHECK_S`.
        """
        self._client, self._on_change, self._on_served = client, on_change, on_served
        self._probe_namespace, self._check_s = probe_namespace, check_s
        self.adapter: Adapter | None = None
        self.checked = asyncio.Event()
        self._informer: Informer[ObservedPodGroup] | None = None
        self._check_now = asyncio.Event()

    @property
    def store(self) -> Mapping[str, ObservedPodGroup]:
        """All PodGroups by `namespace/name`, as last watched."""
        return self._informer.store if self._informer is not None else _NONE

    def check_soon(self) -> None:
        """The API answered as if it had changed."""
        self._check_now.set()

    async def run(self) -> None:
        """Follow what is served, until cancelled."""
        async with asyncio.TaskGroup() as group:
            watching: asyncio.Task[None] | None = None
            backoff = Backoff(base_s=UNKNOWN_S, cap_s=self._check_s)
            while True:
                self._check_now.clear()
                try:
                    found = await self._served()
                except (KubeError, msgspec.MsgspecError) as error:
                    log.warning("native_groups_unknown", error=str(error)[:300])
                    await asyncio.sleep(backoff.next())
                    continue
                backoff.reset()
                if found is not self.adapter or watching is None:
                    if watching is not None:
                        watching.cancel()
                    self._replace(found)
                    if self._informer is not None:
                        watching = spawn(group, self._informer.run(), "watch native PodGroups")
                self.checked.set()
                await self._until_next_check()

    async def _until_next_check(self) -> None:
        try:
            async with asyncio.timeout(self._check_s):
                await self._check_now.wait()
        except TimeoutError:
            return
        await asyncio.sleep(UNKNOWN_S)

    def _replace(self, adapter: Adapter | None) -> None:
        """Watch another generation. The objects stay the same, and are listed again."""
        before, self.adapter = self._informer, adapter
        if before is not None:
            before.clear()
        self._informer = None
        if adapter is not None:
            self._informer = Informer(
                self._client,
                adapter.resource,
                decode_pod_group,
                on_upsert=self._on_change,
                on_delete=lambda group: self._on_change(group, None),
                key_of=lambda group: group.key,
                version_of=lambda group: group.resource_version,
                uid_of=lambda group: group.uid,
            )
        version = adapter.resource.api_version if adapter is not None else "none"
        log.info("native_groups_served", version=version)
        self._on_served()

    async def _served(self) -> Adapter | None:
        """The newest known generation that is served and keeps all fields."""
        try:
            found = candidates(await self._client.get(GROUP_PATH))
        except NotFoundError:
            return None
        for adapter in found:
            with contextlib.suppress(NotFoundError):
                resources = await self._client.get(version_path(adapter))
                if serves_pod_groups(adapter, resources) and await self._is_usable(adapter):
                    return adapter
        return None

    async def _is_usable(self, adapter: Adapter) -> bool:
        if not self._probe_namespace or adapter is self.adapter:
            return True
        body = adapter.probe(self._probe_namespace)
        path = adapter.resource.path(self._probe_namespace)
        try:
            answer = await self._client.create(path, body, {"dryRun": "All"})
        except (BadRequestError, UnprocessableError) as error:
            log.warning(
                "native_groups_rejected", version=adapter.resource.api_version, error=str(error)
            )
            return False
        return adapter.keeps_fields(answer)
