"""Runs the visibility API: follows who may call, keeps the certificate, and serves.

The API server can call only if it has a front proxy (`--requestheader-client-ca-file`). Otherwise
nothing is served, and the assigner works as usual. No failure here ends the process: admission does
not depend on this API.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from rackgate.api.resources import CONFIG_MAPS
from rackgate.certificates.issued import IssuedCertificateManager
from rackgate.certificates.manager import watch_secret_and_registrations
from rackgate.certificates.provided import ProvidedCertificateManager
from rackgate.certificates.tls import client_context, server_context
from rackgate.kube.client import Client
from rackgate.kube.informer import Informer
from rackgate.runtime.backoff import Backoff
from rackgate.runtime.tasks import first_of, spawn
from rackgate.wire.core import Meta, View
from rackgate.wire.kueue import Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.explain.explanation import Explanation
from rackgate_assigner.visibility.authorizer import Authorizer
from rackgate_assigner.visibility.front_proxy import (
    CONFIG_MAP,
    CONFIG_MAP_NAMESPACE,
    FrontProxy,
    read_front_proxy,
)
from rackgate_assigner.visibility.server import VisibilityServer
from rackgate_assigner.visibility.settings import VisibilitySettings

CHECK_TIMEOUT_S: Final = 5.0
ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - to call itself

log = structlog.get_logger()


class _ConfigMap(View, frozen=True):
    metadata: Meta = Meta()
    data: dict[str, str] = {}  # noqa: RUF012 - msgspec copies empty defaults


class VisibilityController:
    """The visibility API of one replica.

    Attributes:
        server: the server, while it serves.
    """

    def __init__(
        self,
        client: Client,
        settings: VisibilitySettings,
        cache: Cache,
        workloads: Mapping[str, Workload],
        *,
        is_synced: Callable[[], bool],
        explain: Callable[[str], Explanation | None],
    ) -> None:
        """Prepare.

        Args:
            client: for the ConfigMap, the Secret, APIServices and SubjectAccessReviews.
            settings: where to serve.
            cache: queues and pending Workloads.
            workloads: the store of Workloads, by key.
            is_synced: whether the cache is complete.
            explain: why a Workload is pending, by its key; None if it does not exist.
        """
        self._explain = explain
        self.server: VisibilityServer | None = None
        self._client, self._settings = client, settings
        self._cache, self._workloads, self._is_synced = cache, workloads, is_synced
        self._authorizer = Authorizer(client.budget(qps=100, burst=200))
        self._proxy: FrontProxy | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled. Failures are logged and retried."""
        followed = Informer(
            self._client,
            CONFIG_MAPS,
            msgspec.json.Decoder(_ConfigMap).decode,
            on_upsert=lambda _before, found: self._on_config_map(found),
            on_delete=lambda _gone: self._set_proxy(None),
            namespace=CONFIG_MAP_NAMESPACE,
            params={"fieldSelector": f"metadata.name={CONFIG_MAP}"},
            on_synced=self._log_missing,
        )
        async with asyncio.TaskGroup() as group:
            spawn(group, followed.run(), "watch front proxy")
            spawn(group, self._serve(), "visibility")

    def _on_config_map(self, found: _ConfigMap) -> None:
        try:
            proxy = read_front_proxy(found.data)
            if proxy is not None:
                _context(proxy)
        except (ValueError, ssl.SSLError) as error:
            log.warning("front_proxy_unreadable", config_map=CONFIG_MAP, error=str(error))
            return
        self._set_proxy(proxy)

    def _set_proxy(self, proxy: FrontProxy | None) -> None:
        if proxy != self._proxy:
            self._proxy = proxy
            self._changed.set()

    def _log_missing(self) -> None:
        if self._proxy is None:
            log.warning(
                "visibility_not_served",
                error=f"ConfigMap {CONFIG_MAP_NAMESPACE}/{CONFIG_MAP} names no front proxy: "
                "the API server has no aggregation layer",
            )

    async def _serve(self) -> None:
        backoff = Backoff(base_s=1.0, cap_s=60.0)
        while True:
            self._changed.clear()
            if self._proxy is None:
                await self._changed.wait()
                continue
            try:
                await self._serve_to(self._proxy)
            except* OSError as failed:
                log.warning("visibility_not_served", error=str(failed.exceptions[0]))
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()

    async def _serve_to(self, proxy: FrontProxy) -> None:
        """Serve until the front proxy changes: a context cannot drop an authority."""
        settings, context = self._settings, _context(proxy)
        issued = settings.certificates.source == "issued"
        manager = (IssuedCertificateManager if issued else ProvidedCertificateManager)(
            self._client.budget(qps=20, burst=20), settings.certificates, context
        )
        server = VisibilityServer(
            proxy,
            self._authorizer,
            self._cache,
            self._workloads,
            is_synced=self._is_synced,
            explain=self._explain,
        )
        secret_changed = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            tasks = [
                spawn(group, manager.run(self._check, secret_changed), "visibility certificate"),
                spawn(
                    group,
                    watch_secret_and_registrations(
                        self._client, settings.certificates, secret_changed
                    ),
                    "watch visibility certificate",
                ),
            ]
            try:
                await first_of(manager.loaded, self._changed)
                if manager.loaded.is_set():
                    limit = settings.max_connections
                    await server.start(settings.host, settings.port, context, limit)
                    self.server = server
                    log.info("visibility_served", port=server.port)
                    await self._changed.wait()
            finally:
                self.server = None
                await server.stop()
                for task in tasks:
                    task.cancel()

    async def _check(self, bundle: bytes) -> str:
        """A TLS handshake with this server, as an API server that trusts the bundle.

        It ends when the server's certificate is verified: the server closes it, because this
        client has no certificate.
        """
        if self.server is None:
            return "not listening yet"
        certificates = self._settings.certificates
        name = (*certificates.dns_names, *certificates.ip_addresses)[0]
        host = ANY_ADDRESS.get(self._settings.host, self._settings.host)
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                _, writer = await asyncio.open_connection(
                    host, self.server.port, ssl=client_context(bundle), server_hostname=name
                )
        except (OSError, ValueError) as error:  # ssl.SSLError and TimeoutError are OSErrors
            return str(error) or type(error).__name__
        writer.close()
        return ""


def _context(proxy: FrontProxy) -> ssl.SSLContext:
    """A server context that takes only clients whose certificate these authorities signed.

    Raises:
        ssl.SSLError, ValueError: the authorities cannot be read.
    """
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=proxy.authorities)
    return context
