"""Playgrounds for tests: started and steered by the real command, in a folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from rackgate.kube.client import Client
from rackgate_cli.controlplane.ports import LOOPBACK
from rackgate_cli.controlplane.processes import alive
from rackgate_cli.controlplane.state import StateFolder
from rackgate_cli.playground.playground import open_client

SERVICES = ("webhook", "assigner", "ungater")
UP_LIMIT_S = 3600.0  # a first start builds the control plane
RUN_LIMIT_S = 240.0
DOWN_LIMIT_S = 600.0  # what is left behind slows down everything that comes after
LOG_TAIL = 30  # lines of a service that ended by itself
# A whole machine that stands still for ten seconds must end no service. Who is stopped cleanly
# gives its Leases back at once, so nothing waits for their end but what follows a kill.
LEASE_S = 30.0


@dataclass(frozen=True)
class Playground:
    """A running playground.

    Attributes:
        state: its folder.
        kubeconfig: administrator's kubeconfig.
        server: URL of the API server.
    """

    state: Path
    kubeconfig: Path
    server: str

    @property
    def audit_log(self) -> Path:
        """The API server's audit log; there is one only with `audit=True`."""
        return self.state / "audit.log"

    def client(self) -> AbstractAsyncContextManager[Client]:
        """A client with cluster-admin rights, closed at the end of the block."""
        return open_client(self.state)

    def run(self, *arguments: str) -> str:
        """Run a verb on this playground and return its output; a failure fails the test."""
        return rackgate(arguments[0], "--state", str(self.state), *arguments[1:])

    def components(self) -> dict[str, dict[str, Any]]:
        """What `rackgate status --json` says: name -> pid, ready, log."""
        components: dict[str, dict[str, Any]] = json.loads(self.run("status", "--json"))[
            "components"
        ]
        return components

    def pids(self, name: str) -> list[int]:
        """Process ids of a component, or of all running replicas of a service."""
        return [
            component["pid"]
            for key, component in self.components().items()
            if (key == name or key.rpartition("-")[0] == name) and component["pid"] is not None
        ]

    def log(self, component: str) -> str:
        """The log of one component, for instance "assigner-0"."""
        return (self.state / "logs" / f"{component}.log").read_text()

    def service_logs(self) -> dict[str, Path]:
        """The log file of each replica of a service that has ever run, by component."""
        logs = sorted((self.state / "logs").glob("*.log"))
        return {log.stem: log for log in logs if log.stem.rpartition("-")[0] in SERVICES}

    def delete_kinds(self, *command: str) -> None:
        """Run a command that deletes kinds, again if it gives up waiting: three times at most.

        An API server that has just served kinds for the first time may take minutes for them.
        """
        for left in (2, 1, 0):
            try:
                self.run(*command)
            except AssertionError:
                if not left:
                    raise
            else:
                return

    def restart_ended(self) -> list[str]:
        """Start services that ended by themselves, as a kubelet would.

        Returns:
            Each of them with the end of its log: one that dies is a defect, or the machine was so
            full that it could not renew its lease in time and ended itself.
        """
        known = StateFolder(self.state).load()
        records = known.processes if known else {}
        ended = [
            name
            for name, record in records.items()
            if name.rpartition("-")[0] in SERVICES and not alive(record)
        ]
        told = [f"{name} ended by itself; its log ends:\n{self._tail(name)}" for name in ended]
        for service in {name.rpartition("-")[0] for name in ended}:
            self.run("start", service)
        return told

    def _tail(self, component: str) -> str:
        return "\n".join(self.log(component).splitlines()[-LOG_TAIL:])

    @contextlib.contextmanager
    def assigner_with(self, settings: Mapping[str, object]) -> Iterator[None]:
        """Run the assigner with other settings, and after the block with its own again.

        Args:
            settings: by environment variable, without the prefix.
        """
        self.run("stop", "assigner")
        with mock.patch.dict(
            os.environ,
            {f"RACKGATE_ASSIGNER_{name}": json.dumps(value) for name, value in settings.items()},
        ):
            self.run("start", "assigner")
            yield
            self.run("stop", "assigner")
        self.run("start", "assigner")

    @contextlib.contextmanager
    def webhooks_port(self) -> Iterator[None]:
        """Keep the port that the webhook is registered with, also while no replica of it lives.

        If anybody took it then, the webhook would come back at another one, and never be called.
        """
        known = StateFolder(self.state).load()
        assert known is not None
        with socket.socket() as holder:
            # Never listened on, it gets no connection; its replicas share the port the same way.
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                holder.setsockopt(socket.SOL_SOCKET, option, 1)
            holder.bind((LOOPBACK, known.ports["webhook"]))
            yield

    def stop(self) -> None:
        """End it and remove its folder."""
        rackgate("down", "--state", str(self.state), "--purge", limit_s=DOWN_LIMIT_S)


def rackgate(*arguments: str, limit_s: float = RUN_LIMIT_S) -> str:
    """Run the command and return what it printed.

    Raises:
        AssertionError: it failed; carries what it said.
    """
    done = subprocess.run(
        [sys.executable, "-m", "rackgate_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, f"rackgate {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def start_playground(
    state: Path,
    *,
    nodes: int = 0,
    services: tuple[str, ...] = SERVICES,
    operators: tuple[str, ...] = (),
    gates: tuple[str, ...] = (),
    lease_s: float = LEASE_S,
    audit: bool = False,
) -> Playground:
    """Start a playground in `state`, a new folder, and return when it is ready.

    A gate is on, unless `=false` follows its name.
    """
    gates = tuple(gate if "=" in gate else f"{gate}=true" for gate in gates)
    options = ["--nodes", str(nodes), "--services", ",".join(services) or "none"]
    options += ["--lease-duration", str(lease_s)]
    options += ["--with", ",".join(operators)] if operators else []
    options += ["--feature-gates", ",".join(gates)] if gates else []
    options += ["--audit"] if audit else []
    try:
        rackgate("up", "--state", str(state), *options, limit_s=UP_LIMIT_S)
        found = json.loads(rackgate("status", "--state", str(state), "--json"))
    except BaseException:
        # Also what is over a limit, of this or of the test: killed, it leaves what it started.
        rackgate("down", "--state", str(state), limit_s=DOWN_LIMIT_S)
        raise
    return Playground(state, Path(found["kubeconfig"]), found["server"])
