"""The conversation with a fresh API server during `rackgate up`.

Apart from the other modules because the client's imports cost more time than most verbs take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from rackgate.features import OSMO_POOLS
from rackgate.kube.client import Client
from rackgate.kube.config import ConnectionSettings, connect
from rackgate.kube.errors import KubeError
from rackgate_cli.controlplane import defaults, install, operators, ports
from rackgate_cli.controlplane.binaries.versions import KINDS
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.services import token_file, webhook_port
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.errors import CommandError
from rackgate_cli.locations import deploy_dir


def prepare(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    """Install what the services need before they start: CRDs, roles, registrations, tokens.

    Raises:
        CommandError: the API server refused something.
    """
    _run_with_admin_client(_prepare(cluster, nodes, services))


def fill(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    """Install what the running services judge, and wait until all of it is ready to be used.

    Raises:
        CommandError: the API server refused something, or a part is not ready in time.
    """
    _run_with_admin_client(_fill(cluster, nodes, services))


def _run_with_admin_client(conversation: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.run(conversation)
    except KubeError as error:
        raise CommandError(f"the API server refused the installation: {error}") from error


async def _prepare(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    deploy = deploy_dir()
    url = None
    if "webhook" in services:
        url = f"https://{ports.LOOPBACK}:{webhook_port(cluster)}"
    osmo = cluster.playground.feature_gates.get(OSMO_POOLS, False)
    async with admin_client(cluster.folder, cluster.playground) as client:
        await asyncio.gather(
            install.apply_crds(client, deploy, osmo=osmo),
            install.apply_basics(client, deploy, url, osmo=osmo),
            install.apply_all(client, defaults.node_documents(nodes)),
            *(
                install.put_operator(client, _operator_documents(cluster, name))
                for name in cluster.playground.operators
            ),
            *(
                install.put_operator(
                    client, install.documents(deploy / "controlplane" / KINDS[name])
                )
                for name in cluster.playground.kinds
            ),
        )
        for service in services:
            await install.write_token(client, service, token_file(cluster.folder, service))


def _operator_documents(cluster: Cluster, name: str) -> list[defaults.Document]:
    path = Path(cluster.playground.binaries[name]).with_name(f"{name}.json")
    if not path.is_file():
        raise CommandError(f"there is no {path}; remove its folder to have it built again")
    url = operators.webhook_url(cluster, name)
    authority = (cluster.folder.pki / "ca.crt").read_bytes()
    return install.operator_documents(path, name, url, authority)


async def _fill(cluster: Cluster, nodes: int, services: tuple[str, ...]) -> None:
    async with admin_client(cluster.folder, cluster.playground) as client:
        if "webhook" in services:
            await install.webhook_answers(client)
        if nodes:
            documents = defaults.node_documents(nodes)
            await install.apply_all(client, defaults.queue_documents(nodes))
            await install.nodes_ready(client, [node["metadata"]["name"] for node in documents])
            if "assigner" in services:
                await install.queue_active(client, defaults.QUEUE)


@contextlib.asynccontextmanager
async def admin_client(folder: StateFolder, playground: Playground) -> AsyncIterator[Client]:
    """Yield a client with cluster-admin rights on a playground."""
    async with client_with_certificate(playground.server, folder.pki) as client:
        yield client


@contextlib.asynccontextmanager
async def client_with_certificate(server: str, pki: Path) -> AsyncIterator[Client]:
    """Yield a client of `server` with the administrator's certificate in `pki`."""
    settings = ConnectionSettings(
        server=server,
        ca_file=pki / "ca.crt",
        client_certificate_file=pki / "admin-client.crt",
        client_key_file=pki / "admin-client.key",
        request_timeout=30,
    )
    client = await connect(settings, user_agent=install.MANAGER)
    try:
        yield client
    finally:
        await client.close()
