"""What the roles for people allow: enough for each of them, and nothing that a policy trusts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.features import Features
from rackgate_assigner.cache.cache import Cache
from rackgate_cli.cluster import roles
from rackgate_cli.controlplane import install
from rackgate_cli.explain.cluster_reading import ClusterReading
from rackgate_cli.explain.reading import _cache_setters
from rackgate_cli.locations import deploy_dir
from rackgate_invariants.reading import SOURCES

FOLDERS = ("cluster", "gangs/cluster", "osmo/cluster")
READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete")
JOBS = (kinds.JOBS, kinds.JOBSETS, kinds.RAY_CLUSTERS)
QUEUES = (
    *(kinds.CLUSTER_QUEUES, kinds.COHORTS, kinds.LOCAL_QUEUES, kinds.FLAVORS, kinds.TOPOLOGIES),
    *(kinds.WORKLOAD_PRIORITY_CLASSES, kinds.ADMISSION_CHECKS),
)
INSTALLATION = (
    *(kinds.CRDS, kinds.MUTATING_CONFIGS, kinds.VALIDATING_CONFIGS, kinds.ADMISSION_POLICIES),
    *(kinds.ADMISSION_POLICY_BINDINGS, kinds.API_SERVICES, kinds.DEPLOYMENTS, kinds.LEASES),
    kinds.CLUSTER_ROLE_BINDINGS,
)
Object = dict[str, Any]
Right = tuple[str, str, str]


@cache
def cluster_roles() -> dict[str, Object]:
    found = (one for folder in FOLDERS for one in install.documents(deploy_dir() / folder))
    return {one["metadata"]["name"]: one for one in found if one["kind"] == "ClusterRole"}


def rules(name: str) -> Iterator[Object]:
    """Its own rules, or those that the control plane collects."""
    role = cluster_roles()[name]
    yield from role.get("rules") or ()
    for selector in role.get("aggregationRule", {}).get("clusterRoleSelectors", ()):
        for part, other in cluster_roles().items():
            if selector["matchLabels"].items() <= other["metadata"]["labels"].items():
                assert part.startswith(roles.PARTS)
                yield from other["rules"]


@cache
def rights(name: str) -> frozenset[Right]:
    """`(verb, group, resource)`."""
    return frozenset(
        (verb, group, resource)
        for rule in rules(name)
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    )


def lacking(name: str, verbs: tuple[str, ...], *resources: Resource) -> set[Right]:
    wanted = {(verb, one.group, one.plural) for verb in verbs for one in resources}
    return wanted - rights(name)


def written(name: str) -> set[tuple[str, str]]:
    return {(verb, resource) for verb, _, resource in rights(name) if verb not in READ}


@pytest.mark.requirement("OPS-05")
def test_a_batch_user_runs_jobs_and_follows_their_workloads() -> None:
    assert lacking(roles.BATCH_USER, (*READ, *WRITE), *JOBS, kinds.GANG_WORKLOADS) == set()
    assert lacking(roles.BATCH_USER, READ, kinds.WORKLOADS, kinds.LOCAL_QUEUES, kinds.PODS) == set()
    # To set spec.active, and to delete.
    assert lacking(roles.BATCH_USER, ("patch", "delete"), kinds.WORKLOADS) == set()
    position = ("get", "visibility.kueue.x-k8s.io", "localqueues/pendingworkloads")
    assert position in rights(roles.BATCH_USER)
    queues = {one.plural for one in QUEUES}
    assert {right for right in written(roles.BATCH_USER) if right[1] in queues} == set()


@pytest.mark.requirement("OPS-05")
def test_a_batch_administrator_writes_queues_and_reads_what_explain_reads() -> None:
    assert lacking(roles.BATCH_ADMIN, (*READ, *WRITE), *QUEUES, *JOBS, kinds.OSMO_POOLS) == set()
    assert rights(roles.VIEWER) <= rights(roles.BATCH_ADMIN)
    assert rights("rackgate-users:batch-admin") <= rights(roles.BATCH_ADMIN)


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize("name", [roles.VIEWER, roles.OPERATOR])
def test_those_who_look_read_all_that_the_commands_read_and_write_nothing(name: str) -> None:
    explained = tuple(_cache_setters(ClusterReading(Cache(Features(), ()))))
    checked = tuple(source.resource for source in SOURCES)
    assert lacking(name, READ, *explained, *checked, *JOBS, kinds.MUTATING_CONFIGS) == set()
    positions = {f"{queue}/pendingworkloads" for queue in ("clusterqueues", "localqueues")}
    assert positions <= {resource for _, _, resource in rights(name)}
    assert written(name) == set()


@pytest.mark.requirement("OPS-05")
def test_an_operator_reads_what_preflight_reads() -> None:
    assert lacking(roles.OPERATOR, READ, *INSTALLATION) == set()
    assert "secrets" not in {resource for _, _, resource in rights(roles.OPERATOR)}


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize("name", sorted(cluster_roles()))
def test_nobody_has_a_right_by_which_policies_know_a_service(name: str) -> None:
    if name.startswith("rackgate-uninstall"):
        return
    groups = {group for _, group, _ in rights(name)}
    assert "rackgate.dev" not in groups
    assert "*" not in {part for right in rights(name) for part in right}
    # Who may create Workloads may write those without a job; the assigner alone writes a status.
    assert ("create", "workloads") not in written(name)
    below = {resource for _, resource in written(name) if "/" in resource}
    assert below == set()
    assert {"pods", "nodes", "namespaces"}.isdisjoint(resource for _, resource in written(name))


def test_the_names_of_kueue_have_the_rights_of_ours() -> None:
    assert rights("kueue-batch-user-role") == rights(roles.BATCH_USER)
    assert rights("kueue-batch-admin-role") == rights(roles.BATCH_ADMIN)


def test_an_aggregated_role_has_no_rules_of_its_own() -> None:
    """An upgrade would conflict with the control plane, which writes them."""
    found = [one for one in cluster_roles().values() if "aggregationRule" in one]
    assert len(found) == 6
    assert [one["metadata"]["name"] for one in found if "rules" in one] == []
