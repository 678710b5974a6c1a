"""`rackgate console`: the page of topology, queues and Workloads, for the user of this machine."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import signal
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from rackgate_cli.errors import CommandError
from rackgate_cli.verbs import add_target, add_verb, whole_number

if TYPE_CHECKING:
    from rackgate_cli.cluster.target import ClusterTarget
    from rackgate_cli.verbs import Subparsers
    from rackgate_console.viewers.sessions import Sessions

_HOST = "127.0.0.1"
_MAX_CONNECTIONS = 512


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `console`."""
    parser = add_verb(
        subparsers,
        "console",
        run,
        summary="open a page that shows topology, queues and Workloads",
        description="Serves a page on this machine, and opens it in a browser: which racks are "
        "full and who holds them, queues with their quota, who waits and why. The page shows what "
        "the kubeconfig may read, changes with the cluster, and writes nothing. It listens on "
        f"{_HOST} alone. A link is valid once; press Enter for another one, Ctrl-C to stop.",
        examples=(
            "rackgate console",
            "rackgate console --context production --no-browser --port 8090",
            "rackgate console --state .rackgate",
        ),
        exit_codes={
            0: "stopped",
            1: "the cluster cannot be read, or the port is in use",
            2: "the command line or the kubeconfig is wrong",
        },
    )
    parser.add_argument(
        "--port",
        type=whole_number(0, 65535),
        default=0,
        metavar="N",
        help="port of the page (default: any free port)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address, and open no browser"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the assigner's configuration file, if its feature gates or resources are not default",
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; return the exit code.

    Raises:
        CommandError: the cluster cannot be read, or the port is in use.
        UsageError: the command line, the file or the kubeconfig is wrong.
    """
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of

    target = target_of(arguments, "console")
    try:
        asyncio.run(_serve(arguments, target))
    except KubeError as error:
        raise CommandError(f"the cluster cannot be read: {error}") from error
    return 0


async def _serve(arguments: argparse.Namespace, target: ClusterTarget) -> None:
    from rackgate.kube.access import missing_rights
    from rackgate.runtime import clock
    from rackgate.runtime.serving.file_limit import files_for, raise_file_limit
    from rackgate.runtime.tasks import spawn
    from rackgate_cli.cluster.assigner_settings import assigner_settings
    from rackgate_cli.cluster.managed import selectors
    from rackgate_cli.cluster.roles import VIEWER
    from rackgate_console.console import Console
    from rackgate_console.details import Details
    from rackgate_console.server import ConsoleServer
    from rackgate_console.viewers.sessions import Sessions
    from rackgate_console.viewers.viewer import LocalViewers

    settings = assigner_settings(arguments.config)
    async with target.client() as client:
        console = Console(
            client,
            settings.features,
            tuple(settings.resources.exclude_resource_prefixes),
            fair_sharing=settings.fair_sharing.strategies(),
            admission_fair_sharing=settings.admission_fair_sharing.rules(settings.features),
        )
        if missing := await missing_rights(client, "list", console.resources):
            raise CommandError(
                f"you may not list {', '.join(missing)} of the whole cluster; ask an administrator "
                f'to bind the ClusterRole "{VIEWER}" to you with a ClusterRoleBinding'
            )
        console.selectors = await selectors(client)
        viewers = LocalViewers(Sessions(clock.monotonic()), getpass.getuser(), arguments.port)
        server = ConsoleServer(console, viewers, Details(console, client), target.description)
        raise_file_limit(files_for(_MAX_CONNECTIONS))
        await server.start(_HOST, arguments.port, max_connections=_MAX_CONNECTIONS)
        viewers.port = server.port
        stop = _stop_event()
        try:
            async with asyncio.TaskGroup() as group:
                following = spawn(group, console.follow(), "console")
                address = f"http://{_HOST}:{server.port}/"
                print(f"Console of {target.description}", file=sys.stderr)
                _show_link(address, viewers.sessions, browser=not arguments.no_browser)
                _offer_links(address, viewers.sessions)
                await stop.wait()
                following.cancel()
        finally:
            await server.stop()


def _show_link(address: str, sessions: Sessions, *, browser: bool) -> None:
    """Print the address with its code; the code is not part of what a browser sends."""
    link = f"{address}#code={sessions.code}"
    print(link, flush=True)
    if sys.stdin.isatty():
        print("The link is valid once. Enter: another link. Ctrl-C: stop.", file=sys.stderr)
    if browser:
        webbrowser.open(link)


def _offer_links(address: str, sessions: Sessions) -> None:
    """On a terminal, each line of input prints another link."""
    from rackgate.runtime import clock

    if not sys.stdin.isatty():
        return

    def entered() -> None:
        if not sys.stdin.readline():
            asyncio.get_running_loop().remove_reader(sys.stdin)
            return
        sessions.new_code(clock.monotonic())
        _show_link(address, sessions, browser=False)

    asyncio.get_running_loop().add_reader(sys.stdin, entered)


def _stop_event() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
