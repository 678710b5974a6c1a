"""The `rackgate` command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from rackgate_cli.errors import CommandError, UsageError

_PLAYGROUND = "rackgate_cli.playground.commands"
_QUEUES = "rackgate_cli.queues.command"

# Verb -> module. A module has `add_parser(subparsers)`, which adds its verbs and sets `run`, a
# function from the parsed arguments to the exit code. Only the module of the verb is imported.
VERBS: Final = {
    "demo": "rackgate_cli.demo.demo",
    "up": _PLAYGROUND,
    "down": _PLAYGROUND,
    "status": _PLAYGROUND,
    "scale": _PLAYGROUND,
    "stop": _PLAYGROUND,
    "start": _PLAYGROUND,
    "logs": _PLAYGROUND,
    "kubectl": _PLAYGROUND,
    "binaries": _PLAYGROUND,
    "place": "rackgate_cli.place",
    "admit": "rackgate_cli.admit",
    "explain": "rackgate_cli.explain.command",
    "queues": _QUEUES,
    "workloads": _QUEUES,
    "gang": "rackgate_cli.gang",
    "osmo": "rackgate_cli.osmo.command",
    "invariants": "rackgate_cli.invariants.command",
    "preflight": "rackgate_cli.preflight.command",
    "kueue-config": "rackgate_cli.kueue_config.command",
    "migrate": "rackgate_cli.migrate.command",
    "uninstall": "rackgate_cli.uninstall.command",
}


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of one verb, or of all verbs."""
    parser = argparse.ArgumentParser(
        prog="rackgate",
        description="Topology-aware admission of batch jobs: run a playground on this machine, "
        "explain and check any cluster, and use the placement engine and the scheduler.",
        epilog='Every verb has its own help: "rackgate VERB --help".',
    )
    parser.add_argument("--version", action="version", version=f"rackgate {version('rackgate')}")
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    modules = [VERBS[verb]] if verb in VERBS else dict.fromkeys(VERBS.values())
    for name in modules:
        importlib.import_module(name).add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 for success, 1 for failure, 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = build_parser(words[0] if words else None).parse_args(words)
    try:
        code: int = arguments.run(arguments) or 0
    except UsageError as error:
        print(f"rackgate: {error}", file=sys.stderr)
        return 2
    except (CommandError, OSError) as error:  # OSError: its text names the path
        print(f"rackgate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rackgate: interrupted", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
