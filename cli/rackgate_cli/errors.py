"""What the command tells its user when something cannot be done."""

from __future__ import annotations


class CommandError(Exception):
    """A failure the user can understand and act on; printed without a traceback, exit code 1."""


class UsageError(CommandError):
    """The command line cannot mean anything; exit code 2."""
