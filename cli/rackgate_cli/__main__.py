"""The `rackgate` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.verbs import VerbParser, did_you_mean

_PLAYGROUND = "rackgate_cli.playground.commands"
_GET = "rackgate_cli.get.command"
_JOBS = "rackgate_cli.jobs.command"

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
    "kubectl": _PLAYGROUND,
    "binaries": _PLAYGROUND,
    "place": "rackgate_cli.place",
    "admit": "rackgate_cli.admit",
    "explain": "rackgate_cli.explain.command",
    "get": _GET,
    "queues": _GET,
    "workloads": _GET,
    "hold": _JOBS,
    "resume": _JOBS,
    "requeue": _JOBS,
    "cancel": _JOBS,
    "logs": _JOBS,
    "console": "rackgate_console.command",
    "gang": "rackgate_cli.gang",
    "osmo": "rackgate_cli.osmo.command",
    "invariants": "rackgate_cli.invariants.command",
    "preflight": "rackgate_cli.preflight.command",
    "kueue-config": "rackgate_cli.kueue_config.command",
    "migrate": "rackgate_cli.migrate.command",
    "uninstall": "rackgate_cli.uninstall.command",
    "completion": "rackgate_cli.completion",
}
# What follows its own flags belongs to another program.
_KUBECTL: Final = "kubectl"
# Set by the shell when it asks for completions.
_COMPLETING: Final = "_ARGCOMPLETE"


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of one verb, or of all verbs."""
    return _parsers(verb)[0]


def _parsers(verb: str | None) -> tuple[VerbParser, dict[str, argparse.ArgumentParser]]:
    """The parser of the command, and those of its verbs."""
    parser = VerbParser(
        prog="rackgate",
        description="Topology-aware admission of batch jobs: run a playground on this machine, "
        "see and control jobs of any cluster, explain and check it, and use the placement engine "
        "and the scheduler.",
        epilog='Every verb has its own help: "rackgate VERB --help".',
    )
    parser.add_argument("--version", action="version", version=f"rackgate {version('rackgate')}")
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    modules = [VERBS[verb]] if verb in VERBS else dict.fromkeys(VERBS.values())
    for name in modules:
        importlib.import_module(name).add_parser(subparsers)
    return parser, dict(subparsers.choices)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; flags may stand before, between and after names, as with kubectl."""
    verb = words[0] if words else ""
    if verb and not verb.startswith("-") and verb not in VERBS:
        hint = did_you_mean(verb, VERBS) or '; "rackgate --help" lists all verbs'
        raise UsageError(f'unknown verb "{verb}"{hint}')
    parser, verbs = _parsers(verb)
    chosen = verbs.get(verb)
    if chosen is None or chosen.get_default("run") is None or verb == _KUBECTL:
        return parser.parse_args(words)
    return chosen.parse_intermixed_args(words[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 for success, 1 for failure, 2 for wrong usage."""
    if _COMPLETING in os.environ:
        from rackgate_cli.completion import complete

        complete(build_parser)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parse(words)
        code: int = arguments.run(arguments) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has enough, such as `head`. Nothing is left to be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
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
