"""The registrations and policies in deploy/webhook: opt-in, failing open, and bound."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate_cli.controlplane.operators import USERS

DEPLOY = Path(__file__).parents[3] / "deploy" / "webhook"
SYSTEM = set(names.UNMANAGED_NAMESPACES)


def documents(*names: str) -> list[dict[str, Any]]:
    return [
        document for name in names for document in yaml.safe_load_all((DEPLOY / name).read_text())
    ]


WEBHOOKS = [
    webhook
    for document in documents("mutating.yaml", "validating.yaml")
    for webhook in document["webhooks"]
]
POLICIES = documents(
    "policies.yaml",
    "jobsets.yaml",
    "rayclusters.yaml",
    "rayjobs.yaml",
    "workloads.yaml",
    "parts.yaml",
    "orphans.yaml",
)
JOBS = ("jobs", "jobsets", "rayclusters", "rayjobs")


@pytest.mark.requirement("HOOK-02", "HOOK-12")
@pytest.mark.field_note("W1", "W2")
@pytest.mark.parametrize("webhook", WEBHOOKS, ids=lambda webhook: webhook["name"])
def test_every_webhook_is_opt_in_and_fails_open(webhook: dict[str, Any]) -> None:
    (excluded,) = webhook["namespaceSelector"]["matchExpressions"]
    assert excluded["operator"] == "NotIn"
    assert set(excluded["values"]) == SYSTEM
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["sideEffects"] == "None"
    assert webhook["timeoutSeconds"] == 5
    assert webhook["matchConditions"]
    for rule in webhook["rules"]:
        assert "DELETE" not in rule["operations"]
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["operations"]]


@pytest.mark.requirement("HOOK-02")
def test_the_kinds_that_need_it_are_registered() -> None:
    called = {
        (webhook["name"].split(".")[1], resource, operation)
        for webhook in WEBHOOKS
        for rule in webhook["rules"]
        for resource in rule["resources"]
        for operation in rule["operations"]
    }
    assert ("mutate", "pods", "CREATE") in called
    for resource in JOBS:
        assert {("mutate", resource, op) for op in ("CREATE", "UPDATE")} <= called
    for resource in (
        *JOBS,
        "workloads",
        "topologies",
        "resourceflavors",
        "clusterqueues",
        "cohorts",
    ):
        assert {("validate", resource, op) for op in ("CREATE", "UPDATE")} <= called


# Policies that do not look at creations and updates, or not at them alone.
OPERATIONS = {
    "rackgate-orphans.rackgate-system": {"CREATE", "UPDATE", "DELETE"},
    "rackgate-part-deletions.rackgate-system": {"DELETE"},
    "rackgate-workload-status.rackgate-system": {"UPDATE"},
}


@pytest.mark.requirement("HOOK-15")
def test_every_policy_is_bound_denies_and_lets_all_be_deleted_but_above_its_pods() -> None:
    by_kind: dict[str, set[str]] = {}
    for document in POLICIES:
        by_kind.setdefault(document["kind"], set()).add(document["metadata"]["name"])
        if document["kind"].endswith("Binding"):
            assert document["spec"]["validationActions"] == ["Deny"]
            continue
        assert document["spec"]["failurePolicy"] == "Fail"
        constraints = document["spec"]["matchConstraints"]
        (excluded,) = constraints["namespaceSelector"]["matchExpressions"]
        assert set(excluded["values"]) == SYSTEM
        for rule in constraints["resourceRules"]:
            wanted = OPERATIONS.get(document["metadata"]["name"], {"CREATE", "UPDATE"})
            assert set(rule["operations"]) == wanted
    assert by_kind["ValidatingAdmissionPolicy"] == by_kind["ValidatingAdmissionPolicyBinding"]


OPERATORS = "rackgate.dev/operators"


@pytest.mark.requirement("HOOK-09")
def test_operators_are_one_list_in_all_policies_that_ask_for_them() -> None:
    """One patch with a label selector changes them all, see docs/tasks/install.md."""
    asking = [document for document in POLICIES if "variables.operators" in str(document["spec"])]
    assert {document["metadata"]["name"] for document in asking} == {
        "rackgate-part-deletions.rackgate-system",
        "rackgate-parts.rackgate-system",
        "rackgate-pods.rackgate-system",
    }
    firsts = [document["spec"]["variables"][0] for document in asking]
    assert all(first == firsts[0] for first in firsts)
    assert firsts[0]["name"] == "operators"
    labelled = [d for d in POLICIES if OPERATORS in d["metadata"]["labels"]]
    assert labelled == asking
    # In a namespace that its users may have, anybody makes a ServiceAccount of that name.
    assert ":default:" not in firsts[0]["expression"]
    # Rackgate does not manage LeaderWorkerSets, so it need not trust their controller.
    for name, user in USERS.items():
        assert (f"'{user}'" in firsts[0]["expression"]) == (name != "lws")


def test_the_patch_shown_to_operators_changes_that_list() -> None:
    text = (DEPLOY.parents[1] / "docs" / "tasks" / "install.md").read_text()
    (block,) = (b for b in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "patches:" in b)
    (patch,) = yaml.safe_load(block)["patches"]
    assert patch["target"]["labelSelector"] == f"{OPERATORS}=true"
    (change,) = yaml.safe_load(patch["patch"])
    assert (change["op"], change["path"]) == ("replace", "/spec/variables/0/expression")
    assert "'system:serviceaccount:kube-system:job-controller'" in change["value"]


def conditions(holder: dict[str, Any]) -> str:
    """All match conditions and variables, as one text without line breaks."""
    spec = holder.get("spec", holder)
    found = [*spec.get("matchConditions", ()), *spec.get("variables", ())]
    return " ".join(entry["expression"] for entry in found)


@pytest.mark.requirement("HOOK-02", "HOOK-05")
def test_what_a_job_of_another_kind_makes_is_left_alone_wherever_jobs_are_looked_at() -> None:
    parts = (
        "r.kind == 'JobSet' && r.apiVersion.startsWith('jobset.x-k8s.io/')",
        "r.kind in ['RayCluster', 'RayJob'] && r.apiVersion.startsWith('ray.io/')",
    )
    holders = [
        *(webhook for webhook in WEBHOOKS if webhook["name"].split(".")[0] in JOBS),
        *(
            policy
            for policy in POLICIES
            if policy["kind"] == "ValidatingAdmissionPolicy"
            and policy["metadata"]["name"].removeprefix("rackgate-").split(".")[0] in JOBS
        ),
    ]
    assert len(holders) == 12
    for holder in holders:
        text = conditions(holder)
        for part in parts:
            # Of the object as it comes, and as it was.
            assert text.count(part) >= 2, holder.get("name") or holder["metadata"]["name"]
            assert "object.metadata.?ownerReferences" in text
            assert "oldObject.metadata.?ownerReferences" in text


@pytest.mark.requirement("SLC-33")
def test_no_webhook_is_called_for_the_replicas_of_a_cluster_that_scales_itself() -> None:
    for webhook in WEBHOOKS:
        if webhook["name"].startswith("rayclusters."):
            (relevant,) = (
                entry["expression"]
                for entry in webhook["matchConditions"]
                if entry["name"] in ("relevant", "enters-leaves-or-is-edited")
            )
            # But for clusters whose pods no gate of ours holds.
            unheld = (
                "!oldObject.?spec.?headGroupSpec.?template.?spec.?schedulingGates.orValue([])"
                ".exists(e, e.name == 'kueue.x-k8s.io/elastic-job') && "
            )
            assert "replicas" not in relevant.lower().partition(unheld.lower())[0]
            guard = "!object.?spec.?enableInTreeAutoscaling.orValue(false) && object.?spec != "
            assert relevant.count("object.?spec != ") == relevant.count(guard)


def test_a_hint_rejects_nothing_and_hinders_nothing() -> None:
    found = documents("hints.yaml")
    assert len(found) == 4
    for policy, binding in zip(found[::2], found[1::2], strict=True):
        assert policy["spec"]["failurePolicy"] == "Ignore"
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Warn", "Audit"]
        (excluded,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert set(excluded["values"]) == SYSTEM


def test_every_manifest_of_the_folder_is_deployed() -> None:
    (listed,) = documents("kustomization.yaml")
    found = {path.name for path in DEPLOY.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed["resources"]) == found
