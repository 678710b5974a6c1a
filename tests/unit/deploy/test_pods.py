"""deploy/pods: what plain pods need, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml

from rackgate.api import names
from rackgate.jobframework.registry import KINDS
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir

DEPLOY = deploy_dir()
FOLDER = DEPLOY / "pods"


def documents(path: str) -> list[dict[str, Any]]:
    return install.documents(DEPLOY / path)


def test_the_component_has_every_manifest_of_its_folder() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    named = {*listed["resources"], *(patch["path"] for patch in listed["patches"])}
    there = {path.name for path in FOLDER.glob("*.yaml")}
    assert named == there - {"kustomization.yaml"}


def test_no_pod_without_the_queue_label_reaches_webhook_or_policy() -> None:
    (added,) = documents("pods/webhooks.yaml")
    (hook,) = added["webhooks"]
    policy, _ = documents("pods/policies.yaml")
    (base,) = documents("webhook/mutating.yaml")
    constraints = policy["spec"]["matchConstraints"]
    wanted = {"matchExpressions": [{"key": names.QUEUE_LABEL, "operator": "Exists"}]}
    assert hook["objectSelector"] == constraints["objectSelector"] == wanted
    selector = base["webhooks"][0]["namespaceSelector"]
    assert hook["namespaceSelector"] == constraints["namespaceSelector"] == selector
    assert added["metadata"]["name"] == base["metadata"]["name"]
    assert hook["name"] not in {one["name"] for one in base["webhooks"]}
    assert (hook["failurePolicy"], policy["spec"]["failurePolicy"]) == ("Ignore", "Fail")


def test_every_managed_kind_is_excluded_by_name() -> None:
    (added,) = documents("pods/webhooks.yaml")
    policy, _ = documents("pods/policies.yaml")
    for conditions in (added["webhooks"][0]["matchConditions"], policy["spec"]["matchConditions"]):
        text = conditions[0]["expression"]
        for kind in KINDS.values():
            assert f"'{kind.name}'" in text
            assert f"r.apiVersion.startsWith('{kind.resource.group}/')" in text


def test_the_rights_are_those_on_pods_alone() -> None:
    role, binding = documents("pods/rbac.yaml")
    (rule,) = role["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch", "delete"]}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
