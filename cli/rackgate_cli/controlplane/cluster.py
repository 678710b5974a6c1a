"""Starting and stopping the components of one control plane."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rackgate_cli.controlplane import ports, processes
from rackgate_cli.controlplane.binaries.versions import COMPONENTS, STAGES
from rackgate_cli.controlplane.flags import ENVIRONMENT, Site, arguments
from rackgate_cli.controlplane.processes import ProcessRecord
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.controlplane.state import Playground, StateFolder
from rackgate_cli.errors import CommandError

# A component that exits is reported at once; a busy machine starts the others in minutes.
READY_LIMIT_S: Final = 300.0
# A service that is killed keeps its Leases until they expire.
GRACE_S: Final = 15.0
# Its graceful shutdown would wait a minute for open watches.
APISERVER_GRACE_S: Final = 2.0
PORTS_FREE_LIMIT_S: Final = 10.0

# The environment of components, without variables that could change their settings, such as ETCD_*
# or proxies.
_KEPT_VARIABLES: Final = ("HOME", "PATH", "TMPDIR", "GOMAXPROCS", "GOMEMLIMIT", "GOGC")
_PORTS: Final = {"etcd-peer": "etcd", **{name: name for name in COMPONENTS}}


def component_environment(found: Mapping[str, str]) -> dict[str, str]:
    """The environment of a component, from that of the command."""
    return ENVIRONMENT | {name: found[name] for name in _KEPT_VARIABLES if name in found}


class Cluster:
    """The control plane of one state folder.

    Every process started through it is recorded at once, so that any later command finds it.
    """

    def __init__(
        self, folder: StateFolder, playground: Playground, manifests: Path, progress: Progress
    ) -> None:
        self.folder = folder
        self.playground = playground
        self._manifests = manifests
        self._progress = progress
        self._children: dict[str, tuple[processes.Child, ProcessRecord]] = {}

    def running(self, name: str) -> ProcessRecord | None:
        """Return the record of a component if it runs, else None."""
        record = self.playground.processes.get(name)
        return record if record is not None and processes.alive(record) else None

    def start(self, names: Sequence[str] = COMPONENTS) -> None:
        """Start missing components, restart those with changed arguments, wait until all are ready.

        Raises:
            CommandError: a component exited or did not become ready; `abandon` stops the others.
        """
        from rackgate_cli.controlplane import pki

        pki.ensure_pki(self.folder.pki, ("127.0.0.1", "localhost"))
        self._end_outdated(names)
        with self._ports(names):
            site = self.site()
            self._write_kubeconfigs(site)
            lines = arguments(site)
            for stage in STAGES:
                chosen = [name for name in stage if name in names]
                self.start_processes(
                    {
                        name: (
                            [self.playground.binaries[name], *lines[name]],
                            _ready_url(site, name),
                        )
                        for name in chosen
                    }
                )

    def start_processes(
        self,
        wanted: Mapping[str, tuple[Sequence[str], str]],
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start the named processes that do not run, and wait until all of them are ready.

        Args:
            wanted: name -> (full command line, URL that answers 200 when ready).
            env: environment; by default one without the user's own settings.
        """
        waiting: dict[str, tuple[processes.Child | None, ProcessRecord]] = {}
        for name, (argv, url) in wanted.items():
            record = self.running(name)
            if record is not None:
                waiting[name] = (None, record)
                continue
            waiting[name] = self._spawn(name, argv, url, env)
        if waiting:
            contexts = processes.tls_contexts(self.folder.pki)
            processes.await_ready(waiting, contexts, READY_LIMIT_S)
            self._progress.say(f"ready: {', '.join(waiting)}")

    def _spawn(
        self, name: str, argv: Sequence[str], url: str, env: Mapping[str, str] | None
    ) -> tuple[processes.Child, ProcessRecord]:
        log = self.folder.logs / f"{name}.log"
        if env is None:
            env = component_environment(os.environ)
        try:
            child, record = processes.spawn(name, argv, log=log, ready_url=url, env=env)
        except OSError as error:
            raise CommandError(f'cannot start "{name}" ({argv[0]}): {error.strerror}') from error
        self.playground.processes[name] = record
        self.folder.save(self.playground)
        self._children[name] = (child, record)
        return child, record

    def end(self, names: Sequence[str]) -> None:
        """Stop the named processes and remove their records.

        Raises:
            CommandError: one of them cannot be stopped.
        """
        grace_s = APISERVER_GRACE_S if "kube-apiserver" in names else GRACE_S
        records = [r for name in names if (r := self.playground.processes.get(name)) is not None]
        for name in processes.end(records, grace_s=grace_s):
            self._progress.say(f'"{name}" did not stop within {grace_s:.0f} s and was killed')
        for record in records:
            if processes.alive(record):
                raise CommandError(f'cannot stop "{record.name}", process {record.pid}')
            self.playground.processes.pop(record.name, None)
            child, _ = self._children.pop(record.name, (None, None))
            if child is not None:
                child.wait()
        self.folder.save(self.playground)

    def end_all(self) -> None:
        """Stop every recorded process, dependents first, and wait until the ports are free.

        Raises:
            CommandError: a process or a port is left.
        """
        services = [name for name in self.playground.processes if name not in COMPONENTS]
        for stage in (services, *reversed(STAGES)):
            self.end(stage)
        busy = ports.await_free(self.playground.ports.values(), PORTS_FREE_LIMIT_S)
        if busy:
            raise CommandError(f"ports still in use: {', '.join(map(str, sorted(busy)))}")

    def abandon(self) -> None:
        """Stop what this object started, after a failure."""
        self.end([name for name in self._children if name not in COMPONENTS])
        for stage in reversed(STAGES):
            self.end([name for name in stage if name in self._children])

    def site(self) -> Site:
        """Return the addresses and folders of this playground's components."""
        used = self.playground.ports
        return Site(
            bind=ports.LOOPBACK,
            etcd_host=ports.LOOPBACK,
            apiserver_host=ports.LOOPBACK,
            advertise=ports.LOOPBACK,
            pki=str(self.folder.pki),
            kubeconfigs=str(self.folder.kubeconfigs),
            data=str(self.folder.data),
            manifests=str(self._manifests),
            etcd_port=used["etcd"],
            etcd_peer_port=used["etcd-peer"],
            apiserver_port=used["kube-apiserver"],
            kcm_port=used["kube-controller-manager"],
            scheduler_port=used["kube-scheduler"],
            kwok_port=used["kwok"],
            audit_log=str(self.folder.audit_log) if self.playground.audit else None,
            gang_scheduling=bool(self.playground.features),
        )

    def _end_outdated(self, names: Sequence[str]) -> None:
        if not all(port in self.playground.ports for port in _PORTS):
            return
        lines = arguments(self.site())
        for name in reversed(names):
            record = self.running(name)
            wanted = (self.playground.binaries[name], *lines[name])
            if record is not None and record.argv != wanted:
                self._progress.say(f"restarting {name} with other arguments")
                self.end([name])

    @contextlib.contextmanager
    def _ports(self, names: Sequence[str]) -> Iterator[None]:
        """Reserve the ports of what is about to start, the previous ones if they are free."""
        known = self.playground.ports
        wanted = {
            port: known.get(port)
            for port, owner in _PORTS.items()
            if (owner in names and self.running(owner) is None) or port not in known
        }
        with ports.reserved(wanted) as chosen:
            known.update(chosen)
            self.playground.server = self.site().server
            self.folder.save(self.playground)
            yield

    def _write_kubeconfigs(self, site: Site) -> None:
        from rackgate_cli.controlplane import pki

        self.folder.kubeconfigs.mkdir(exist_ok=True, mode=0o700)
        for client in pki.CLIENTS:
            own = self.folder.kubeconfigs / f"{client}.kubeconfig"
            path = self.folder.kubeconfig if client == "admin" else own
            pki.write_kubeconfig(path, server=site.server, pki=self.folder.pki, client=client)


def _ready_url(site: Site, name: str) -> str:
    host = ports.LOOPBACK
    return {
        "etcd": f"https://{host}:{site.etcd_port}/readyz",
        "kube-apiserver": f"https://{host}:{site.apiserver_port}/readyz",
        "kube-controller-manager": f"https://{host}:{site.kcm_port}/healthz",
        "kube-scheduler": f"https://{host}:{site.scheduler_port}/readyz",
        "kwok": f"http://{host}:{site.kwok_port}/healthz",
    }[name]
