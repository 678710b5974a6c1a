"""`rackgate uninstall`: removes Rackgate from a cluster; no service has to run for it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from rackgate_cli.cluster import interruptible
from rackgate_cli.confirming import confirmed
from rackgate_cli.errors import CommandError
from rackgate_cli.preflight.command import add_installation
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `uninstall`."""
    parser = add_verb(
        subparsers,
        "uninstall",
        run,
        summary="remove Rackgate from a cluster, also while jobs run",
        description="Removes Rackgate from a cluster, without blocking other clients: first the "
        "admission policies and webhook configurations, then the services, then everything that "
        "they hold is released, then roles and namespace. Names the cluster before it asks. Needs "
        "no running service, and may be repeated. Pending jobs get their original templates back "
        "and stay suspended. Gated pods are released to the scheduler without a topology "
        "assignment. Queues and Workloads stay without Rackgate's finalizers, so that a later "
        "installation continues with them.",
        examples=(
            "rackgate uninstall                   # says what it will do, and asks",
            "rackgate uninstall --dry-run",
            "rackgate uninstall --yes --jobs suspend",
            "rackgate uninstall --delete-crds     # deletes all queues and Workloads, too",
        ),
        exit_codes={
            0: "Rackgate is removed",
            1: "something is left, and named; or the answer was no",
            2: "the command line is invalid",
        },
    )
    add_installation(parser)
    parser.add_argument(
        "--jobs",
        choices=("leave", "suspend"),
        default="leave",
        help="running jobs: leave them running (default; pods that they create later stay gated), "
        "or suspend them and restore their templates",
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--keep-crds",
        action="store_true",
        default=True,
        help="keep the CRDs with all queues and Workloads, and the users' roles (default)",
    )
    kinds.add_argument(
        "--delete-crds",
        action="store_true",
        help="delete the CRDs with every queue, flavor, topology and Workload",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for each step, such as jobs that stop (default 60)",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and exit")


def run(arguments: argparse.Namespace) -> int:
    """Run the verb; returns its exit code."""
    return interruptible.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of
    from rackgate_cli.uninstall.steps import Uninstaller
    from rackgate_cli.uninstall.view import outcome, plan

    target = target_of(arguments, "uninstall")
    async with target.client() as client:
        try:
            work = await Uninstaller.find(
                client, arguments.namespace, jobs=arguments.jobs, timeout_s=arguments.timeout
            )
            survey = await work.survey()
            lines = plan(survey, arguments.jobs, delete_crds=arguments.delete_crds)
            print("\n".join((f"Cluster: {target.description}.", *lines)))
            if arguments.dry_run:
                return 0
            if not arguments.yes and not confirmed("Uninstall?"):
                return 1
            done = await work.run(
                delete_crds=arguments.delete_crds,
                playground=target.state if target.settings is None else None,
                local=target.settings is None,
                say=lambda line: print(line, file=sys.stderr),
            )
        except KubeError as error:
            raise CommandError(f"{error}\nnothing is lost: run the command again") from error
    print("\n".join(outcome(done, arguments.jobs)))
    return 1 if done.left else 0
