"""`rackgate place`: the placement engine on scenario files, without any cluster."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rackgate_cli.errors import UsageError

if TYPE_CHECKING:
    # What add_parser gets; argparse has no public name for it.
    from argparse import _SubParsersAction

GZIP_MAGIC: Final = b"\x1f\x8b"
STDIN: Final = "-"


def add_parser(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb `place`."""
    parser = subparsers.add_parser(
        "place",
        help="answer placement questions of a tas-scenario/1 file",
        description="Read placement questions (nodes, usage, PodSets) from a tas-scenario/1 JSON "
        'file and print one answer per line, {"id", "expected"} as in the file: an assignment or '
        "the reason why there is none, for every PodSet.",
    )
    parser.add_argument(
        "file", metavar="FILE", help="scenario file, plain or gzipped JSON; - for standard input"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the answers; return 0.

    Raises:
        UsageError: the file cannot be read, or is no scenario file.
    """
    # NumPy takes longer to import than most verbs take to run.
    from rackgate_assigner.scenario import ScenarioError, answers

    text = _read(arguments.file)
    try:
        # All answers before the first line: a bad file prints nothing but the error.
        lines = [json.dumps(answer, ensure_ascii=False) for answer in answers(text)]
    except ScenarioError as error:
        raise UsageError(f'"{arguments.file}": {error}') from error
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _read(name: str) -> bytes:
    try:
        body = sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f'"{name}" cannot be read: {error.strerror or error}') from error
    if not body.startswith(GZIP_MAGIC):
        return body
    try:
        return gzip.decompress(body)
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f'"{name}" is not a whole gzip file: {error}') from error
