"""Inputs of the verbs of `rackgate osmo`: pools, a workflow, and the objects built from both."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from rackgate.api import resources as kinds
from rackgate.api.meta import SUBDOMAIN
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, NotFoundError
from rackgate_cli.cluster import interruptible
from rackgate_cli.cluster.lists import list_objects
from rackgate_cli.cluster.target import target_of
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.input_files import STDIN
from rackgate_cli.plain_yaml import read_plain_yaml
from rackgate_cli.tables import clean
from rackgate_osmo import (
    Built,
    KaiVersion,
    Pool,
    Profile,
    RejectedError,
    Rejection,
    Toleration,
    Workflow,
    build_podgroups,
    read_pool,
    read_workflow,
)
from rackgate_osmo.model.workflow import MAX_NAME
from rackgate_osmo.render.pods import build_pods, left_out

T = TypeVar("T")
Object = dict[str, Any]

MAX_BYTES: Final = 16 * 2**20
_SHOWN: Final = 50  # rejections in one message
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_OBJECT_NAME: Final = re.compile(SUBDOMAIN)
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


# -- documents -------------------------------------------------------------------------------


def read_documents(path: str) -> list[Any]:
    """The documents of a file, empty ones left out; a document that is a list counts as several.

    Raises:
        UsageError: it cannot be read, is too large, or has values that JSON lacks.
    """
    flat: list[Any] = []
    for document in read_plain_yaml(path, MAX_BYTES):
        flat += document if isinstance(document, list) else [document]
    return [document for document in flat if document is not None]


class RejectedInputError(UsageError):
    """A pool or a workflow is rejected: each rejection has its field, value and remedy.

    Attributes:
        source: its file, or its address in the cluster.
    """

    def __init__(self, source: str, rejections: Sequence[Rejection]) -> None:
        # Character by character, because `clean` truncates text to a table cell.
        lines = ["".join(map(clean, str(rejection))) for rejection in rejections[:_SHOWN]]
        if len(rejections) > _SHOWN:
            lines.append(f"and {len(rejections) - _SHOWN} more")
        label = "standard input" if source == STDIN else f'"{clean(source)}"'
        super().__init__("\n  ".join([f"{label} is rejected:", *lines]))
        self.source, self.rejections = source, tuple(rejections)

    def document(self) -> dict[str, Any]:
        """The rejections as JSON data."""
        return {"refused": [{"file": self.source, **asdict(one)} for one in self.rejections]}


def _read_or_reject(source: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except RejectedError as error:
        raise RejectedInputError(source, error.rejections) from error


# -- pools -----------------------------------------------------------------------------------


def pools_of_file(path: str) -> list[Pool]:
    """The pools of a file, at least one: in OSMO's format, or as objects of the cluster."""
    documents = read_documents(path)
    if not documents:
        raise UsageError(f'"{path}" contains no pool')
    return [_pool(path, document) for document in documents]


def pools_of_cluster(arguments: argparse.Namespace) -> list[Pool]:
    """Every pool of the cluster, sorted by name.

    Raises:
        CommandError: the cluster serves no pools, or they may not be listed.
        KubeError: it cannot be read.
    """
    return _ask(arguments, _all_pools)


def pool_of_cluster(arguments: argparse.Namespace, name: str) -> Pool:
    """The pool of that name.

    Raises:
        CommandError: there is none, or it may not be read.
        KubeError: the cluster cannot be read.
    """

    async def named(client: Client) -> Pool:
        pool = await find_pool(client, name)
        if pool is not None:
            return pool
        known = ", ".join(pool.name for pool in await _all_pools(client))
        raise CommandError(
            f'the cluster has no pool "{clean(name)}" (pools: {clean(known) or "none"}); '
            "the name of a file contains a slash, or ends in .yaml, .yml or .json"
        )

    return _ask(arguments, named)


