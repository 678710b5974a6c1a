"""Reading files that users name on the command line, up to a limit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from rackgate_cli.errors import UsageError

STDIN: Final = "-"


def read_upto(name: str, limit: int) -> bytes:
    """The content of a file; `limit + 1` bytes if it has more than `limit`.

    Args:
        name: of the file; "-" for standard input.
        limit: bytes that the caller accepts.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        if name == STDIN:
            return sys.stdin.buffer.read(limit + 1)
        with Path(name).open("rb") as file:
            return file.read(limit + 1)
    except (OSError, ValueError) as error:  # ValueError: the name has a null byte
        reason = error.strerror if isinstance(error, OSError) else None
        raise UsageError(f'"{name[:200]}" cannot be read: {reason or error}') from error
