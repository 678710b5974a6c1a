"""`rackgate osmo`: OSMO pools and workflows as objects of the KAI scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rackgate_cli.osmo import check, explain, keys, render
from rackgate_cli.osmo.apply import command as apply
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `osmo` with its own verbs."""
    parser = add_verb(
        subparsers,
        "osmo",
        None,
        summary="use OSMO pools and workflows with the KAI scheduler",
        description="An OSMO pool names its topology keys. A workflow says which of its tasks "
        "belong together at which key. These verbs create KAI's Topology, PodGroups and pods from "
        "both, and say what KAI would do with them. Only apply writes to a cluster.",
        examples=(
            "rackgate osmo keys my-pool          # the keys that workflows may name",
            "rackgate osmo render -f workflow.yaml --pool pool.yaml | kubectl apply -f -",
            "rackgate osmo apply -f workflow.yaml --pool my-pool -n team-a",
        ),
        exit_codes={
            0: "done",
            1: "the cluster rejects a request, or cannot be read",
            2: "the command line, the pool or the workflow is invalid",
        },
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for module in (keys, render, apply, explain, check):
        module.add_verbs(verbs)
