"""The audit log of this run against the roles, in both directions, and a cluster at rest."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from tests.support.cluster import Cluster, until
from tests.support.objects import RACK
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("webhook", "assigner", "ungater")
USER = "system:serviceaccount:rackgate-system:rackgate-{}"
Right: TypeAlias = tuple[str, str, str]
# Granted for what only some runs show, with the reason.
UNSEEN: dict[str, dict[Right, str]] = {
    "webhook": {},
    "assigner": {
        ("update", "batch", "jobs/finalizers"): "asked for by OwnerReferencesPermissionEnforcement",
        ("update", "jobset.x-k8s.io", "jobsets/finalizers"): "the same",
        ("update", "ray.io", "rayclusters/finalizers"): "the same",
    },
    "ungater": {
        ("get", "", "pods"): "only after a conflict or a lost answer, as tests/wire shows",
        ("get", "coordination.k8s.io", "leases"): "only after a conflict or a lost answer",
    },
}


def entries(log: Path) -> list[dict[str, Any]]:
    """Audit entries of answered requests; a watch answers long before it completes."""
    lines = log.read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [entry for entry in found if entry["stage"] in ("ResponseStarted", "ResponseComplete")]


def used(log: Path, service: str) -> set[Right]:
    """(verb, group, resource) of every request a service made."""
    user = USER.format(service)
    rights = set()
    for entry in entries(log):
        reference = entry.get("objectRef")
        if entry["user"]["username"] == user and reference:
            sub = reference.get("subresource")
            resource = f"{reference['resource']}/{sub}" if sub else reference["resource"]
            rights.add((entry["verb"], reference.get("apiGroup", ""), resource))
    return rights


def refused(log: Path, service: str) -> list[str]:
    """Requests of a service that its roles did not allow."""
    user = USER.format(service)
    return [
        f"{entry['verb']} {entry['requestURI']}"
        for entry in entries(log)
        if entry["user"]["username"] == user
        and entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    ]


def granted() -> dict[str, set[Right]]:
    """Rights by service, from the roles in deploy/."""
    rights: dict[str, set[Right]] = defaultdict(set)
    for path in (ROOT / "deploy" / "rbac").glob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            if not document or document["kind"] not in ("Role", "ClusterRole"):
                continue
            service = document["metadata"]["name"].removeprefix("rackgate-").split(":")[0]
            for rule in document["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        rights[service] |= {(verb, group, resource) for verb in rule["verbs"]}
    return rights


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize("service", SERVICES)
async def test_no_request_of_a_service_was_refused(
    playground: Playground, cluster: Cluster, service: str
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    await cluster.bound("train", 4)
    assert refused(playground.audit_log, service) == []


@pytest.mark.requirement("OPS-05")
@pytest.mark.parametrize("service", SERVICES)
def test_every_use_of_a_right_is_granted_by_a_role(playground: Playground, service: str) -> None:
    assert sorted(used(playground.audit_log, service) - granted()[service]) == []


# Without the ledger's mark: it holds for a run of all integration tests, not for a part of them.
@pytest.mark.parametrize("service", SERVICES)
def test_every_right_of_a_service_is_used(playground: Playground, service: str) -> None:
    """Runs last (see conftest): by then the other tests have made the services do everything."""
    rights, unseen = granted()[service], set(UNSEEN[service])
    assert sorted(rights - used(playground.audit_log, service) - unseen) == []
    assert unseen <= rights


def requests_since(log: Path, offset: int) -> list[str]:
    """What the services asked for beyond leases and watches, after `offset` bytes of the log."""
    with log.open() as file:
        file.seek(offset)
        lines = file.read().splitlines()
    users = {USER.format(service) for service in SERVICES}
    found = []
    for line in lines:
        if not (line.startswith("{") and line.endswith("}")):
            continue
        entry = json.loads(line)
        resource = (entry.get("objectRef") or {}).get("resource")
        if entry["user"]["username"] in users and resource != "leases" and entry["verb"] != "watch":
            found.append(f"{entry['user']['username']} {entry['verb']} {entry['requestURI']}")
    return found


@pytest.mark.field_note("U9", "C7")
async def test_an_idle_cluster_causes_nothing_but_leases_and_watches(
    playground: Playground, cluster: Cluster
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    await cluster.submit("waits", 16, required=RACK)
    await cluster.bound("train", 4)
    await cluster.condition("waits", "QuotaReserved", "False")
    log = playground.audit_log

    async def quiet() -> bool:
        offset = log.stat().st_size
        await asyncio.sleep(12)
        return not requests_since(log, offset)

    await until("twelve seconds pass without a request", quiet, timeout_s=120)
