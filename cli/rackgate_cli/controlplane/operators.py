"""JobSet, KubeRay and LeaderWorkerSet as local processes next to the control plane, unmodified.

Outside of a cluster they need a kubeconfig, free ports, no leader election, and for the webhooks
of JobSet and LeaderWorkerSet a certificate and a configuration by URL. KubeRay's webhook is off by
default and stays off. Their metrics are also off, as they would need more certificates and roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from rackgate_cli.controlplane import ports
from rackgate_cli.controlplane.cluster import Cluster
from rackgate_cli.controlplane.files import write_private

# Their user names are those of a default installation, so that admission policies treat them the
# same. They are cluster admins, as their roles are not tested here.
USERS: Final = {
    "jobset": "system:serviceaccount:jobset-system:jobset-controller-manager",
    "kuberay": "system:serviceaccount:kuberay-system:kuberay-operator",
    "lws": "system:serviceaccount:lws-system:lws-controller-manager",
}
# Those that serve webhooks -> the API version of their configuration file. Its fields are the same.
_SERVING: Final = {
    "jobset": "config.jobset.x-k8s.io/v1alpha1",
    "lws": "config.lws.x-k8s.io/v1alpha1",
}
# LeaderWorkerSet's readyz answers before its webhooks do. It registers this path last; to a request
# without a body it answers with status 200, and logs an error.
_LAST_WEBHOOK: Final = {"lws": "/validate--v1-pod"}
_QPS: Final = 1000
_BURST: Final = 2000


def webhook_url(cluster: Cluster, name: str) -> str | None:
    """Return the URL of an operator's webhooks, None if it has none; its port is chosen once."""
    if name not in _SERVING:
        return None
    known = cluster.playground.ports
    port = f"{name}-webhook"
    if port not in known:
        with ports.reserved({port: None}) as chosen:
            known.update(chosen)
        cluster.folder.save(cluster.playground)
    return f"https://{ports.LOOPBACK}:{known[port]}"


def start_operators(cluster: Cluster, names: Sequence[str]) -> None:
    """Start the missing ones of the named operators, and wait until all of them are ready.

    An operator whose arguments or files changed is restarted.

    Raises:
        CommandError: one exited or did not become ready.
    """
    playground = cluster.playground
    stopped = [name for name in names if cluster.running(name) is None]
    free = {
        port: playground.ports.get(port)
        for name in names
        for port in ((name, f"{name}-webhook") if name in _SERVING else (name,))
        if name in stopped or port not in playground.ports
    }
    with ports.reserved(free) as chosen:
        playground.ports.update(chosen)
        cluster.folder.save(playground)
        wanted = {}
        for name in names:
            changed = _write_files(cluster, name)
            argv = [playground.binaries[name], *arguments(cluster, name)]
            record = cluster.running(name)
            if record is not None and (changed or record.argv != tuple(argv)):
                cluster.end([name])
            wanted[name] = (argv, ready_url(cluster, name))
        cluster.start_processes(wanted)


def ready_url(cluster: Cluster, name: str) -> str:
    """Return the URL that answers 200 when an operator is ready, its webhooks included."""
    known = cluster.playground.ports
    if name in _LAST_WEBHOOK:
        return f"https://{ports.LOOPBACK}:{known[f'{name}-webhook']}{_LAST_WEBHOOK[name]}"
    return f"http://{ports.LOOPBACK}:{known[name]}/readyz"


def arguments(cluster: Cluster, name: str) -> list[str]:
    """Return the command line of an operator, without the program itself."""
    health = f"--health-probe-bind-address={ports.LOOPBACK}:{cluster.playground.ports[name]}"
    kubeconfig = f"--kubeconfig={_kubeconfig(cluster, name)}"
    if name in _SERVING:
        return [kubeconfig, f"--config={_config(cluster, name)}", health, "--zap-log-level=info"]
    return [
        kubeconfig,
        health,
        "--metrics-addr=0",
        "--enable-leader-election=false",
        "--reconcile-concurrency=4",
        # INFO logs about twenty lines per reconciliation.
        "--zap-log-level=error",
    ]


def configuration(name: str, port: int, certificates: Path) -> dict[str, Any]:
    """Return the configuration file of an operator that serves webhooks.

    Args:
        name: of the operator.
        port: of its webhooks.
        certificates: folder of `tls.crt` and `tls.key`.
    """
    return {
        "apiVersion": _SERVING[name],
        "kind": "Configuration",
        "webhook": {"host": ports.LOOPBACK, "port": port, "certDir": str(certificates)},
        # Otherwise it waits for a Secret and a Service in its own namespace.
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "metrics": {"bindAddress": "0"},
        "clientConnection": {"qps": _QPS, "burst": _BURST},
    }


def _write_files(cluster: Cluster, name: str) -> bool:
    """Write certificates, kubeconfig and configuration; return whether the last two changed."""
    from rackgate_cli.controlplane import pki

    folder, playground = cluster.folder, cluster.playground
    served_as = ("localhost", ports.LOOPBACK) if name in _SERVING else ()
    serving = pki.ensure_operator(folder.pki, name, USERS[name], served_as)
    before = [_content(path) for path in (_kubeconfig(cluster, name), _config(cluster, name))]
    kubeconfig = _kubeconfig(cluster, name)
    pki.write_kubeconfig(kubeconfig, server=playground.server, pki=folder.pki, client=name)
    if name in _SERVING:
        document = configuration(name, playground.ports[f"{name}-webhook"], serving)
        folder.operators.mkdir(exist_ok=True, mode=0o700)
        content = yaml.safe_dump(document, sort_keys=False).encode()
        write_private(_config(cluster, name), content)
    return before != [_content(kubeconfig), _content(_config(cluster, name))]


def _kubeconfig(cluster: Cluster, name: str) -> Path:
    return cluster.folder.kubeconfigs / f"{name}.kubeconfig"


def _config(cluster: Cluster, name: str) -> Path:
    return cluster.folder.operators / f"{name}.yaml"


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
