"""Asks before something is deleted."""

from __future__ import annotations

import sys

from rackgate_cli.errors import UsageError


def confirmed(question: str) -> bool:
    """Whether the user types "yes"; the end of the input is a no.

    Raises:
        UsageError: no one can be asked.
    """
    if not sys.stdin.isatty():
        raise UsageError("cannot ask: standard input is not a terminal; confirm with --yes")
    try:
        return input(f'{question} Type "yes" to confirm: ').strip() == "yes"
    except EOFError:
        print(file=sys.stderr)  # ends the line of the question
        return False
