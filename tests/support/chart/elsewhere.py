"""deploy/elsewhere: the component of kustomize that moves all objects to another namespace.

Every target names one object and its fields. Patterns would be shorter, but kustomize 5.5 takes
them for plain names: it would move half of an installation, without an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from rackgate.api.names import SYSTEM_NAMESPACE
from rackgate_webhook.settings import CONVERTED_CRDS
from tests.support.chart.templates import DEPLOY, FOLDERS, Object, dashboard, listed, read

PATH: Final = "elsewhere/kustomization.yaml"
HEAD: Final = """\
# Another namespace than rackgate-system: see docs/tasks/install.md, "Use another namespace".
# A component: name it last, after one of your own with the ConfigMap rackgate-namespace, whose key
# `namespace` has the name. Generated from all manifests of deploy/ by `make chart`. Do not edit.
"""
_SOURCE: Final = {"kind": "ConfigMap", "name": "rackgate-namespace", "fieldPath": "data.namespace"}
_INJECT: Final = "cert-manager.io/inject-ca-from"
# Delimiter, and which part is replaced; None: all of it.
Options = tuple[str, int] | None


def places(value: Any, path: str = "") -> Iterator[tuple[str, Options]]:
    """Each field of an object that names the namespace, and which part of it does.

    Raises:
        ValueError: it is in a place that a replacement cannot reach, such as within a text.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = f"[{key}]" if "." in key else key
            yield from places(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        # Components add webhooks, so that the place of one is not known.
        indices = ["*"] * len(value) if path == "webhooks" else list(map(str, range(len(value))))
        for index, inner in zip(indices, value, strict=True):
            yield from places(inner, f"{path}.{index}")
    elif isinstance(value, str) and SYSTEM_NAMESPACE in value:
        yield path, _options(value, path)


def _options(value: str, path: str) -> Options:
    if value == SYSTEM_NAMESPACE:
        return None
    for delimiter in (".", "/"):
        parts = value.split(delimiter)
        if parts.count(SYSTEM_NAMESPACE) == 1:
            return delimiter, parts.index(SYSTEM_NAMESPACE)
    raise ValueError(f"{path}: no replacement of kustomize moves the namespace in {value!r}")


def _objects() -> Iterator[Object]:
    for folder in FOLDERS:
        for _, entries in listed(folder):
            yield from entries
    yield dashboard()


def text() -> str:
    """The file."""
    found: dict[tuple[str, str], dict[Options, list[str]]] = {}
    for entry in _objects():
        fields: dict[Options, list[str]] = {}
        for path, options in places(entry):
            if path not in fields.setdefault(options, []):
                fields[options].append(path)
        if fields:
            found[entry["kind"], entry["metadata"]["name"]] = fields
    targets: list[Object] = []
    names: list[Object] = []
    for (kind, name), fields in found.items():
        select = {"kind": kind, "name": name}
        for options, paths in fields.items():
            chosen = {} if options is None else {"options": dict(zip(_KEYS, options, strict=True))}
            others = [path for path in paths if path != "metadata.name"]
            if others:
                targets.append({"select": select, "fieldPaths": others, **chosen})
            if "metadata.name" in paths:
                names.append({"select": select, "fieldPaths": ["metadata.name"], **chosen})
    targets += _annotations()
    # Objects are found by their names, so these change last.
    component = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "replacements": [{"source": _SOURCE, "targets": [*targets, *names]}],
    }
    return HEAD + yaml.dump(
        component, Dumper=_Plain, sort_keys=False, width=2**20, default_flow_style=None
    )


_KEYS: Final = ("delimiter", "index")


class _Plain(yaml.SafeDumper):
    """Without anchors for mappings that are used twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _annotations() -> Iterator[Object]:
    """What the overlays for cert-manager add to webhook configurations and CRDs."""
    (kustomization,) = read(DEPLOY / "overlays" / "cert-manager" / "kustomization.yaml")
    assert _INJECT in str(kustomization["patches"])
    annotated = [
        ("MutatingWebhookConfiguration", f"rackgate-mutating.{SYSTEM_NAMESPACE}"),
        ("ValidatingWebhookConfiguration", f"rackgate-validating.{SYSTEM_NAMESPACE}"),
        *(("CustomResourceDefinition", name) for name in CONVERTED_CRDS),
    ]
    for kind, name in annotated:
        yield {
            "select": {"kind": kind, "name": name, "annotationSelector": _INJECT},
            "fieldPaths": [f"metadata.annotations.[{_INJECT}]"],
            "options": {"delimiter": "/", "index": 0},
        }
