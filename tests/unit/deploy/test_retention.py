"""deploy/retention: the right to delete jobs, and nothing else."""

from __future__ import annotations

import pytest
import yaml

from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support.rights import granted

FOLDER = deploy_dir() / "retention"
DELETE = {
    ("delete", "batch", "jobs"),
    ("delete", "jobset.x-k8s.io", "jobsets"),
    ("delete", "ray.io", "rayclusters"),
    ("delete", "ray.io", "rayjobs"),
}


@pytest.mark.requirement("OPS-05")
def test_only_the_component_has_the_right_to_delete_jobs() -> None:
    assert granted()["assigner"] & DELETE == DELETE
    assert granted(components=False)["assigner"] & DELETE == set()


def test_the_component_binds_one_role_to_the_assigner() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert (listed["kind"], listed["resources"]) == ("Component", ["rbac.yaml"])
    role, binding = install.documents(FOLDER / "rbac.yaml")
    rights = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert rights == DELETE
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert (subject["name"], subject["namespace"]) == ("rackgate-assigner", "rackgate-system")
