"""The manifests in deploy/, and what the playground makes of them."""

from __future__ import annotations

import importlib
import itertools
import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.installation.marker import KUEUE_CONFIGURATION
from rackgate.runtime.settings import BaseServiceSettings, load_settings
from rackgate_cli.cluster.roles import AGGREGATED, KUEUE_ROLES, PARTS
from rackgate_cli.controlplane import compose, defaults, install
from rackgate_cli.controlplane.binaries.versions import SERVICES
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.controlplane.services import configuration
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.locations import deploy_dir
from rackgate_webhook.settings import CONVERTED_CRDS

DEPLOY = deploy_dir()
ROOT = DEPLOY.parent
WEBHOOK = "rackgate-webhook.rackgate-system"
# Of the cluster, whoever is installed; all other names carry the namespace of their installation.
SHARED = {
    "rackgate",
    *(f"{PARTS}{name}" for name in ("view", "edit", "batch-admin")),
    *(f"{PARTS}{name}" for name in ("jobs", "read-all", "installation")),
    *AGGREGATED,
    *KUEUE_ROLES,
}
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def objects(folder: str, kind: str) -> dict[str, dict[str, Any]]:
    found = install.documents(DEPLOY / folder)
    return {entry["metadata"]["name"]: entry for entry in found if entry["kind"] == kind}


def settings_of(service: str) -> type[BaseServiceSettings]:
    """The service's settings class, found by its kind."""
    module = importlib.import_module(f"rackgate_{service}.settings")
    kind = f"{service.capitalize()}Configuration"
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, BaseServiceSettings):
            field = value.model_fields.get("kind")
            if field is not None and field.default == kind:
                return value
    raise AssertionError(f"no settings of kind {kind}")


def test_the_kustomizations_have_every_manifest() -> None:
    folders = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())["resources"]
    assert folders == ["rbac", "services", "visibility", "webhook"]
    for folder in (*folders, "cluster", "crds"):
        listed = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]
        there = {path.name for path in (DEPLOY / folder).glob("*.yaml")}
        assert sorted(set(listed) - {"../crds"}) == sorted(there - {"kustomization.yaml"})


@pytest.mark.requirement("OPS-02")
@pytest.mark.parametrize("service", SERVICES)
def test_each_service_is_deployed_apart_from_the_others(service: str) -> None:
    name = f"rackgate-{service}"
    deployment = objects("services", "Deployment")[name]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == name
    assert name in objects("rbac", "ServiceAccount")
    assert name in objects("services", "PodDisruptionBudget")
    assert pod["containers"][0]["command"][0] == name
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[name] == f"rackgate_{service}.__main__:main"


@pytest.mark.parametrize("service", SERVICES)
def test_pods_of_services_fit_the_restricted_standard(service: str) -> None:
    pod = objects("services", "Deployment")[f"rackgate-{service}"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"startupProbe", "livenessProbe", "readinessProbe", "resources"} <= set(container)


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_accepts_the_configuration_it_is_deployed_with(
    service: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(objects("services", "ConfigMap")[f"rackgate-{service}"]["data"]["config.yaml"])
    loaded = load_settings(settings_of(service), service=service, config=path)
    ports = objects("services", "Deployment")[f"rackgate-{service}"]["spec"]["template"]["spec"]
    named = {entry["name"]: entry["containerPort"] for entry in ports["containers"][0]["ports"]}
    assert loaded.health.port == named["health"]


@pytest.mark.parametrize("service", SERVICES)
def test_each_service_accepts_the_playground_and_the_compose_configuration(
    service: str, tmp_path: Path
) -> None:
    name = f"{service}-0"
    playground = Playground(
        server="https://127.0.0.1:1",
        ports={name: 2, "webhook": 3, "visibility": 4},
        lease_duration=7.5,
    )
    cluster = Cluster(StateFolder(tmp_path), playground, DEPLOY, Progress(quiet=True))
    leases = []
    for document in (configuration(cluster, service, name), compose.service_configuration(service)):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(document))
        loaded = load_settings(settings_of(service), service=service, config=path)
        assert str(loaded.connection.token_file).endswith(f"/services/{service}/token")
        leases.append(loaded.leader_election.lease_duration)
    assert leases == [7.5, 15]


@pytest.mark.requirement("OPS-05")
def test_no_role_of_a_service_has_a_wildcard_or_reads_all_secrets() -> None:
    roles = {**objects("rbac", "ClusterRole"), **objects("rbac", "Role")}
    for role in roles.values():
        for rule in role["rules"]:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]
            if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
                secrets = {"rackgate-webhook": "webhook", "rackgate-assigner": "visibility"}
                secret = f"rackgate-{secrets[role['metadata']['name']]}-tls"
                assert rule["resourceNames"] == [secret]
                assert role["kind"] == "Role"
            if any("webhookconfigurations" in name for name in rule["resources"]):
                reads = set(rule["verbs"]) == {"list", "watch"}
                assert rule["resourceNames"] == (
                    [KUEUE_CONFIGURATION]
                    if reads
                    else [
                        "rackgate-mutating.rackgate-system",
                        "rackgate-validating.rackgate-system",
                    ]
                )
            if "clusterrolebindings" in rule["resources"]:
                # The mark of the cluster, and its own, by whose deletion it knows its end.
                own = [] if role["metadata"]["name"] == WEBHOOK else [role["metadata"]["name"]]
                assert rule["resourceNames"] == ["rackgate", *own]
                assert set(rule["verbs"]) == {"list", "watch"}


