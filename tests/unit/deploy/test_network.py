"""What deploy/network admits, by the rules of NetworkPolicies: exactly what the services need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir

Labels = Mapping[str, str]
DEPLOY = deploy_dir()
POLICIES = install.documents(DEPLOY / "network" / "policies.yaml")
DEPLOYMENTS = {
    entry["metadata"]["labels"]["app.kubernetes.io/name"]: entry["spec"]["template"]
    for folder in ("services", "console")
    for entry in install.documents(DEPLOY / folder)
    if entry["kind"] == "Deployment"
}
SYSTEM = {"kubernetes.io/metadata.name": "kube-system"}
MONITORING = {"kubernetes.io/metadata.name": "monitoring", "metrics": "enabled"}
INGRESS = {"kubernetes.io/metadata.name": "ingress", "console": "enabled"}
USERS = {"kubernetes.io/metadata.name": "team-a"}
OWN = {"kubernetes.io/metadata.name": "rackgate-system"}
# An address that belongs to no pod: a node, an API server, the internet.
NO_POD: Labels | None = None
OTHERS: tuple[Labels | None, ...] = (SYSTEM, MONITORING, INGRESS, USERS, OWN, NO_POD)


def selects(selector: dict[str, Any], labels: Labels) -> bool:
    assert set(selector) <= {"matchLabels"}, "only equality is used"
    return set(selector.get("matchLabels", {}).items()) <= set(labels.items())


def holds_peer(peers: list[dict[str, Any]] | None, other: Labels | None) -> bool:
    """Whether a rule without peers, or one of its namespaces, holds the other side."""
    if peers is None:
        return True
    return any(other is not None and selects(peer["namespaceSelector"], other) for peer in peers)


def open_ports(labels: Labels, direction: str, other: Labels | None) -> set[tuple[str, int]]:
    """(protocol, port) that a pod may be reached at, or may reach."""
    mine = [
        policy["spec"]
        for policy in POLICIES
        if selects(policy["spec"]["podSelector"], labels)
        and direction in policy["spec"]["policyTypes"]
    ]
    assert mine, "a pod that no policy selects may do everything"
    side = "from" if direction == "Ingress" else "to"
    return {
        (port["protocol"], port["port"])
        for policy in mine
        for rule in policy.get(direction.lower(), [])
        if holds_peer(rule.get(side), other)
        for port in rule["ports"]
    }


def served(service: str) -> dict[str, int]:
    (container,) = DEPLOYMENTS[service]["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


@pytest.mark.requirement("OPS-02")
@pytest.mark.parametrize("service", DEPLOYMENTS)
@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_reviews_come_from_anywhere_metrics_to_monitoring_and_nothing_else(
    service: str, other: Labels | None
) -> None:
    ports = served(service)
    wanted = set()
    wanted |= {("TCP", ports[name]) for name in ("reviews", "visibility") if name in ports}
    if other == MONITORING:
        wanted.add(("TCP", ports["health"]))
    if other == INGRESS and "page" in ports:
        wanted.add(("TCP", ports["page"]))
    labels = DEPLOYMENTS[service]["metadata"]["labels"]
    assert open_ports(labels, "Ingress", other) == wanted


@pytest.mark.parametrize("service", DEPLOYMENTS)
@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_services_reach_the_api_server_and_dns_and_nothing_else(
    service: str, other: Labels | None
) -> None:
    wanted = {("TCP", 443), ("TCP", 6443)}
    if other == SYSTEM:
        wanted |= {("UDP", 53), ("TCP", 53)}
    assert open_ports(DEPLOYMENTS[service]["metadata"]["labels"], "Egress", other) == wanted


def test_the_webhook_is_reached_at_the_port_that_its_service_sends_to() -> None:
    (service,) = (
        entry for entry in install.documents(DEPLOY / "services") if entry["kind"] == "Service"
    )
    (port,) = service["spec"]["ports"]
    assert served(service["spec"]["selector"]["app.kubernetes.io/name"])[port["targetPort"]]


def test_policies_are_in_the_namespace_of_the_services() -> None:
    assert {policy["metadata"]["namespace"] for policy in POLICIES} == {"rackgate-system"}
