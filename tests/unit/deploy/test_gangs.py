"""deploy/gangs: what gang scheduling needs, and nothing of it without the component."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rackgate.api.names import GANG_GATE, GANG_GROUP, GANG_LINK_ANNOTATION, UNMANAGED_NAMESPACES
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.jobframework.registry import LINKED_KINDS
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from rackgate_webhook.settings import WebhookSettings

DEPLOY = deploy_dir()
GANGS = DEPLOY / "gangs"
Object = dict[str, Any]
LINKED = {(kind.resource.group, kind.resource.plural) for kind in LINKED_KINDS.values()}


def documents(path: str) -> list[Object]:
    return install.documents(GANGS / path)


HOOKS = {entry["kind"]: entry for entry in documents("webhooks.yaml")}
ALL_POLICIES = documents("policies.yaml")
POLICIES = {
    entry["kind"]: entry
    for entry in ALL_POLICIES
    if entry["metadata"]["name"] == "rackgate-gangs.rackgate-system"
}
ROLES = {
    entry["metadata"]["name"]: entry
    for path in ("rbac.yaml", "cluster")
    for entry in documents(path)
    if entry["kind"] == "ClusterRole"
}


def test_the_component_has_every_manifest_of_its_folder() -> None:
    listed = yaml.safe_load((GANGS / "kustomization.yaml").read_text())
    named = {*listed["resources"], *(patch["path"] for patch in listed["patches"])}
    assert named == {path.name for path in GANGS.glob("*.yaml")} - {"kustomization.yaml"}
    cluster = yaml.safe_load((GANGS / "cluster" / "kustomization.yaml").read_text())
    assert cluster["resources"] == ["../crds", "users.yaml"], "these stay after an uninstall"


def test_no_other_kustomization_installs_it() -> None:
    """The base knows gate and link of pods, the component for namespaces the names of policies."""
    # In the chart, whose files follow those of the component, it has a condition.
    others = (GANGS, DEPLOY / "native-gangs", DEPLOY / "helm")
    for file in DEPLOY.rglob("*.yaml"):
        if not set(others) & set(file.parents):
            text = file.read_text().replace(GANG_GATE, "").replace(GANG_LINK_ANNOTATION, "")
            assert GANG_GROUP not in text, file
    for file in DEPLOY.rglob("kustomization.yaml"):
        assert not [
            one for one in yaml.safe_load(file.read_text()).get("resources", ()) if "gangs" in one
        ]


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize(
    ("role", "resource", "verbs"),
    [
        ("rackgate-users:gangs-view", "", ["get", "list", "watch"]),
        ("rackgate-users:gangs-edit", "", ["create", "update", "patch", "delete"]),
        (
            "rackgate-assigner-gangs.rackgate-system",
            "",
            ["get", "list", "watch", "create", "patch", "delete"],
        ),
        ("rackgate-assigner-gangs.rackgate-system", "/status", ["patch"]),
        ("rackgate-ungater-gangs.rackgate-system", "", ["get", "list", "watch"]),
    ],
)
def test_who_has_which_right(role: str, resource: str, verbs: list[str]) -> None:
    (rule,) = [
        rule
        for rule in ROLES[role]["rules"]
        if rule["resources"] == [f"{GANG_WORKLOADS.plural}{resource}"]
    ]
    assert (rule["apiGroups"], rule["verbs"]) == ([GANG_GROUP], verbs)
    assert len(ROLES) == 4
    if role.startswith("rackgate-users"):
        into = role.rpartition("-")[2]
        labels = ROLES[role]["metadata"]["labels"]
        assert labels[f"rbac.authorization.k8s.io/aggregate-to-{into}"] == "true"


@pytest.mark.parametrize("kind", HOOKS)
def test_the_webhooks_join_the_configurations_of_the_base_and_fail_open(kind: str) -> None:
    added = HOOKS[kind]
    file = "mutating.yaml" if kind.startswith("Mutating") else "validating.yaml"
    (base,) = install.documents(DEPLOY / "webhook" / file)
    assert added["metadata"]["name"] == base["metadata"]["name"]
    assert added["metadata"]["name"] in WebhookSettings().certificates.configuration_names
    named = {hook["name"].partition(".")[0]: hook for hook in added["webhooks"]}
    assert {*named} - {"trainjobs"} == {"gangs", "linked"}
    (rule,) = named["gangs"]["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([GANG_GROUP], [GANG_WORKLOADS.plural])
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert _resources(named["linked"]["rules"]) == LINKED
    for hook in added["webhooks"]:
        assert hook["failurePolicy"] == "Ignore"
        assert hook["matchConditions"]
        assert hook["clientConfig"] == {
            "service": {
                **base["webhooks"][0]["clientConfig"]["service"],
                "path": hook["clientConfig"]["service"]["path"],
            }
        }


@pytest.mark.requirement("GNG-14")
def test_the_policies_match_pods_of_gangs_alone() -> None:
    for kind in ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"):
        spec = POLICIES[kind]["spec"]
        assert (
            POLICIES[f"{kind}Binding"]["spec"]["policyName"] == POLICIES[kind]["metadata"]["name"]
        )
        (excluded,) = spec["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert set(excluded["values"]) == set(UNMANAGED_NAMESPACES)
        assert spec["failurePolicy"] == "Fail", "a pod of a gang is never created without its gate"
        (condition,) = spec["matchConditions"]
        assert GANG_LINK_ANNOTATION in condition["expression"]
        (rule,) = spec["matchConstraints"]["resourceRules"]
        assert rule["apiGroups"] == [""]
        assert {one.partition("/")[0] for one in rule["resources"]} == {"pods"}
    assert POLICIES["ValidatingAdmissionPolicyBinding"]["spec"]["validationActions"] == ["Deny"]


def test_each_linked_kind_is_reviewed_watched_and_held_to_its_queue() -> None:
    """A kind that is added to the registry needs these manifests."""
    policy, binding = (
        one["spec"] for one in ALL_POLICIES if "rackgate-linked" in one["metadata"]["name"]
    )
    assert (policy["failurePolicy"], binding["validationActions"]) == ("Fail", ["Deny"])
    assert _resources(policy["matchConstraints"]["resourceRules"]) == LINKED
    rules = ROLES["rackgate-assigner-gangs.rackgate-system"]["rules"]
    watched = [rule for rule in rules if "watch" in rule["verbs"]]
    assert _resources(watched) - {(GANG_GROUP, GANG_WORKLOADS.plural)} == LINKED
    ends = {(group, f"{plural}/finalizers") for group, plural in LINKED}
    assert _resources([rule for rule in rules if "update" in rule["verbs"]]) == ends


def _resources(rules: list[Object]) -> set[tuple[str, str]]:
    return {
        (group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_what_only_warns_never_stops_anybody() -> None:
    policy, binding = (
        one["spec"] for one in ALL_POLICIES if "gang-hints" in one["metadata"]["name"]
    )
    assert (policy["failurePolicy"], binding["validationActions"]) == ("Ignore", ["Warn"])
    resources = {
        name for rule in policy["matchConstraints"]["resourceRules"] for name in rule["resources"]
    }
    assert "pods" not in resources, "each pod would be matched"


def test_what_is_installed_is_of_kinds_that_up_can_apply() -> None:
    found = [*documents("crds"), *documents("cluster"), *documents("rbac.yaml")]
    for entry in (*found, *HOOKS.values(), *ALL_POLICIES):
        assert (entry["apiVersion"], entry["kind"]) in install._KINDS


@pytest.mark.requirement("GNG-14")
def test_before_kubernetes_1_36_a_webhook_holds_linked_pods_alone_and_fails_closed() -> None:
    folder = GANGS / "webhook"
    component = yaml.safe_load((folder / "kustomization.yaml").read_text())
    patches = [yaml.safe_load(one["patch"]) for one in component["patches"] if "patch" in one]
    assert {one["kind"] for one in patches if one["$patch"] == "delete"} == {
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
    }
    (added,) = install.documents(folder / "webhooks.yaml")
    assert added["metadata"]["name"] == HOOKS[added["kind"]]["metadata"]["name"]
    (hook,) = added["webhooks"]
    policy = POLICIES["MutatingAdmissionPolicy"]["spec"]
    assert hook["failurePolicy"] == policy["failurePolicy"] == "Fail"
    assert hook["matchConditions"] == policy["matchConditions"], "no other pod calls it"
    assert hook["namespaceSelector"] == policy["matchConstraints"]["namespaceSelector"]
    (rule,) = hook["rules"]
    assert rule.pop("scope") == "Namespaced"
    assert [rule] == policy["matchConstraints"]["resourceRules"]
