"""Rackgate in another namespace, as docs/tasks/install.md says, its services as processes.

The manifests are those of `deploy/`, built by kubectl and moved by the component `elsewhere`. Each
service reads the configuration of its own ConfigMap, with only what a process outside of a cluster
needs changed in it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rackgate.api.names import SYSTEM_NAMESPACE
from rackgate.runtime.settings import NAMESPACE_VARIABLE
from rackgate_cli.controlplane.install import (
    MANAGER,
    VisibilityAddress,
    with_local_visibility,
    with_local_webhook,
)
from rackgate_cli.locations import deploy_dir
from tests.support.playground import LEASE_S, SERVICES, Playground

NAMESPACE = "team-infra"
HOST = "127.0.0.1"
INSTALL = deploy_dir().parent / "docs" / "tasks" / "install.md"
PARTS = ("network", "monitoring")


def kustomized(
    playground: Playground,
    folder: Path,
    *components: str,
    base: tuple[str, ...] = (),
    namespace: str = SYSTEM_NAMESPACE,
    **more: list[dict[str, str]],
) -> list[dict[str, Any]]:
    """All objects of deploy/ with these components, as the playground's kubectl builds them.

    Args:
        folder: where the kustomization is written; not inside of deploy/.
        base: folders from deploy/ to another base.
        namespace: of the installation.
        more: further fields of the kustomization.
    """
    deploy = Path("../" * (len(folder.resolve().parts) - 1)) / deploy_dir().resolve().relative_to(
        "/"
    )
    parts = [str(deploy / name) for name in components]
    if namespace != SYSTEM_NAMESPACE:
        parts += [_where(folder, namespace), str(deploy / "elsewhere")]
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(deploy.joinpath(*base))],
        "components": parts,
        **more,
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    text = playground.run("kubectl", "kustomize", str(folder))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there
    return [entry for entry in yaml.load_all(text, loader) if entry]


def _where(folder: Path, namespace: str) -> str:
    """The component of docs/tasks/install.md that says where, written into `folder`."""
    (text,) = re.findall(
        r"# FILE: where/kustomization.yaml\n(.*?)```", INSTALL.read_text(), re.DOTALL
    )
    where = folder / "where"
    where.mkdir(exist_ok=True)
    (where / "kustomization.yaml").write_text(text.replace(NAMESPACE, namespace))
    return where.name


def called_here(
    documents: Iterable[dict[str, Any]], ports: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The documents, so that the API server calls the services on this machine."""
    url = f"https://{HOST}:{ports['reviews']}"
    address = VisibilityAddress("localhost", ports["visibility"])
    return [
        with_local_visibility(entry, address)
        if entry["metadata"]["name"].endswith(("visibility.kueue.x-k8s.io", "rackgate-visibility"))
        and entry["kind"] in ("APIService", "Service")
        else with_local_webhook(entry, url)
        for entry in documents
    ]


