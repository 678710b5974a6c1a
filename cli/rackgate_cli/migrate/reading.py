"""What `rackgate migrate check` reads, from a cluster or from files. Never writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.jobframework.registry import KINDS, LINKED_KINDS
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, NotFoundError
from rackgate.runtime.tasks import spawn
from rackgate_cli.cluster.lists import list_objects
from rackgate_cli.cluster.roles import OPERATOR, ask_for
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.migrate.judging import CONFIGURATION, CONFIGURATION_GROUP
from rackgate_cli.plain_yaml import decode_plain_yaml, read_plain_yaml

Object = dict[str, Any]

MAX_BYTES: Final = 16 << 20  # of one file
MAX_FILES: Final = 10_000
MAX_OBJECTS: Final = 200_000
SUFFIXES: Final = (".yaml", ".yml", ".json")
CONFIG_MAP: Final = "kueue-manager-config"
KUEUE_NAMESPACE: Final = "kueue-system"
_ROLES: Final = "deploy/cluster/users.yaml"
_KUEUE_KINDS: Final = (
    kinds.TOPOLOGIES,
    kinds.FLAVORS,
    kinds.COHORTS,
    kinds.CLUSTER_QUEUES,
    kinds.LOCAL_QUEUES,
    kinds.ADMISSION_CHECKS,
    kinds.WORKLOAD_PRIORITY_CLASSES,
)
# Of Kueue alone: Rackgate does not have these kinds.
_UNKNOWN_KINDS: Final = tuple(
    Resource(names.GROUP, names.VERSION, f"{kind.lower()}s", False, kind)
    for kind in ("MultiKueueCluster", "MultiKueueConfig", "ProvisioningRequestConfig")
)
_ALL_PODS: Final = {"labelSelector": names.MANAGED_LABEL}
_QUEUED: Final = {"labelSelector": names.QUEUE_LABEL}


class Found:
    """What was read.

    Attributes:
        objects: as JSON data, with kind and apiVersion.
        configuration: of Kueue, None if there is none.
        where: namespace of the ConfigMap, or "".
        notes: what could not be read.
    """

    def __init__(self) -> None:
        self.objects: list[Object] = []
        self.configuration: Object | None = None
        self.where = ""
        self.notes: list[str] = []


async def read_cluster(client: Client, namespace: str) -> Found:
    """Read a cluster with Kueue.

    Args:
        client: only reads.
        namespace: where Kueue runs.

    Raises:
        CommandError: rights are missing; all of them are named.
        KubeError: the API server does not answer.
    """
    found = Found()
    managed = [one.resource for one in KINDS.values()]
    jobs = [*managed, *(one.resource for one in LINKED_KINDS.values())]
    wanted: list[tuple[Resource, Mapping[str, str]]] = [
        *((kind, {}) for kind in (*_KUEUE_KINDS, *_UNKNOWN_KINDS)),
        *((kind, _QUEUED) for kind in jobs),
        (kinds.PODS, _ALL_PODS),
        (kinds.WORKLOADS, {}),
    ]
    forbidden: list[str] = []
    async with asyncio.TaskGroup() as group:
        tasks = [
            spawn(group, _listed(client, kind, params, forbidden), f"list {kind.plural}")
            for kind, params in wanted
        ]
        reading = spawn(group, _config_map(client, namespace, found), "read the configuration")
    reading.result()
    if forbidden:
        order = [kind.full_name for kind, _ in wanted]
        missing = sorted(forbidden, key=order.index)
        who = ask_for(OPERATOR, "with a ClusterRoleBinding")
        raise CommandError(
            f"you may not list {', '.join(missing)} of the whole cluster; {who}. In a cluster "
            f"without Rackgate, {_ROLES} creates the role"
        )
    listed = {kind: task.result() for (kind, _), task in zip(wanted, tasks, strict=True)}
    if listed[kinds.CLUSTER_QUEUES] is None:
        raise CommandError(f"the cluster has no {kinds.CLUSTER_QUEUES.full_name}: it has no Kueue")
    for kind, _ in wanted:
        for one in listed[kind] or ():
            found.objects.append({"apiVersion": kind.api_version, **one})
    return found


async def _listed(
    client: Client, kind: Resource, params: Mapping[str, str], forbidden: list[str]
) -> list[Object] | None:
    """All objects of a kind; None if the API server does not know it."""
    try:
        return await list_objects(client, kind, **params)
    except NotFoundError:
        return None
    except ForbiddenError:
        forbidden.append(kind.full_name)
        return None


async def _config_map(client: Client, namespace: str, found: Found) -> None:
    path = kinds.CONFIG_MAPS.path(namespace, CONFIG_MAP)
    where = f"ConfigMap {namespace}/{CONFIG_MAP}"
    try:
        stored = json.loads(await client.get(path))
    except NotFoundError:
        found.notes.append(
            f"there is no {where}: name the namespace of Kueue with --kueue-namespace, or check the"
            " file with -f"
        )
        return
    except ForbiddenError:
        found.notes.append(
            f"you may not read {where}, so the configuration is not checked: get it from an "
            "administrator and check it with -f"
        )
        return
    for one in unwrapped({**stored, "kind": "ConfigMap"}, where):
        if is_configuration(one):
            found.configuration, found.where = one, namespace
            return
    found.notes.append(f"{where} has no Configuration of Kueue")


def read_files(names_of_files: list[str]) -> Found:
    """Read manifests, and Kueue's configuration, from files and folders.

    Raises:
        UsageError: a file cannot be read or decoded, or there is nothing to check.
    """
    found = Found()
    several = 0
    for path in _expanded(names_of_files):
        for document in _documents(path):
            if len(found.objects) >= MAX_OBJECTS:
                raise UsageError(f"more than {MAX_OBJECTS} objects: check a part of the files")
            if not is_configuration(document):
                found.objects.append(document)
            elif found.configuration is None:
                found.configuration = document
            else:
                several += 1
    if several:
        found.notes.append(f"{several} more Configurations of Kueue were not checked")
    return found


def _expanded(names_of_files: list[str]) -> Iterator[str]:
    count = 0
    for name in names_of_files:
        for path in _files_of(name):
            count += 1
            if count > MAX_FILES:
                raise UsageError(f"more than {MAX_FILES} files: check a part of them")
            yield path


def _files_of(name: str) -> Iterator[str]:
    try:
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            yield name
            return
        paths = sorted(one for one in folder.rglob("*") if one.suffix in SUFFIXES)
        files = [str(one) for one in paths if one.is_file()]
    except (OSError, ValueError) as error:
        raise UsageError(f'"{name[:200]}" cannot be read: {error}') from error
    if not files:
        raise UsageError(f'folder "{name}" has no files that end in {", ".join(SUFFIXES)}')
    yield from files


def _documents(path: str) -> Iterator[Object]:
    for document in read_plain_yaml(path, MAX_BYTES, aliases=True):
        listed = document.get("items") if isinstance(document, dict) else None
        for one in listed if isinstance(listed, list) else [document]:
            if isinstance(one, dict):
                yield from unwrapped(one, path)


def unwrapped(document: Object, name: str) -> list[Object]:
    """The Configuration in a ConfigMap of Kueue; anything else as it is."""
    if document.get("kind") != "ConfigMap":
        return [document]
    data = document.get("data")
    texts = [one for one in (data if isinstance(data, dict) else {}).values() if _is_ours(one)]
    inner = [one for text in texts for one in decode_plain_yaml(text.encode(), name)]
    return [one for one in inner if isinstance(one, dict)]


def _is_ours(text: object) -> bool:
    return isinstance(text, str) and CONFIGURATION_GROUP in text


def is_configuration(document: Object) -> bool:
    """Whether it is a Configuration of Kueue, in any version."""
    version = document.get("apiVersion")
    return (
        isinstance(version, str)
        and version.startswith(f"{CONFIGURATION_GROUP}/")
        and document.get("kind") == CONFIGURATION
    )
