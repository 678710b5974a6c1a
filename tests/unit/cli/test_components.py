"""The control plane's command lines: the playground and docker-compose.yaml run the same ones."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest
import yaml

from rackgate_cli.controlplane import compose
from rackgate_cli.controlplane.binaries.versions import COMPONENTS, SERVICES
from rackgate_cli.controlplane.cluster import Cluster, component_environment
from rackgate_cli.controlplane.flags import Site, arguments
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.locations import deploy_dir

COMPOSE_FILE = deploy_dir().parent / "docker-compose.yaml"
PORTS = {
    "etcd": 30001,
    "etcd-peer": 30002,
    "kube-apiserver": 30003,
    "kube-controller-manager": 30004,
    "kube-scheduler": 30005,
    "kwok": 30006,
}


def playground_site(folder: Path) -> Site:
    playground = Playground(ports=PORTS)
    manifests = deploy_dir() / "controlplane"
    return Cluster(StateFolder(folder), playground, manifests, Progress(quiet=True)).site()


def without_places(lines: list[str], site: Site) -> list[str]:
    """Flags with every value that is a place replaced by its name in the site."""
    places = {
        str(value): f"<{key}>"
        for key, value in dataclasses.asdict(site).items()
        if value is not None and key not in ("bind", "advertise", "etcd_host", "apiserver_host")
    }
    hosts = (site.bind, site.etcd_host, site.apiserver_host, site.advertise)
    found = []
    for line in lines:
        flag, _, value = line.partition("=")
        for place in sorted(places, key=len, reverse=True):
            value = value.replace(place, places[place])
        for host in hosts:
            value = value.replace(f"//{host}:", "//<host>:").removeprefix(f"{host}:")
        found.append(f"{flag}={'<host>' if value in hosts else value}")
    return found


@pytest.mark.requirement("OPS-10")
@pytest.mark.parametrize("component", COMPONENTS)
def test_compose_gives_a_component_the_playground_flags(component: str, tmp_path: Path) -> None:
    services = yaml.safe_load(COMPOSE_FILE.read_text())["services"]
    site = playground_site(tmp_path)
    ours = without_places(arguments(site)[component], site)
    theirs = without_places(services[component]["command"], compose.compose_site())
    assert theirs == ours
    assert services[component]["environment"] == component_environment({})


@pytest.mark.requirement("OPS-10")
def test_a_component_has_only_the_variables_that_are_meant_for_it() -> None:
    found = {"HOME": "/root", "GOGC": "off", "ETCD_NAME": "other", "HTTPS_PROXY": "http://proxy"}
    assert component_environment(found) == {"HOME": "/root", "GOGC": "off"}


@pytest.mark.requirement("OPS-10")
def test_compose_file_is_the_generated_one() -> None:
    assert COMPOSE_FILE.read_text() == compose.rendered(), (
        "run: python -m rackgate_cli.controlplane.compose write docker-compose.yaml"
    )


@pytest.mark.requirement("OPS-10")
def test_compose_has_the_control_plane_and_the_three_services() -> None:
    document = yaml.safe_load(COMPOSE_FILE.read_text())
    services = document["services"]
    assert {*COMPONENTS, *SERVICES} <= set(services)
    for service in services.values():
        assert ":latest" not in service["image"]
        assert ":" in service["image"]
        assert set(service.get("depends_on", {})) <= set(services)
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source.startswith("./") or source in document["volumes"]


@pytest.mark.requirement("OPS-01")
def test_the_repository_is_laid_out_by_service() -> None:
    root = COMPOSE_FILE.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for service in SERVICES:
        assert (root / "services" / service / f"rackgate_{service}" / "__main__.py").is_file()
        assert project["scripts"][f"rackgate-{service}"] == f"rackgate_{service}.__main__:main"
    assert all((root / name).is_dir() for name in ("shared", "deploy", "tests"))
    assert COMPOSE_FILE.is_file()


def test_only_an_asked_for_audit_log_changes_the_api_server(tmp_path: Path) -> None:
    site = playground_site(tmp_path)
    audited = dataclasses.replace(site, audit_log="/somewhere/audit.log")
    added = set(arguments(audited)["kube-apiserver"]) - set(arguments(site)["kube-apiserver"])
    assert {flag.partition("=")[0] for flag in added} == {
        "--audit-policy-file",
        "--audit-log-path",
        "--audit-log-maxsize",
    }


def test_gang_scheduling_changes_what_serves_and_schedules_pod_groups(tmp_path: Path) -> None:
    """With the gates and without the API, no scheduler would bind a pod."""
    plain = playground_site(tmp_path)
    found = arguments(dataclasses.replace(plain, gang_scheduling=True))
    added = {name: set(found[name]) - set(lines) for name, lines in arguments(plain).items()}
    gates = (
        "--feature-gates=GenericWorkload=true,GangScheduling=true,"
        "TopologyAwareWorkloadScheduling=true"
    )
    assert added == {
        "etcd": set(),
        "kube-apiserver": {gates, "--runtime-config=scheduling.k8s.io/v1alpha2=true"},
        "kube-controller-manager": {gates},
        "kube-scheduler": {gates},
        "kwok": set(),
    }


def test_the_api_server_authorizes_by_roles_and_serves_tls_only(tmp_path: Path) -> None:
    flags = arguments(playground_site(tmp_path))["kube-apiserver"]
    assert "--authorization-mode=RBAC" in flags
    assert any(flag.startswith("--tls-cert-file=") for flag in flags)
    assert "--enable-admission-plugins=OwnerReferencesPermissionEnforcement" in flags


def test_files_named_by_flags_are_in_the_manifests(tmp_path: Path) -> None:
    site = dataclasses.replace(playground_site(tmp_path), audit_log="audit.log")
    named = [
        Path(flag.partition("=")[2])
        for lines in arguments(site).values()
        for flag in lines
        if site.manifests in flag
    ]
    assert len(named) == 4
    assert [path for path in named if not path.is_file()] == []
