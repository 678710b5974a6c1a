"""The three services as local processes, each with its own role."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from rackgate.api import names
from rackgate_cli.controlplane import ports
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.files import write_private
from rackgate_cli.controlplane.state import StateFolder
from rackgate_cli.errors import CommandError

CONFIG_VERSION: Final = "config.rackgate.dev/v1alpha1"

# Ports that all replicas of a service share, by name, with the service.
SHARED_PORTS: Final = {"webhook": "webhook", "visibility": "assigner"}
# A standby waits this long after the Lease expires: writes of a killed holder may still arrive.
REQUEST_TIMEOUT_S: Final = 4
# There is no load balancer that has to notice when a local replica stops.
DRAIN_DELAY_S: Final = 0.5


def token_file(folder: StateFolder, service: str) -> Path:
    """Return the token file of a service's ServiceAccount."""
    return folder.services / service / "token"


def replica_names(service: str, count: int) -> list[str]:
    """Return the component names of a service's replicas."""
    return [f"{service}-{index}" for index in range(count)]


def start_services(cluster: Cluster, services: tuple[str, ...]) -> None:
    """Start the missing replicas of the named services and wait until all of them are ready.

    A replica whose configuration changed is restarted.

    Raises:
        CommandError: a service is not installed, exited or did not become ready.
    """
    playground = cluster.playground
    wanted = [
        (service, name)
        for service in services
        for name in replica_names(service, playground.replicas.get(service, 0))
    ]
    for service in services:
        _raise_if_missing(service)
    own_ports = [*SHARED_PORTS, *(name for _, name in wanted)]
    free = {name: playground.ports.get(name) for name in own_ports if _needs_port(cluster, name)}
    with ports.reserved(free) as chosen:
        playground.ports.update(chosen)
        cluster.folder.save(playground)
        lines = {}
        for service, name in wanted:
            _write_config(cluster, service, name)
            url = f"http://{ports.LOOPBACK}:{playground.ports[name]}/readyz"
            config = str(cluster.folder.services / f"{name}.yaml")
            lines[name] = ([sys.executable, "-m", f"rackgate_{service}", "--config", config], url)
        cluster.start_processes(lines, {**os.environ, "PYTHONUNBUFFERED": "1"})


def end_surplus(cluster: Cluster, service: str) -> None:
    """Stop the replicas of a service beyond its set count."""
    keep = set(replica_names(service, cluster.playground.replicas.get(service, 0)))
    cluster.end([name for name in running_replicas(cluster, service) if name not in keep])


def running_replicas(cluster: Cluster, service: str) -> list[str]:
    """Return the names of a service's recorded replicas, sorted by number."""
    found = [name for name in cluster.playground.processes if name.rpartition("-")[0] == service]
    return sorted(found, key=lambda name: int(name.rpartition("-")[2]))


def shared_port(cluster: Cluster, name: str) -> int:
    """Return a port of `SHARED_PORTS`; it is chosen once."""
    known = cluster.playground.ports
    if name not in known:
        with ports.reserved({name: None}) as chosen:
            known.update(chosen)
        cluster.folder.save(cluster.playground)
    return known[name]


def configuration(cluster: Cluster, service: str, name: str) -> dict[str, Any]:
    """Return the configuration file of one replica."""
    playground, folder = cluster.playground, cluster.folder
    token = token_file(folder, service)
    document = common_configuration(
        service, playground.server, folder.pki, token, playground.lease_duration
    )
    document["connection"]["requestTimeout"] = REQUEST_TIMEOUT_S
    document["health"] = {"host": ports.LOOPBACK, "port": playground.ports[name]}
    if service != "webhook":
        document["leaderElection"]["stateDir"] = str(folder.services / f"{name}.state")
    if playground.feature_gates:
        document["featureGates"] = dict(playground.feature_gates)
    if service == "assigner":
        document["visibility"] = {
            "host": ports.LOOPBACK,
            "port": playground.ports["visibility"],
        }
    if service == "webhook":
        document["serving"] = {
            "host": ports.LOOPBACK,
            "port": playground.ports["webhook"],
            "drainDelay": DRAIN_DELAY_S,
        }
        document["certificates"] = {"dnsNames": ["localhost"], "ipAddresses": [ports.LOOPBACK]}
    return document


def common_configuration(
    service: str, server: str, pki: Path, token: Path, lease_duration: float
) -> dict[str, Any]:
    """Return the part of a service's configuration file that no service lacks."""
    return {
        "apiVersion": CONFIG_VERSION,
        "kind": f"{service.capitalize()}Configuration",
        "connection": {
            "server": server,
            "caFile": str(pki / "ca.crt"),
            "tokenFile": str(token),
        },
        "leaderElection": {"leaseDuration": lease_duration, "namespace": names.SYSTEM_NAMESPACE},
    }


def _write_config(cluster: Cluster, service: str, name: str) -> None:
    path = cluster.folder.services / f"{name}.yaml"
    content = yaml.safe_dump(configuration(cluster, service, name), sort_keys=False).encode()
    if path.exists() and path.read_bytes() != content:
        cluster.end([name])
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(path, content)


def _needs_port(cluster: Cluster, name: str) -> bool:
    if name not in SHARED_PORTS:
        return cluster.running(name) is None
    replicas = running_replicas(cluster, SHARED_PORTS[name])
    return not any(cluster.running(replica) for replica in replicas)


def _raise_if_missing(service: str) -> None:
    module = f"rackgate_{service}"
    if not (importlib.util.find_spec(module) and importlib.util.find_spec(f"{module}.__main__")):
        raise CommandError(
            f"the {service} service is not installed (no module {module}.__main__); "
            "leave it out with --services"
        )
