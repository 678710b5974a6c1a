"""`rackgate explain`: why a Workload is pending, or what would happen to a manifest."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rackgate.features import Features
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import add_target, add_verb

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
        "which Workloads are ahead in the queue, and what would help. Only reads. The answer is "
        "that of the assigner's own scheduling code for what the API server returns now.",
        examples=(
            "rackgate explain train -n team-a           # a Job, JobSet or RayCluster",
            "rackgate explain team-a/job-train-5d2f1    # a Workload",
            "rackgate explain -f job.yaml               # would it fit, and where?",
            "rackgate explain train --json | jq .changes",
            "rackgate explain train --state ./mine      # on a playground",
        ),
        exit_codes={
            0: "explained",
            1: "no such Workload or job, or the cluster cannot be read",
            2: "the command line, the file or the manifest in it is wrong",
        },
        note="--schema describes the JSON. Its apiVersion changes when a field changes meaning.",
    )
    parser.add_argument(
        "workload",
        metavar="WORKLOAD",
        nargs="?",
        help="name of a Workload or of its job, or namespace/name; with -f: which one of the file",
    )
    parser.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="a Job, JobSet, RayCluster or Workload, YAML or JSON; - for standard input",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of --json")
    parser.add_argument(
        "--top",
        type=_top,
        default=3,
        metavar="N",
        help="how many domains, holders and names to list (default %(default)s)",
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


def _top(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number') from None
    if not 1 <= number <= 1000:
        raise argparse.ArgumentTypeError(f'"{text}" is not between 1 and 1000')
    return number


def _check_name(text: str) -> None:
    parts = text.split("/")
    if len(parts) > 2 or not all(parts):
        raise UsageError(f'"{text}" is not a name: write NAME or NAMESPACE/NAME')


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
    from rackgate_cli.tables import show

    if arguments.schema:
        sys.stdout.write(_pretty(schema()))
        return 0
    if arguments.workload is None and arguments.file is None:
        raise UsageError("name a Workload or its job, or a file with -f")
    if arguments.workload is not None:
        _check_name(arguments.workload)
    try:
        found: Explanation = asyncio.run(_explain(arguments))
    except KubeError as error:
        raise CommandError(f"the cluster cannot be read: {error}") from error
    if arguments.json:
        sys.stdout.write(_pretty(msgspec.to_builtins(found)))
    else:
        show(blocks(found, arguments.levels))
    return 2 if found.state == "invalid" else 0


def _pretty(value: Any) -> str:
    import json

    # Escaped, so that names from a cluster cannot control the terminal.
    return json.dumps(value, indent=2) + "\n"


async def _explain(arguments: argparse.Namespace) -> Any:
    from rackgate_cli.explain.explainer import WorkloadExplainer
    from rackgate_cli.explain.manifest import load
    from rackgate_cli.target import cluster_target

    # A malformed file is reported before any cluster is read.
    document = load(arguments.file, arguments.workload) if arguments.file is not None else None
    features, excluded = _settings(arguments.config)
    target = cluster_target(arguments.state, arguments.kubeconfig, arguments.context)
    async with target.client() as client:
        asking = WorkloadExplainer(client, features, excluded, arguments.top)
        if document is not None:
            return await asking.manifest(document, arguments.namespace, target.namespace)
        namespace, _, name = arguments.workload.rpartition("/")
        if namespace and arguments.namespace and namespace != arguments.namespace:
            raise UsageError(f'two namespaces: "{namespace}" and "{arguments.namespace}"')
        namespace = namespace or arguments.namespace or target.namespace
        return await asking.named(namespace, name)


def _settings(config: Path | None) -> tuple[Features, tuple[str, ...]]:
    """Feature gates and excluded resources of the assigner."""
    from rackgate.runtime.settings import SettingsError, load_settings
    from rackgate_assigner.settings import AssignerSettings

    try:
        settings = load_settings(AssignerSettings, service="assigner", config=config)
    except (SettingsError, OSError) as error:
        raise UsageError(f"{config}: {error}") from error
    return settings.features, tuple(settings.resources.exclude_resource_prefixes)
