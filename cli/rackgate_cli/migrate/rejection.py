"""Why manifests of files would be rejected: by the webhook, or by the schemas of the CRDs. Pure."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from rackgate.api import names
from rackgate.api.crd import CRD_KINDS, crd_document
from rackgate.features import Features
from rackgate.jobframework.errors import FieldError, MalformedError, shown
from rackgate.jobframework.registry import KINDS, enabled_elastic_kinds
from rackgate_cli.explain.manifest import applied
from rackgate_webhook.admission.mutate import mutate
from rackgate_webhook.admission.review import Review
from rackgate_webhook.admission.validate import validate

Object = Mapping[str, Any]

_ELASTIC: Final = enabled_elastic_kinds(Features())
_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


@functools.cache
def _schemas() -> Mapping[tuple[str, str], Object]:
    """The schema of each kind and version; it takes time to make them."""
    documents = [crd_document(kind)["spec"] for kind in CRD_KINDS if kind.group == names.GROUP]
    return {
        (spec["names"]["kind"], version["name"]): version["schema"]["openAPIV3Schema"]
        for spec in documents
        for version in spec["versions"]
    }


def job_errors(kind_name: str, obj: Object) -> Sequence[FieldError]:
    """What the webhook says when a job is created."""
    try:
        meta = {"name": "", "namespace": "default", **(obj.get("metadata") or {})}
        document = msgspec.json.decode(msgspec.json.encode({**obj, "metadata": meta}))
        kind = f"{KINDS[kind_name].resource.group}/{kind_name}"
        review = Review("migrate", kind, "CREATE", document, {})
        operations = mutate(review, elastic_kinds=_ELASTIC).operations
        mutated = replace(review, object=applied(document, operations))
        return validate(mutated, elastic_kinds=_ELASTIC).errors
    except MalformedError as error:
        return [FieldError(error.path, str(error))]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return [FieldError("spec", " ".join(str(error).split())[:200])]


def schema_errors(kind: str, version: str, obj: Object) -> Iterator[FieldError]:
    """Values of a type, or outside of an enum, that the API server rejects."""
    meta = obj.get("metadata")
    if not isinstance(meta, dict):
        yield FieldError("metadata", "must be an object with a name")
    elif not any(isinstance(meta.get(key), str) and meta[key] for key in ("name", "generateName")):
        yield FieldError("metadata.name", "is required, and must be a string")
    schema = _schemas().get((kind, version), {})
    for key, inner in schema.get("properties", {}).items():
        if key not in ("metadata", "status") and obj.get(key) is not None:
            yield from _errors(obj[key], inner, key)


def _errors(value: object, schema: Object, path: str) -> Iterator[FieldError]:
    wanted = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield FieldError(path, f"must be a number or a string, found {shown(value)}")
        return
    expected = _TYPES.get(wanted)
    if expected is not None and (
        not isinstance(value, expected) or (isinstance(value, bool) and wanted != "boolean")
    ):
        article = "an" if wanted[0] in "aio" else "a"
        yield FieldError(path, f"must be {article} {wanted}, found {shown(value)}")
        return
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(map(str, schema["enum"]))
        yield FieldError(path, f"must be one of {allowed}, found {shown(value)}")
    if isinstance(value, dict):
        known, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for key, inner in value.items():
            below = known.get(key, rest)
            if isinstance(below, dict) and inner is not None:
                yield from _errors(inner, below, f"{path}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _errors(inner, schema.get("items", {}), f"{path}[{number}]")
