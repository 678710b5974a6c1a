"""deploy/osmo: nothing of it in the base, and all that the gate needs in it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from rackgate.api.names import OSMO_GROUP
from rackgate.api.resources import KAI_TOPOLOGIES, OSMO_POOLS, OSMO_WORKFLOWS
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from rackgate_webhook.service import OSMO_PATH

DEPLOY = deploy_dir()
OSMO = DEPLOY / "osmo"
Object = dict[str, Any]


def documents(name: str) -> list[Object]:
    return install.documents(OSMO / name)


(REGISTRATION,) = documents("webhooks.yaml")
ROLES = {
    entry["metadata"]["name"]: entry["rules"]
    for entry in (*documents("rbac.yaml"), *documents("cluster"))
    if entry["kind"] == "ClusterRole"
}


def rights(role: str) -> set[tuple[str, str, str]]:
    return {
        (verb, group, resource)
        for rule in ROLES[role]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_component_has_every_manifest_of_its_folder() -> None:
    listed = yaml.safe_load((OSMO / "kustomization.yaml").read_text())
    named = {*listed["resources"], *(patch["path"] for patch in listed["patches"])}
    there = {path.name for path in OSMO.glob("*.yaml")}
    assert named == there - {"kustomization.yaml"}


@pytest.mark.requirement("OPS-14")
def test_kinds_and_what_users_are_admitted_are_no_part_of_what_an_uninstall_deletes() -> None:
    """With the CRDs all Pools and Workflows would go, and the Topologies that Pools own."""
    component = yaml.safe_load((OSMO / "kustomization.yaml").read_text())
    assert component["resources"] == ["rbac.yaml"]
    cluster = yaml.safe_load((OSMO / "cluster" / "kustomization.yaml").read_text())
    assert cluster["resources"] == ["../crds", "users.yaml"]
    deleted = [(one["kind"], one["metadata"]["name"]) for one in documents("rbac.yaml")]
    assert {kind for kind, _ in deleted} == {"ClusterRole", "ClusterRoleBinding"}
    assert not [name for _, name in deleted if name.startswith("rackgate-users:")]
    kept = {(one["kind"], one["metadata"]["name"]) for one in documents("cluster")}
    assert {name.split(":")[0] for _, name in kept} == {"rackgate-users"}
    assert ("ClusterRoleBinding", "rackgate-users:osmo-pools") in kept


@pytest.mark.requirement("OSM-06")
@pytest.mark.parametrize("webhook", REGISTRATION["webhooks"], ids=lambda webhook: webhook["name"])
def test_both_kinds_are_judged_when_their_spec_is_written_and_never_when_they_go(
    webhook: Object,
) -> None:
    (rule,) = webhook["rules"]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert rule["apiGroups"] == [OSMO_GROUP]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "None"
    assert webhook["timeoutSeconds"] == 5
    assert webhook["clientConfig"]["service"]["path"] == OSMO_PATH
    (relevant,) = webhook["matchConditions"]
    assert "object.?spec != oldObject.?spec" in relevant["expression"]
    assert "deletionTimestamp" in relevant["expression"]


def test_the_registration_covers_both_kinds() -> None:
    judged = {hook["rules"][0]["resources"][0] for hook in REGISTRATION["webhooks"]}
    assert judged == {OSMO_POOLS.plural, OSMO_WORKFLOWS.plural}


@pytest.mark.requirement("OPS-05")
def test_services_get_what_the_gate_needs_and_no_more() -> None:
    assert rights("rackgate-webhook-osmo.rackgate-system") == {
        ("get", OSMO_GROUP, "pools"),
        ("list", OSMO_GROUP, "workflows"),
    }
    kai = {("list"), ("watch"), ("create"), ("patch"), ("delete")}
    assert rights("rackgate-assigner-osmo.rackgate-system") == {
        ("list", OSMO_GROUP, "pools"),
        ("watch", OSMO_GROUP, "pools"),
        ("patch", OSMO_GROUP, "pools/status"),
        *((verb, KAI_TOPOLOGIES.group, KAI_TOPOLOGIES.plural) for verb in kai),
    }
    bound = {
        entry["roleRef"]["name"]: entry["subjects"]
        for entry in documents("rbac.yaml")
        if entry["kind"] == "ClusterRoleBinding"
    }
    for service in ("assigner", "webhook"):
        (subject,) = bound[f"rackgate-{service}-osmo.rackgate-system"]
        assert subject["name"] == f"rackgate-{service}"


@pytest.mark.requirement("OSM-03")
def test_everybody_may_read_pools_and_only_administrators_write_them() -> None:
    readers = [entry for entry in documents("cluster") if entry["kind"] == "ClusterRoleBinding"]
    (binding,) = (one for one in readers if one["roleRef"]["name"] == "rackgate-users:osmo-pools")
    assert [subject["name"] for subject in binding["subjects"]] == ["system:authenticated"]
    verbs = {verb for verb, _, resource in rights("rackgate-users:osmo-pools")}
    assert verbs == {"get", "list", "watch"}
    writers = {
        name
        for name in ROLES
        for verb, _, resource in rights(name)
        if resource == "pools" and verb in ("create", "update", "patch", "delete")
    }
    assert writers == {"rackgate-users:osmo-admin"}


def test_what_is_installed_is_of_kinds_that_up_can_apply() -> None:
    found = [*documents("crds"), *documents("cluster"), *documents("rbac.yaml"), REGISTRATION]
    for entry in found:
        assert (entry["apiVersion"], entry["kind"]) in install._KINDS
