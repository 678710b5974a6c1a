"""deploy/unlabelled: what the webhook needs for jobs without a queue label, and nothing else."""

from __future__ import annotations

from typing import Any

import yaml

from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from rackgate_webhook.admission.unlabelled import DEFAULT_QUEUE
from rackgate_webhook.service import UNLABELLED_PATH
from rackgate_webhook.settings import WebhookSettings

DEPLOY = deploy_dir()
FOLDER = DEPLOY / "unlabelled"


def documents(path: str) -> list[dict[str, Any]]:
    return install.documents(DEPLOY / path)


def test_the_component_has_every_manifest_of_its_folder() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    named = {*listed["resources"], *(patch["path"] for patch in listed["patches"])}
    there = {path.name for path in FOLDER.glob("*.yaml")}
    assert named == there - {"kustomization.yaml"}


def test_the_webhook_joins_the_configuration_of_the_base_with_its_selector() -> None:
    (added,) = documents("unlabelled/webhooks.yaml")
    (base,) = documents("webhook/mutating.yaml")
    assert added["metadata"]["name"] == base["metadata"]["name"]
    assert added["metadata"]["name"] in WebhookSettings().certificates.configuration_names
    (hook,) = added["webhooks"]
    jobs = [hook for hook in base["webhooks"] if not hook["name"].startswith(("pods", "workloads"))]
    assert hook["name"] not in {one["name"] for one in base["webhooks"]}
    assert hook["clientConfig"]["service"]["path"] == UNLABELLED_PATH
    assert hook["namespaceSelector"] == jobs[0]["namespaceSelector"]
    assert hook["failurePolicy"] == "Fail"
    kinds = {resource for rule in hook["rules"] for resource in rule["resources"]}
    assert kinds == {one["rules"][0]["resources"][0] for one in jobs}


def test_the_right_is_to_read_default_queues_alone() -> None:
    role, binding = documents("unlabelled/rbac.yaml")
    (rule,) = role["rules"]
    assert rule == {
        "apiGroups": ["kueue.x-k8s.io"],
        "resources": ["localqueues"],
        "resourceNames": [DEFAULT_QUEUE],
        "verbs": ["get"],
    }
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
