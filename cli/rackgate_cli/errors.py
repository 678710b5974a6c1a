"""Errors of the command, with messages for its user."""

from __future__ import annotations


class CommandError(Exception):
    """A failure the user can understand and act on; printed without a traceback, exit code 1."""


class UsageError(CommandError):
    """The command line is wrong; exit code 2."""


def first_error(error: BaseException) -> BaseException:
    """The first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
