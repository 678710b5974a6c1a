"""`python -m rackgate_console --config FILE`: the console in a cluster."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Sequence

import structlog

from rackgate.kube.client import Client
from rackgate.kube.config import connect
from rackgate.kube.errors import KubeError
from rackgate.runtime.service import run_service, user_agent
from rackgate.runtime.serving.file_limit import files_for, raise_file_limit
from rackgate.runtime.serving.health import HealthServer
from rackgate.runtime.tasks import spawn
from rackgate_cli.cluster.managed import selectors
from rackgate_console.console import Console
from rackgate_console.details import Details
from rackgate_console.server import ConsoleServer
from rackgate_console.settings import ConsoleSettings, PageSettings
from rackgate_console.viewers.token_viewers import TokenViewers

DESCRIPTION = (
    "Serves a read-only page of topology, queues and Workloads. Each request carries the token of "
    "its user, who sees what the API server lets them list. Replicas do not know each other."
)
RELOAD_S = 60.0

log = structlog.get_logger()


async def serve(settings: ConsoleSettings, stop: asyncio.Event) -> None:
    """Run one replica until `stop` is set."""
    client = await connect(settings.connection, user_agent=user_agent("console"))
    try:
        console = Console(
            client,
            settings.features,
            tuple(settings.resources.exclude_resource_prefixes),
            fair_sharing=settings.fair_sharing.strategies(),
            admission_fair_sharing=settings.admission_fair_sharing.rules(settings.features),
        )
        page = settings.page
        viewers = TokenViewers(client.budget(0, 0))
        server = ConsoleServer(console, viewers, Details(console, client), page.cluster_name)
        health = HealthServer(settings.health.port, console.missing, host=settings.health.host)
        context = _context(page)
        async with health, asyncio.TaskGroup() as group:
            background = [
                spawn(group, console.follow(), "console"),
                spawn(group, _read_selectors(console, client), "selectors"),
            ]
            if context is not None:
                background.append(spawn(group, _reload(context, page), "certificate"))
            raise_file_limit(files_for(page.max_connections))
            await server.start(page.host, page.port, context, max_connections=page.max_connections)
            log.info("page_served", host=page.host, port=server.port, tls=context is not None)
            await stop.wait()
            await server.stop()
            for task in background:
                task.cancel()
    finally:
        await client.close()


def _context(page: PageSettings) -> ssl.SSLContext | None:
    if page.cert_file is None or page.key_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(page.cert_file, page.key_file)
    return context


async def _reload(context: ssl.SSLContext, page: PageSettings) -> None:
    """Use a renewed certificate for new connections; a broken one is reported, and not used."""
    if page.cert_file is None or page.key_file is None:
        return
    seen = page.cert_file.stat().st_mtime_ns
    while True:
        await asyncio.sleep(RELOAD_S)
        try:
            found = page.cert_file.stat().st_mtime_ns
            if found == seen:
                continue
            context.load_cert_chain(page.cert_file, page.key_file)
        except (OSError, ssl.SSLError) as error:
            log.warning("certificate_not_loaded", file=str(page.cert_file), error=str(error))
            continue
        seen = found
        log.info("certificate_loaded", file=str(page.cert_file))


async def _read_selectors(console: Console, client: Client) -> None:
    """In which namespaces jobs are managed; all, while that cannot be read."""
    while True:
        try:
            console.selectors = await selectors(client)
        except KubeError as error:
            log.warning("selectors_not_read", error=str(error)[:500])
        await asyncio.sleep(RELOAD_S)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `rackgate-console`."""
    return run_service(
        "console", serve, settings=ConsoleSettings, description=DESCRIPTION, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
