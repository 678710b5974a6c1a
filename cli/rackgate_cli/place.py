"""`rackgate place`: the placement engine on scenario files, without any cluster."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import sys
import zlib
from typing import TYPE_CHECKING, Final

from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import read_upto
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers

GZIP_MAGIC: Final = b"\x1f\x8b"
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
        exit_codes={0: "answered", 2: "the command line or the file is wrong"},
    )
    parser.add_argument("file", metavar="FILE", help="JSON, plain or gzipped; - for standard input")


def run(arguments: argparse.Namespace) -> int:
    """Print the answers; return 0.

    Raises:
        UsageError: the file cannot be read, or is no scenario file.
    """
    # NumPy takes longer to import than most verbs take to run.
    from rackgate_assigner.scenario.scenario import ScenarioError, answers

    text = _read(arguments.file)
    try:
        # Compute all answers before printing: a malformed file prints only the error.
        lines = [json.dumps(answer, ensure_ascii=False) for answer in answers(text)]
    except ScenarioError as error:
        raise UsageError(f'"{arguments.file}": {error}') from error
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _read(name: str) -> bytes:
    body = read_upto(name, MAX_BYTES)
    if body.startswith(GZIP_MAGIC):
        body = _unpacked(name, body)
    if len(body) > MAX_BYTES:
        raise UsageError(f'"{name}" has more than {MAX_BYTES >> 20} MiB: split its scenarios')
    return body


def _unpacked(name: str, body: bytes) -> bytes:
    # Read only as much as is needed to detect that the file is too large.
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(MAX_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f'"{name}" is not a complete gzip file: {error}') from error