def _ask(arguments: argparse.Namespace, read: Callable[[Client], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with target_of(arguments, "osmo").client() as client:
            try:
                return await read(client)
            except ForbiddenError as error:
                raise CommandError(f"pools cannot be read: {error.message}") from error

    return interruptible.run(asked())


async def find_pool(client: Client, name: str) -> Pool | None:
    """The pool of that name; None if it does not exist, or the cluster does not serve pools."""
    if len(name) > MAX_NAME or not _OBJECT_NAME.fullmatch(name):
        return None  # not a valid name, and it would change the URL path
    try:
        document = json.loads(await client.get(kinds.OSMO_POOLS.path(None, name)))
    except NotFoundError:
        return None
    return _pool(f"pool {name} of the cluster", document)


async def _all_pools(client: Client) -> list[Pool]:
    try:
        items = await list_objects(client, kinds.OSMO_POOLS)
    except NotFoundError as error:
        raise CommandError(
            f"the cluster serves no {kinds.OSMO_POOLS.full_name}: install Rackgate's "
            "CustomResourceDefinitions, or name a pool's file"
        ) from error
    pools = [
        _pool(f"pool {one['metadata']['name']} of the cluster", _with_name(one)) for one in items
    ]
    return sorted(pools, key=lambda pool: pool.name)


def _pool(source: str, document: Any) -> Pool:
    if isinstance(document, dict) and "apiVersion" in document:
        kind = kinds.OSMO_POOLS
        group = str(document["apiVersion"]).rpartition("/")[0]
        if (group, document.get("kind")) != (kind.group, kind.kind):
            found = clean(f"{document['apiVersion']} {document.get('kind')}")
            wanted = f"{kind.api_version} {kind.kind}"
            raise UsageError(f'"{source}" contains {found}, not a pool, plain or as {wanted}')
        document = _with_name(document)
    return _read_or_reject(source, lambda: read_pool(document))


def _with_name(document: dict[str, Any]) -> dict[str, Any]:
    metadata, spec = document.get("metadata"), document.get("spec")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return {**(spec if isinstance(spec, dict) else {}), "name": name}


# -- a workflow and its pool -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inputs:
    """A pool, and a workflow that is valid in it.

    Attributes:
        pool_of_cluster: whether the pool is an object of the cluster, not of a file.
        document: what the workflow was read from, in OSMO's format.
        namespace: of a Workflow object; None if it names none, and for a plain workflow.
    """

    pool: Pool
    workflow: Workflow
    pool_of_cluster: bool
    document: Any
    namespace: str | None = None


def read_inputs(arguments: argparse.Namespace) -> Inputs:
    """The pool and the workflow that the arguments name.

    Raises:
        CommandError: the pool is not in the cluster, or may not be read.
        KubeError: the cluster cannot be read.
        UsageError: a file cannot be read, or its content is invalid.
    """
    path = arguments.file
    if path == arguments.pool == STDIN:
        raise UsageError("workflow and pool cannot both come from standard input")
    documents = read_documents(path)
    if len(documents) != 1:
        raise UsageError(f'"{path}" contains {len(documents)} documents, not one workflow')
    document, named, namespace = _plain_workflow(path, documents[0])
    wanted = arguments.pool or named
    if wanted is None:
        raise UsageError("name the workflow's pool with --pool")
    in_file = arguments.pool is not None and _is_file(wanted)
    if in_file:
        pools = pools_of_file(wanted)
        if len(pools) > 1:
            raise UsageError(f'"{wanted}" contains {len(pools)} pools, not one')
    else:
        pools = [pool_of_cluster(arguments, wanted)]
    pool = pools[0]
    if named not in (None, pool.name):
        raise UsageError(
            f'"{path}" is a Workflow of pool "{clean(named)}", but --pool names "{pool.name}"'
        )
    workflow = _read_or_reject(path, lambda: read_workflow(document, pool, strict=arguments.strict))
    return Inputs(_with_tolerations(pool, arguments), workflow, not in_file, document, namespace)


def _with_tolerations(pool: Pool, arguments: argparse.Namespace) -> Pool:
    """The pool with the tolerations of the command line."""
    more = tuple(
        Toleration(key=key, operator="Exists") for key in getattr(arguments, "tolerate", ())
    )
    update: dict[str, Any] = {"tolerations": (*pool.tolerations, *more)} if more else {}
    if getattr(arguments, "gpu_toleration", None) is not None:
        update["gpu_toleration"] = arguments.gpu_toleration
    return pool.model_copy(update=update) if update else pool


def _plain_workflow(path: str, document: Any) -> tuple[Any, str | None, str | None]:
    """A workflow in OSMO's format; its pool and namespace, if an object names them."""
    if not isinstance(document, dict) or "apiVersion" not in document:
        return document, None, None
    kind = kinds.OSMO_WORKFLOWS
    if (document["apiVersion"], document.get("kind")) != (kind.api_version, kind.kind):
        found = clean(f"{document['apiVersion']} {document.get('kind')}")
        wanted = f"{kind.api_version} {kind.kind}"
        raise UsageError(f'"{path}" contains {found}, not a workflow, plain or as {wanted}')
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise UsageError(f'"{path}": a {kind.kind} needs metadata and spec, both mappings')
    plain = {name: value for name, value in spec.items() if name != "pool"}
    name = {"name": metadata["name"]} if "name" in metadata else {}
    if isinstance(plain.get("workflow"), dict):
        plain["workflow"] = {**name, **plain["workflow"]}
    else:
        plain = {**name, **plain}
    for holder, field in ((spec, "pool"), (metadata, "namespace")):
        if not isinstance(holder.get(field), str | None):
            raise UsageError(f'"{path}": {field} is not a string: put it in quotes')
    return plain, spec.get("pool"), metadata.get("namespace")


def _is_file(text: str) -> bool:
    if text == STDIN or "/" in text or text.endswith(_SUFFIXES):
        return True
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or with a character that no file name has
        return False


def namespace_of(asked: str | None, written: str | None) -> str | None:
    """The namespace that the command line or the Workflow object names."""
    found = asked or written
    if found is not None and not _NAMESPACE.fullmatch(found):
        raise UsageError(
            f'namespace "{clean(found)}" is no name: use up to 63 lower-case letters, digits '
            "and -, beginning and ending with a letter or digit"
        )
    if written not in (None, found):
        raise UsageError(
            f'the Workflow is in namespace "{clean(written)}", the command line names "{found}"'
        )
    return found


def names_of(given: Iterable[str], workflow: Workflow) -> Mapping[str, str] | None:
    """PodGroup names by task group, from `--names`."""
    found: dict[str, str] = {}
    known = [group.name for group in workflow.groups]
    for entry in (part for text in given for part in text.split(",") if part):
        group, equals, name = entry.rpartition("=")
        if not equals or not _NAME.fullmatch(name):
            raise UsageError(
                f'--names: "{clean(entry)}" is not GROUP=NAME with the name of an object: up to '
                "253 lower-case letters, digits, - and ."
            )
        if group not in known:
            raise UsageError(
                f'--names: there is no task group "{clean(group)}" '
                f"(groups: {clean(', '.join(known))})"
            )
        if group in found or name in found.values():
            raise UsageError(f'--names: "{clean(entry)}" repeats a group or a PodGroup')
        found[group] = name
    return found or None


# -- the objects of a workflow ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a workflow.

    Attributes:
        pods: of the tasks that have an image; none with `--no-pods`.
        left_out: fields of tasks that are not copied to Pods.
    """

    inputs: Inputs
    built: Built
    pods: tuple[Object, ...]
    left_out: tuple[str, ...]


def objects_of(
    arguments: argparse.Namespace,
    default: str | None = None,
    nodes: Sequence[Mapping[str, str]] | None = None,
) -> Objects:
    """The objects that the arguments of a verb request.

    Args:
        arguments: those of `add_workflow`, `add_kai`, `add_objects`, and `namespace`.
        default: namespace if neither the command line nor a Workflow object names one.
        nodes: labels of every node of the pool, for the robust profile.

    Raises:
        CommandError: the pool is not in the cluster.
        KubeError: the cluster cannot be read.
        UsageError: an argument is wrong, or pool or workflow are invalid.
    """
    inputs = read_inputs(arguments)
    namespace = namespace_of(arguments.namespace, inputs.namespace) or default
    names = names_of(arguments.names, inputs.workflow)

    def build() -> tuple[Built, list[Object]]:
        built = build_podgroups(
            inputs.pool,
            inputs.workflow,
            names,
            namespace=namespace,
            profile=Profile(arguments.profile),
            kai=KaiVersion(arguments.kai),
            nodes=nodes,
        )
        if not arguments.pods:
            return built, []
        return built, build_pods(inputs.pool, inputs.workflow, built, inputs.document, namespace)

    built, pods = _read_or_reject(arguments.file, build)
    return Objects(inputs, built, tuple(pods), tuple(left_out(inputs.workflow) if pods else ()))
