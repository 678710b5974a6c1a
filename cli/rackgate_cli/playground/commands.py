"""The verbs of the playground: up, down, status, scale, stop, start, kubectl, binaries."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rackgate.features import Features, GateError
from rackgate_cli.controlplane.binaries.find import (
    SHA256_VARIABLE,
    URL_VARIABLE,
    download_source,
    find_binaries,
)
from rackgate_cli.controlplane.binaries.versions import (
    COMPONENTS,
    FEATURES,
    KINDS,
    OPERATORS,
    SERVICES,
)
from rackgate_cli.controlplane.progress import Progress
from rackgate_cli.controlplane.state import LEASE_DURATION_S, StateFolder
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.locations import cache_dir, deploy_dir, state_dir
from rackgate_cli.playground import playground
from rackgate_cli.verbs import add_json, add_verb, whole_number

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers


AUDIT_VARIABLE: Final = "RACKGATE_AUDIT"
_FOLLOW_POLL_S: Final = 0.2
MOST_NODES: Final = 100_000
MOST_REPLICAS: Final = 100
_STOPPABLE: Final = (*SERVICES, *COMPONENTS, *OPERATORS)

_STATE_HELP: Final = (
    "folder of the playground (default: $RACKGATE_STATE, else rackgate/default in the user's "
    "XDG state folder, ~/.local/state)"
)


def add_parser(subparsers: Subparsers) -> None:
    """Add the playground's verbs to the command."""
    _add_up(subparsers)
    down = _verb(
        subparsers,
        "down",
        _down,
        "stop all processes of the playground",
        "Stops what `rackgate up` started, also after a crash, and waits until its ports are free. "
        "Without --purge the next `up` finds all objects again.",
        "rackgate down",
        "rackgate down --state DIR --purge",
    )
    down.add_argument("--purge", action="store_true", help="also delete the playground's folder")
    status = _verb(
        subparsers,
        "status",
        _status,
        "show the components and whether they are ready",
        "Asks every component of the playground whether it is ready.",
        "rackgate status",
        "rackgate status --json",
    )
    add_json(status)
    _add_replica_verbs(subparsers)
    _add_inspection_verbs(subparsers)


def _add_up(subparsers: Subparsers) -> None:
    up = _verb(
        subparsers,
        "up",
        _up,
        "start a playground on this machine",
        "Starts a control plane of real components (etcd, kube-apiserver, kube-controller-manager, "
        "kube-scheduler, KWOK for simulated nodes), installs Rackgate and starts its three "
        "services. Returns when everything is ready; the processes keep running. On a playground "
        "that runs in part it starts what is missing. --with adds JobSet, KubeRay, LeaderWorkerSet "
        "(lws), the CRDs of the KAI scheduler (kai-crds, without the scheduler) and native "
        "PodGroups (gang-scheduling: alpha gates of the control plane, and the gates of Rackgate "
        "that use them); a playground that has them keeps them. Programs come from "
        "KUBEBUILDER_ASSETS or PATH if their versions match exactly, else from the cache "
        "(RACKGATE_CACHE, default ~/.cache/rackgate), else "
        f"from {URL_VARIABLE} with {SHA256_VARIABLE}, else they are "
        "built with Go, which takes some minutes once.",
        "rackgate up",
        "rackgate up --nodes 16 --state ./mine",
        "rackgate up --nodes 0 --services none",
        "rackgate up --with jobset,kuberay --feature-gates ElasticJobsViaWorkloadSlices=true",
        "kubectl --kubeconfig ~/.local/state/rackgate/default/kubeconfig get nodes",
    )
    up.add_argument(
        "--nodes",
        type=whole_number(0, MOST_NODES),
        default=playground.DEFAULT_NODES,
        metavar="N",
        help="simulated nodes, 8 to a rack, 4 racks to a block (default %(default)s); "
        "0: no nodes and no queues",
    )
    up.add_argument(
        "--services",
        type=services,
        default=SERVICES,
        metavar="LIST",
        help=f'which of {",".join(SERVICES)} run, or "none" (default: all)',
    )
    _add_with(up, "are added to the control plane")
    _add_settings(up)
    up.add_argument(
        "--audit",
        action="store_true",
        default=bool(os.environ.get(AUDIT_VARIABLE)),
        help=f"write audit.log into the state folder (also: {AUDIT_VARIABLE}=1)",
    )
    _add_download(up)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--feature-gates",
        type=gates,
        default={},
        metavar="NAME=BOOL,...",
        help="gates of the three services (docs/reference/feature-gates.md lists them); "
        "others stay as they are",
    )
    parser.add_argument(
        "--lease-duration",
        type=lease_duration,
        metavar="SECONDS",
        help=f"of the services' Leases, 1 to 3600 (default: unchanged, {LEASE_DURATION_S:g} at "
        "first); an active replica that stalls for longer exits",
    )


