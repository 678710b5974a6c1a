"""The services of docker-compose.yaml as processes: its own commands, files and health checks.

What differs from containers: the folder that its volume `state` is, host names and ports, and the
control plane, which is a playground's.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rackgate_cli.controlplane.compose import VISIBILITY
from rackgate_cli.controlplane.install import VisibilityAddress
from rackgate_cli.controlplane.ports import reserved

SERVICES = ("webhook", "assigner", "ungater")
STATE, APISERVER, WEBHOOK = "/state", "https://kube-apiserver:6443", "https://webhook:9443"
WEBHOOK_PORT, HEALTH_PORT = 9443, 8081


def compose_services(file: Path) -> dict[str, dict[str, Any]]:
    """The services of a compose file, by name."""
    services: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["services"]
    return services


@dataclass(frozen=True)
class Composed:
    """What stands for containers here.

    Attributes:
        services: of the compose file.
        state: the folder that stands for the volume `state`.
        ports: of the webhook ("serving"), of the visibility API, and of each service's health, by
            name.
    """

    services: Mapping[str, Mapping[str, Any]]
    state: Path
    ports: Mapping[str, int]

    @property
    def webhook_url(self) -> str:
        """Where the API server finds the webhook."""
        return WEBHOOK.replace("webhook", "localhost").replace(
            str(WEBHOOK_PORT), str(self.ports["serving"])
        )

    @property
    def visibility(self) -> VisibilityAddress:
        """Where the API server finds the visibility API."""
        return VisibilityAddress("localhost", self.ports["visibility"])

    def step(self, name: str) -> None:
        """Run a service that ends, such as `pki`, to its end."""
        subprocess.run(
            self._local(self.services[name]["command"]), check=True, timeout=120, env=self._env()
        )

    def adapt(self, server: str, authority: Path) -> None:
        """Put this machine's addresses into the configurations that the step `pki` wrote.

        Args:
            server: URL of the API server.
            authority: certificate of its authority.
        """
        (self.state / "pki" / "ca.crt").write_bytes(authority.read_bytes())
        for name in SERVICES:
            file = self.state / "services" / f"{name}.yaml"
            text = file.read_text().replace(APISERVER, server).replace(STATE, str(self.state))
            document = yaml.safe_load(text)
            assert document["health"]["port"] == HEALTH_PORT
            document["health"]["port"] = self.ports[name]
            if name == "webhook":
                assert document["serving"]["port"] == WEBHOOK_PORT
                document["serving"]["port"] = self.ports["serving"]
                assert document["certificates"]["dnsNames"] == ["webhook"]
                document["certificates"]["dnsNames"] = ["localhost"]
            if name == "assigner":
                assert document["visibility"] == {"port": VISIBILITY.port}
                document["visibility"]["port"] = self.ports["visibility"]
            file.write_text(yaml.safe_dump(document))

    def healthy(self, name: str) -> bool:
        """What the health check of a service says now."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        line = [
            part.replace(f":{HEALTH_PORT}/", f":{self.ports[name]}/")
            for part in self._local(command)
        ]
        done = subprocess.run(line, check=False, timeout=60, capture_output=True)
        return done.returncode == 0

    @contextlib.contextmanager
    def running(self) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
        """All three services, until the block ends; then they are told to end, and do."""
        with contextlib.ExitStack() as ended:
            processes = {}
            for name in SERVICES:
                log = ended.enter_context((self.state / f"{name}.log").open("wb"))
                processes[name] = subprocess.Popen(
                    self._local(self.services[name]["command"]),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._env(self.services[name].get("environment", {})),
                    cwd=self.state,
                )
                ended.callback(_end, processes[name])
            yield processes

    def logs(self) -> str:
        """The last lines of each service."""
        return "\n".join(
            f"--- {name}\n" + "\n".join((self.state / f"{name}.log").read_text().splitlines()[-15:])
            for name in SERVICES
        )

    def _local(self, command: list[str]) -> list[str]:
        """A command of the file, with programs of this environment and this state folder."""
        program, *rest = command
        found = sys.executable if program == "python" else Path(sys.executable).parent / program
        return [
            str(found),
            *(
                str(self.state) + part.removeprefix(STATE) if part.startswith(STATE) else part
                for part in rest
            ),
        ]

    @staticmethod
    def _env(more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "HOME") if key in os.environ}
        return {**kept, **(more or {})}


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@contextlib.contextmanager
def composed(file: Path, state: Path) -> Iterator[Composed]:
    """The services of a compose file, with ports of their own while the block runs."""
    state.mkdir()
    with reserved(dict.fromkeys(("serving", "visibility", *SERVICES))) as ports:
        yield Composed(compose_services(file), state, ports)
