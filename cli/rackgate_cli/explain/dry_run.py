"""What the API server says about a manifest: a server-side dry run, which stores nothing.

1. A dry run with strict field validation names unknown fields. They are warnings.
2. If there are any, a second dry run ignores them, as the server does, and shows all else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from rackgate.api import resources as kinds
from rackgate.api.meta import DNS_LABEL
from rackgate.jobframework.errors import FieldError, shown
from rackgate.jobframework.registry import KINDS
from rackgate.kube.client import Client
from rackgate.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    KubeError,
    NotFoundError,
    PayloadTooLargeError,
    UnprocessableError,
)

_STRICT: Final = "strict decoding error: "
_UNKNOWN_FIELD: Final = re.compile(r'(?:unknown|duplicate) field "((?:[^"\\]|\\.)*)"')
# RBAC says this of the user, as in `User "ann" cannot create resource "jobs" in API group ...`.
_NO_RIGHT: Final = "cannot create resource"
_NO_DRY_RUN: Final = "does not support dry run"
_SET_BY_SERVER: Final = (
    "resourceVersion",
    "uid",
    "creationTimestamp",
    "generation",
    "managedFields",
)
_REJECTIONS: Final = (
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    PayloadTooLargeError,
    UnprocessableError,
)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a dry run.

    Attributes:
        errors: why the API server would reject the object; empty if it would not.
        warnings: unknown fields, and why nothing was checked.
    """

    errors: Sequence[FieldError] = ()
    warnings: tuple[str, ...] = ()


async def dry_run_create(client: Client, document: dict[str, Any], namespace: str) -> DryRun:
    """Create a job or Workload as a dry run; any answer is a result.

    Args:
        client: with the user's rights.
        document: the manifest, with a known kind and an object as `metadata`.
        namespace: of the object.
    """
    if not re.fullmatch(DNS_LABEL, namespace):
        # It would change the path of the request.
        return DryRun((FieldError("metadata.namespace", f"{shown(namespace)} is not a DNS label"),))
    kind = str(document["kind"])
    resource = KINDS[kind].resource if kind in KINDS else kinds.WORKLOADS
    _, _, version = str(document["apiVersion"]).rpartition("/")
    path = replace(resource, version=version).path(namespace)
    metadata = {**(document.get("metadata") or {}), "namespace": namespace}
    # A manifest may have been read from a cluster.
    metadata = {key: value for key, value in metadata.items() if key not in _SET_BY_SERVER}
    body = msgspec.json.encode({**document, "metadata": metadata})
    try:
        await client.create(path, body, {"dryRun": "All", "fieldValidation": "Strict"})
    except KubeError as error:
        unknown = unknown_fields(error)
        if not unknown:
            return outcome(error, kind)
    else:
        return DryRun()
    warnings = tuple(
        f"{field} is an unknown field: the API server ignores it, and kubectl rejects it"
        for field in unknown
    )
    try:
        await client.create(path, body, {"dryRun": "All", "fieldValidation": "Ignore"})
    except KubeError as error:
        found = outcome(error, kind)
        return DryRun(found.errors, (*warnings, *found.warnings))
    return DryRun(warnings=warnings)


def unknown_fields(error: KubeError) -> list[str]:
    """Paths of the fields that the strict decoder of the API server rejects."""
    if not isinstance(error, BadRequestError) or _STRICT not in error.message:
        return []
    _, _, fields = error.message.partition(_STRICT)
    return list(dict.fromkeys(_UNKNOWN_FIELD.findall(fields)))


def outcome(error: KubeError, kind: str) -> DryRun:
    """What an error of a dry run means for the manifest."""
    said = error.message.strip() or str(error)
    if isinstance(error, AlreadyExistsError):
        text = f"this {kind} exists already: the answer is about the file, not about that object"
        return DryRun(warnings=(text,))
    unchecked = _NO_DRY_RUN in said or (isinstance(error, ForbiddenError) and _NO_RIGHT in said)
    if unchecked or not isinstance(error, _REJECTIONS):
        return DryRun(warnings=(f"the API server did not check the manifest: {said}",))
    if isinstance(error, NotFoundError):
        return DryRun((_not_found(said, kind),))
    causes = [FieldError(one.field, one.message or one.reason) for one in error.causes]
    return DryRun(causes or (FieldError("", said),))


def _not_found(said: str, kind: str) -> FieldError:
    if said.startswith("namespaces "):
        return FieldError("metadata.namespace", said, "create it, or name another namespace")
    problem = f"the cluster has no {kind} of this version"
    return FieldError(
        "apiVersion", problem, "install its operator, or use a version that is served"
    )
