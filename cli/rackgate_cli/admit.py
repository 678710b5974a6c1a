"""`rackgate admit`: one scheduling cycle on scenario files, without any cluster."""

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

MAX_BYTES: Final = 64 << 20  # of JSON: a hundred thousand Workloads and more


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `admit`."""
    parser = add_verb(
        subparsers,
        "admit",
        run,
        summary="run one scheduling cycle on quota-scenario/1 files, without a cluster",
        description="Reads quota-scenario/1 JSON files: queues, Cohorts, quota, and Workloads that "
        'run or wait. Prints one answer per line, {"id", "expected"} as in the files: what one '
        "scheduling cycle admits and preempts, and why the other Workloads stay pending.",
        examples=("rackgate admit scenarios.json", "rackgate admit - < scenarios.json.gz"),
        exit_codes={0: "answered", 2: "the command line or a file is wrong"},
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="JSON, plain or gzipped; - for standard input"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answers; return 0.

    Raises:
        UsageError: a file cannot be read, or is no scenario file.
    """
    # NumPy takes longer to import than most verbs take to run.
    from rackgate_assigner.quota_scenario.scenario import QuotaScenarioError, answers

    lines: list[str] = []
    for name in arguments.files:
        text = read_scenarios_upto(name, MAX_BYTES)
        try:
            # Compute all answers before printing: a malformed file prints only the error.
            lines += [json.dumps(answer, ensure_ascii=False) for answer in answers(text)]
        except QuotaScenarioError as error:
            raise UsageError(f'"{name}": {error}') from error
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
