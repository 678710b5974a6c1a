"""`rackgate osmo check`: known defects of KAI that a workflow would trigger."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from rackgate_cli.osmo.arguments import (
    add_cluster,
    add_kai,
    add_nodes,
    add_workflow,
    check_streams,
    new_verb,
)

if TYPE_CHECKING:
    # What add_verbs gets; argparse has no public name for it.
    from argparse import _SubParsersAction

    from rackgate_cli.tables import Block
    from rackgate_osmo.check import KaiWarning

_DESCRIPTION: Final = (
    "Warns of traps of the KAI scheduler that no schema and no webhook reports: nodes without a "
    "label, a required level that KAI does not see, subgroups in an order that wastes capacity, "
    "tasks of several sizes, label values with dots. Each cause is reported once: without --nodes, "
    "causes in the workflow; with nodes, their effects. Reads only the pool from a cluster, "
    "and only when POOL is not a file."
)
_EPILOG: Final = """examples:
  rackgate osmo check -f workflow.yaml --pool pool.yaml
  rackgate osmo check -f workflow.yaml --pool pool.yaml --nodes nodes.yaml --strict-exit

exit codes:
  0  checked, whatever was found
  1  with --strict-exit: there are warnings; or the cluster cannot be read
  2  the command line, the pool, the workflow or the list of nodes is invalid"""


def add_verbs(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `check`."""
    parser = new_verb(
        subparsers,
        "check",
        run,
        summary="what KAI would do wrong with a workflow, without placing it",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add_workflow(parser)
    add_nodes(parser, "not known")
    add_kai(parser)
    parser.add_argument(
        "--strict-exit", action="store_true", help="exit code 1 where there are warnings"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    add_cluster(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check; return the exit code."""
    from rackgate_cli.osmo.inputs import read_inputs
    from rackgate_cli.osmo.nodes import nodes_of
    from rackgate_cli.tables import show
    from rackgate_osmo import KaiVersion, Profile
    from rackgate_osmo.check import check

    check_streams(arguments)
    inputs = read_inputs(arguments)
    nodes = None
    if arguments.nodes is not None:
        nodes = [node.labels for node in nodes_of(arguments, inputs.pool).nodes]
    found = check(
        inputs.pool,
        inputs.workflow,
        profile=Profile(arguments.profile),
        kai=KaiVersion(arguments.kai),
        nodes=nodes,
    )
    if arguments.json:
        document = {"warnings": [asdict(one) for one in found]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        show(_blocks(inputs.workflow.name, found, nodes is not None))
    return 1 if found and arguments.strict_exit else 0


def _blocks(workflow: str, found: Sequence[KaiWarning], nodes: bool) -> Iterator[Block]:
    from rackgate_cli.tables import Grid, Line

    if found:
        number = "1 trap" if len(found) == 1 else f"{len(found)} traps"
        yield Line(f"workflow {workflow}: {number} of KAI", "bold")
    else:
        yield Line(f"workflow {workflow}: no trap of KAI is known that it could meet", "green")
    if not nodes:
        yield Line("nodes are not known: --nodes tells whether they carry all labels, and more")
    for one in found:
        yield Line("")
        yield Line(f"{one.why} at {one.path}", "yellow")
        yield Grid((), [("what KAI does", one.message), ("what helps", one.help)])