@dataclass
class Elsewhere:
    """A playground whose services are processes of the test, one replica each.

    Attributes:
        ports: health port by service, `reviews` and `visibility`.
        level: log level of the services.
        namespace: of the installation.
    """

    playground: Playground
    folder: Path
    ports: dict[str, int]
    level: str = "debug"
    namespace: str = NAMESPACE
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    configurations: dict[str, dict[str, Any]] = field(default_factory=dict)

    def install(self) -> None:
        """Apply everything, and write the services' tokens and configurations."""
        # The playground comes with an installation of its own, which nobody serves.
        self.playground.run("uninstall", "--yes")
        built = [
            entry
            for base in (("cluster",), ())
            for entry in kustomized(
                self.playground, self.folder, base=base, namespace=self.namespace
            )
        ]
        documents = called_here(built, self.ports)
        self.configurations = {
            entry["metadata"]["name"].removeprefix("rackgate-"): yaml.safe_load(
                entry["data"]["config.yaml"]
            )
            for entry in documents
            if entry["kind"] == "ConfigMap"
        }
        # The pods of Deployments would wait for nodes; the services are processes here.
        manifest = self.folder / "all.yaml"
        wanted = [entry for entry in documents if entry["kind"] != "Deployment"]
        spaces = [entry for entry in wanted if entry["kind"] == "Namespace"]
        for part in (spaces, wanted):
            manifest.write_text(yaml.safe_dump_all(part))
            # As the manager that installed the CRDs: what it set and this lacks goes, such as the
            # Service that converts them.
            flags = ("--server-side", "--force-conflicts", f"--field-manager={MANAGER}")
            self._kubectl("apply", *flags, "-f", str(manifest))
        for service in SERVICES:
            account = f"rackgate-{service}"
            token = self._kubectl(
                "create", "token", account, "-n", self.namespace, "--duration=24h"
            )
            self.token_file(service).write_text(token.strip())

    def _kubectl(self, *arguments: str) -> str:
        return self.playground.run("kubectl", *arguments)

    def token_file(self, service: str) -> Path:
        """The bearer token of a service."""
        return self.folder / f"{service}.token"

    def log_file(self, service: str) -> Path:
        """What a service has logged, over all its lives."""
        return self.folder / f"{service}.log"

    def service_logs(self) -> dict[str, Path]:
        """The log file of each service."""
        return {service: self.log_file(service) for service in SERVICES}

    def start(self, *services: str) -> None:
        """Start services; see `ready`."""
        for service in services:
            config = self.configurations[service] | {
                "connection": {
                    "server": self.playground.server,
                    "caFile": str(self.playground.state / "pki" / "ca.crt"),
                    "tokenFile": str(self.token_file(service)),
                    "requestTimeout": 4,
                },
                "health": {"host": HOST, "port": self.ports[service]},
                "log": {"level": self.level},
            }
            if "leaderElection" in config:
                config["leaderElection"] |= {"leaseDuration": LEASE_S}
            if service == "webhook":
                config["serving"] = {"host": HOST, "port": self.ports["reviews"], "drainDelay": 0}
                config["certificates"] = {"ipAddresses": [HOST], "settle": 1, "checkInterval": 0.5}
            if service == "assigner":
                config["visibility"] |= {"host": HOST, "port": self.ports["visibility"]}
            path = self.folder / f"{service}.yaml"
            path.write_text(yaml.safe_dump(config))
            command = [sys.executable, "-m", f"rackgate_{service}", "--config", str(path)]
            with self.log_file(service).open("ab") as out:
                self.running[service] = subprocess.Popen(
                    command, stdout=out, stderr=out, env=self.environment()
                )

    def environment(self, namespace: str = "") -> dict[str, str]:
        """What the pods of an installation have in their environment; of this one by default."""
        return {**os.environ, NAMESPACE_VARIABLE: namespace or self.namespace}

    def second(self, service: str, namespace: str) -> tuple[int, str]:
        """Run a service of another installation, as administrator, until it ends by itself.

        Returns:
            Its exit code, and what it logged.
        """
        config = self.configurations[service] | {
            "connection": {"kubeconfig": str(self.playground.kubeconfig), "requestTimeout": 4},
            "health": {"host": HOST, "port": 0},
            "leaderElection": {"leaseDuration": LEASE_S, "namespace": namespace},
        }
        path = self.folder / f"second-{service}.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", f"rackgate_{service}", "--config", str(path)]
        done = subprocess.run(
            command,
            env=self.environment(namespace),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stderr

    def stop(self, *services: str) -> dict[str, int]:
        """Ask services to stop and wait; their exit codes."""
        going = {name: self.running.pop(name) for name in services if name in self.running}
        for process in going.values():
            process.send_signal(signal.SIGTERM)
        return {name: process.wait(60) for name, process in going.items()}

    def ready(self, service: str) -> bool:
        """Whether a service says that it is ready; a dead one fails the test."""
        code = self.running[service].poll()
        assert code is None, (
            f"{service} ended with {code}: {self.log_file(service).read_text()[-3000:]}"
        )
        try:
            self._get(service, "/readyz")
        except OSError:
            return False
        return True

    def metrics(self, service: str) -> str:
        """What a service answers at /metrics."""
        return self._get(service, "/metrics")

    def _get(self, service: str, path: str) -> str:
        url = f"http://{HOST}:{self.ports[service]}{path}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read().decode())


def samples(text: str, of: Callable[[str], bool] = bool) -> list[Sample]:
    """The samples of a scrape whose names pass."""
    # Without its types the parser leaves names as they are; it would add `_total` to some.
    bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [
        sample
        for family in text_string_to_metric_families(f"{bare}\n")
        for sample in family.samples
        if of(sample.name)
    ]


def certificate_data(playground: Playground) -> dict[str, str]:
    """The Secret of the webhook, key by key, as stored (base64); empty without one."""
    text = playground.run("kubectl", "get", "secrets", "-n", NAMESPACE, "-o", "json")
    found = [
        entry
        for entry in json.loads(text)["items"]
        if entry["metadata"]["name"] == "rackgate-webhook-tls"
    ]
    return dict(found[0].get("data", {})) if found else {}