@pytest.mark.requirement("OPS-05", "OPS-15")
def test_only_the_ungater_may_write_pods_and_only_the_assigner_jobs() -> None:
    """Pods that their controller does not stop are deleted by the assigner."""
    holders: dict[tuple[str, str], set[str]] = {}
    for role in objects("rbac", "ClusterRole").values():
        for rule in role["rules"]:
            for verb, resource in itertools.product(rule["verbs"], rule["resources"]):
                holders.setdefault((verb, resource), set()).add(role["metadata"]["name"])
    for resource, writer in (("pods", "ungater"), ("jobs", "assigner"), ("workloads", "assigner")):
        assert holders["patch", resource] == {f"rackgate-{writer}.rackgate-system"}
    assert holders["patch", "workloads/status"] == {"rackgate-assigner.rackgate-system"}
    assert holders["delete", "pods"] == {"rackgate-assigner.rackgate-system"}
    assert not {("create", "pods"), ("update", "pods"), ("update", "jobs")} & set(holders)
    assert not {("create", "jobs"), ("delete", "jobs")} & set(holders)


@pytest.mark.requirement("OPS-05")
def test_the_right_to_give_up_an_installation_is_for_finalizers_of_its_own_alone() -> None:
    (role,) = (one for name, one in objects("cluster", "ClusterRole").items() if name not in SHARED)
    named = {
        (resource, name)
        for rule in role["rules"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }
    held = {
        (f"{entry['kind'].lower()}s", entry["metadata"]["name"])
        for entry in install.documents(DEPLOY / "rbac")
        if entry["kind"] in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
        and entry["metadata"]["name"].startswith(("rackgate-assigner", "rackgate-ungater"))
    }
    assert len(held) == 6, "account, role and binding of the two that hold something"
    assert named == {*held, ("namespaces", "rackgate-system")}
    verbs = {(tuple(rule["resources"]), *rule["verbs"]) for rule in role["rules"]}
    assert verbs == {
        (("namespaces",), "get"),
        (("serviceaccounts",), "get", "patch"),
        (("clusterroles", "clusterrolebindings"), "get", "patch"),
    }


@pytest.mark.requirement("OPS-06")
def test_names_of_cluster_wide_objects_carry_the_namespace_of_their_installation() -> None:
    kinds = {
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        *WEBHOOKS,
    }
    found = [
        entry
        for folder in ("cluster", "rbac", "webhook")
        for entry in install.documents(DEPLOY / folder)
        if entry["kind"] in kinds
    ]
    bare = {
        entry["metadata"]["name"]
        for entry in found
        if not entry["metadata"]["name"].endswith(".rackgate-system")
    }
    assert len(found) > 30
    assert bare == SHARED
    (mark,) = (
        entry
        for entry in found
        if entry["kind"] == "ClusterRoleBinding"
        and "roleRef" in entry
        and entry["metadata"]["name"] == "rackgate"
    )
    # A roleRef never changes: another installation cannot take the mark.
    assert mark["roleRef"]["name"] == "rackgate.rackgate-system"


def test_every_object_is_of_a_kind_that_up_can_apply() -> None:
    documents = install.documents(
        *(DEPLOY / folder for folder in ("crds", "cluster", "rbac", "visibility", "webhook"))
    )
    documents += [*defaults.node_documents(1), *defaults.queue_documents(1)]
    unknown = {
        (entry["apiVersion"], entry["kind"])
        for entry in documents
        if (entry["apiVersion"], entry["kind"]) not in install._KINDS
    }
    assert unknown == set()


def test_registrations_call_the_local_webhook_in_a_playground() -> None:
    registrations = [
        entry
        for entry in install.documents(DEPLOY / "webhook")
        if entry["kind"].endswith("WebhookConfiguration")
    ]
    assert len(registrations) == 2
    for entry in registrations:
        before = json.dumps(entry)
        local = install.with_local_webhook(entry, "https://127.0.0.1:4")
        assert json.dumps(entry) == before, "the manifest itself is left alone"
        for original, changed in zip(entry["webhooks"], local["webhooks"], strict=True):
            path = original["clientConfig"]["service"]["path"]
            assert changed["clientConfig"] == {"url": f"https://127.0.0.1:4{path}"}


def test_kinds_are_converted_by_the_local_webhook_in_a_playground() -> None:
    definitions = {d["metadata"]["name"]: d for d in install.documents(DEPLOY / "crds")}
    converted = {
        name: install.with_local_webhook(d, "https://127.0.0.1:4")["spec"]["conversion"]
        for name, d in definitions.items()
        if d["spec"]["conversion"]["strategy"] == "Webhook"
    }
    assert set(converted) == set(CONVERTED_CRDS)
    for found in converted.values():
        assert found["webhook"]["clientConfig"] == {"url": "https://127.0.0.1:4/convert"}


def test_64_nodes_are_2_blocks_of_4_racks_of_8_nodes() -> None:
    labels = [node["metadata"]["labels"] for node in defaults.node_documents(64)]
    racks = Counter((entry[defaults.BLOCK_LABEL], entry[defaults.RACK_LABEL]) for entry in labels)
    assert racks == {(f"b{block}", f"r{rack}"): 8 for block in (1, 2) for rack in (1, 2, 3, 4)}
    assert len({entry["kubernetes.io/hostname"] for entry in labels}) == 64
    assert {entry[defaults.NODE_GROUP_LABEL] for entry in labels} == {"tas"}


def test_the_default_queue_may_use_every_node() -> None:
    queue = next(d for d in defaults.queue_documents(64) if d["kind"] == "ClusterQueue")
    (flavor,) = queue["spec"]["resourceGroups"][0]["flavors"]
    assert {entry["name"]: entry["nominalQuota"] for entry in flavor["resources"]} == {
        "cpu": "512",
        "memory": "2048Gi",
        "nvidia.com/gpu": "512",
    }
