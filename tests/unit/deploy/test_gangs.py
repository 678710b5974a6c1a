"""deploy/gangs: a kind and its roles, which are installed with no other component."""

from __future__ import annotations

import pytest
import yaml

from rackgate.api.names import GANG_GROUP
from rackgate.api.resources import GANG_WORKLOADS
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir

DEPLOY = deploy_dir()
GANGS = DEPLOY / "gangs"
ROLES = {
    entry["metadata"]["name"]: entry
    for entry in install.documents(GANGS)
    if entry["kind"] == "ClusterRole"
}


def test_the_component_has_every_manifest_of_its_folder() -> None:
    listed = yaml.safe_load((GANGS / "kustomization.yaml").read_text())["resources"]
    there = {path.name for path in GANGS.iterdir()} - {"kustomization.yaml"}
    assert set(listed) == there == {"crds", "users.yaml"}


def test_no_other_kustomization_installs_it() -> None:
    """As long as no service acts on these objects, nobody gets the kind who did not ask for it."""
    for file in DEPLOY.rglob("*.yaml"):
        if GANGS not in file.parents:
            assert GANG_GROUP not in file.read_text(), file
    for file in DEPLOY.rglob("kustomization.yaml"):
        assert not [
            one for one in yaml.safe_load(file.read_text()).get("resources", ()) if "gangs" in one
        ]


@pytest.mark.parametrize(
    ("role", "verbs", "into"),
    [
        ("rackgate-users:gangs-view", ["get", "list", "watch"], "view"),
        ("rackgate-users:gangs-edit", ["create", "update", "patch", "delete"], "edit"),
    ],
)
def test_who_edits_a_namespace_may_write_them(role: str, verbs: list[str], into: str) -> None:
    assert set(ROLES) == {"rackgate-users:gangs-view", "rackgate-users:gangs-edit"}
    (rule,) = ROLES[role]["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([GANG_GROUP], [GANG_WORKLOADS.plural])
    assert rule["verbs"] == verbs
    labels = ROLES[role]["metadata"]["labels"]
    assert labels[f"rbac.authorization.k8s.io/aggregate-to-{into}"] == "true"
