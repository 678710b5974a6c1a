"""`rackgate osmo explain`: whether and where a workflow fits, and what KAI will do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rackgate_cli.osmo.arguments import (
    add_kai,
    add_names,
    add_nodes,
    add_tolerations,
    add_workflow,
    check_streams,
    new_verb,
)
from rackgate_cli.tables import Block, Grid, Heading, Line, show, show_json
from rackgate_cli.verbs import add_target, whole_number

if TYPE_CHECKING:
    from rackgate_cli.osmo.inputs import Inputs
    from rackgate_cli.verbs import Subparsers
    from rackgate_osmo.explain.explanation import (
        DomainPods,
        Group,
        KeyDomains,
        LeftOut,
        Shortage,
        Subgroup,
        WorkflowExplanation,
    )

DEFAULT_STEPS: Final = 100_000  # `placement.STEPS`, which takes longer to import
MAX_STEPS: Final = 100_000_000
ROWS: Final = 100  # subgroups of one task group
PLACES: Final = 8  # domains of one subgroup

_ANSWERS: Final = {
    "scheduled": "fits",
    "partly": "fits in part",
    "pending": "does not fit",
    "undecided": "not decided",
}
_KAI: Final = {
    "scheduled": "scheduled",
    "partly": "some task groups stay pending",
    "pending": "stays pending",
    "unknown": "cannot be predicted",
}


def add_verbs(subparsers: Subparsers) -> None:
    """Add the verb `explain`."""
    parser = new_verb(
        subparsers,
        "explain",
        run,
        summary="say whether and where a workflow fits, and what KAI will do",
        description="Says for each task group of a workflow whether it fits on the nodes of a file "
        "or of a cluster, and where its subgroups would go, or which key and group lacks how much "
        "capacity. Shows separately what is possible, by an exact search, and what the KAI "
        "scheduler would do. Only reads.",
        examples=(
            "rackgate osmo explain -f workflow.yaml --pool pool.yaml --nodes nodes.yaml",
            "kubectl get nodes -o yaml | "
            "rackgate osmo explain -f workflow.yaml --pool pool.yaml --nodes -",
            "rackgate osmo explain -f workflow.yaml --pool my-pool  # nodes of the cluster",
            "rackgate osmo explain -f workflow.yaml --pool my-pool --json | jq .kaiResult",
        ),
        exit_codes={
            0: "explained",
            1: "the cluster cannot be read",
            2: "the command line, the pool, the workflow or the list of nodes is invalid",
        },
        note="Instead of what kubectl prints, --nodes accepts a list such as "
        "- {count: 4, cpu: 64, gpu: 8, labels: {topology.kubernetes.io/zone: a}}",
    )
    add_workflow(parser)
    add_nodes(parser)
    add_kai(parser)
    add_tolerations(parser)
    add_names(parser)
    parser.add_argument(
        "-n",
        "--namespace",
        help="of the workflow's pods; pods that run already do not count as used (default: that "
        "of the Workflow object, else that of the kubeconfig's context)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--schema", action=_Schema, nargs=0, help="print the JSON schema of --json")
    parser.add_argument(
        "--top",
        type=whole_number(1, 1000),
        default=3,
        metavar="N",
        help="maximum number of domains in each list (default %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=whole_number(1, MAX_STEPS),
        default=DEFAULT_STEPS,
        metavar="N",
        help="maximum number of domains that a search tries (default %(default)s)",
    )
    add_target(parser)


class _Schema(argparse.Action):
    """Prints the JSON schema and exits, even if required arguments are missing."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        """Print it."""
        from rackgate_osmo.explain.explanation import schema

        show_json(schema())
        parser.exit()


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
        show_json(msgspec.to_builtins(found))
    else:
        show(_blocks(found))
    return 0


def _namespace(arguments: argparse.Namespace, inputs: Inputs) -> str | None:
    """The namespace of the workflow's pods; None if nothing names it."""
    from rackgate_cli.cluster.target import target_of
    from rackgate_cli.osmo.inputs import namespace_of

    found = namespace_of(arguments.namespace, inputs.namespace)
    if found is None and arguments.nodes is None:
        return target_of(arguments, "osmo").namespace
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
        yield Line(f"excluded nodes: {sum(one.nodes for one in found.left_out)} ({reasons})")
    # Groups that stay pending first.
    for group in sorted(found.groups, key=lambda one: one.answer == one.kai.result == "scheduled"):
        yield from _group(group, found)
    yield Heading("TOPOLOGY")
    headings = ("KEY", "LABEL", "DOMAINS", "NODES WITHOUT", "MOST FREE (PODS)")
    yield Grid(headings, [_key(key) for key in found.keys])
    yield Line(f"usable nodes: {found.nodes}")
    if found.left_out:
        yield Heading("EXCLUDED NODES")
        yield Grid(("NODES", "REASON", "EXAMPLES"), [_left(one) for one in found.left_out])


def _group(group: Group, found: WorkflowExplanation) -> Iterator[Block]:
    yield Heading(f"TASK GROUP {group.name} (PodGroup {group.pod_group})")
    yield Line(group.summary)
    if group.shortages:
        yield Grid(
            ("MISSING AT", "SUBGROUP", "PODS", "FITS", "MISSING", "WITHIN", "BEST"),
            [_shortage(one) for one in group.shortages],
        )
    placed = group.answer == "scheduled"
    rows = [_subgroup(one, placed) for one in group.subgroups[:ROWS]]
    if rows:
        yield Grid(("SUBGROUP", "REQUESTED", "PODS", "DOMAIN"), rows)
    more = len(group.subgroups) - ROWS
    if more > 0:
        yield Line(f"and {more} more subgroups (--json shows all)")
    if not group.complete:
        yield Line("the search for further preferences was cut off; increase --steps", "yellow")
    if group.running:
        yield Line(f"bound: {_domains(group.running)}")
    kai = group.kai
    style = "" if kai.result == group.answer else "yellow"
    yield Line(f"KAI v{found.kai_version} ({found.profile}): {_KAI[kai.result]}", style)
    for one in kai.deviations:
        yield Grid((), [("reason", f"{one.name}: {one.text}"), ("what would help", one.help)])


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


def _key(key: KeyDomains) -> tuple[str, ...]:
    without = str(key.unlabelled) if key.unlabelled else "-"
    return key.key, key.label, str(key.domains), without, _domains(key.best) or "-"


def _left(one: LeftOut) -> tuple[str, ...]:
    names = ", ".join(one.names) + (", ..." if one.nodes > len(one.names) else "")
    return str(one.nodes), one.why, names


def _domains(places: Sequence[DomainPods]) -> str:
    parts = [f"{_path(place.domain)}: {place.pods}" for place in places[:PLACES]]
    more = len(places) - PLACES
    if more > 0:
        parts.append(f"and {more} more")
    return ", ".join(parts)


def _path(domain: Sequence[str]) -> str:
    return "/".join(value or "-" for value in domain) or "any node"
