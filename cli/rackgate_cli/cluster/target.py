"""The cluster that a command connects to."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rackgate.kube.client import Client
from rackgate.kube.config import ConfigError, ConnectionSettings, connect
from rackgate_cli.controlplane.state import StateFolder
from rackgate_cli.errors import UsageError
from rackgate_cli.locations import STATE_VARIABLE, state_dir
from rackgate_cli.playground import playground


class NoClusterError(UsageError):
    """Neither the command line nor the environment names a cluster."""


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The cluster that a command connects to: a playground's folder, or connection settings.

    Attributes:
        namespace: that of the kubeconfig's context, or "default".
        context: of the kubeconfig, if the file names it.
        server: its address, if the file has it.
        user_agent: user agent that the API server sees.
    """

    state: str | None = None
    settings: ConnectionSettings | None = None
    namespace: str = "default"
    context: str | None = None
    server: str | None = None
    user_agent: str = "rackgate"

    @property
    def description(self) -> str:
        """The cluster, described for a user who confirms a change to it."""
        if self.settings is None:
            return f"the playground in {state_dir(self.state)}"
        server = self.server or "its API server"
        return f"{server}, context {self.context} of {self.settings.kubeconfig}"

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A client of that cluster, closed at the end of the block.

        Raises:
            CommandError: there is no such playground.
            UsageError: the kubeconfig cannot be used.
        """
        if self.settings is None:
            async with playground.open_client(self.state) as client:
                yield client
            return
        try:
            client = await connect(self.settings, user_agent=self.user_agent)
        except ConfigError as error:
            raise UsageError(str(error)) from error
        try:
            yield client
        finally:
            await client.close()


def target_of(arguments: argparse.Namespace, verb: str) -> ClusterTarget:
    """The cluster that the flags of `verbs.add_target` choose."""
    found = cluster_target(arguments.state, arguments.kubeconfig, arguments.context)
    return replace(found, user_agent=f"rackgate-{verb}")


def cluster_target(state: str | None, kubeconfig: str | None, context: str | None) -> ClusterTarget:
    """Choose the cluster: what the command line names, else the user's environment.

    In order: --state, --kubeconfig, KUBECONFIG, RACKGATE_STATE, ~/.kube/config, the default
    playground.

    Raises:
        UsageError: none of them exists, or the command line contradicts itself.
    """
    if state is not None and context is not None:
        raise UsageError(
            "--context selects a context of a kubeconfig and cannot be used with --state"
        )
    if state is not None:
        return ClusterTarget(state)
    if kubeconfig is not None:
        return _by_kubeconfig(Path(kubeconfig), context)
    listed = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if listed:
        return _by_kubeconfig(next((p for p in listed if p.exists()), listed[0]), context)
    if os.environ.get(STATE_VARIABLE):
        return ClusterTarget()
    usual = Path.home() / ".kube" / "config"
    if usual.exists():
        return _by_kubeconfig(usual, context)
    if StateFolder(state_dir(None)).record.exists():
        return ClusterTarget()
    raise NoClusterError(
        "no cluster is configured: use --kubeconfig FILE or --state DIR, or set KUBECONFIG"
    )


def _by_kubeconfig(path: Path, context: str | None) -> ClusterTarget:
    settings = ConnectionSettings(kubeconfig=path, context=context, request_timeout=30)
    document = _document(path)
    name = context or document.get("current-context")
    chosen = _named(document, "contexts", "context", name)
    cluster = _named(document, "clusters", "cluster", chosen.get("cluster"))
    return ClusterTarget(
        settings=settings,
        namespace=str(chosen.get("namespace") or "default"),
        context=None if name is None else str(name),
        server=str(cluster["server"]) if cluster.get("server") else None,
    )


def _document(path: Path) -> dict[str, Any]:
    """A kubeconfig; empty if the file is malformed, because the client reports the error."""
    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _named(document: dict[str, Any], plural: str, key: str, name: object) -> dict[str, Any]:
    """The entry of a kubeconfig with that name; empty if there is none."""
    try:
        found = next((one[key] for one in document[plural] if one["name"] == name), None)
    except (KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}
