"""The program `kubectl_complete-rackgate`: completes `kubectl rackgate`."""

from __future__ import annotations

import io
import os
import shlex
import sys
from typing import Final, NoReturn

import argcomplete

from rackgate_cli import completion
from rackgate_cli.__main__ import build_parser

# What kubectl expects after the candidates: 4, do not complete names of files.
_DIRECTIVE: Final = b":4"


def main() -> None:
    """Print what the last argument may become, one candidate in a line, as kubectl expects.

    The process ends soon: argcomplete takes over file descriptors.
    """
    words = sys.argv[1:]
    line = " ".join(["rackgate", *map(shlex.quote, words[:-1]), *words[-1:]])
    os.environ |= {
        completion.ASKED: "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_SHELL": "fish",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    answer = io.BytesIO()

    def end(_code: int = 0) -> NoReturn:
        # With fish, each candidate has its help after a tab.
        found = [one.partition(b"\t")[0].strip() for one in answer.getvalue().split(b"\n")]
        lines = [*filter(None, found), _DIRECTIVE]
        sys.stdout.buffer.write(b"".join(one + b"\n" for one in lines))
        sys.stdout.flush()
        sys.exit()

    parser = build_parser(words[0] if len(words) > 1 else None)
    stream = io.TextIOWrapper(answer, encoding="utf-8", write_through=True)
    argcomplete.autocomplete(parser, exit_method=end, output_stream=stream)
