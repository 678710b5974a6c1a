"""The webhook as a process: certificate first, then the port, then readiness."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from rackgate.certificates.issued import IssuedCertificateManager
from rackgate.certificates.manager import (
    CertificateManager,
    watch_secret_and_registrations,
)
from rackgate.certificates.provided import ProvidedCertificateManager
from rackgate.certificates.tls import server_context
from rackgate.installation.marker import Installation
from rackgate.jobframework.registry import enabled_elastic_kinds
from rackgate.kube.config import connect
from rackgate.runtime.metrics import freeze_heap
from rackgate.runtime.service import user_agent
from rackgate.runtime.serving.health import HealthServer
from rackgate.runtime.tasks import first_of, spawn
from rackgate_webhook.admission.gangs import GangRules
from rackgate_webhook.admission.unlabelled_webhook import UnlabelledJobReviews
from rackgate_webhook.serving.self_call import call_self
from rackgate_webhook.serving.server import WebhookServer
from rackgate_webhook.settings import WebhookSettings

if TYPE_CHECKING:
    from rackgate_webhook.admission.osmo_webhook import OsmoReviews

OSMO_PATH = "/validate-osmo"
UNLABELLED_PATH = "/mutate-unlabelled"

log = structlog.get_logger()


class WebhookService:
    """One replica."""

    def __init__(self, settings: WebhookSettings) -> None:
        """Prepare; `run` does the work."""
        self._settings = settings
        self._draining = self._was_ready = False
        self._context = server_context()
        serving = settings.serving
        self._osmo = _osmo_reviews() if settings.features.osmo_pools else None
        elastic_kinds = enabled_elastic_kinds(settings.features)
        self._unlabelled = UnlabelledJobReviews(
            default_queues=settings.features.local_queue_defaulting,
            manage_all=settings.manage_jobs_without_queue_name,
            elastic_kinds=elastic_kinds,
            kai=settings.rendering,
        )
        routes = {UNLABELLED_PATH: self._unlabelled.decide}
        if self._osmo is not None:
            routes[OSMO_PATH] = self._osmo.decide
        self._server = WebhookServer(
            serving.host,
            serving.port,
            self._context,
            both_levels=settings.features.required_and_preferred,
            elastic_kinds=elastic_kinds,
            kai=settings.rendering,
            gangs=GangRules(
                settings.features.gang_scheduling,
                settings.features.workload_rev_n,
                settings.gang_defaults.fields(),
            ),
            pod_groups=settings.features.pod_groups,
            async_routes=routes,
            max_connections=serving.max_connections,
        )
        self._certificate_manager: CertificateManager | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then drain.

        Raises:
            ConfigError: the connection settings are invalid.
            OSError: a port is in use.
        """
        settings = self._settings
        client = await connect(settings.connection, user_agent=user_agent("webhook"))
        self._unlabelled.connect(client)
        if self._osmo is not None:
            self._osmo.connect(client)
        try:
            issued = settings.certificates.source == "issued"
            manager = (IssuedCertificateManager if issued else ProvidedCertificateManager)(
                client.budget(qps=20, burst=20),
                settings.certificates,
                self._context,
                settings.managed_jobs_namespace_selector,
            )
            self._certificate_manager = manager
            health = HealthServer(settings.health.port, self.missing, host=settings.health.host)
            async with health, asyncio.TaskGroup() as group:
                changed = asyncio.Event()
                tasks = [
                    spawn(group, client.versions.wait_rewound(), "versions"),
                    spawn(group, manager.run(self._check, changed), "certificates"),
                    spawn(
                        group,
                        watch_secret_and_registrations(client, settings.certificates, changed),
                        "follow",
                    ),
                    # Ends the process if another installation or Kueue is found. Serving does not
                    # wait.
                    spawn(
                        group,
                        Installation(client, settings.certificates.namespace).run(),
                        "installation",
                    ),
                ]
                try:
                    await self._serve(manager, stop)
                finally:
                    for task in tasks:
                        task.cancel()
        finally:
            await self._server.stop()
            await client.close()

    def missing(self) -> list[str]:
        """Why the replica is not ready; empty when it is."""
        if self._draining:
            return ["draining"]
        if self._certificate_manager is None:
            return ["starting"]
        if self._certificate_manager.problem:
            return [self._certificate_manager.problem]
        # After that it is only logged as an error: without a ready webhook, no job can be written.
        if self._certificate_manager.selector_mismatch and not self._was_ready:
            return [self._certificate_manager.selector_mismatch]
        self._was_ready = True
        return []

    async def _serve(self, manager: CertificateManager, stop: asyncio.Event) -> None:
        await first_of(manager.loaded, stop)
        if stop.is_set():
            return
        freeze_heap()  # a full garbage collection would delay callers and free nothing
        await self._server.start()
        log.info("webhook_serving", port=self._server.port)
        await stop.wait()
        # Become unready, wait until callers move away, close the port, send the last responses.
        self._draining = True
        self._server.drain()
        await asyncio.sleep(self._settings.serving.drain_delay)
        await self._server.stop()

    async def _check(self, bundle: bytes) -> str:
        port = self._server.private_port
        if not port:
            return "not listening yet"
        certificates = self._settings.certificates
        name = (*certificates.dns_names, *certificates.ip_addresses)[0]
        return await call_self(port, name, bundle)


def _osmo_reviews() -> OsmoReviews:
    # Imported on demand: its models cost start-up time and memory.
    from rackgate_webhook.admission.osmo_webhook import OsmoReviews

    return OsmoReviews()


async def run_webhook(settings: WebhookSettings, stop: asyncio.Event) -> None:
    """Run one replica until `stop` is set."""
    await WebhookService(settings).run(stop)
