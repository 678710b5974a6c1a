"""`rackgate osmo explain`: whether and where a workflow fits, and what KAI will do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rackgate_cli.osmo.arguments import (
    add_cluster,
    add_kai,
    add_names,
    add_nodes,
    add_tolerations,
    add_workflow,
    check_streams,
    new_verb,
)
from rackgate_cli.tables import Block, Grid, Heading, Line, show

if TYPE_CHECKING:
    # What add_verbs gets; argparse has no public name for it.
    from argparse import _SubParsersAction

    from rackgate_cli.osmo.inputs import Inputs
    from rackgate_osmo.explain.explanation import (
        DomainRoom,
        Group,
        KeyRoom,
        LeftOut,
        Shortage,
        Subgroup,
        WorkflowExplanation,
    )

DEFAULT_STEPS: Final = 100_000  # `placement.STEPS`, which takes longer to import
MAX_STEPS: Final = 100_000_000
ROWS: Final = 100  # subgroups of one task group
PLACES: Final = 8  # domains of one subgroup

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
  2  the command line, the pool, the workflow or the list of nodes is invalid"""
_ANSWERS: Final = {
    "scheduled": "can be placed",
    "partly": "can be placed in part",
    "pending": "cannot be placed",
    "undecided": "not decided",
}
_KAI: Final = {
    "scheduled": "scheduled",
    "partly": "some task groups stay pending",
    "pending": "stays pending",
    "unknown": "cannot be known",
}


def add_verbs(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `explain`."""
    parser = new_verb(
        subparsers,
        "explain",
        run,
        summary="whether and where a workflow can go, and what KAI will do",
        description=_DESCRIPTION,
        epilog=_EPILOG,
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


class _Schema(argparse.Action):
    """Prints the JSON schema and exits, even if required arguments are missing."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        """Print it."""
        from rackgate_osmo.explain.explanation import schema

        sys.stdout.write(json.dumps(schema(), indent=2) + "\n")
        parser.exit()


def _number(text: str, most: int) -> int:
    try:
        number = int(text[:20])
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not a whole number') from None
    if not 1 <= number <= most:
        raise argparse.ArgumentTypeError(f'"{text[:60]}" is not between 1 and {most}')
    return number


def run(arguments: argparse.Namespace) -> int:
    """Explain; return 0."""
    # NumPy and the engine take longer to import than most verbs take to run.
    import msgspec

    from rackgate_cli.osmo.inputs import names_of, read_inputs
    from rackgate_cli.osmo.nodes import nodes_of
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
        # Escaped, so that names from a cluster cannot control the terminal.
        sys.stdout.write(json.dumps(msgspec.to_builtins(found), indent=2) + "\n")
    else:
        show(_blocks(found))
    return 0


def _namespace(arguments: argparse.Namespace, inputs: Inputs) -> str | None:
    """The namespace of the workflow's pods; None if nothing names it."""
    from rackgate_cli.osmo.inputs import namespace_of, target_of

    found = namespace_of(arguments.namespace, inputs.namespace)
    if found is None and arguments.nodes is None:
        return target_of(arguments).namespace
    return found


# -- as text ---------------------------------------------------------------------------------


def _blocks(found: WorkflowExplanation) -> Iterator[Block]:
    """The explanation as text, the answer first."""
    title = f"workflow {found.workflow} in pool {found.pool}"
    yield Line(f"{title}: {_ANSWERS[found.answer]}", "bold")
    well = found.answer == found.kai_result == "scheduled"
    yield Line(found.summary, "green" if well else "yellow")
    yield from (Line(f"warning: {text}", "red") for text in found.warnings)
    if found.left_out:
        reasons = ", ".join(f"{one.why}: {one.nodes}" for one in found.left_out)
        yield Line(f"nodes left out: {sum(one.nodes for one in found.left_out)} ({reasons})")
    # Groups that stay pending first.
    for group in sorted(found.groups, key=lambda one: one.answer == one.kai.result == "scheduled"):
        yield from _group(group, found)
    yield Heading("TOPOLOGY")
    headings = ("KEY", "LABEL", "DOMAINS", "NODES WITHOUT", "MOST ROOM (PODS)")
    yield Grid(headings, [_key(key) for key in found.keys])
    yield Line(f"nodes that pods may use: {found.nodes}")
    if found.left_out:
        yield Heading("NODES LEFT OUT")
        yield Grid(("NODES", "WHY", "FOR EXAMPLE"), [_left(one) for one in found.left_out])


def _group(group: Group, found: WorkflowExplanation) -> Iterator[Block]:
    yield Heading(f"TASK GROUP {group.name} (PodGroup {group.pod_group})")
    yield Line(group.summary)
    if group.shortages:
        yield Grid(
            ("MISSING AT", "SUBGROUP", "PODS", "TAKES", "MISSING", "INSIDE", "CLOSEST"),
            [_shortage(one) for one in group.shortages],
        )
    placed = group.answer == "scheduled"
    rows = [_subgroup(one, placed) for one in group.subgroups[:ROWS]]
    if rows:
        yield Grid(("SUBGROUP", "ASKED", "PODS", "WHERE"), rows)
    more = len(group.subgroups) - ROWS
    if more > 0:
        yield Line(f"and {more} more subgroups; --json has them all")
    if not group.complete:
        yield Line("the search for further preferences was cut off; give it more --steps", "yellow")
    if group.running:
        yield Line(f"on nodes: {_domains(group.running)}")
    kai = group.kai
    style = "" if kai.result == group.answer else "yellow"
    yield Line(f"KAI v{found.kai_version} ({found.profile}): {_KAI[kai.result]}", style)
    for one in kai.deviations:
        yield Grid((), [("because", f"{one.name}: {one.text}"), ("what would help", one.help)])


def _subgroup(one: Subgroup, placed: bool) -> tuple[str, ...]:
    asked = f'{one.key} "{one.group}" {one.type}' if one.type != "none" else "-"
    where = _domains(one.places) if one.places else "/".join(one.domain or ()) or "-"
    if placed and one.type == "preferred" and not one.together:
        where = f"{where} (not in one {one.key})"
    return one.name or "(all pods)", asked, str(one.pods), where


def _shortage(one: Shortage) -> tuple[str, ...]:
    return (
        f'{one.key} "{one.group}"' if one.key else "all nodes",
        one.subgroup or "(all pods)",
        str(one.pods),
        str(one.takes),
        str(one.missing),
        _path(one.within) if one.within else "-",
        _domains(one.rooms) or "-",
    )


def _key(key: KeyRoom) -> tuple[str, ...]:
    without = str(key.unlabelled) if key.unlabelled else "-"
    return key.key, key.label, str(key.domains), without, _domains(key.best) or "-"


def _left(one: LeftOut) -> tuple[str, ...]:
    names = ", ".join(one.names) + (", ..." if one.nodes > len(one.names) else "")
    return str(one.nodes), one.why, names


def _domains(places: Sequence[DomainRoom]) -> str:
    parts = [f"{_path(place.domain)}: {place.pods}" for place in places[:PLACES]]
    more = len(places) - PLACES
    if more > 0:
        parts.append(f"and {more} more")
    return ", ".join(parts)


def _path(domain: Sequence[str]) -> str:
    return "/".join(value or "-" for value in domain) or "any node"
