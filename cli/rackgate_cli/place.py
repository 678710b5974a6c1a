"""`rackgate place`: the placement engine on scenario files, without any cluster."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Final

from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import read_scenarios_upto
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers

MAX_BYTES: Final = 256 << 20  # of JSON: twenty scenarios of 40,000 nodes and more


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `place`."""
    parser = add_verb(
        subparsers,
        "place",
        run,
        summary="run the placement engine on a tas-scenario/1 file, without a cluster",
        description="Reads placement questions (nodes, usage, PodSets) from a tas-scenario/1 JSON "
        'file and prints one answer per line, {"id", "expected"} as in the file: for every PodSet '
        "a topology assignment, or the reason why there is none.",
        examples=("rackgate place scenarios.json", "rackgate place - < scenarios.json.gz"),
        exit_codes={0: "answered", 2: "the command line or the file is invalid"},
    )
    parser.add_argument("file", metavar="FILE", help="JSON, plain or gzipped; - for standard input")


def run(arguments: argparse.Namespace) -> int:
    """Print the answers; return 0.

    Raises:
        UsageError: the file cannot be read, or is no scenario file.
    """
    # NumPy takes longer to import than most verbs take to run.
    from rackgate_assigner.scenario.scenario import ScenarioError, answers

    text = read_scenarios_upto(arguments.file, MAX_BYTES)
    try:
        # Compute all answers before printing: a malformed file prints only the error.
        lines = [json.dumps(answer, ensure_ascii=False) for answer in answers(text)]
    except ScenarioError as error:
        raise UsageError(f'"{arguments.file}": {error}') from error
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
