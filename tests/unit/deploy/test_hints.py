"""The policy that warns about keys without effect names what the webhook names."""

from __future__ import annotations

import re
from typing import Any

from rackgate.api.unsupported import WITHOUT_A_WARNING, WRITTEN_BY_KUEUE, misspelled_queue_label
from rackgate.jobframework.registry import LINKED_KINDS
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir

HINTS = "rackgate-hints.rackgate-system"
KIND = "ValidatingAdmissionPolicy"


def spec(kind: str) -> dict[str, Any]:
    (found,) = (
        one["spec"]
        for one in install.documents(deploy_dir() / "webhook")
        if (one["kind"], one["metadata"]["name"]) == (kind, HINTS)
    )
    assert isinstance(found, dict)
    return found


def test_it_warns_and_never_rejects() -> None:
    assert spec(f"{KIND}Binding")["validationActions"] == ["Warn", "Audit"]
    assert spec(KIND)["failurePolicy"] == "Ignore"


def test_keys_that_do_no_harm_are_those_of_the_webhook() -> None:
    (harmless,) = (one for one in spec(KIND)["variables"] if one["name"] == "harmless")
    named = re.findall(r"'([^']+)'", harmless["expression"])
    assert len(named) == len(set(named))
    assert set(named) == WRITTEN_BY_KUEUE | WITHOUT_A_WARNING


def test_names_that_mean_the_queue_label_are_those_of_explain() -> None:
    (validation,) = spec(KIND)["validations"]
    (listed,) = re.findall(r"variables\.name in \[([^]]+)\]", validation["messageExpression"])
    for name in re.findall(r"'([^']+)'", listed):
        metadata = {"labels": {f"kueue.x-k8s.io/{name}": "lq"}}
        assert misspelled_queue_label(metadata) == f"metadata.labels[kueue.x-k8s.io/{name}]"
    assert misspelled_queue_label({"labels": {"example.com/queue-name": "lq"}}) == ""


def test_it_covers_every_kind_that_is_suspended_and_their_templates() -> None:
    rules = spec(KIND)["matchConstraints"]["resourceRules"]
    found = {resource for rule in rules for resource in rule["resources"]}
    assert found >= {"jobs", "jobsets", "rayclusters", "rayjobs", "cronjobs", "pods"}
    assert found >= {kind.resource.plural for kind in LINKED_KINDS.values()}
    (places,) = (one for one in spec(KIND)["variables"] if one["name"] == "places")
    for part in ("labels", "annotations"):
        for path in (
            "metadata",
            "spec.template.metadata",
            "spec.jobTemplate.metadata",
            "spec.jobTemplate.spec.template.metadata",
            "spec.headGroupSpec.template.metadata",
            "spec.rayClusterSpec.headGroupSpec.template.metadata",
            "spec.submitterPodTemplate.metadata",
            "spec.leaderWorkerTemplate.workerTemplate.metadata",
            "].template.metadata",
            "].template.spec.template.metadata",
        ):
            assert f"{path}.{part}'" in places["expression"]
