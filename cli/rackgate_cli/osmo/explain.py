"""`rackgate osmo explain`: whether and where a workflow can go, and what KAI will do."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.osmo.arguments import (
    add_cluster,
    add_kai,
    add_names,
    add_tolerations,
    add_workflow,
    with_json_errors,
)

if TYPE_CHECKING:
    # What add_verbs gets; argparse has no public name for it.
    from argparse import _SubParsersAction

    from rackgate_cli.osmo.inputs import Inputs
    from rackgate_osmo import Pool
    from rackgate_osmo.explain.room import Nodes

DEFAULT_STEPS: Final = 100_000  # `osmo_placing.STEPS`, which takes longer to import
MAX_STEPS: Final = 100_000_000

_DESCRIPTION: Final = (
    "Says of each task group of a workflow whether it can be placed on the nodes of a file or of a "
    "cluster and where its subgroups would go, or which key and group is short of how much. Tells "
    "apart what is possible, which is searched for exactly, and what the KAI scheduler would do. "
    "Changes nothing."
)
_EPILOG: Final = """examples:
  rackgate osmo explain -f workflow.yaml --pool pool.yaml --nodes nodes.yaml
  kubectl get nodes -o yaml | rackgate osmo explain -f workflow.yaml --pool pool.yaml --nodes -
  rackgate osmo explain -f workflow.yaml --pool my-pool      # nodes and pods of the cluster
  rackgate osmo explain -f workflow.yaml --pool my-pool --json | jq .kaiResult

a list of nodes, where it is not what kubectl prints:
  - {count: 4, cpu: 64, gpu: 8, labels: {topology.kubernetes.io/zone: a}}

exit codes:
  0  explained
  1  the cluster cannot be read
  2  the command line, the pool, the workflow or the list of nodes is refused"""


class _Schema(argparse.Action):
    """Prints the JSON schema and ends, whatever else is missing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Print it."""
        del namespace, values, option_string
        from rackgate_osmo.explain.explanation import schema

        sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
        parser.exit()


def add_verbs(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `explain`."""
    parser = subparsers.add_parser(
        "explain",
        help="whether and where a workflow can go, and what KAI will do",
        description=textwrap.fill(_DESCRIPTION, 80),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_workflow(parser)
    add_nodes(parser)
    add_kai(parser)
    add_tolerations(parser)
    add_names(parser)
    parser.add_argument(
        "-n",
        "--namespace",
        help="of the workflow's pods, which are no obstacle to it where they run (default: that "
        "of the Workflow object, else that of the cluster's context)",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--schema", action=_Schema, nargs=0, help="print the JSON schema of --json")
    parser.add_argument(
        "--top",
        type=lambda text: _number(text, 1000),
        default=3,
        metavar="N",
        help="domains to list each time (default %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=lambda text: _number(text, MAX_STEPS),
        default=DEFAULT_STEPS,
        metavar="N",
        help="tries of a domain before a search is cut off (default %(default)s)",
    )
    add_cluster(parser)
    parser.set_defaults(run=with_json_errors(run))


def add_nodes(parser: argparse.ArgumentParser, default: str = "those of the cluster") -> None:
    """Add the argument that names a list of nodes."""
    parser.add_argument(
        "--nodes",
        metavar="FILE",
        help="the pool's nodes, as kubectl prints them or as a list of {count, cpu, labels}; "
        f"- for standard input (default: {default})",
    )
    parser.add_argument(
        "-l",
        "--selector",
        metavar="LABEL=VALUE,...",
        type=_selector,
        default={},
        help="only nodes with these labels belong to the pool (default: those that its "
        "node_selector chooses)",
    )


def _selector(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(label and equals for label, equals, _ in pairs):
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not LABEL=VALUE, several with commas')
    return {label: value for label, _, value in pairs}


def _number(text: str, most: int) -> int:
    try:
        number = int(text[:20])
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not a whole number') from None
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not between 1 and {most}')
    return number


def run(arguments: argparse.Namespace) -> int:
    """Explain; return 0.

    Raises:
        CommandError: the cluster cannot be read.
        UsageError: something on the command line, or in a file, is refused.
    """
    # NumPy and the engine take longer to import than most verbs take to run.
    import msgspec

    from rackgate_cli.osmo.explain_view import blocks
    from rackgate_cli.osmo.inputs import read_inputs
    from rackgate_cli.osmo.objects import names_of
    from rackgate_cli.tables import show
    from rackgate_osmo import KaiVersion, Profile
    from rackgate_osmo.explain.answer import ExplainRequest, explain

    check_streams(arguments)
    inputs = read_inputs(arguments)
    nodes = nodes_of(arguments, inputs.pool)
    request = ExplainRequest(
        inputs.pool,
        inputs.workflow,
        Profile(arguments.profile),
        KaiVersion(arguments.kai),
        names=names_of(arguments.names, inputs.workflow),
        namespace=_namespace(arguments, inputs),
        steps=arguments.steps,
        top=arguments.top,
    )
    found = explain(request, nodes)
    if arguments.json:
        # Escaped, so that no name from a cluster can steer a terminal.
        sys.stdout.write(json.dumps(msgspec.to_builtins(found), indent=2) + "\n")
    else:
        show(blocks(found))
    return 0


def check_streams(arguments: argparse.Namespace) -> None:
    """Refuse more than one thing from standard input.

    Raises:
        UsageError: workflow, pool and nodes are not one of them at most.
    """
    from rackgate_cli.errors import UsageError
    from rackgate_cli.input_files import STDIN

    if [arguments.file, arguments.pool, arguments.nodes].count(STDIN) > 1:
        raise UsageError("only one of workflow, pool and nodes can come from standard input")


def _namespace(arguments: argparse.Namespace, inputs: Inputs) -> str | None:
    """Where the workflow's pods are; None where nothing tells."""
    from rackgate_cli.osmo.objects import namespace_of
    from rackgate_cli.osmo.pools import target_of

    found = namespace_of(arguments.namespace, inputs.namespace)
    if found is None and arguments.nodes is None:
        return target_of(arguments).namespace
    return found


def nodes_of(arguments: argparse.Namespace, pool: Pool | None = None) -> Nodes:
    """The pool's nodes: of the file that is named, else of the cluster.

    Args:
        arguments: name the file or the cluster, and may choose nodes by their labels.
        pool: chooses nodes, too; None where nothing but the file does.

    Raises:
        CommandError: the cluster cannot be read.
        KubeError: likewise.
        UsageError: the file is refused, or no cluster is chosen.
    """
    import asyncio
    from dataclasses import replace

    from rackgate_cli.osmo.nodes import nodes_of_cluster, nodes_of_file
    from rackgate_cli.osmo.pools import target_of

    if arguments.nodes is not None:
        found = nodes_of_file(arguments.nodes)
    else:
        found = asyncio.run(nodes_of_cluster(target_of(arguments)))
    chosen = {**(pool.node_selector if pool is not None else {}), **arguments.selector}.items()
    mine = tuple(node for node in found.nodes if chosen <= node.labels.items())
    others = tuple(node for node in found.nodes if not chosen <= node.labels.items())
    return replace(found, nodes=mine, others=others)
