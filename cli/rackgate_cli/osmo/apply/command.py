"""`rackgate osmo apply`: writes a workflow's objects to a cluster."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from rackgate_cli.cluster import interruptible
from rackgate_cli.osmo.arguments import (
    add_kai,
    add_objects,
    add_tolerations,
    add_workflow,
    new_verb,
)
from rackgate_cli.verbs import add_target

if TYPE_CHECKING:
    from rackgate_cli.cluster.target import ClusterTarget
    from rackgate_cli.osmo.apply.applier import Outcome
    from rackgate_cli.osmo.inputs import Objects
    from rackgate_cli.verbs import Subparsers


def add_verbs(subparsers: Subparsers) -> None:
    """Add the verb `apply`."""
    parser = new_verb(
        subparsers,
        "apply",
        run,
        summary="create or update a workflow's Topology, PodGroups and pods on a cluster",
        description="Creates missing objects and changes those that differ. KAI's Topology is "
        "immutable: if its levels differ, it is deleted and created again, which does not affect "
        "running pods. A PodGroup does not change while it has pods that have not ended, and a pod "
        "never changes: such a change is rejected before anything is written, unless --replace "
        "allows deleting and recreating the pods of the task group.",
        examples=(
            "rackgate osmo apply -f workflow.yaml --pool my-pool -n team-a",
            "rackgate osmo apply -f workflow.yaml --pool pool.yaml --dry-run",
            "rackgate osmo apply -f workflow.yaml --pool my-pool --replace --dry-run",
            "rackgate osmo apply -f workflow.yaml --pool my-pool --state ./mine  # on a playground",
        ),
        exit_codes={
            0: "all objects are up to date",
            1: "the cluster rejected a write; completed writes are printed; run it again to "
            "continue",
            2: "the command line, the pool or the workflow is invalid; nothing is written",
        },
    )
    add_workflow(parser)
    parser.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
    add_kai(parser)
    add_tolerations(parser)
    add_objects(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="send every write as a server-side dry run",
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="delete all pods of each task group that changed, wait until they are gone, and "
        "create the group again; other groups keep running",
    )
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """Apply; return 0. Also prints what was done before an error."""
    from rackgate.kube.errors import KubeError
    from rackgate_cli.cluster.target import target_of
    from rackgate_cli.errors import CommandError
    from rackgate_cli.osmo.apply.applier import Outcome
    from rackgate_cli.osmo.inputs import objects_of
    from rackgate_cli.osmo.render import print_left_out

    cluster_target = target_of(arguments, "osmo")
    found = objects_of(arguments, cluster_target.namespace)
    print_left_out(found)
    outcome = Outcome()
    try:
        interruptible.run(_apply(cluster_target, found, outcome, arguments))
    except (CommandError, KubeError):
        _print(arguments, outcome, complete=False)
        raise
    _print(arguments, outcome, complete=True)
    return 0


async def _apply(
    cluster_target: ClusterTarget, found: Objects, outcome: Outcome, arguments: argparse.Namespace
) -> None:
    from rackgate.api.resources import KAI_POD_GROUPS
    from rackgate_cli.osmo.apply.applier import Applier
    from rackgate_cli.osmo.apply.preconditions import (
        check_served,
        has_pool,
        missing_queue,
        nodes_outside_pool_warning,
        of_pool,
        topologies_of,
    )

    topology, groups = found.built.topology, found.built.pod_groups
    async with cluster_target.client() as client:
        await check_served(client, KAI_POD_GROUPS)
        if topology is not None:
            await check_served(client, topologies_of(topology["apiVersion"]))
        pool = found.inputs.pool
        saved = found.inputs.pool_of_cluster or await has_pool(client, pool)
        if topology is not None and saved:
            topology = of_pool(topology, pool)
        for warning in (
            await missing_queue(client, pool),
            await nodes_outside_pool_warning(client, pool),
        ):
            if warning is not None:
                outcome.warnings.append(warning)
        namespace = groups[0]["metadata"]["namespace"]
        applier = Applier(
            client,
            namespace,
            outcome,
            dry_run=arguments.dry_run,
            replacing=arguments.replace,
        )
        await applier.apply(topology, groups, found.pods)


def _print(arguments: argparse.Namespace, outcome: Outcome, *, complete: bool) -> None:
    from rackgate_cli.tables import Block, Grid, Line, show, show_json

    if arguments.json:
        document = {
            "complete": complete,
            "dryRun": arguments.dry_run,
            "objects": [asdict(result) for result in outcome.results],
            "warnings": outcome.warnings,
        }
        show_json(document)
        return
    blocks: list[Block] = []
    if outcome.results:
        rows = [
            [result.kind, result.namespace or "", result.name, result.result, result.note]
            for result in outcome.results
        ]
        blocks.append(Grid(["KIND", "NAMESPACE", "NAME", "RESULT", "NOTE"], rows))
    blocks += [Line(f"warning: {warning}", "yellow") for warning in outcome.warnings]
    if arguments.dry_run and complete:
        blocks.append(Line("dry run: nothing was written"))
    show(blocks)