def _add_with(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--with",
        type=operators,
        default=(),
        dest="operators",
        metavar="LIST",
        help=f"which of {','.join((*OPERATORS, *KINDS, *FEATURES))} {what} (default: none)",
    )


def _add_replica_verbs(subparsers: Subparsers) -> None:
    scale = _verb(
        subparsers,
        "scale",
        lambda given: playground.scale(given.state, given.service, given.count),
        "set the replicas of a service",
        "Starts or stops replicas of one service.",
        "rackgate scale webhook 3",
    )
    scale.add_argument("service", choices=SERVICES)
    scale.add_argument("count", type=whole_number(0, MOST_REPLICAS), metavar="N")
    stop = _verb(
        subparsers,
        "stop",
        lambda given: playground.stop(given.state, given.component),
        "stop a service or one component",
        "Stops all replicas of a service; `rackgate start` starts as many again. Components "
        "of the control plane and operators can be stopped, too.",
        "rackgate stop assigner",
        "rackgate stop kube-apiserver",
    )
    stop.add_argument("component", choices=_STOPPABLE, metavar="SERVICE")
    start = _verb(
        subparsers,
        "start",
        lambda given: playground.start(given.state, given.component),
        "start the missing replicas of a service",
        "Starts the replicas of a service that do not run, up to the count that was set. Nothing "
        "restarts by itself: there is no supervisor.",
        "rackgate start assigner",
    )
    start.add_argument("component", choices=_STOPPABLE, metavar="SERVICE")


def _add_inspection_verbs(subparsers: Subparsers) -> None:
    kubectl = _verb(
        subparsers,
        "kubectl",
        _kubectl,
        "run kubectl on the playground",
        "Runs kubectl with the playground's kubeconfig; everything after the verb's own options "
        "goes to kubectl.",
        "rackgate kubectl get pods -A",
        "rackgate kubectl --state DIR apply -f job.yaml",
    )
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    binaries = _verb(
        subparsers,
        "binaries",
        _binaries,
        "find or build the control plane's programs",
        "Finds, downloads or builds every program and prints its path, as `rackgate up` does.",
        "rackgate binaries",
        "rackgate binaries --with jobset,kuberay,lws",
    )
    _add_with(binaries, "are included")
    _add_download(binaries)


def _verb(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    description: str,
    *examples: str,
) -> argparse.ArgumentParser:
    parser = add_verb(
        subparsers, name, run, summary=summary, description=description, examples=examples
    )
    if name != "binaries":
        parser.add_argument("--state", metavar="DIR", help=_STATE_HELP)
    return parser


def _add_download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--binaries-url", metavar="URL", help=f"folder to download programs from ({URL_VARIABLE})"
    )
    parser.add_argument(
        "--binaries-sha256",
        metavar="FILE",
        help=f'lines "<sha256>  <name>" for that folder ({SHA256_VARIABLE})',
    )


def _up(arguments: argparse.Namespace) -> None:
    state = playground.up(
        arguments.state,
        nodes=arguments.nodes,
        services=arguments.services,
        operators=arguments.operators,
        feature_gates=arguments.feature_gates,
        lease_duration=arguments.lease_duration,
        audit=arguments.audit,
        source=download_source(arguments.binaries_url, arguments.binaries_sha256),
    )
    sys.stdout.write(f"export KUBECONFIG={StateFolder(state).kubeconfig}\n")


def _down(arguments: argparse.Namespace) -> None:
    folder = StateFolder(state_dir(arguments.state))
    path = folder.path
    if path.exists() and not (path.is_dir() and next(path.iterdir(), None) is None):
        playground.down(arguments.state, purge=arguments.purge)
        return
    if arguments.state is not None:
        raise CommandError(f"there is no playground in {folder.path}")
    print(f"there is no playground in {folder.path}: nothing to stop", file=sys.stderr)


