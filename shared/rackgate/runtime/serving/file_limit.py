"""The number of files and connections that a process may have open."""

from __future__ import annotations

import resource
from typing import Final

# Beside the connections of callers.
OTHER_FILES: Final = 256


def files_for(max_connections: int) -> int:
    """Open files of a server with so many connections, while as many wait for a slot."""
    return 2 * max_connections + OTHER_FILES


def raise_file_limit(wanted: int) -> None:
    """Raise the soft limit to what is wanted, or as near as the hard limit permits.

    Systems start processes with a soft limit of 1,024 for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
