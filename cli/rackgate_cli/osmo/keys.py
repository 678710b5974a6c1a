"""`rackgate osmo keys`: the topology keys that workflows of a pool may name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rackgate_cli.osmo.arguments import new_verb
from rackgate_cli.verbs import add_output, add_target

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers
    from rackgate_osmo import Pool


def add_verbs(subparsers: Subparsers) -> None:
    """Add the verb `keys`."""
    parser = new_verb(
        subparsers,
        "keys",
        run,
        summary="list the topology keys of a pool with their node labels",
        description="Lists the topology keys that workflows of a pool may name, coarsest first.",
        examples=(
            "rackgate osmo keys my-pool                        # a pool of the cluster",
            "rackgate osmo keys                                # all pools",
            "rackgate osmo keys my-pool --pool-file pool.yaml  # a pool that is not in the cluster",
        ),
        exit_codes={
            0: "listed",
            1: "there is no such pool, or the cluster cannot be read",
            2: "the command line or the file is invalid",
        },
    )
    parser.add_argument("pool", metavar="POOL", nargs="?", help="its name (default: every pool)")
    parser.add_argument(
        "--pool-file", metavar="FILE", help="read pools from this file; - for standard input"
    )
    add_output(parser, "table")
    add_target(parser)


def run(arguments: argparse.Namespace) -> int:
    """List the keys; return 0."""
    pools = _pools(arguments)
    documents = [
        {
            "pool": pool.name,
            "topology_keys": [{"key": key.key, "label": key.label} for key in pool.topology_keys],
        }
        for pool in pools
    ]
    if arguments.output == "table":
        _show(pools, alone=arguments.pool is not None)
    elif arguments.output == "yaml":
        from rackgate_cli.plain_yaml import show_yaml

        show_yaml({"pools": documents})
    else:
        from rackgate_cli.tables import show_json

        show_json({"pools": documents})
    return 0


def _pools(arguments: argparse.Namespace) -> list[Pool]:
    from rackgate_cli.errors import CommandError
    from rackgate_cli.osmo.inputs import pool_of_cluster, pools_of_cluster, pools_of_file
    from rackgate_cli.tables import clean

    if arguments.pool_file is None:
        if arguments.pool is None:
            return pools_of_cluster(arguments)
        return [pool_of_cluster(arguments, arguments.pool)]
    pools = pools_of_file(arguments.pool_file)
    found = [pool for pool in pools if arguments.pool in (None, pool.name)]
    if not found:
        known = clean(", ".join(pool.name for pool in pools))
        raise CommandError(
            f'"{arguments.pool_file}" has no pool "{clean(arguments.pool)}" (pools: {known})'
        )
    return found


def _show(pools: Sequence[Pool], *, alone: bool) -> None:
    from rackgate_cli.tables import Grid, Line, show

    rows = [
        ([] if alone else [pool.name]) + [str(position), key.key, key.label]
        for pool in pools
        for position, key in enumerate(pool.topology_keys, start=1)
    ]
    headings = ([] if alone else ["POOL"]) + ["LEVEL", "KEY", "NODE LABEL"]
    if rows:
        show([Grid(headings, rows)])
    without = ", ".join(pool.name for pool in pools if not pool.topology_keys)
    if without:
        show([Line(f"no topology keys, so workflows cannot request a topology: {without}")])
    elif not pools:
        show([Line("the cluster has no pools")])
