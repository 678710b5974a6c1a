"""deploy/osmo: nothing of it in the base, and all that the gate needs in it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api.names import OSMO_GROUP
from rackgate.kube.resources import KAI_TOPOLOGIES, OSMO_POOLS, OSMO_WORKFLOWS
from rackgate.runtime.features import OSMO_POOLS as GATE
from rackgate.runtime.settings import load_settings
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from rackgate_webhook.service import OSMO_PATH
from rackgate_webhook.settings import WebhookSettings

DEPLOY = deploy_dir()
OSMO = DEPLOY / "osmo"
Object = dict[str, Any]


def documents(name: str) -> list[Object]:
    return install.documents(OSMO / name)


(REGISTRATION,) = documents("webhooks.yaml")
ROLES = {
    entry["metadata"]["name"]: entry["rules"]
    for entry in documents("rbac.yaml")
    if entry["kind"] == "ClusterRole"
}


def rights(role: str) -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for rule in ROLES[role]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def rendered(folder: Path, *base: str, osmo: bool) -> dict[tuple[str, str], Object]:
    """What kubectl makes of a base with or without the component, by kind and name."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    up = "../" * (len(folder.resolve().parts) - 1)
    at = Path(up) / DEPLOY.resolve().relative_to("/")
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(at.joinpath(*base))],
        "components": [str(at / "osmo")] if osmo else [],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    command = [kubectl, "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there
    found = [entry for entry in yaml.load_all(done.stdout, loader) if entry]
    return {(entry["kind"], entry["metadata"]["name"]): entry for entry in found}


Render = Callable[..., dict[tuple[str, str], Object]]


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Render:
    """`rendered`, each base once."""
    return cache(lambda *base, osmo: rendered(tmp_path_factory.mktemp("k"), *base, osmo=osmo))


def test_the_component_has_every_manifest_of_its_folder() -> None:
    listed = yaml.safe_load((OSMO / "kustomization.yaml").read_text())
    named = {*listed["resources"], *(patch["path"] for patch in listed["patches"])}
    there = {str(path.relative_to(OSMO)) for path in OSMO.rglob("*.yaml")}
    assert named == there - {"kustomization.yaml"}


@pytest.mark.requirement("OSM-19")
@pytest.mark.parametrize("base", [(), ("overlays", "cert-manager")], ids=["base", "cert-manager"])
def test_only_the_component_brings_osmo_and_it_changes_nothing_else(
    render: Render, base: tuple[str, ...]
) -> None:
    before, now = render(*base, osmo=False), render(*base, osmo=True)
    assert OSMO_GROUP not in json.dumps(list(before.values()))
    changed = {key for key in before if now[key] != before[key]}
    assert changed == {
        ("Deployment", "rackgate-assigner"),
        ("Deployment", "rackgate-webhook"),
        ("ValidatingWebhookConfiguration", "rackgate-validating"),
    }
    key = ("ValidatingWebhookConfiguration", "rackgate-validating")
    added = [hook for hook in now[key]["webhooks"] if hook not in before[key]["webhooks"]]
    assert len(now[key]["webhooks"]) == len(before[key]["webhooks"]) + len(added)
    assert {hook["name"] for hook in added} == {hook["name"] for hook in REGISTRATION["webhooks"]}
    assert all("osmo" in str(entry) for entry in set(now) - set(before))


@pytest.mark.parametrize(
    ("service", "settings"), [("assigner", AssignerSettings), ("webhook", WebhookSettings)]
)
def test_the_gate_is_on_beside_those_of_the_configuration(
    service: str, settings: type[AssignerSettings | WebhookSettings], tmp_path: Path
) -> None:
    (patch,) = documents(f"gate-{service}.yaml")
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    (base,) = (
        entry
        for entry in install.documents(DEPLOY / "services")
        if entry["kind"] == "Deployment" and entry["metadata"]["name"] == patch["metadata"]["name"]
    )
    there = [entry["name"] for entry in base["spec"]["template"]["spec"]["containers"]]
    assert container["name"] in there, "else a container would be added"
    file = tmp_path / "config.yaml"
    kind = settings.model_fields["kind"].default
    api = "config.rackgate.dev/v1alpha1"
    gates = {"RackgateRequiredAndPreferred": True}
    file.write_text(yaml.safe_dump({"apiVersion": api, "kind": kind, "featureGates": gates}))
    loaded = load_settings(settings, service=service, config=file, environ=environ)
    assert loaded.feature_gates == {**gates, GATE: True}


@pytest.mark.requirement("OSM-06")
@pytest.mark.parametrize("webhook", REGISTRATION["webhooks"], ids=lambda webhook: webhook["name"])
def test_both_kinds_are_judged_when_their_spec_is_written_and_never_when_they_go(
    webhook: Object,
) -> None:
    (rule,) = webhook["rules"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert rule["apiGroups"] == [OSMO_GROUP]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "None"
    assert webhook["timeoutSeconds"] == 5
    assert webhook["clientConfig"]["service"]["path"] == OSMO_PATH
    (relevant,) = webhook["matchConditions"]
    assert "object.?spec != oldObject.?spec" in relevant["expression"]
    assert "deletionTimestamp" in relevant["expression"]


def test_the_registration_covers_both_kinds() -> None:
    judged = {hook["rules"][0]["resources"][0] for hook in REGISTRATION["webhooks"]}
    assert judged == {OSMO_POOLS.plural, OSMO_WORKFLOWS.plural}


@pytest.mark.requirement("OPS-05")
def test_services_get_what_the_gate_needs_and_no_more() -> None:
    assert rights("rackgate-webhook:osmo") == {
        ("get", OSMO_GROUP, "pools"),
        ("list", OSMO_GROUP, "workflows"),
    }
    kai = {("list"), ("watch"), ("create"), ("patch"), ("delete")}
    assert rights("rackgate-assigner:osmo") == {
        ("list", OSMO_GROUP, "pools"),
        ("watch", OSMO_GROUP, "pools"),
        ("patch", OSMO_GROUP, "pools/status"),
        *((verb, KAI_TOPOLOGIES.group, KAI_TOPOLOGIES.plural) for verb in kai),
    }
    bound = {
        entry["roleRef"]["name"]: entry["subjects"]
        for entry in documents("rbac.yaml")
        if entry["kind"] == "ClusterRoleBinding"
    }
    for service in ("assigner", "webhook"):
        (subject,) = bound[f"rackgate-{service}:osmo"]
        assert subject["name"] == f"rackgate-{service}"


@pytest.mark.requirement("OSM-03")
def test_everybody_may_read_pools_and_only_administrators_write_them() -> None:
    readers = [entry for entry in documents("rbac.yaml") if entry["kind"] == "ClusterRoleBinding"]
    (binding,) = (one for one in readers if one["roleRef"]["name"] == "rackgate-users:osmo-pools")
    assert [subject["name"] for subject in binding["subjects"]] == ["system:authenticated"]
    verbs = {verb for verb, _, resource in rights("rackgate-users:osmo-pools")}
    assert verbs == {"get", "list", "watch"}
    writers = {
        name
        for name in ROLES
        for verb, _, resource in rights(name)
        if resource == "pools" and verb in ("create", "update", "patch", "delete")
    }
    assert writers == {"rackgate-users:osmo-admin"}


def test_a_playground_adds_the_webhooks_as_kustomize_does(render: Render) -> None:
    hooks = install.documents(DEPLOY / "webhook")
    merged = install.with_webhooks_of(hooks, OSMO / "webhooks.yaml")
    key = ("ValidatingWebhookConfiguration", "rackgate-validating")
    found = {(entry["kind"], entry["metadata"]["name"]): entry for entry in merged}
    assert len(merged) == len(hooks)
    wanted = {hook["name"]: hook for hook in render(osmo=True)[key]["webhooks"]}
    assert {hook["name"]: hook for hook in found[key]["webhooks"]} == wanted
    assert "osmo" not in json.dumps(hooks)


def test_what_is_installed_is_of_kinds_that_up_can_apply() -> None:
    for entry in [*documents("crds"), *documents("rbac.yaml"), REGISTRATION]:
        assert (entry["apiVersion"], entry["kind"]) in install._KINDS
