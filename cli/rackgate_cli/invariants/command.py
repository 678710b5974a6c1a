"""`rackgate invariants`: does this cluster keep every promise?"""

from __future__ import annotations

import argparse
import re
import textwrap
from typing import TYPE_CHECKING, Final

from rackgate_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    # What add_parser gets; argparse has no public name for it.
    from argparse import _SubParsersAction

_DESCRIPTION: Final = (
    "Checks a cluster against Rackgate's promises: no pod runs before its Job is admitted or "
    "outside its place, no domain, node or quota is given twice, a stop gives everything back, "
    "nothing is forgotten, and what is not governed is left alone. Only reads, and counts for "
    "itself: it shares no accounting with the services. What one reading shows of a cluster that "
    "moves may never have been so, for its lists are read one after another: only what a second "
    "reading shows too is a breach."
)
_EPILOG: Final = """examples:
  rackgate invariants                        # once
  rackgate invariants --watch                # until Ctrl-C: each breach when it begins and ends
  rackgate invariants --watch --for 10m --json
  rackgate invariants -n team-a              # with the rights of one namespace
  rackgate invariants --rules                # what is checked

exit codes:
  0  no breach
  1  breaches (with --watch: at any time)
  2  the command line is wrong, or the cluster cannot be read (with --watch: nor at its end)

What may not be read is said, and the rules that need it are left out."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `invariants`."""
    parser = subparsers.add_parser(
        "invariants",
        help="check a cluster against every promise, once or for as long as you watch",
        description=textwrap.fill(_DESCRIPTION, 80),
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-n", "--namespace", help="only this one; what needs all of them is left out"
    )
    parser.add_argument("--json", action="store_true", help="for programs; with --watch: lines")
    parser.add_argument("--rules", action="store_true", help="list the rules and end")
    parser.add_argument("--watch", action="store_true", help="keep watching, until interrupted")
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="TIME",
        help="with --watch: least time between two judgements (default 1s)",
    )
    parser.add_argument(
        "--for", dest="limit", type=_seconds, metavar="TIME", help="with --watch: end after this"
    )
    parser.add_argument(
        "--settle",
        type=_seconds,
        default=3.0,
        metavar="TIME",
        help="how long a breach must stay to count (default 3s)",
    )
    parser.add_argument(
        "--patience",
        type=_seconds,
        default=60.0,
        metavar="TIME",
        help="how long what passes by itself may last, such as a gated pod that has room "
        "(default 1m)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--state", metavar="DIR", help="folder of a playground (see $RACKGATE_STATE)"
    )
    where.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config")
    parser.add_argument("--context", help="context of the kubeconfig")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    """Seconds in "500ms", "10s", "5m", "2h", or a plain number of seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f'"{text}" is no time: write 10s, 500ms, 5m or 2h')
    found = float(match[1]) * _UNITS[match[2] or "s"]
    if not 0.1 <= found <= 31 * 86400:
        raise argparse.ArgumentTypeError(f'"{text}" is not between 100ms and 31 days')
    return found


def run(arguments: argparse.Namespace) -> int:
    """Check; return the exit code.

    Raises:
        UsageError: the command line is wrong, or the cluster cannot be read: nothing was checked.
            A watch that loses the cluster before its end returns 2 instead, after its summary.
    """
    # The client takes longer to import than most verbs take to run.
    from rackgate_cli.invariants import run as running
    from rackgate_cli.invariants import view
    from rackgate_cli.tables import show

    if arguments.rules:
        show(view.rules())
        return 0
    if arguments.limit is not None and not arguments.watch:
        raise UsageError("--for says how long to watch: it needs --watch")
    if arguments.limit is not None and arguments.limit <= arguments.settle:
        raise UsageError(
            f"--for {arguments.limit:g}s ends before anything counts "
            f"(--settle {arguments.settle:g}s)"
        )
    if arguments.state is not None and arguments.context is not None:
        raise UsageError(
            "--context chooses in a kubeconfig; a playground (--state) has one cluster"
        )
    try:
        return running.run(arguments)
    except (CommandError, OSError) as error:
        # 1 says that breaches were found; here nothing was checked, or nobody reads the answer.
        raise UsageError(str(error)) from error
    except KeyboardInterrupt as error:
        raise UsageError("interrupted") from error
