"""A playground on this machine: up, down, status, scale, stop, start.

Other verbs, tests and benches get a cluster by `up` and `open_client`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.controlplane import ports, processes
from rackgate_cli.controlplane.binaries.find import DownloadSource, download_source, find_binaries
from rackgate_cli.controlplane.binaries.versions import (
    COMPONENTS,
    FEATURES,
    KINDS,
    OPERATORS,
    SERVICES,
)
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.operators import start_operators
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.controlplane.services import (
    end_surplus,
    replica_names,
    running_replicas,
    start_services,
    token_file,
)
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.errors import CommandError
from rackgate_cli.locations import cache_dir, deploy_dir, state_dir

if TYPE_CHECKING:
    from rackgate.kube.client import Client

DEFAULT_NODES: Final = 64
# Its process, its port and its verb.
CONSOLE: Final = "console"
_NOT_RUNNING: Final = 'the control plane is not running; run "rackgate up"'


def up(
    state: str | Path | None = None,
    *,
    nodes: int = DEFAULT_NODES,
    services: Sequence[str] = SERVICES,
    operators: Sequence[str] = (),
    feature_gates: Mapping[str, bool] | None = None,
    lease_duration: float | None = None,
    audit: bool = False,
    source: DownloadSource | None = None,
    progress: Progress | None = None,
) -> Path:
    """Start a playground, or its missing components; returns when everything is ready.

    Args:
        state: its folder, None for the default one.
        nodes: simulated nodes; 0 for none, and then no queues either.
        services: which of the three services run.
        operators: which of "jobset", "kuberay", "lws", "kai-crds" and "gang-scheduling" to add to
            those it has. The last one also sets feature gates of the services.
        feature_gates: of the services, added to those set before.
        lease_duration: seconds of the services' Leases; None keeps the value, which is 15 at first.
        audit: let the API server write `audit.log` into the folder.
        source: a download of binaries, None for the one that the environment names.
        progress: prints the steps, to stderr by default.

    Returns:
        The playground's folder.

    Raises:
        CommandError: something is missing or exited; what this call started is stopped again.
    """
    progress = progress or Progress()
    folder = _folder(state)
    _reject_foreign(folder)
    source = source or download_source(None, None)
    with folder.exclusive():
        playground = folder.load() or Playground()
        playground.audit = audit
        wanted = (*playground.operators, *playground.kinds, *playground.features, *operators)
        playground.operators = [name for name in OPERATORS if name in wanted]
        playground.kinds = [name for name in KINDS if name in wanted]
        playground.features = [name for name in FEATURES if name in wanted]
        for name in operators:
            playground.feature_gates |= dict.fromkeys(FEATURES.get(name, ()), True)
        playground.feature_gates |= feature_gates or {}
        if lease_duration is not None:
            playground.lease_duration = lease_duration
        folder.save(playground)
        found = find_binaries(
            deploy_dir() / "controlplane", cache_dir(), progress, source, playground.operators
        )
        playground.binaries = {name: str(path) for name, path in found.items()}
        cluster = _cluster(folder, playground, progress)
        try:
            _start(cluster, nodes, tuple(services), progress)
        except BaseException:
            cluster.abandon()
            raise
    return folder.path


def _start(cluster: Cluster, nodes: int, services: tuple[str, ...], progress: Progress) -> None:
    from rackgate_cli.controlplane import install

    replicas = cluster.playground.replicas
    for service in SERVICES:
        replicas[service] = max(1, replicas.get(service, 0)) if service in services else 0
        end_surplus(cluster, service)
    cluster.start()
    install.prepare(cluster, nodes, services)
    progress.say("installed: CRDs, roles, admission")
    with _registered(cluster, services):
        if cluster.playground.operators:
            start_operators(cluster, cluster.playground.operators)
        if services:
            start_services(cluster, services)
    install.fill(cluster, nodes, services)
    if nodes:
        progress.say(f"ready: {nodes} nodes, queue default/default")


@contextlib.asynccontextmanager
async def open_client(state: str | Path | None = None) -> AsyncIterator[Client]:
    """Yield a client with cluster-admin rights on a playground.

    Raises:
        CommandError: there is no playground in that folder.
    """
    folder = _folder(state)
    from rackgate_cli.controlplane.install import admin_client

    async with admin_client(folder, require(folder)) as client:
        yield client


def down(state: str | Path | None = None, *, purge: bool = False, quiet: bool = False) -> None:
    """Stop every process of a playground, if there is one.

    Args:
        state: its folder, None for the default one.
        purge: remove the folder, too; otherwise the next `up` finds all objects again.
        quiet: print nothing.

    Raises:
        CommandError: a process or port is left, or the folder is not a playground.
    """
    folder = _folder(state)
    if not folder.path.is_dir():
        return
    _reject_foreign(folder)
    with folder.exclusive():
        playground = folder.load()
        if playground is not None:
            _cluster(folder, playground, Progress(quiet=quiet)).end_all()
        if purge:
            shutil.rmtree(folder.path)


def scale(state: str | Path | None, service: str, count: int) -> None:
    """Set the number of replicas of a service, and start or stop replicas."""
    with _locked_playground(state) as cluster:
        cluster.playground.replicas[service] = count
        cluster.folder.save(cluster.playground)
        end_surplus(cluster, service)
        _start_one(cluster, service)


def feature_gates(state: str | Path | None) -> dict[str, bool]:
    """The feature gates of the services that a playground sets; empty without a playground."""
    playground = _folder(state).load()
    return dict(playground.feature_gates) if playground is not None else {}


def set_feature_gates(state: str | Path | None, gates: Mapping[str, bool]) -> None:
    """Set exactly these feature gates, and start the services again that run with others."""
    with _locked_playground(state) as cluster:
        cluster.playground.feature_gates = dict(gates)
        cluster.folder.save(cluster.playground)
        for service in SERVICES:
            if running_replicas(cluster, service):
                _start_one(cluster, service)


def stop(state: str | Path | None, component: str) -> None:
    """Stop all replicas of a service, one component or an operator; keep the set count."""
    with _locked_playground(state) as cluster:
        names = running_replicas(cluster, component) if component in SERVICES else [component]
        cluster.end(names)


def start(state: str | Path | None, component: str) -> None:
    """Start the missing replicas of a service, one component or an operator."""
    with _locked_playground(state) as cluster:
        if component in OPERATORS:
            _start_operator(cluster, component)
            return
        if component in SERVICES:
            if cluster.playground.replicas.get(component, 0) == 0:
                raise CommandError(f'"{component}" is set to 0 replicas; use "rackgate scale"')
            _start_one(cluster, component)
        else:
            cluster.start([component])


def _start_operator(cluster: Cluster, name: str) -> None:
    if name not in cluster.playground.operators:
        raise CommandError(f'this playground has no {name}; run "rackgate up --with {name}"')
    if cluster.running("kube-apiserver") is None:
        raise CommandError(_NOT_RUNNING)
    with _registered(cluster, ()):
        start_operators(cluster, (name,))


def _start_one(cluster: Cluster, service: str) -> None:
    if cluster.running("kube-apiserver") is None:
        raise CommandError(_NOT_RUNNING)
    if (
        cluster.playground.replicas.get(service, 0)
        and not token_file(cluster.folder, service).exists()
    ):
        # `up` skipped it, so it has no token and no webhook configuration yet.
        from rackgate_cli.controlplane import install

        install.prepare(cluster, 0, (service,))
    with _registered(cluster, (service,)):
        start_services(cluster, (service,))


@contextlib.contextmanager
def _registered(cluster: Cluster, services: tuple[str, ...]) -> Iterator[None]:
    """Update webhook configurations and APIServices if the block had to change a port of theirs."""
    before = _called_ports(cluster)
    yield
    if _called_ports(cluster) != before:
        from rackgate_cli.controlplane import install

        install.prepare(cluster, 0, services)


def _called_ports(cluster: Cluster) -> dict[str, int]:
    ports = cluster.playground.ports
    return {name: ports[name] for name in ports if name.endswith(("webhook", "visibility"))}


@contextlib.contextmanager
def _locked_playground(state: str | Path | None) -> Iterator[Cluster]:
    folder = _folder(state)
    require(folder)
    with folder.exclusive():
        yield _cluster(folder, require(folder), Progress())


def require(folder: StateFolder) -> Playground:
    """Return the playground of a folder.

    Raises:
        CommandError: there is none.
    """
    playground = folder.load()
    if playground is None:
        raise CommandError(f'there is no playground in {folder.path}; run "rackgate up"')
    return playground


def component_names(playground: Playground) -> list[str]:
    """Return the names of everything that should run."""
    replicas = [
        name
        for service in SERVICES
        for name in replica_names(service, playground.replicas.get(service, 0))
    ]
    console = [CONSOLE] if CONSOLE in playground.processes else []
    return [*COMPONENTS, *playground.operators, *replicas, *console]


def start_console(state: str | Path | None = None) -> str:
    """Start the console of a playground again; it runs until the playground is removed.

    Returns:
        A link to it, valid once and for ten minutes.

    Raises:
        CommandError: there is no playground in that folder, or the console did not become ready.
    """
    folder = _folder(state)
    with folder.exclusive():
        playground = require(folder)
        cluster = _cluster(folder, playground, Progress(quiet=True))
        cluster.end([CONSOLE])
        log = folder.logs / f"{CONSOLE}.log"
        log.unlink(missing_ok=True)
        with ports.reserved({CONSOLE: playground.ports.get(CONSOLE)}) as chosen:
            playground.ports.update(chosen)
            folder.save(playground)
            port = playground.ports[CONSOLE]
            command = [sys.executable, "-m", "rackgate_cli", CONSOLE, "--state", str(folder.path)]
            command += ["--no-browser", "--port", str(port)]
            url = f"http://{ports.LOOPBACK}:{port}/"
            cluster.start_processes({CONSOLE: (command, url)}, {**os.environ})
    lines = log.read_text().splitlines()
    return next(line for line in lines if line.startswith(url))


def status(state: str | Path | None = None) -> dict[str, Any]:
    """Return what runs, in the format of `rackgate status --json`.

    A component that does not run has pid null; "ready" is its current answer.

    Raises:
        CommandError: there is no playground in that folder.
    """
    folder = _folder(state)
    playground = require(folder)
    cluster = _cluster(folder, playground, Progress(quiet=True))
    records = {name: cluster.running(name) for name in component_names(playground)}
    contexts = processes.tls_contexts(folder.pki) if any(records.values()) else {}
    return {
        "kubeconfig": str(folder.kubeconfig),
        "server": playground.server,
        "state": str(folder.path),
        "components": {
            name: {
                "pid": record.pid if record else None,
                "ready": record is not None and processes.ask(record, contexts) is None,
                "log": str(folder.logs / f"{name}.log"),
            }
            for name, record in records.items()
        },
    }


def _folder(state: str | Path | None) -> StateFolder:
    return StateFolder(state_dir(None if state is None else str(state)))


def _cluster(folder: StateFolder, playground: Playground, progress: Progress) -> Cluster:
    return Cluster(folder, playground, deploy_dir() / "controlplane", progress)


def _reject_foreign(folder: StateFolder) -> None:
    if folder.path.exists() and not folder.path.is_dir():
        raise CommandError(f"{folder.path} is not a folder; name another one with --state")
    if folder.path.is_dir() and not folder.record.exists():
        others = sorted(path.name for path in folder.path.iterdir() if path != folder.lock)
        if others:
            raise CommandError(
                f'{folder.path} is not a playground, and not empty (it contains "{others[0]}"); '
                "name a new or empty folder with --state"
            )
