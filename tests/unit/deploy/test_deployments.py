"""The three Deployments give each service the time and the room that it needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.runtime.serving.connections import SHUTDOWN_TIMEOUT_S
from rackgate.runtime.settings import BaseServiceSettings, load_settings
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_webhook.settings import WebhookSettings

DEPLOY = deploy_dir()
SETTINGS: dict[str, type[BaseServiceSettings]] = {
    "webhook": WebhookSettings,
    "assigner": AssignerSettings,
    "ungater": UngaterConfiguration,
}
OBJECTS = {
    (entry["kind"], entry["metadata"]["name"]): entry
    for entry in install.documents(DEPLOY / "services")
}
# Seconds that a process may take between the signal and its last line, apart from requests.
SPARE_S = 5.0


def deployment(service: str) -> dict[str, Any]:
    found: dict[str, Any] = OBJECTS["Deployment", f"rackgate-{service}"]["spec"]
    return found


def pod(service: str) -> dict[str, Any]:
    found: dict[str, Any] = deployment(service)["template"]["spec"]
    return found


def configured(service: str, folder: Path) -> BaseServiceSettings:
    path = folder / "config.yaml"
    path.write_text(OBJECTS["ConfigMap", f"rackgate-{service}"]["data"]["config.yaml"])
    return load_settings(SETTINGS[service], service=service, config=path)


@pytest.mark.requirement("OPS-08")
@pytest.mark.parametrize("service", SETTINGS)
def test_a_pod_is_given_longer_than_its_service_takes_to_stop(service: str, tmp_path: Path) -> None:
    settings = configured(service, tmp_path)
    # What is under way, then the release of the Lease.
    needed_s = 2 * settings.connection.request_timeout
    if isinstance(settings, WebhookSettings):
        needed_s = settings.serving.drain_delay + SHUTDOWN_TIMEOUT_S
    assert pod(service)["terminationGracePeriodSeconds"] >= needed_s + SPARE_S


@pytest.mark.requirement("OPS-08")
@pytest.mark.parametrize("service", SETTINGS)
def test_probes_ask_the_health_port_and_a_slow_start_is_no_death(service: str) -> None:
    (container,) = pod(service)["containers"]
    assert {port["name"] for port in container["ports"]} >= {"health"}
    startup, alive, ready = (
        container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")
    )
    assert {probe["httpGet"]["port"] for probe in (startup, alive, ready)} == {"health"}
    assert startup["httpGet"] == alive["httpGet"] == {"path": "/healthz", "port": "health"}
    assert ready["httpGet"]["path"] == "/readyz"
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 60
    # A loop that is busy for some seconds must not be taken for a dead one.
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 30
    assert alive["timeoutSeconds"] >= 5


@pytest.mark.requirement("OPS-02")
@pytest.mark.parametrize("service", SETTINGS)
def test_one_replica_at_a_time_may_be_evicted_and_replicas_spread_over_nodes(service: str) -> None:
    spec = deployment(service)
    selector = {"matchLabels": {"app.kubernetes.io/name": f"rackgate-{service}"}}
    assert spec["selector"] == selector
    assert selector["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    budget = OBJECTS["PodDisruptionBudget", f"rackgate-{service}"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": selector}
    assert spec["replicas"] > budget["maxUnavailable"]
    (spread,) = pod(service)["topologySpreadConstraints"]
    assert spread["labelSelector"] == selector
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    # One node is enough to run on.
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


def test_a_roll_out_never_lessens_the_webhooks_replicas() -> None:
    assert deployment("webhook")["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize("service", SETTINGS)
def test_memory_is_bounded_and_cpu_is_not(service: str) -> None:
    """A throttled holder loses its Leases."""
    resources = pod(service)["containers"][0]["resources"]
    assert set(resources["requests"]) == {"cpu", "memory"}
    assert set(resources["limits"]) == {"memory"}
    assert pod(service)["priorityClassName"] == "system-cluster-critical"


@pytest.mark.requirement("OPS-06")
@pytest.mark.parametrize("service", ["assigner", "ungater"])
def test_who_holds_leases_has_a_folder_that_outlives_its_container_and_no_other_pod_has(
    service: str,
) -> None:
    text = OBJECTS["ConfigMap", f"rackgate-{service}"]["data"]["config.yaml"]
    folder = yaml.safe_load(text)["leaderElection"]["stateDir"]
    spec = pod(service)
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert "readOnly" not in mounts[folder]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(volumes[mounts[folder]["name"]]) == {"name", "emptyDir"}


def test_the_three_agree_in_everything_but_their_names_ports_and_resources() -> None:
    def plain(service: str) -> str:
        spec = yaml.safe_load(yaml.safe_dump(deployment(service)))
        spec.pop("replicas")
        spec.pop("strategy")
        container = spec["template"]["spec"]["containers"][0]
        container.pop("resources")
        # Of those with Leases alone.
        for parts in (container["volumeMounts"], spec["template"]["spec"]["volumes"]):
            parts[:] = [part for part in parts if part["name"] != "state"]
        container["ports"] = [port for port in container["ports"] if port["name"] == "health"]
        return yaml.safe_dump(spec).replace(service, "SERVICE")

    assert plain("webhook") == plain("assigner") == plain("ungater")


@pytest.mark.field_note("W6")
@pytest.mark.parametrize("service", SETTINGS)
def test_a_service_finds_its_namespace_in_its_pod(service: str, tmp_path: Path) -> None:
    """So that the same ConfigMap configures it in any namespace."""
    text = OBJECTS["ConfigMap", f"rackgate-{service}"]["data"]["config.yaml"]
    assert "rackgate-system" not in text
    (variable,) = pod(service)["containers"][0]["env"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    (tmp_path / "config.yaml").write_text(text)
    environ = {variable["name"]: "team-infra"}
    there = load_settings(
        SETTINGS[service], service=service, config=tmp_path / "config.yaml", environ=environ
    )
    assert "rackgate-system" not in there.model_dump_json()
    assert there.leader_election.namespace == "team-infra"


@pytest.mark.field_note("W6")
def test_the_namespace_is_no_part_of_other_names() -> None:
    for path in [*DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.json")]:
        text = path.read_text()
        alone = re.findall(r"(?<![\w-])rackgate-system(?![\w-])", text)
        assert len(alone) == text.count("rackgate-system"), path.name
