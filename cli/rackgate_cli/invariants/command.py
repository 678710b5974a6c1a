"""`rackgate invariants`: checks the invariants on the objects of a cluster."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Final

from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import add_json, add_target, add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `invariants`."""
    parser = add_verb(
        subparsers,
        "invariants",
        run,
        summary="check the invariants of a cluster, once or continuously",
        description="Checks what Rackgate promises: no pod runs before its Job is admitted or "
        "outside its topology assignment, no domain, node or quota is assigned twice, a stopped "
        "Job releases everything, no object is orphaned, and unmanaged objects are not "
        "changed. Only reads, and shares no accounting code with the services. Lists are read one "
        "after another, so a single reading of a changing cluster may show a state that never "
        "existed: a breach counts only if a second reading shows it, too.",
        examples=(
            "rackgate invariants                        # once",
            "rackgate invariants --watch                # until Ctrl-C: breaches that start or end",
            "rackgate invariants --watch --for 10m --json",
            "rackgate invariants -n team-a              # with the rights of one namespace",
            "rackgate invariants --rules                # what is checked",
        ),
        exit_codes={
            0: "no breach",
            1: "breaches (with --watch: at any time)",
            2: "invalid command line, or the cluster cannot be read (with --watch: at its end)",
        },
        note="Rules that need an object that may not be read are skipped, and named.",
    )
    parser.add_argument(
        "-n", "--namespace", help="check only this one; rules that need all namespaces are skipped"
    )
    add_json(parser, "print JSON; with --watch one line per event")
    parser.add_argument("--rules", action="store_true", help="list the rules and exit")
    parser.add_argument(
        "--watch", action="store_true", help="check continuously, until interrupted"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="TIME",
        help="with --watch: shortest time between two checks (default 1s)",
    )
    parser.add_argument(
        "--for",
        dest="limit",
        type=_seconds,
        metavar="TIME",
        help="with --watch: stop after this time",
    )
    parser.add_argument(
        "--settle",
        type=_seconds,
        default=3.0,
        metavar="TIME",
        help="how long a breach must last to count (default 3s)",
    )
    parser.add_argument(
        "--patience",
        type=_seconds,
        default=60.0,
        metavar="TIME",
        help="how long a state may last that is normal for a while, such as a gated pod that "
        "has capacity (default 1m)",
    )
    add_target(parser)


def _seconds(text: str) -> float:
    """Seconds in "500ms", "10s", "5m", "2h", or a plain number of seconds."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f'"{text}" is not a time: write 10s, 500ms, 5m or 2h')
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
        raise UsageError("--for requires --watch")
    if arguments.limit is not None and arguments.limit <= arguments.settle:
        raise UsageError(
            f"--for {arguments.limit:g}s must be longer than --settle {arguments.settle:g}s"
        )
    try:
        return running.run(arguments)
    except (CommandError, OSError) as error:
        # Exit code 1 means breaches; here nothing was checked.
        raise UsageError(str(error)) from error
    except KeyboardInterrupt as error:
        raise UsageError("interrupted") from error
