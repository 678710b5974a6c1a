"""The templates: every object of deploy/, and what the values change in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.chart.text import Expression, If, Optional, Tree, template

Object = dict[str, Any]

DEPLOY: Final = Path(__file__).resolve().parents[3] / "deploy"
SERVICES: Final = ("webhook", "assigner", "ungater", "console")
NOTICE: Final = "{{- /* Generated from deploy/%s by `make chart`. Do not edit. */ -}}\n"
# What kubectl applies apart, and what stays when a release is uninstalled.
KEEP: Final = {"helm.sh/resource-policy": "keep"}

CERT_MANAGER: Final = 'eq .Values.certificates.source "cert-manager"'
NOT_ISSUED: Final = 'ne .Values.certificates.source "issued"'
REJECT_UNMANAGED: Final = ".Values.components.rejectUnmanaged"
VISIBILITY_PROVIDED: Final = ".Values.visibility.certificateProvided"
# Folder of deploy/ -> when its objects are there.
FOLDERS: Final = {
    "rbac": "",
    "services": "",
    "visibility": "",
    "webhook": "",
    "crds": ".Values.crds.enabled",
    "cluster": ".Values.crds.enabled",
    "gangs": ".Values.components.gangs",
    "gangs/crds": "and .Values.crds.enabled .Values.components.gangs",
    "gangs/cluster": "and .Values.crds.enabled .Values.components.gangs",
    "native-gangs": ".Values.components.nativeGangs",
    "osmo": ".Values.components.osmo",
    "osmo/crds": "and .Values.crds.enabled .Values.components.osmo",
    "osmo/cluster": "and .Values.crds.enabled .Values.components.osmo",
    "pods": ".Values.components.pods",
    "retention": ".Values.components.retention",
    "console": ".Values.components.console",
    "unlabelled": ".Values.components.unlabelled",
    "monitoring": ".Values.monitoring.enabled",
    "network": ".Values.networkPolicies.enabled",
    "overlays/cert-manager": CERT_MANAGER,
}
KEPT: Final = ("crds", "cluster", "gangs/crds", "gangs/cluster", "osmo/crds", "osmo/cluster")
# Components that change objects of the base.
COMPONENTS: Final = {
    "gangs/webhook": ".Values.components.gangsWebhook",
    "gangs": ".Values.components.gangs",
    "native-gangs": ".Values.components.nativeGangs",
    "osmo": ".Values.components.osmo",
    "pods": ".Values.components.pods",
    "unlabelled": ".Values.components.unlabelled",
}


def read(path: Path) -> list[Object]:
    """The objects of a file."""
    return [entry for entry in yaml.safe_load_all(path.read_text()) if entry]


def listed(folder: str) -> Iterator[tuple[Path, list[Object]]]:
    """The files that the kustomization of a folder has as resources, in its order."""
    (kustomization,) = read(DEPLOY / folder / "kustomization.yaml")
    for name in kustomization["resources"]:
        path = DEPLOY / folder / name
        if path.is_file() and not name.startswith("../"):
            yield path, read(path)


def templates() -> Mapping[str, str]:
    """The text of each template, by its path in the folder of the chart."""
    found = {"templates/_defaults.tpl": _defaults()}
    for folder, condition in FOLDERS.items():
        for path, entries in listed(folder):
            wanted = [one for one in entries if one["kind"] != "Namespace"]
            if not wanted:
                continue
            name = path.relative_to(DEPLOY)
            text = "---\n".join(_text(one, folder) for one in wanted)
            found[f"templates/{name}"] = NOTICE % name + _when(condition, text)
    found["files/dashboard.json"] = (DEPLOY / "monitoring" / "dashboard.json").read_text()
    shown = dashboard()
    _monitored(shown, "monitoring")
    found["templates/monitoring/dashboard.yaml"] = NOTICE % "monitoring" + _when(
        FOLDERS["monitoring"], template(shown)
    )
    return found


def _when(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def _text(entry: Object, folder: str) -> str:
    entry = deepcopy(entry)
    if folder in KEPT:
        entry["metadata"]["annotations"] = {**entry["metadata"].get("annotations", {}), **KEEP}
    change = _CHANGES.get(entry["kind"])
    if change:
        change(entry, folder)
    text = template(entry)
    condition = _conditions(entry)
    return _when(condition, text)


def _conditions(entry: Object) -> str:
    """When an object of a folder is there, in addition to the condition of the folder."""
    kind, name = entry["kind"], entry["metadata"]["name"]
    if kind == "PodDisruptionBudget":
        return f".Values.{name.removeprefix('rackgate-')}.podDisruptionBudget.enabled"
    deleted = [
        patch
        for patch in _patches("gangs/webhook")
        if patch.get("$patch") == "delete"
        and (patch["kind"], patch["metadata"]["name"]) == (kind, name)
    ]
    return "not .Values.components.gangsWebhook" if deleted else ""


def _patches(folder: str) -> list[Object]:
    """The patches of a component that name their object themselves."""
    (kustomization,) = read(DEPLOY / folder / "kustomization.yaml")
    found: list[Object] = []
    for patch in kustomization.get("patches", ()):
        if "target" not in patch:
            text = patch.get("patch") or (DEPLOY / folder / patch["path"]).read_text()
            found += [one for one in yaml.safe_load_all(text) if one]
    return found


def _patched(folder: str, kind: str, name: str) -> Object:
    """What a component has instead of an object of the base."""
    found = [
        entry
        for path in sorted((DEPLOY / folder).glob("*.yaml"))
        for entry in read(path)
        if (entry.get("kind"), entry.get("metadata", {}).get("name")) == (kind, name)
    ]
    (one,) = found
    return one


_INJECT: Final = {"cert-manager.io/inject-ca-from": "rackgate-system/rackgate-webhook"}


def _definition(entry: Object, folder: str) -> None:
    """The annotation for cert-manager of the kinds that the webhook converts."""
    if entry["spec"]["conversion"]["strategy"] == "Webhook":
        kept = entry["metadata"]["annotations"]
        entry["metadata"]["annotations"] = If(CERT_MANAGER, {**kept, **_INJECT}, kept)


def _webhooks(entry: Object, folder: str) -> None:
    """The webhooks of components, the annotation for cert-manager, and the selected namespaces."""
    metadata = entry["metadata"]
    metadata["annotations"] = If(CERT_MANAGER, _INJECT)
    items: list[Any] = []
    for component, condition in COMPONENTS.items():
        added = [
            hook
            for patch in _patches(component)
            if (patch["kind"], patch["metadata"]["name"]) == (entry["kind"], metadata["name"])
            for hook in patch.get("webhooks", ())
        ]
        if added:
            items.append(If(condition, deepcopy(added)))
    items += entry["webhooks"]
    for hook in (one for item in items for one in (item.then if isinstance(item, If) else [item])):
        if _is_selected(entry, hook["name"]):
            hook["namespaceSelector"] = Tree('include "rackgate.namespaceSelector" .')
    entry["webhooks"] = items


def _is_selected(entry: Object, webhook: str = "") -> bool:
    """Whether deploy/namespaces gives this object its selector."""
    (kustomization,) = read(DEPLOY / "namespaces" / "kustomization.yaml")
    kind, name = entry["kind"], entry["metadata"]["name"]
    (replacement,) = kustomization["replacements"]
    source, targets = replacement["source"], replacement["targets"]
    if (kind, name) == (source["kind"], source["name"]):
        return True
    paths = [
        path
        for target in targets
        if (target["select"]["kind"], target["select"]["name"]) == (kind, name)
        for path in target["fieldPaths"]
    ]
    if not webhook:
        return bool(paths)
    patterns = [re.search(r"webhooks\.\[name=(.*)\]\.namespaceSelector", path) for path in paths]
    # As in kustomize, a name is a pattern.
    return any(found and re.search(found.group(1), webhook) for found in patterns)


def _policy(entry: Object, folder: str) -> None:
    _rejected(entry, folder)
    if _is_selected(entry):
        constraints = entry["spec"]["matchConstraints"]
        constraints["namespaceSelector"] = Tree('include "rackgate.namespaceSelector" .')
    if entry["metadata"]["labels"].get("rackgate.dev/operators") == "true":
        first = entry["spec"]["variables"][0]
        first["expression"] = Expression('include "rackgate.operators" . | quote')


def _rejected(entry: Object, folder: str) -> None:
    """deploy/reject-unmanaged, which patches one policy and its binding."""
    (kustomization,) = read(DEPLOY / "reject-unmanaged" / "kustomization.yaml")
    for patch in kustomization["patches"]:
        if (patch["target"]["kind"], patch["target"]["name"]) == (
            entry["kind"],
            entry["metadata"]["name"],
        ):
            (change,) = yaml.safe_load(patch["patch"])
            field = change["path"].removeprefix("/spec/")
            entry["spec"][field] = If(REJECT_UNMANAGED, change["value"], entry["spec"][field])


def operators() -> list[str]:
    """The users in the list of the admission policies."""
    lists = {
        str(entry["spec"]["variables"][0]["expression"])
        for path, entries in listed("webhook")
        for entry in entries
        if entry["metadata"].get("labels", {}).get("rackgate.dev/operators") == "true"
    }
    (one,) = lists
    return re.findall(r"'([^']+)'", one)


def _role(entry: Object, folder: str) -> None:
    """The rules without what a service needs only for certificates of its own."""
    name, kind = entry["metadata"]["name"], entry["kind"]
    if folder != "rbac":
        return
    if (kind, name) == ("Role", "rackgate-webhook"):
        rules = _patched("overlays/cert-manager", kind, name)["rules"]
        (secret,) = (rule for rule in rules if rule["resources"] == ["secrets"])
        secret["resourceNames"] = [Expression('include "rackgate.certificateSecret" .')]
        entry["rules"] = If(NOT_ISSUED, rules, entry["rules"])
    elif (kind, name) == ("ClusterRole", "rackgate-webhook.rackgate-system"):
        rules = _patched("overlays/cert-manager", kind, name)["rules"]
        entry["rules"] = If(CERT_MANAGER, rules, entry["rules"])
    elif (kind, name) == ("Role", "rackgate-assigner"):
        rules = _patched("visibility-provided", kind, name)["rules"]
        entry["rules"] = If(VISIBILITY_PROVIDED, rules, entry["rules"])


def _config_map(entry: Object, folder: str) -> None:
    service = entry["metadata"]["name"].removeprefix("rackgate-")
    text = f'include "rackgate.config" (dict "root" . "service" "{service}")'
    entry["data"] = {"config.yaml": Expression(f"{text} | quote")}


def _folder(service: str) -> str:
    """Where its Deployment is."""
    return "console" if service == "console" else "services"


def _config(service: str) -> Object:
    found = _patched(_folder(service), "ConfigMap", f"rackgate-{service}")
    config: Object = yaml.safe_load(found["data"]["config.yaml"])
    return config


def _defaults() -> str:
    """The configuration that each service is deployed with."""
    overlay = _patched("overlays/cert-manager", "ConfigMap", "rackgate-webhook")["data"]
    named = {f"{service}.defaults": _config(service) for service in SERVICES}
    named["certManager"] = yaml.safe_load(overlay["config.yaml"])["certificates"]
    return NOTICE % "services" + "".join(
        f'{{{{- define "rackgate.{name}" -}}}}\n{template(found)}{{{{- end }}}}\n'
        for name, found in named.items()
    )


# Name of a port -> the block of the configuration that has it.
_PORTS: Final = {
    "health": "health",
    "reviews": "serving",
    "visibility": "visibility",
    "page": "page",
}


def _port(service: str, block: str) -> Expression:
    config = f'include "rackgate.config" (dict "root" . "service" "{service}") | fromYaml'
    return Expression(f"({config}).{block}.port | int")


def _deployment(entry: Object, folder: str) -> None:
    service = entry["metadata"]["name"].removeprefix("rackgate-")
    own = f".Values.{service}"
    spec = entry["spec"]
    spec["replicas"] = Expression(f"{own}.replicas")
    pod = spec["template"]
    config = f'include "rackgate.config" (dict "root" . "service" "{service}")'
    pod["metadata"]["annotations"] = {
        "checksum/config": Expression(f"{config} | sha256sum"),
        "": Optional(f"{own}.podAnnotations"),
    }
    pod["metadata"]["labels"][""] = Optional(f"{own}.podLabels")
    container = pod["spec"]["containers"][0]
    container["image"] = Expression('include "rackgate.image" . | quote')
    container["imagePullPolicy"] = If(
        ".Values.image.pullPolicy", Expression(".Values.image.pullPolicy")
    )
    container["command"] += [
        If(condition, flags)
        for component, condition in COMPONENTS.items()
        if (flags := _flags(component, entry["metadata"]["name"]))
    ]
    if service in ("webhook", "assigner"):
        variable = f"RACKGATE_{service.upper()}_MANAGED_JOBS_NAMESPACE_SELECTOR"
        selector = Expression("toJson .Values.managedJobsNamespaceSelector | quote")
        value = [{"name": variable, "value": selector}]
        container["env"].append(If(".Values.managedJobsNamespaceSelector", value))
    if service == "assigner":
        setting = _patched("visibility-provided", "Deployment", "rackgate-assigner")
        env = setting["spec"]["template"]["spec"]["containers"][0]["env"]
        container["env"].append(If(VISIBILITY_PROVIDED, env))
    container["env"].append(If(f"{own}.env", [Tree(f"toYaml {own}.env")]))
    for port in container["ports"]:
        port["containerPort"] = _port(service, _PORTS[port["name"]])
    container["resources"] = Tree(f"toYaml {own}.resources")
    if "priorityClassName" in pod["spec"]:
        pod["spec"]["priorityClassName"] = If(
            ".Values.priorityClassName", Expression(".Values.priorityClassName | quote")
        )
    pod["spec"]["imagePullSecrets"] = Optional(".Values.image.pullSecrets")
    for name in ("nodeSelector", "tolerations", "affinity"):
        pod["spec"][name] = Optional(f"{own}.{name}")


def _flags(component: str, deployment: str) -> list[str]:
    """What a component adds to the command of a Deployment."""
    (kustomization,) = read(DEPLOY / component / "kustomization.yaml")
    return [
        operation["value"]
        for patch in kustomization["patches"]
        if patch.get("target", {}).get("kind") == "Deployment"
        and re.fullmatch(patch["target"]["name"], deployment)
        for operation in yaml.safe_load((DEPLOY / component / patch["path"]).read_text())
    ]


def resources(service: str) -> Object:
    """The resources of the container of a service."""
    found = _patched(_folder(service), "Deployment", f"rackgate-{service}")
    one: Object = found["spec"]["template"]["spec"]["containers"][0]["resources"]
    return one


def _budget(entry: Object, folder: str) -> None:
    service = entry["metadata"]["name"].removeprefix("rackgate-")
    text = f".Values.{service}.podDisruptionBudget.maxUnavailable"
    entry["spec"]["maxUnavailable"] = Expression(text)


def _monitored(entry: Object, folder: str) -> None:
    entry["metadata"].setdefault("labels", {})[""] = Optional(".Values.monitoring.labels")


def dashboard() -> Object:
    """The ConfigMap that kustomize generates."""
    (kustomization,) = read(DEPLOY / "monitoring" / "kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    entry: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": generated["name"],
            "namespace": generated["namespace"],
            "labels": generated["options"]["labels"],
        },
        "data": {"dashboard.json": Expression('.Files.Get "files/dashboard.json" | quote')},
    }
    return entry


def _network(entry: Object, folder: str) -> None:
    """Ports as configured; those of metrics may differ from service to service."""
    for rule in entry["spec"].get("ingress", ()):
        (port,) = rule["ports"]
        if port["port"] == _config("webhook")["health"]["port"]:
            rule["ports"] = Tree('include "rackgate.metricsPorts" .')
        elif port["port"] == _config("webhook")["serving"]["port"]:
            port["port"] = _port("webhook", "serving")
        elif port["port"] == _config("console")["page"]["port"]:
            port["port"] = _port("console", "page")
        else:
            port["port"] = _port("assigner", "visibility")


_CHANGES: Final[Mapping[str, Callable[[Object, str], None]]] = {
    "CustomResourceDefinition": _definition,
    "MutatingWebhookConfiguration": _webhooks,
    "ValidatingWebhookConfiguration": _webhooks,
    "ValidatingAdmissionPolicy": _policy,
    "ValidatingAdmissionPolicyBinding": _rejected,
    "MutatingAdmissionPolicy": _policy,
    "Role": _role,
    "ClusterRole": _role,
    "ConfigMap": _config_map,
    "Deployment": _deployment,
    "PodDisruptionBudget": _budget,
    "PodMonitor": _monitored,
    "PrometheusRule": _monitored,
    "NetworkPolicy": _network,
}
