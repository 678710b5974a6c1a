"""Pools and workflows that break rules: every refusal with its file, field, value and remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from rackgate_cli.errors import UsageError
from rackgate_cli.input_files import STDIN
from rackgate_cli.tables import clean
from rackgate_osmo import Refusal, RefusedError

T = TypeVar("T")

_SHOWN: Final = 50  # refusals in one message


class RefusedInputError(UsageError):
    """A pool or a workflow breaks rules.

    Attributes:
        source: its file, or where in the cluster.
        refusals: each of them.
    """

    def __init__(self, source: str, refusals: Sequence[Refusal]) -> None:
        lines = [_line(refusal) for refusal in refusals[:_SHOWN]]
        if len(refusals) > _SHOWN:
            lines.append(f"and {len(refusals) - _SHOWN} more")
        label = "standard input" if source == STDIN else f'"{clean(source)}"'
        super().__init__("\n  ".join([f"{label} is refused:", *lines]))
        self.source, self.refusals = source, tuple(refusals)

    def document(self) -> dict[str, Any]:
        """The refusals for programs."""
        return {
            "refused": [
                {
                    "file": self.source,
                    "at": refusal.at,
                    "why": refusal.why,
                    "path": refusal.path,
                    "value": refusal.value,
                    "message": refusal.message,
                }
                for refusal in self.refusals
            ]
        }


def _line(refusal: Refusal) -> str:
    # By character: a message may be longer than a cell of a table.
    return "".join(map(clean, str(refusal)))


def judged(source: str, read: Callable[[], T]) -> T:
    """What `read` returns.

    Raises:
        RefusedInputError: it raised `RefusedError`; names `source`.
    """
    try:
        return read()
    except RefusedError as error:
        raise RefusedInputError(source, error.refusals) from error
