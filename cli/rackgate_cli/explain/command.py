"""`rackgate explain`: why a Workload is pending, or what would happen to a manifest."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rackgate_cli import completion
from rackgate_cli.cluster import interruptible
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import add_json, add_namespace, add_target, add_verb, whole_number

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `explain`."""
    parser = add_verb(
        subparsers,
        "explain",
        run,
        summary="say why a Workload is pending, or whether a manifest would fit",
        description="Says why a Workload is pending: which domains come closest and what each of "
        "them lacks, which nodes are excluded and by which rule, who uses capacity and quota, "
        "which Workloads are ahead in the queue, and what would help. The answer is that of the "
        "assigner's own scheduling code for what the API server returns now. Changes nothing: the "
        "API server checks a manifest of -f by a dry run.",
        examples=(
            "rackgate explain train -n team-a           # a Job, JobSet, RayCluster or RayJob",
            "rackgate explain jobset/train",
            "rackgate explain team-a/job-train-5d2f1    # a Workload",
            "rackgate explain -f job.yaml               # would it fit, and where?",
            "rackgate explain train --json | jq .changes",
            "rackgate explain train --state ./mine      # on a playground",
        ),
        exit_codes={
            0: "explained",
            1: "no such Workload or job, or the cluster cannot be read",
            2: "the command line, the file or its manifest is invalid",
        },
        note="--schema describes the JSON. Its apiVersion changes when a field changes meaning.",
    )
    named = parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="?",
        help="name of a Workload or of its job, job/name (or jobset, raycluster, rayjob, "
        "workload), or namespace/name; with -f: which one of the file",
    )
    completion.set_completer(named, completion.jobs)
    completion.set_completer(add_namespace(parser), completion.namespaces)
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="a Job, JobSet, RayCluster, RayJob or Workload, YAML or JSON; - for standard input",
    )
    add_json(parser)
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of --json")
    parser.add_argument(
        "--top",
        type=whole_number(1, 1000),
        default=3,
        metavar="N",
        help="maximum number of entries in each list (default %(default)s)",
    )
    parser.add_argument(
        "--levels",
        type=lambda text: tuple(part for part in text.split(",") if part),
        default=(),
        metavar="KEY,...",
        help='show the domains of these levels; "rack" stands for "example.com/rack"',
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the assigner's configuration file, if its feature gates or resources are not default",
    )
    add_target(parser)


def _check_name(text: str) -> None:
    parts = text.split("/")
    if len(parts) > 2 or not all(parts):
        raise UsageError(f'"{text}" is not a name: write NAME, KIND/NAME or NAMESPACE/NAME')


def split_name(text: str) -> tuple[str, str, str]:
    """Namespace, kind and name of NAME, KIND/NAME or NAMESPACE/NAME, "" for what is not written.

    The word before the slash is a kind if there is one of this name. For a namespace that is called
    like a kind, there is --namespace.
    """
    from rackgate_cli.jobs.names import kind_of

    before, _, name = text.rpartition("/")
    kind = kind_of(before)
    return ("", kind, name) if kind else (before, "", name)


def run(arguments: argparse.Namespace) -> int:
    """Explain; return the exit code.

    Raises:
        CommandError: no object has that name, or the cluster cannot be read.
        UsageError: the command line, the file or the kubeconfig is wrong.
    """
    # NumPy and the engine take longer to import than most verbs take to run.
    import msgspec

    from rackgate.kube.errors import KubeError
    from rackgate_assigner.explain.explanation import Explanation, schema
    from rackgate_cli.explain.view import blocks
    from rackgate_cli.tables import show, show_json

    if arguments.schema:
        show_json(schema())
        return 0
    if arguments.workload is None and arguments.file is None:
        raise UsageError("specify a Workload, its job, or a file with -f")
    if arguments.workload is not None:
        _check_name(arguments.workload)
    try:
        found: Explanation = interruptible.run(_explain(arguments))
    except KubeError as error:
        raise CommandError(f"the cluster cannot be read: {error}") from error
    if arguments.json:
        show_json(msgspec.to_builtins(found))
    else:
        show(blocks(found, arguments.levels))
    return 2 if found.state == "invalid" else 0


async def _explain(arguments: argparse.Namespace) -> Any:
    from rackgate_cli.cluster.assigner_settings import assigner_settings
    from rackgate_cli.cluster.target import NoClusterError, target_of
    from rackgate_cli.explain.explainer import WorkloadExplainer
    from rackgate_cli.explain.manifest import load

    # A malformed file is reported before any cluster is read.
    document = load(arguments.file, arguments.workload) if arguments.file is not None else None
    settings = assigner_settings(arguments.config)
    try:
        target = target_of(arguments, "explain")
    except NoClusterError as error:
        if document is None:
            raise
        needed = "-f needs a cluster, which checks the manifest and says whether it fits"
        raise UsageError(f"{error}; {needed}") from error
    async with target.client() as client:
        asking = WorkloadExplainer(
            client,
            settings.features,
            tuple(settings.resources.exclude_resource_prefixes),
            arguments.top,
            fair_sharing=settings.fair_sharing.strategies(),
            admission_fair_sharing=settings.admission_fair_sharing.rules(settings.features),
        )
        if document is not None:
            return await asking.manifest(document, arguments.namespace, target.namespace)
        namespace, kind, name = split_name(arguments.workload)
        if namespace and arguments.namespace and namespace != arguments.namespace:
            raise UsageError(
                f'WORKLOAD is in namespace "{namespace}", --namespace is "{arguments.namespace}"'
            )
        namespace = namespace or arguments.namespace or target.namespace
        return await asking.named(namespace, name, kind)
