"""Reading files that users name on the command line, up to a limit."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path
from typing import Final

from rackgate_cli.errors import UsageError

STDIN: Final = "-"
GZIP_MAGIC: Final = b"\x1f\x8b"


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


def read_scenarios_upto(name: str, limit: int) -> bytes:
    """The content of a scenario file, plain or gzipped.

    Args:
        name: of the file; "-" for standard input.
        limit: bytes that the caller accepts, unpacked.

    Raises:
        UsageError: it cannot be read, or has more than `limit`.
    """
    body = read_upto(name, limit)
    if body.startswith(GZIP_MAGIC):
        body = _unpacked(name, body, limit)
    if len(body) > limit:
        raise UsageError(f'"{name}" is larger than {limit >> 20} MiB: split its scenarios')
    return body


def _unpacked(name: str, body: bytes, limit: int) -> bytes:
    # Read only as much as is needed to detect that the file is too large.
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
            return file.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise UsageError(f'"{name}" is not a complete gzip file: {error}') from error
