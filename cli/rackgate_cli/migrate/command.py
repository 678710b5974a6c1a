"""`rackgate migrate`: whether a cluster with Kueue can switch to Rackgate, and how."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.cluster import interruptible
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import add_output, add_target, add_verb

if TYPE_CHECKING:
    from rackgate_cli.migrate.report import Report
    from rackgate_cli.verbs import Subparsers

BLOCKED: Final = 3
NOT_VALIDATED: Final = (
    "objects of the cluster are not validated, because Kueue would answer a dry run. Check the "
    "manifests that you apply after the switch with -f"
)
_EXIT_CODES: Final = {
    0: "nothing blocks the switch",
    1: "the cluster cannot be read",
    2: "the command line or a file is invalid",
    BLOCKED: "something blocks the switch; its lines say what to do",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `migrate` with its own verbs."""
    parser = add_verb(
        subparsers,
        "migrate",
        None,
        summary="say what changes when Rackgate takes the place of Kueue; only reads",
        description="Compares what is in a cluster with Kueue, or in files, with what Rackgate "
        "does, and prints the steps of the switch. Only reads.",
        examples=("rackgate migrate check", "rackgate migrate plan"),
        exit_codes=_EXIT_CODES,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = add_verb(
        verbs,
        "check",
        run_check,
        summary="say for each object and setting of Kueue how it works with Rackgate",
        description="Lists every queue, flavor, Cohort, Topology, AdmissionCheck, priority class, "
        "Workload and job of Kueue, and every key of its configuration, as: same, better, differs "
        "or not yet, with the reason and what to do. It blocks if jobs would wait forever or run "
        "without quota, or if an object of a file would be rejected, by the rules of the webhook "
        "or for a type or value that the CRDs do not allow. Objects of a cluster, and other rules "
        "of the API server, are not validated. Only reads.",
        examples=(
            "rackgate migrate check",
            "rackgate migrate check -f manifests/ -f kueue-config.yaml",
            "kubectl kustomize . | rackgate migrate check -f -",
            "rackgate migrate check -o json | jq '.items[] | select(.blocks)'",
        ),
        exit_codes=_EXIT_CODES,
        note="--schema describes the JSON. Its apiVersion changes when a field changes meaning.",
    )
    check.add_argument("--all", action="store_true", help="list what works the same, too")
    add_output(check, "table")
    check.add_argument("--schema", action="store_true", help="print the JSON schema of -o json")
    _add_source(check)
    plan = add_verb(
        verbs,
        "plan",
        run_plan,
        summary="print the steps of the switch for this cluster",
        description="Checks as rackgate migrate check does, and prints the steps of the switch: "
        "commands, what to verify after each of them, and how to go back. Admitted Workloads are "
        "taken over as they stand, or all queues are drained before. Executes nothing.",
        examples=("rackgate migrate plan", "rackgate migrate plan --drain > steps.txt"),
        exit_codes=_EXIT_CODES,
    )
    plan.add_argument(
        "--drain",
        action="store_true",
        help="wait until all jobs have ended, instead of taking them over",
    )
    add_output(plan, "text")
    _add_source(plan)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        action="append",
        help="a manifest, a folder of them, or the configuration of Kueue, instead of a cluster; "
        "- for standard input; may be repeated",
    )
    parser.add_argument(
        "--kueue-namespace",
        metavar="NAMESPACE",
        default="kueue-system",
        help="where Kueue runs (default %(default)s)",
    )
    add_target(parser)


def run_check(arguments: argparse.Namespace) -> int:
    """Print the report; return 0, or 3 if something blocks.

    Raises:
        CommandError: the cluster cannot be read.
        UsageError: the command line or a file is wrong.
    """
    from rackgate_cli.migrate.report import schema
    from rackgate_cli.migrate.view import blocks
    from rackgate_cli.tables import show, show_json

    if arguments.schema:
        show_json(schema())
        return 0
    report = _report(arguments)
    if not _printed(report, arguments.output):
        show(blocks(report, everything=arguments.all))
        _print_notes(report)
    return BLOCKED if report.summary.blocking else 0


def run_plan(arguments: argparse.Namespace) -> int:
    """Print the steps; return 0, or 3 if something blocks.

    Raises:
        CommandError: the cluster cannot be read.
        UsageError: the command line or a file is wrong.
    """
    from rackgate_cli.migrate.plan import plan_of
    from rackgate_cli.migrate.view import plan_text

    report = _report(arguments)
    plan = plan_of(report, arguments.kueue_namespace, drain=arguments.drain)
    if not _printed(plan, arguments.output):
        sys.stdout.write(plan_text(plan))
        _print_notes(report)
    return BLOCKED if report.summary.blocking else 0


def _printed(found: Any, output: str) -> bool:
    """Print JSON or YAML if it is wanted."""
    import msgspec

    from rackgate_cli.plain_yaml import show_yaml
    from rackgate_cli.tables import show_json

    if output == "json":
        show_json(msgspec.to_builtins(found))
    elif output == "yaml":
        show_yaml(msgspec.to_builtins(found))
    else:
        return False
    return True


def _print_notes(report: Report) -> None:
    from rackgate_cli.tables import clean

    for note in report.notes:
        print(f"note: {clean(note)}", file=sys.stderr)


def _report(arguments: argparse.Namespace) -> Report:
    from rackgate_cli.migrate.judging import (
        judge,
        judge_configuration,
        shared_nodes,
        with_shared_nodes,
    )
    from rackgate_cli.migrate.reading import read_files
    from rackgate_cli.migrate.report import report_of

    if arguments.file and (arguments.state or arguments.kubeconfig or arguments.context):
        raise UsageError("-f reads no cluster: it cannot be used with --state or --kubeconfig")
    stored = not arguments.file
    found = interruptible.run(_read(arguments)) if stored else read_files(arguments.file)
    judged = (judge(one, stored=stored) for one in found.objects)
    flavors = [one for one in found.objects if one.get("kind") == "ResourceFlavor"]
    items = with_shared_nodes([one for one in judged if one is not None], shared_nodes(flavors))
    if found.configuration is not None:
        items += judge_configuration(found.configuration, found.where)
    if not items and not stored:
        raise UsageError(
            "the files have no object of Kueue, no job with a queue label and no Configuration"
        )
    notes = [*found.notes, NOT_VALIDATED] if stored else found.notes
    return report_of(items, "cluster" if stored else "files", notes)


async def _read(arguments: argparse.Namespace) -> Any:
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import NoClusterError, target_of
    from rackgate_cli.errors import first_error
    from rackgate_cli.migrate.reading import read_cluster

    try:
        target = target_of(arguments, "migrate")
    except NoClusterError as error:
        raise UsageError(f"{error}; -f checks files without a cluster") from error
    async with target.client() as client:
        try:
            return await read_cluster(client, arguments.kueue_namespace)
        except* KubeError as errors:
            raise CommandError(f"the cluster cannot be read: {first_error(errors)}") from errors
