"""The values of the chart: one table, from which come values.yaml, its schema and a page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import yaml
from pydantic import BaseModel

from rackgate.features import GATES
from rackgate.kueue_gates import KUEUE_GATES
from rackgate.runtime.namespaces import NamespaceSelector
from rackgate.runtime.settings import BaseServiceSettings
from rackgate_assigner.settings import AssignerSettings
from rackgate_console.settings import ConsoleSettings
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_webhook.settings import WebhookSettings
from tests.support.chart.templates import operators, resources

Schema = dict[str, Any]

SETTINGS: Final[dict[str, type[BaseServiceSettings]]] = {
    "webhook": WebhookSettings,
    "assigner": AssignerSettings,
    "ungater": UngaterConfiguration,
    "console": ConsoleSettings,
}
SECRET: Final = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$"
# Fields of Kubernetes that are not checked here: the API server does.
_TREE: Final[Schema] = {"type": "object"}
_STRINGS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}


def _flag(default: bool, description: str) -> Schema:
    return {"type": "boolean", "default": default, "description": description}


def _text(default: str, description: str, **more: Any) -> Schema:
    return {"type": "string", "default": default, "description": description, **more}


def _block(description: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": properties,
    }


def _open(schema: Schema, default: Any, description: str) -> Schema:
    return {**schema, "default": default, "description": description}


def _service(name: str, most: int, replicas: str, default: int = 2) -> Schema:
    title = name.capitalize()
    page = "docs/reference/settings.md"
    return _block(
        f"The {name}.",
        replicas={
            "type": "integer",
            "minimum": 1,
            "maximum": most,
            "default": default,
            "description": replicas,
        },
        config={
            "$ref": f"#/$defs/{title}.{SETTINGS[name].__name__}",
            "default": {},
            "description": f"Settings of the {name} that differ from those of deploy/, see {page}.",
        },
        resources=_open(_TREE, resources(name), "Resources of the container."),
        podDisruptionBudget=_block(
            "PodDisruptionBudget.",
            enabled=_flag(True, "Whether there is one."),
            maxUnavailable={
                "type": ["integer", "string"],
                "minimum": 1,
                "pattern": "^([1-9][0-9]?|100)%$",
                "default": 1,
                "description": "Pods that a drain may evict at once: a number or a percentage.",
            },
        ),
        env=_open(
            {"type": "array", "items": {"type": "object", "required": ["name"]}},
            [],
            "More environment variables of the container.",
        ),
        podAnnotations=_open(_STRINGS, {}, "More annotations of the pods."),
        podLabels=_open(_STRINGS, {}, "More labels of the pods."),
        nodeSelector=_open(_STRINGS, {}, "Labels of the nodes that the pods may run on."),
        tolerations=_open({"type": "array", "items": _TREE}, [], "Tolerations of the pods."),
        affinity=_open(_TREE, {}, "Affinity of the pods."),
    )


def _gates() -> Schema:
    """Every gate by its name: an unknown one is named by the error."""
    properties: dict[str, Schema] = {
        gate.name: {"type": "boolean", "description": gate.purpose} for gate in GATES
    }
    for name, gate in KUEUE_GATES.items():
        accepted = [value for value in (True, False) if not gate.problem(name, value)]
        properties[name] = {"enum": accepted, "description": gate.note or "A gate of Kueue."}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": dict(sorted(properties.items())),
        "default": {},
        "description": "Feature gates of all services by name, see docs/reference/feature-gates.md."
        " Components turn theirs on by themselves.",
    }


def _values() -> dict[str, Schema]:
    return {
        "image": _block(
            "The image of the services.",
            repository=_text("rackgate", "Registry and name.", minLength=1),
            tag=_text("", "Tag. Default: the appVersion of the chart."),
            digest=_text("", "Digest, instead of the tag.", pattern="^(sha256:[0-9a-f]{64})?$"),
            pullPolicy=_text(
                "", "Default: that of Kubernetes.", enum=["", "Always", "IfNotPresent", "Never"]
            ),
            pullSecrets=_open(
                {"type": "array", "items": {"type": "object", "required": ["name"]}},
                [],
                "Secrets for the registry, as in a pod: [{name: registry}].",
            ),
        ),
        "crds": _block(
            "What belongs to the cluster: deploy/cluster, and the same folders of components.",
            enabled=_flag(
                True,
                "Install and upgrade the CRDs, the ClusterRoles of users, and the right to end an"
                " installation. They stay when the release is uninstalled.",
            ),
        ),
        "certificates": _block(
            "The serving certificate of the webhook.",
            source=_text(
                "issued",
                "issued: the webhook issues it and writes its authority into the webhook"
                " configurations. cert-manager: cert-manager does both. provided: another tool"
                " writes a Secret, and the webhook writes the authority.",
                enum=["issued", "cert-manager", "provided"],
            ),
            secretName=_text(
                "",
                "With source: provided, a Secret with tls.crt, tls.key and ca.crt.",
                pattern=SECRET,
                maxLength=253,
            ),
        ),
        "visibility": _block(
            "The API visibility.kueue.x-k8s.io.",
            certificateProvided=_flag(
                False, "Another tool writes the Secret rackgate-visibility-tls."
            ),
        ),
        "components": _block(
            "Optional parts: the folders of deploy/, with their feature gates and rights.",
            console=_flag(False, "The console, a read-only page, see docs/tasks."),
            pods=_flag(False, "Plain pods and groups of pods are queued."),
            gangs=_flag(False, "Pods that start together or not at all. Needs Kubernetes 1.36."),
            gangsWebhook=_flag(
                False, "The webhook adds the gate of gangs: for Kubernetes before 1.36."
            ),
            nativeGangs=_flag(
                False, "kube-scheduler binds all pods of a gang or none, by native PodGroups."
            ),
            osmo=_flag(False, "Pools and Workflows of OSMO."),
            rejectUnmanaged=_flag(
                False, "Objects with a queue label that no one manages are rejected."
            ),
            retention=_flag(False, "The right to delete jobs, for objectRetentionPolicies."),
            unlabelled=_flag(False, "Jobs without a queue label are queued, too."),
        ),
        "monitoring": _block(
            "PodMonitor, alerts and dashboard.",
            enabled=_flag(False, "Needs the CRDs of the Prometheus operator."),
            labels=_open(_STRINGS, {}, "More labels, such as those that your Prometheus selects."),
        ),
        "networkPolicies": _block(
            "NetworkPolicies, see docs/tasks/configure.md.",
            enabled=_flag(False, "Allow only the traffic that the services need."),
        ),
        "managedJobsNamespaceSelector": {
            "$ref": f"#/$defs/{NamespaceSelector.__name__}",
            "default": {},
            "description": "Label selector of the namespaces in which jobs are managed. Default:"
            " all, except kube-system and the namespace of the release.",
        },
        "operators": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^[^'\\\s]+$"},
            "minItems": 1,
            "default": operators(),
            "description": "Users that may create pods and other parts of managed jobs: the"
            " controllers of jobs, see docs/tasks/install.md.",
        },
        "featureGates": _gates(),
        "priorityClassName": _text(
            "system-cluster-critical", "PriorityClass of the pods; empty: none."
        ),
        "webhook": _service("webhook", 100, "Pods of the webhook; each of them answers."),
        "assigner": _service("assigner", 10, "Pods of the assigner; one of them is active."),
        "ungater": _service("ungater", 16, "Pods of the ungater; there are 16 shards."),
        "console": _service("console", 20, "Pods of the console; each of them answers.", 1),
    }


@cache
def schema() -> Schema:
    """The JSON schema of the values; unknown keys are not valid anywhere."""
    definitions: dict[str, Any] = {}
    models: dict[str, type[BaseModel]] = {**SETTINGS, "": NamespaceSelector}
    for name, model in models.items():
        prefix = f"{name.capitalize()}." if name else ""
        found = model.model_json_schema(by_alias=True, ref_template="#/$defs/" + prefix + "{model}")
        inner = found.pop("$defs", {})
        definitions |= {f"{prefix}{key}": value for key, value in inner.items()}
        definitions[f"{prefix}{model.__name__}"] = found
    gates = _gates()
    for name, model in SETTINGS.items():
        properties = definitions[f"{name.capitalize()}.{model.__name__}"]["properties"]
        properties["featureGates"] = {**gates, "description": f"Feature gates of the {name} alone."}
    values = _values()
    # What Helm itself adds.
    values["global"] = {"type": "object", "description": "Values that a parent chart shares."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart rackgate",
        "type": "object",
        "additionalProperties": False,
        "properties": values,
        "$defs": _without_titles(definitions),
    }


def _without_titles(found: Any) -> Any:
    if isinstance(found, list):
        return [_without_titles(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {
        key: " ".join(value.split())
        if key == "description" and isinstance(value, str)
        else _without_titles(value)
        for key, value in found.items()
        if key != "title" or not isinstance(value, str)
    }


def schema_text() -> str:
    """values.schema.json."""
    return json.dumps(schema(), indent=1) + "\n"


def rows() -> Iterator[tuple[str, Schema]]:
    """Every value with its path and schema."""
    for name, found in _values().items():
        yield from _rows(name, found)


def _rows(path: str, found: Schema) -> Iterator[tuple[str, Schema]]:
    if "default" in found:
        yield path, found
        return
    for name, inner in found["properties"].items():
        yield from _rows(f"{path}.{name}", inner)


def values_text() -> str:
    """values.yaml: every value with its default."""
    head = (
        "# Generated by `make chart`. Do not edit: give your values with -f or --set.\n"
        "# Unknown keys and values out of range are rejected with their paths.\n"
    )
    return head + "".join(
        f"\n{_comment(found, 0)}{_yaml(name, found, 0)}" for name, found in _values().items()
    )


def _comment(found: Schema, indent: int) -> str:
    pad = " " * indent + "# "
    return (
        textwrap.fill(
            found["description"],
            110,
            initial_indent=pad,
            subsequent_indent=pad,
            break_on_hyphens=False,
        )
        + "\n"
    )


def _yaml(name: str, found: Schema, indent: int) -> str:
    if "default" in found:
        text = yaml.safe_dump({name: found["default"]}, sort_keys=False, width=2**20)
        return textwrap.indent(text, " " * indent)
    inner = "".join(
        _comment(one, indent + 2) + _yaml(key, one, indent + 2)
        for key, one in found["properties"].items()
    )
    return f"{' ' * indent}{name}:\n{inner}"
