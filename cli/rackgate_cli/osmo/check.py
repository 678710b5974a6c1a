"""`rackgate osmo check`: known defects of KAI that a workflow would trigger."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rackgate_cli.osmo.arguments import (
    add_kai,
    add_nodes,
    add_workflow,
    check_streams,
    new_verb,
)
from rackgate_cli.verbs import add_target

if TYPE_CHECKING:
    from rackgate_cli.tables import Block
    from rackgate_cli.verbs import Subparsers
    from rackgate_osmo.check import KaiWarning


def add_verbs(subparsers: Subparsers) -> None:
    """Add the verb `check`."""
    parser = new_verb(
        subparsers,
        "check",
        run,
        summary="warn of defects of KAI that a workflow would trigger",
        description="Warns of defects of the KAI scheduler that a workflow would trigger and that "
        "neither schemas nor webhooks report: nodes without a label, a required level that KAI "
        "does not see, subgroups in an order that wastes capacity, tasks of several sizes, label "
        "values with dots. Reports each cause once. Without --nodes, checks only the workflow; "
        "with --nodes, also the labels of the nodes. Reads only the pool from a cluster, and only "
        "if POOL is not a file.",
        examples=(
            "rackgate osmo check -f workflow.yaml --pool pool.yaml",
            "rackgate osmo check -f workflow.yaml --pool my-pool --nodes nodes.yaml --strict-exit",
        ),
        exit_codes={
            0: "checked, with or without warnings",
            1: "warnings with --strict-exit, or the cluster cannot be read",
            2: "the command line, the pool, the workflow or the list of nodes is invalid",
        },
    )
    add_workflow(parser)
    add_nodes(parser, "labels of nodes are not checked")
    add_kai(parser)
    parser.add_argument(
        "--strict-exit", action="store_true", help="exit with code 1 if there are warnings"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check; return the exit code."""
    from rackgate_cli.osmo.inputs import read_inputs
    from rackgate_cli.osmo.nodes import nodes_of
    from rackgate_cli.tables import show, show_json
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
        show_json({"warnings": [asdict(one) for one in found]})
    else:
        show(_blocks(inputs.workflow.name, found, nodes is not None))
    return 1 if found and arguments.strict_exit else 0


def _blocks(workflow: str, found: Sequence[KaiWarning], nodes: bool) -> Iterator[Block]:
    from rackgate_cli.tables import Grid, Line

    if found:
        number = "1 warning" if len(found) == 1 else f"{len(found)} warnings"
        yield Line(f"workflow {workflow}: {number}", "bold")
    else:
        yield Line(f"workflow {workflow}: no warnings", "green")
    if not nodes:
        yield Line("labels of nodes are not checked: name the nodes with --nodes")
    for one in found:
        yield Line("")
        yield Line(f"{one.why} at {one.path}", "yellow")
        yield Grid((), [("what KAI does", one.message), ("what would help", one.help)])
