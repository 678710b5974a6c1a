"""deploy/native-gangs: what native PodGroups need, apart from deploy/gangs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rackgate.api.names import (
    GANG_LINK_ANNOTATION,
    NATIVE_GROUP_ANNOTATION,
    NATIVE_REPLICA_ANNOTATION,
    UNMANAGED_NAMESPACES,
)
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir

DEPLOY = deploy_dir()
FOLDER = DEPLOY / "native-gangs"
Object = dict[str, Any]


def documents(path: str) -> list[Object]:
    return install.documents(FOLDER / path)


def test_the_component_has_every_manifest_of_its_folder() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    named = {*listed["resources"], *(patch["path"] for patch in listed["patches"])}
    assert named == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    for entry in (*documents("policies.yaml"), *documents("rbac.yaml")):
        assert (entry["apiVersion"], entry["kind"]) in install._KINDS


def test_nothing_else_names_the_field_that_other_clusters_do_not_have() -> None:
    for file in DEPLOY.rglob("*.yaml"):
        # In the chart, whose files follow those of this folder, it has a condition.
        if not {FOLDER, DEPLOY / "helm"} & set(file.parents):
            assert "schedulingGroup" not in file.read_text(), file


@pytest.mark.requirement("GNG-14")
def test_the_policy_matches_pods_of_gangs_alone_and_fails_open() -> None:
    policy, binding = documents("policies.yaml")
    spec = policy["spec"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert spec["failurePolicy"] == "Ignore"
    (excluded,) = spec["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert set(excluded["values"]) == set(UNMANAGED_NAMESPACES)
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["CREATE"])
    (condition,) = spec["matchConditions"]
    for needed in (NATIVE_GROUP_ANNOTATION, GANG_LINK_ANNOTATION, "!object.spec.?schedulingGroup"):
        assert needed in condition["expression"]
    assert NATIVE_REPLICA_ANNOTATION in str(spec["variables"])


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize(
    ("service", "verbs"),
    [
        ("ungater", ["get", "list", "watch", "create", "delete"]),
        ("assigner", ["list", "watch"]),
    ],
)
def test_who_has_which_right(service: str, verbs: list[str]) -> None:
    name = f"rackgate-{service}-native-gangs.rackgate-system"
    (role,) = [
        entry
        for entry in documents("rbac.yaml")
        if entry["kind"] == "ClusterRole" and entry["metadata"]["name"] == name
    ]
    (rule,) = role["rules"]
    assert rule == {"apiGroups": ["scheduling.k8s.io"], "resources": ["podgroups"], "verbs": verbs}