def _status(arguments: argparse.Namespace) -> None:
    from rackgate_cli.tables import Grid, Line, show, show_json

    found = playground.status(arguments.state)
    if arguments.json:
        show_json(found)
        return
    rows = []
    for name, component in found["components"].items():
        state = "ready" if component["ready"] else "not ready"
        if component["pid"] is None:
            state = "not running"
        rows.append((name, state, str(component["pid"] or ""), component["log"]))
    places = [(name, found[name]) for name in ("server", "kubeconfig")]
    show([Grid(("COMPONENT", "STATE", "PID", "LOG"), rows), Line(""), Grid((), places)])


def show_component_logs(state: str | None, component: str, *, follow: bool) -> None:
    """Print the log of one component of a playground, or of all replicas of a service.

    Raises:
        CommandError: there is no playground in that folder.
        UsageError: it has no such component.
    """
    folder = StateFolder(state_dir(state))
    known = playground.component_names(playground.require(folder))
    chosen = [
        name
        for name in known
        if component in (name, name.rpartition("-")[0] if name not in COMPONENTS else "")
    ]
    if not chosen:
        raise UsageError(f'unknown component "{component}" (known: {", ".join(known)})')
    _copy_logs([folder.logs / f"{name}.log" for name in chosen], follow=follow)


def _copy_logs(paths: Iterable[Path], *, follow: bool) -> None:
    seen = dict.fromkeys(paths, 0)
    while True:
        for path, offset in seen.items():
            if path.exists():
                with path.open("rb") as file:
                    file.seek(offset)
                    sys.stdout.buffer.write(file.read())
                    seen[path] = file.tell()
        sys.stdout.flush()
        if not follow:
            return
        time.sleep(_FOLLOW_POLL_S)


def _kubectl(arguments: argparse.Namespace) -> None:
    folder = StateFolder(state_dir(arguments.state))
    program = playground.require(folder).binaries.get("kubectl")
    if program is None or not os.access(program, os.X_OK):
        raise CommandError(f'kubectl is missing ("{program}"); run "rackgate binaries"')
    if not folder.kubeconfig.is_file():
        raise CommandError(f'{folder.kubeconfig} is missing; run "rackgate up"')
    environment = {**os.environ, "KUBECONFIG": str(folder.kubeconfig)}
    # Replaces this process, so that signals and the terminal are kubectl's.
    os.execve(program, [program, *arguments.arguments], environment)  # noqa: S606 # by absolute path


def _binaries(arguments: argparse.Namespace) -> None:
    source = download_source(arguments.binaries_url, arguments.binaries_sha256)
    found = find_binaries(
        deploy_dir() / "controlplane", cache_dir(), Progress(), source, arguments.operators
    )
    for name, path in found.items():
        sys.stdout.write(f"{name:24} {path}\n")


# Bounds of the services' setting `leaderElection.leaseDuration`.
LEAST_LEASE_S: Final = 1
MOST_LEASE_S: Final = 3600


def lease_duration(text: str) -> float:
    """Seconds that a Lease of the services may last."""
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of seconds') from None
    if not LEAST_LEASE_S <= seconds <= MOST_LEASE_S:
        raise argparse.ArgumentTypeError(f'"{text}" is not {LEAST_LEASE_S} to {MOST_LEASE_S}')
    return seconds


def services(text: str) -> tuple[str, ...]:
    """Names of services, in starting order; "none" for none."""
    return _subset(text, SERVICES, "service")


def operators(text: str) -> tuple[str, ...]:
    """Names of operators, of sets of CRDs and of features; "none" for none."""
    return _subset(text, (*OPERATORS, *KINDS, *FEATURES), "operator")


def _subset(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    chosen = [name.strip() for name in text.split(",")]
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(
            f'unknown {what} "{unknown[0]}" (known: {", ".join(known)}, none)'
        )
    return tuple(name for name in known if name in chosen)


def gates(text: str) -> dict[str, bool]:
    """Feature gates by name; rejects a name that no service knows."""
    found = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = entry.partition("=")
        if value not in ("true", "false"):
            raise argparse.ArgumentTypeError(f'"{entry}" is not NAME=true or NAME=false')
        found[name] = value == "true"
    try:
        Features.of(found)
    except GateError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found
