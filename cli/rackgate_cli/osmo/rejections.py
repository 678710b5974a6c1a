"""Pools and workflows that break rules: every refusal with its file, field, value and remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import STDIN
from rackgate_cli.tables import clean
from rackgate_osmo import RejectedError, Rejection

T = TypeVar("T")

_SHOWN: Final = 50  # refusals in one message


class RejectedInputError(UsageError):
    """A pool or a workflow breaks rules.

    Attributes:
        source: its file, or where in the cluster.
        refusals: each of them.
    """

    def __init__(self, source: str, rejections: Sequence[Rejection]) -> None:
        lines = [_line(rejection) for rejection in rejections[:_SHOWN]]
        if len(rejections) > _SHOWN:
            lines.append(f"and {len(rejections) - _SHOWN} more")
        label = "standard input" if source == STDIN else f'"{clean(source)}"'
        super().__init__("\n  ".join([f"{label} is refused:", *lines]))
        self.source, self.rejections = source, tuple(rejections)

    def document(self) -> dict[str, Any]:
        """The refusals for programs."""
        return {
            "refused": [
                {
                    "file": self.source,
                    "at": rejection.at,
                    "why": rejection.why,
                    "path": rejection.path,
                    "value": rejection.value,
                    "message": rejection.message,
                }
                for rejection in self.rejections
            ]
        }


def _line(rejection: Rejection) -> str:
    # By character: a message may be longer than a cell of a table.
    return "".join(map(clean, str(rejection)))


def read_or_reject(source: str, read: Callable[[], T]) -> T:
    """What `read` returns.

    Raises:
        RejectedInputError: it raised `RejectedError`; names `source`.
    """
    try:
        return read()
    except RejectedError as error:
        raise RejectedInputError(source, error.rejections) from error
