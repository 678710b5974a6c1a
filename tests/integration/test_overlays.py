"""What kubectl builds of the overlays and components of deploy/: nothing but what they name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rackgate.api.names import OSMO_GROUP, SYSTEM_NAMESPACE
from rackgate.features import GANG_SCHEDULING, NATIVE_POD_GROUPS
from rackgate_cli.controlplane import install
from rackgate_cli.controlplane.binaries.versions import SERVICES
from rackgate_cli.locations import deploy_dir
from rackgate_webhook.settings import CONVERTED_CRDS
from tests.support.elsewhere import kustomized
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

DEPLOY = deploy_dir()
OSMO = DEPLOY / "osmo"
INJECT = "cert-manager.io/inject-ca-from"
VALIDATING = ("ValidatingWebhookConfiguration", "rackgate-validating.rackgate-system")
(REGISTRATION,) = install.documents(OSMO / "webhooks.yaml")

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]
Render = Callable[..., Objects]


@pytest.fixture(scope="module")
def render(playground: Playground, tmp_path_factory: pytest.TempPathFactory) -> Render:
    """What kubectl makes of a base in deploy/ with components, by kind and name; each once."""

    def rendered(*base: str, components: tuple[str, ...] = ()) -> Objects:
        folder = tmp_path_factory.mktemp("overlay")
        found = kustomized(playground, folder, *components, base=base)
        return {(entry["kind"], entry["metadata"]["name"]): entry for entry in found}

    return cache(rendered)


def test_the_overlay_for_cert_manager_changes_nothing_but_the_certificate(render: Render) -> None:
    before, now = render(), render("overlays", "cert-manager")
    added = {name for name in now if name not in before}
    assert {kind for kind, _ in added} == {"Certificate", "Issuer"}
    changed = {name for name in before if now[name] != before[name]}
    assert changed == {
        ("ClusterRole", "rackgate-webhook.rackgate-system"),
        ("Role", "rackgate-webhook"),
        ("ConfigMap", "rackgate-webhook"),
        ("MutatingWebhookConfiguration", "rackgate-mutating.rackgate-system"),
        VALIDATING,
    }
    for name in sorted(changed):
        if name[0].endswith("WebhookConfiguration"):
            metadata = {**now[name]["metadata"]}
            assert metadata.pop("annotations") == {INJECT: "rackgate-system/rackgate-webhook"}
            assert {**now[name], "metadata": metadata} == before[name]


EVERY = ("network", "monitoring", "pods", "gangs", "native-gangs", "osmo", "unlabelled")
MORE = ("retention", "visibility-provided", "namespaces")
BUILDS = [
    ((), ()),
    ((), (*EVERY, *MORE)),
    ((), ("gangs", "gangs/webhook")),
    (("overlays", "cert-manager"), ("pods",)),
    *((base, ()) for base in (("cluster",), ("gangs", "cluster"), ("osmo", "cluster"))),
]


@pytest.mark.field_note("W6")
@pytest.mark.parametrize(("base", "components"), BUILDS)
def test_another_namespace_is_the_same_installation_with_another_name(
    playground: Playground, tmp_path: Path, base: tuple[str, ...], components: tuple[str, ...]
) -> None:
    def rendered(namespace: str) -> list[Object]:
        return kustomized(playground, tmp_path, *components, base=base, namespace=namespace)

    text = json.dumps(rendered(SYSTEM_NAMESPACE)).replace(SYSTEM_NAMESPACE, "team-infra")
    found = {
        (entry["kind"], entry["metadata"].get("namespace"), entry["metadata"]["name"]): entry
        for entry in rendered("team-infra")
    }
    wanted = {
        (entry["kind"], entry["metadata"].get("namespace"), entry["metadata"]["name"]): entry
        for entry in json.loads(text)
    }
    assert found == wanted


@pytest.mark.requirement("HOOK-13", "OPS-04")
def test_with_cert_manager_the_kinds_that_are_converted_have_its_annotation(render: Render) -> None:
    before, now = render("cluster"), render("overlays", "cert-manager", "cluster")
    assert set(now) == set(before)
    changed = {name: entry for name, entry in now.items() if entry != before[name]}
    assert {name for _, name in changed} == set(CONVERTED_CRDS)
    for name, entry in changed.items():
        metadata = {**entry["metadata"]}
        assert metadata.pop("annotations") == {INJECT: "rackgate-system/rackgate-webhook"}
        assert {**entry, "metadata": metadata} == before[name]


@pytest.mark.requirement("OSM-19")
@pytest.mark.parametrize("base", [(), ("overlays", "cert-manager")], ids=["base", "cert-manager"])
def test_only_the_component_adds_osmo_and_it_changes_nothing_else(
    render: Render, base: tuple[str, ...]
) -> None:
    before, now = render(*base), render(*base, components=("osmo",))
    assert OSMO_GROUP not in json.dumps(list(before.values()))
    changed = {key for key in before if now[key] != before[key]}
    assert changed == {
        ("Deployment", "rackgate-assigner"),
        ("Deployment", "rackgate-webhook"),
        VALIDATING,
    }
    hooks = before[VALIDATING]["webhooks"]
    added = [hook for hook in now[VALIDATING]["webhooks"] if hook not in hooks]
    assert len(now[VALIDATING]["webhooks"]) == len(hooks) + len(added)
    assert {hook["name"] for hook in added} == {hook["name"] for hook in REGISTRATION["webhooks"]}
    assert all("osmo" in str(entry) for entry in set(now) - set(before))


def test_a_playground_adds_the_webhooks_of_osmo_as_kustomize_does(render: Render) -> None:
    hooks = install.documents(DEPLOY / "webhook")
    merged = install.with_webhooks_of(hooks, OSMO / "webhooks.yaml")
    found = {(entry["kind"], entry["metadata"]["name"]): entry for entry in merged}
    assert len(merged) == len(hooks)
    wanted = {hook["name"]: hook for hook in render(components=("osmo",))[VALIDATING]["webhooks"]}
    assert {hook["name"]: hook for hook in found[VALIDATING]["webhooks"]} == wanted
    assert "osmo" not in json.dumps(hooks)


GANGS = DEPLOY / "gangs"
MUTATING = ("MutatingWebhookConfiguration", "rackgate-mutating.rackgate-system")


@pytest.mark.requirement("GNG-14")
@pytest.mark.parametrize("others", [(), ("osmo", "unlabelled")], ids=["alone", "with-others"])
def test_only_the_component_adds_gangs_and_it_changes_nothing_else(
    render: Render, others: tuple[str, ...]
) -> None:
    before, now = render(components=others), render(components=("gangs", *others))
    changed = {key for key in before if now[key] != before[key]}
    deployments = {("Deployment", f"rackgate-{name}") for name in SERVICES}
    assert changed == {*deployments, MUTATING, VALIDATING}
    for name in sorted(deployments):
        commands = [
            found[name]["spec"]["template"]["spec"]["containers"][0]["command"]
            for found in (before, now)
        ]
        flag = f"--set=featureGates.{GANG_SCHEDULING}=true"
        assert [word for word in commands[1] if word != flag] == commands[0]
        assert commands[1].count(flag) == 1
    for hooks, added in ((MUTATING, 3), (VALIDATING, 2)):
        kept = [one for one in now[hooks]["webhooks"] if one in before[hooks]["webhooks"]]
        assert len(kept) == len(before[hooks]["webhooks"]) == len(now[hooks]["webhooks"]) - added
    assert all("gang" in name or "linked" in name for _, name in set(now) - set(before))


def test_a_playground_adds_the_webhooks_of_gangs_as_kustomize_does(render: Render) -> None:
    hooks = install.documents(DEPLOY / "webhook")
    merged = install.with_webhooks_of(hooks, GANGS / "webhooks.yaml")
    found = {(entry["kind"], entry["metadata"]["name"]): entry for entry in merged}
    for key in (MUTATING, VALIDATING):
        wanted = {hook["name"]: hook for hook in render(components=("gangs",))[key]["webhooks"]}
        assert {hook["name"]: hook for hook in found[key]["webhooks"]} == wanted


def test_before_kubernetes_1_36_a_webhook_takes_the_place_of_the_policy(render: Render) -> None:
    before, now = render(components=("gangs",)), render(components=("gangs", "gangs/webhook"))
    gone = set(before) - set(now)
    assert {kind for kind, _ in gone} == {
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    }
    assert {key for key in now if now[key] != before[key]} == {MUTATING}
    (added,) = [one for one in now[MUTATING]["webhooks"] if one not in before[MUTATING]["webhooks"]]
    assert added["name"] == "gang-pods.mutate.rackgate.dev"


def test_only_pods_of_selected_namespaces_are_held(render: Render) -> None:
    now = render(components=("pods", "gangs", "namespaces"))
    jobs = now["ValidatingAdmissionPolicy", "rackgate-jobs.rackgate-system"]
    expected = jobs["spec"]["matchConstraints"]["namespaceSelector"]
    for entry in install.documents(GANGS / "policies.yaml", DEPLOY / "pods" / "policies.yaml"):
        if not entry["kind"].endswith("Binding"):
            found = now[entry["kind"], entry["metadata"]["name"]]["spec"]["matchConstraints"]
            assert found["namespaceSelector"] == expected
    selectors = {hook["name"]: hook["namespaceSelector"] for hook in now[MUTATING]["webhooks"]}
    for name in ("plain-pods", "linked", "trainjobs"):
        assert selectors[f"{name}.mutate.rackgate.dev"] == expected
    validating = {hook["name"]: hook["namespaceSelector"] for hook in now[VALIDATING]["webhooks"]}
    assert validating["linked.validate.rackgate.dev"] == expected
    now = render(components=("gangs", "gangs/webhook", "namespaces"))
    selectors = {hook["name"]: hook["namespaceSelector"] for hook in now[MUTATING]["webhooks"]}
    assert selectors["gang-pods.mutate.rackgate.dev"] == expected


def test_each_component_sets_its_gate_beside_those_of_others(render: Render) -> None:
    now = render(components=tuple(install.COMPONENTS.values()))
    of_ungater = [GANG_SCHEDULING, NATIVE_POD_GROUPS]
    for service, gates in (("assigner", install.COMPONENTS), ("ungater", of_ungater)):
        spec = now["Deployment", f"rackgate-{service}"]["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        flags = [f"--set=featureGates.{gate}=true" for gate in gates]
        assert container["command"][3:] == flags


def test_the_component_for_plain_pods_adds_a_webhook_a_policy_and_a_right(render: Render) -> None:
    before, now = render(), render(components=("pods",))
    new = sorted(kind for kind, _ in now.keys() - before.keys())
    policy = "ValidatingAdmissionPolicy"
    assert new == ["ClusterRole", "ClusterRoleBinding", policy, f"{policy}Binding"]
    changed = {key for key in before if before[key] != now[key]}
    mutating = ("MutatingWebhookConfiguration", "rackgate-mutating.rackgate-system")
    services = {("Deployment", "rackgate-assigner"), ("Deployment", "rackgate-webhook")}
    assert changed == {*services, mutating}
    old, added = before[mutating]["webhooks"], now[mutating]["webhooks"]
    assert [one["name"] for one in added if one not in old] == ["plain-pods.mutate.rackgate.dev"]
    assert [one for one in added if one in old] == old


JOB_HOOKS = ("jobs.", "jobsets.", "rayclusters.", "rayjobs.")


@pytest.mark.requirement("OPS-11")
def test_the_component_for_unlabelled_jobs_adds_one_webhook_and_one_right(render: Render) -> None:
    before, now = render(), render(components=("unlabelled",))
    new = {key: now[key] for key in now.keys() - before.keys()}
    assert sorted({kind for kind, _ in new}) == ["ClusterRole", "ClusterRoleBinding"]
    (changed,) = [key for key in before if before[key] != now[key]]
    old, added = before[changed]["webhooks"], now[changed]["webhooks"]
    assert [one for one in added if one in old] == old
    assert [one["name"] for one in added if one not in old] == ["unlabelled.mutate.rackgate.dev"]


@pytest.mark.requirement("OPS-05")
def test_the_component_for_retention_adds_one_right(render: Render) -> None:
    before, now = render(), render(components=("retention",))
    assert {key: now[key] for key in before} == before
    name = "rackgate-assigner-retention.rackgate-system"
    assert now.keys() - before.keys() == {("ClusterRole", name), ("ClusterRoleBinding", name)}


def test_the_component_that_refuses_changes_one_policy_and_its_binding(render: Render) -> None:
    before, now = render(), render(components=("reject-unmanaged",))
    assert set(now) == set(before)
    name = "rackgate-other-kinds.rackgate-system"
    policy, binding = (
        ("ValidatingAdmissionPolicy", name),
        ("ValidatingAdmissionPolicyBinding", name),
    )
    assert {key for key in before if now[key] != before[key]} == {policy, binding}
    assert now[binding]["spec"]["validationActions"] == ["Deny", "Audit"]
    assert now[policy]["spec"]["failurePolicy"] == "Fail"


@pytest.mark.requirement("OPS-05")
def test_the_component_for_a_provided_certificate_takes_rights_of_the_assigner(
    render: Render,
) -> None:
    before, now = render(), render(components=("visibility-provided",))
    assert set(now) == set(before)
    assert {key for key in before if now[key] != before[key]} == {
        ("Role", "rackgate-assigner"),
        ("Deployment", "rackgate-assigner"),
    }
    (rule,) = [
        rule
        for rule in now["Role", "rackgate-assigner"]["rules"]
        if rule["resources"] == ["secrets"]
    ]
    assert rule["verbs"] == ["get", "list", "watch"]


def test_the_component_for_namespaces_narrows_all_that_hears_of_jobs(render: Render) -> None:
    before, now = render(), render(components=("namespaces",))
    assert set(now) == set(before)
    policies = {"jobs", "jobsets", "rayclusters", "rayjobs", "hints", "other-kinds", "orphans"}
    registrations = {
        ("MutatingWebhookConfiguration", "rackgate-mutating.rackgate-system"),
        VALIDATING,
    }
    assert {key for key in before if now[key] != before[key]} == {
        ("Deployment", "rackgate-assigner"),
        ("Deployment", "rackgate-webhook"),
        *registrations,
        *(("ValidatingAdmissionPolicy", f"rackgate-{name}.rackgate-system") for name in policies),
    }
    hooks = [hook for key in registrations for hook in now[key]["webhooks"]]
    narrowed = [hook for hook in hooks if hook["name"].startswith(JOB_HOOKS)]
    assert len(narrowed) == 8
    constraints = [
        now["ValidatingAdmissionPolicy", f"rackgate-{name}.rackgate-system"]["spec"][
            "matchConstraints"
        ]
        for name in policies
    ]
    selectors = [holder["namespaceSelector"] for holder in (*narrowed, *constraints)]
    assert all(found == selectors[0] for found in selectors)
    assert selectors[0]["matchLabels"] == {"rackgate.dev/managed-jobs": "true"}
    assert "kube-system" in json.dumps(selectors[0]["matchExpressions"])
    assert "managed-jobs" not in json.dumps([hook for hook in hooks if hook not in narrowed])


SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {
        "name": "kubernetes",
        "namespace": "default",
        "labels": {"kubernetes.io/service-name": "kubernetes"},
    },
    "addressType": "IPv6",
    "endpoints": [{"addresses": ["2001:db8::10"]}, {"addresses": ["2001:db8::11"]}],
    "ports": [{"name": "https", "port": 6444, "protocol": "TCP"}],
}


def test_egress_is_narrowed_to_the_api_servers_addresses_and_images_to_a_digest(
    playground: Playground, tmp_path: Path
) -> None:
    """As configure.md says, with an API server at another port, behind IPv6 addresses."""
    manifest = tmp_path / "slice.json"
    manifest.write_text(json.dumps(SLICE))
    playground.run("kubectl", "apply", "-f", str(manifest))
    template = DEPLOY / "network" / "api-server.tmpl"
    try:
        patch = playground.run(
            *("kubectl", "get", "service/kubernetes", "endpointslice/kubernetes", "-n", "default"),
            f"-ogo-template-file={template}",
        )
        (address,) = playground.run(
            "kubectl", "get", "service/kubernetes", "-n", "default", "-ojsonpath={.spec.clusterIP}"
        ).splitlines()
    finally:
        playground.run("kubectl", "delete", "-f", str(manifest))
    before = {named(entry): entry for entry in kustomized(playground, tmp_path, "network")}
    (tmp_path / "api-server.yaml").write_text(patch)
    digest = f"sha256:{'0123456789abcdef' * 4}"
    found = kustomized(
        playground,
        tmp_path,
        "network",
        patches=[{"path": "api-server.yaml"}],
        images=[{"name": "rackgate", "newName": "registry.example/rackgate", "digest": digest}],
    )
    now = {named(entry): entry for entry in found}
    assert set(before) - set(now) == {("NetworkPolicy", "rackgate-dns")}
    policy = ("NetworkPolicy", "rackgate-api-server")
    deployments = {name for name in now if name[0] == "Deployment"}
    assert {name for name in now if now[name] != before[name]} == {policy, *deployments}
    assert now[policy]["spec"] | {"egress": []} == before[policy]["spec"] | {"egress": []}
    assert now[policy]["spec"]["egress"] == [
        {
            "to": [{"ipBlock": {"cidr": f"{address}/32"}}],
            "ports": [{"protocol": "TCP", "port": 443}],
        },
        {
            "to": [{"ipBlock": {"cidr": f"2001:db8::1{i}/128"}} for i in (0, 1)],
            "ports": [{"protocol": "TCP", "port": 6444}],
        },
    ]
    images = {
        container["image"]
        for name in deployments
        for container in now[name]["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"registry.example/rackgate@{digest}"}


def named(entry: Object) -> tuple[str, str]:
    return entry["kind"], entry["metadata"]["name"]
