"""`rackgate osmo`: OSMO pools and workflows as objects of the KAI scheduler."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # What add_parser gets; argparse has no public name for it.
    from argparse import _SubParsersAction

# Each module has `add_verbs(subparsers)`, which adds its verbs under `rackgate osmo` and sets
# `run`, a function from the parsed arguments to the exit code.
MODULES: Final = (
    "rackgate_cli.osmo.keys",
    "rackgate_cli.osmo.render",
    "rackgate_cli.osmo.apply.command",
    "rackgate_cli.osmo.explain",
    "rackgate_cli.osmo.check",
)

_DESCRIPTION: Final = (
    "An OSMO pool names its topology keys, a workflow says which of its tasks belong together at "
    "which key. These verbs make KAI's Topology, PodGroups and pods of both, and tell what KAI "
    "would do with them. Only apply writes to a cluster."
)
_EPILOG: Final = """examples:
  rackgate osmo keys my-pool                                # the keys that workflows may name
  rackgate osmo render -f workflow.yaml --pool pool.yaml | kubectl apply -f -
  rackgate osmo apply -f workflow.yaml --pool my-pool -n team-a

exit codes:
  0  done
  1  the cluster rejects a request, or cannot be read
  2  the command line, the pool or the workflow is invalid"""


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `osmo` with those of its own verbs whose modules are installed."""
    parser = subparsers.add_parser(
        "osmo",
        help="OSMO pools and workflows to objects of the KAI scheduler",
        description=textwrap.fill(_DESCRIPTION, 80),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name in MODULES:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name).add_verbs(verbs)
