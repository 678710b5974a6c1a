"""Services meet in Kubernetes objects alone: no imports, no calls, no state of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rackgate_cli.controlplane import install
from rackgate_cli.controlplane.binaries.versions import SERVICES
from rackgate_cli.locations import deploy_dir

DEPLOY = deploy_dir()
SOURCES = DEPLOY.parent / "services"
PACKAGES = {service: f"rackgate_{service}" for service in SERVICES}
# What a program would need to call another one past `rackgate.kube`.
CALLERS = {"aiohttp.ClientSession", "aiohttp.request", "http.client", "urllib.request", "xmlrpc"}
# The webhook calls itself: it is ready when its own TLS call is answered.
CALLS_ITSELF = "selfcall.py"
EPHEMERAL = {"configMap", "secret", "emptyDir", "projected", "downwardAPI"}


def imports(file: Path) -> Iterator[str]:
    """Every module, and every name of a module, that a file imports or takes from a module."""
    for found in ast.walk(ast.parse(file.read_text())):
        if isinstance(found, ast.Import):
            yield from (alias.name for alias in found.names)
        elif isinstance(found, ast.ImportFrom):
            yield found.module or ""
            yield from (f"{found.module}.{alias.name}" for alias in found.names)
        elif isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name):
            yield f"{found.value.id}.{found.attr}"


def objects(kind: str) -> list[dict[str, Any]]:
    return [entry for entry in install.documents(DEPLOY / "services") if entry["kind"] == kind]


@pytest.mark.requirement("OPS-03")
@pytest.mark.parametrize("service", SERVICES)
def test_a_service_neither_imports_nor_calls_another(service: str) -> None:
    others = {package for name, package in PACKAGES.items() if name != service}
    files = sorted((SOURCES / service).rglob("*.py"))
    assert files
    for file in files:
        for name in imports(file):
            assert name.partition(".")[0] not in others, f"{file.name} imports {name}"
            if file.name != CALLS_ITSELF:
                assert name not in CALLERS, f"{file.name} uses {name}"


@pytest.mark.requirement("OPS-03")
def test_no_service_keeps_anything_that_a_killed_pod_could_lose() -> None:
    deployments = objects("Deployment")
    assert len(deployments) == len(SERVICES)
    assert not objects("StatefulSet") + objects("PersistentVolumeClaim")
    for found in deployments:
        spec = found["spec"]["template"]["spec"]
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= EPHEMERAL, volume
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.requirement("OPS-03")
def test_no_service_is_let_out_to_a_port_that_another_listens_on() -> None:
    listened = {
        port["containerPort"]
        for found in objects("Deployment")
        for container in found["spec"]["template"]["spec"]["containers"]
        for port in container["ports"]
    }
    policies = install.documents(DEPLOY / "network" / "policies.yaml")
    rules = [rule for policy in policies for rule in policy["spec"].get("egress", [])]
    assert rules
    assert listened
    for rule in rules:
        assert rule["ports"], "every rule names its ports"
        assert listened.isdisjoint(port["port"] for port in rule["ports"])
