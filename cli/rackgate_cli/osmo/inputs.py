"""The workflow and the pool that a verb of `rackgate osmo` is given."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rackgate.api.resources import OSMO_WORKFLOWS as _KIND
from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import STDIN
from rackgate_cli.osmo.documents import read_documents
from rackgate_cli.osmo.pools import pool_of_cluster, pool_of_file
from rackgate_cli.osmo.rejections import read_or_reject
from rackgate_cli.tables import clean
from rackgate_osmo import Pool, Toleration, Workflow, read_workflow

_SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Inputs:
    """A pool and a workflow that fit each other.

    Attributes:
        pool_of_cluster: whether the pool is an object of the cluster; else it is of a file.
        document: what the workflow was read from, as OSMO's users write it.
        namespace: of a Workflow object; None when it names none, and for a plain workflow.
    """

    pool: Pool
    workflow: Workflow
    pool_of_cluster: bool
    document: Any
    namespace: str | None = None


def read_inputs(arguments: argparse.Namespace) -> Inputs:
    """The pool and the workflow that the arguments name: those of `osmo_arguments`.

    Raises:
        CommandError: the pool is not in the cluster, or may not be read.
        KubeError: the cluster cannot be read.
        UsageError: a file cannot be read, or what is in it is refused.
    """
    if arguments.file == STDIN and arguments.pool == STDIN:
        raise UsageError("workflow and pool cannot both come from standard input")
    document, named, namespace = _plain(arguments.file, _one(arguments.file))
    wanted = arguments.pool or named
    if wanted is None:
        raise UsageError("name the workflow's pool with --pool")
    in_file = arguments.pool is not None and _is_file(wanted)
    pool = pool_of_file(wanted) if in_file else pool_of_cluster(arguments, wanted)
    if named not in (None, pool.name):
        raise UsageError(
            f'"{arguments.file}" is a Workflow of pool "{clean(named)}", --pool says "{pool.name}"'
        )
    workflow = read_or_reject(
        arguments.file, lambda: read_workflow(document, pool, strict=arguments.strict)
    )
    return Inputs(_with_tolerations(pool, arguments), workflow, not in_file, document, namespace)


def _with_tolerations(pool: Pool, arguments: argparse.Namespace) -> Pool:
    """The pool with what the command line says of taints."""
    more = tuple(
        Toleration(key=key, operator="Exists") for key in getattr(arguments, "tolerate", ())
    )
    update: dict[str, Any] = {"tolerations": (*pool.tolerations, *more)} if more else {}
    if getattr(arguments, "gpu_toleration", None) is not None:
        update["gpu_toleration"] = arguments.gpu_toleration
    return pool.model_copy(update=update) if update else pool


def _one(path: str) -> Any:
    documents = read_documents(path)
    if len(documents) != 1:
        raise UsageError(f'"{path}" holds {len(documents)} documents, not one workflow')
    return documents[0]


def _plain(path: str, document: Any) -> tuple[Any, str | None, str | None]:
    """A workflow as OSMO's users write it; its pool and namespace, where an object names them."""
    if not isinstance(document, dict) or "apiVersion" not in document:
        return document, None, None
    if (document["apiVersion"], document.get("kind")) != (_KIND.api_version, _KIND.kind):
        found = f"{document['apiVersion']} {document.get('kind')}"
        raise UsageError(
            f'"{path}" holds {clean(found)}, not a workflow, plain or as {_KIND.api_version} '
            f"{_KIND.kind}"
        )
    metadata, spec = document.get("metadata"), document.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise UsageError(f'"{path}": a {_KIND.kind} needs metadata and spec, both mappings')
    given = {name: value for name, value in spec.items() if name != "pool"}
    inner = given.get("workflow")
    name = {"name": metadata["name"]} if "name" in metadata else {}
    if isinstance(inner, dict):
        plain = {**given, "workflow": {**name, **inner}}
    else:
        plain = {**name, **given}
    return plain, _text(path, spec, "pool"), _text(path, metadata, "namespace")


def _text(path: str, holder: dict[str, Any], field: str) -> str | None:
    found = holder.get(field)
    if found is not None and not isinstance(found, str):
        raise UsageError(f'"{path}": {field} is not a string: put it in quotes')
    return found


def _is_file(text: str) -> bool:
    if text == STDIN or "/" in text or text.endswith(_SUFFIXES):
        return True
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or with a character that no file name has
        return False
