"""Pools from files and from a cluster."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from typing import Any, Final

from rackgate.api import resources as kinds
from rackgate.api.meta import SUBDOMAIN
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, NotFoundError
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.osmo.documents import read_documents
from rackgate_cli.osmo.rejections import read_or_reject
from rackgate_cli.tables import clean
from rackgate_cli.target import ClusterTarget, cluster_target
from rackgate_osmo import Pool, read_pool
from rackgate_osmo.model.model import MAX_NAME

KIND: Final = f"{kinds.OSMO_POOLS.api_version} {kinds.OSMO_POOLS.kind}"
USER_AGENT: Final = "rackgate-osmo"
_NAME: Final = re.compile(SUBDOMAIN)


def pools_of_file(path: str) -> list[Pool]:
    """The pools of a file, at least one: as OSMO writes them, or as objects of the cluster.

    Args:
        path: of YAML or JSON; "-" for standard input.

    Raises:
        UsageError: the file cannot be read or holds none, or a pool is refused.
    """
    documents = read_documents(path)
    if not documents:
        raise UsageError(f'"{path}" holds no pool')
    return [_pool(path, document) for document in documents]


def pool_of_file(path: str) -> Pool:
    """The one pool of a file.

    Raises:
        UsageError: as `pools_of_file`, or there are several.
    """
    pools = pools_of_file(path)
    if len(pools) > 1:
        raise UsageError(f'"{path}" holds {len(pools)} pools, not one')
    return pools[0]


def target_of(arguments: argparse.Namespace) -> ClusterTarget:
    """The cluster that `--state`, `--kubeconfig` and `--context` choose.

    Raises:
        UsageError: they choose none.
    """
    if arguments.state is not None and arguments.context is not None:
        raise UsageError(
            "--context chooses in a kubeconfig; a playground (--state) has one cluster"
        )
    chosen = cluster_target(arguments.state, arguments.kubeconfig, arguments.context)
    return ClusterTarget(chosen.state, chosen.settings, chosen.namespace, USER_AGENT)


def pools_of_cluster(arguments: argparse.Namespace) -> list[Pool]:
    """Every pool of the cluster, sorted by name.

    Raises:
        CommandError: the cluster serves no pools, or they may not be listed.
        KubeError: it cannot be read.
    """
    return asyncio.run(_listed(target_of(arguments)))


def pool_of_cluster(arguments: argparse.Namespace, name: str) -> Pool:
    """The pool of that name.

    Raises:
        CommandError: there is none, or it may not be read.
        KubeError: the cluster cannot be read.
    """
    return asyncio.run(_named(target_of(arguments), name))


async def find_pool(client: Client, name: str) -> Pool | None:
    """The pool of that name; None where there is none, or the cluster serves no pools.

    Raises:
        KubeError: it cannot be read.
    """
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        return None  # of such a name there is none, and its path would lead elsewhere
    try:
        document = json.loads(await client.get(kinds.OSMO_POOLS.path(None, name)))
    except NotFoundError:
        return None
    return _pool(f"pool {name} of the cluster", document)


async def _named(target: ClusterTarget, name: str) -> Pool:
    async with target.client() as client:
        try:
            pool = await find_pool(client, name)
            if pool is not None:
                return pool
            known = ", ".join(pool.name for pool in await _all(client))
        except ForbiddenError as error:
            raise CommandError(f"pools may not be read: {error.message}") from error
    raise CommandError(
        f'the cluster has no pool "{clean(name)}" (pools: {clean(known) or "none"}); '
        "a file is named by a path, or ends in .yaml, .yml or .json"
    )


async def _listed(target: ClusterTarget) -> list[Pool]:
    async with target.client() as client:
        try:
            return await _all(client)
        except ForbiddenError as error:
            raise CommandError(f"pools may not be listed: {error.message}") from error


async def _all(client: Client) -> list[Pool]:
    found = []
    try:
        async for page in client.list_pages(kinds.OSMO_POOLS.path()):
            for item in json.loads(page)["items"]:
                name = item["metadata"]["name"]
                # Items of a list do not carry their kind.
                found.append(_pool(f"pool {name} of the cluster", _with_name(item)))
    except NotFoundError as error:
        raise CommandError(
            f"the cluster serves no {kinds.OSMO_POOLS.full_name}: install Rackgate's "
            "CustomResourceDefinitions, or name a pool's file"
        ) from error
    return sorted(found, key=lambda pool: pool.name)


def _pool(source: str, document: Any) -> Pool:
    plain = _plain(source, document)
    return read_or_reject(source, lambda: read_pool(plain))


def _plain(source: str, document: Any) -> Any:
    """A pool as OSMO writes it, also of a pool object."""
    if not isinstance(document, dict) or "apiVersion" not in document:
        return document
    group = str(document["apiVersion"]).rpartition("/")[0]
    if (group, document.get("kind")) != (kinds.OSMO_POOLS.group, kinds.OSMO_POOLS.kind):
        found = f"{document['apiVersion']} {document.get('kind')}"
        raise UsageError(f'"{source}" holds {clean(found)}, not a pool, plain or as {KIND}')
    return _with_name(document)


def _with_name(document: dict[str, Any]) -> dict[str, Any]:
    metadata, spec = document.get("metadata"), document.get("spec")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return {**(spec if isinstance(spec, dict) else {}), "name": name}
