"""`rackgate uninstall`: takes Rackgate out of a cluster; no service has to run for it."""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rackgate_cli.errors import CommandError
from rackgate_cli.preflight.command import add_cluster

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DESCRIPTION: Final = (
    "Takes Rackgate out of a cluster, in an order that blocks nobody: policies and webhook "
    "configurations first, then the services, then everything that they held is given back, then "
    "roles and namespace. Names the cluster before it asks. Needs no running service, and may be "
    "repeated. Jobs that wait get their "
    "templates back and stay suspended. Gated pods are released to the scheduler, without a place "
    "of their own. Queues and Workloads stay as objects, without our finalizers, so that a later "
    "installation goes on where this one stopped."
)
_EPILOG: Final = """examples:
  rackgate uninstall                   # says what it will do, and asks
  rackgate uninstall --dry-run
  rackgate uninstall --yes --jobs suspend
  rackgate uninstall --delete-crds     # all queues and Workloads go, too

exit codes:
  0  Rackgate is gone
  1  something is left, and named; or the answer was no
  2  the command line is wrong"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `uninstall`."""
    parser = subparsers.add_parser(
        "uninstall",
        help="take Rackgate out of a cluster, with jobs running",
        description=textwrap.fill(_DESCRIPTION, 80),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_cluster(parser)
    parser.add_argument(
        "--jobs",
        choices=("leave", "suspend"),
        default="leave",
        help="what becomes of jobs that run: leave them running (default; pods that they make "
        "later stay gated), or suspend them and give them their templates back",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--keep-crds",
        action="store_true",
        default=True,
        help="keep the kinds with all queues and Workloads, and the users' roles (default)",
    )
    kinds.add_argument(
        "--delete-crds",
        action="store_true",
        help="delete them: every queue, flavor, topology and Workload goes",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long each step is waited for, such as jobs that stop (default 60)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; returns its exit code."""
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    from rackgate.kube.errors import KubeError
    from rackgate_cli.target import cluster_target
    from rackgate_cli.uninstall.steps import Uninstaller
    from rackgate_cli.uninstall.view import outcome, plan

    asked = cluster_target(arguments.state, arguments.kubeconfig, arguments.context)
    asked = replace(asked, user_agent="rackgate-uninstall")
    async with asked.client() as client:
        try:
            work = await Uninstaller.find(
                client, arguments.namespace, jobs=arguments.jobs, timeout_s=arguments.timeout
            )
            survey = await work.survey()
            lines = plan(survey, arguments.jobs, delete_crds=arguments.delete_crds)
            print("\n".join((f"Cluster: {asked.description}.", *lines)))
            if arguments.dry_run:
                return 0
            if not arguments.yes and not _confirmed():
                return 1
            done = await work.run(
                delete_crds=arguments.delete_crds,
                playground=asked.state if asked.settings is None else None,
                local=asked.settings is None,
                say=lambda line: print(line, file=sys.stderr),
            )
        except KubeError as error:
            raise CommandError(f"{error}\nnothing is lost: run it again") from error
    print("\n".join(outcome(done, arguments.jobs)))
    return 1 if done.left else 0


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise CommandError("this is no terminal to ask at; agree with --yes")
    return input('Uninstall? Only "yes" does it: ').strip() == "yes"
