"""The registrations and policies in deploy/webhook: opt-in, failing open, and bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names

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
POLICIES = documents("policies.yaml")


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
    assert {("mutate", "jobs", "CREATE"), ("mutate", "pods", "CREATE")} <= called
    for resource in ("jobs", "workloads", "topologies", "resourceflavors", "clusterqueues"):
        assert {("validate", resource, op) for op in ("CREATE", "UPDATE")} <= called


@pytest.mark.requirement("HOOK-15")
def test_every_policy_is_bound_denies_and_never_hinders_deletion() -> None:
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
            assert set(rule["operations"]) == {"CREATE", "UPDATE"}
    assert by_kind["ValidatingAdmissionPolicy"] == by_kind["ValidatingAdmissionPolicyBinding"]
